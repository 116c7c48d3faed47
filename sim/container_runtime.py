"""The kubelet and the container runtime of a simulated node, with the file layout of each distribution."""

import os
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TOOLKIT_PROGRAM = "usr/bin/nvidia-container-runtime"
OPERATORS_PROGRAM = "usr/local/nvidia/toolkit/nvidia-container-runtime"
STANDARD_FILE = "etc/containerd/config.toml"
# Modification time of every file: the build of the image, so that files are older than all processes.
IMAGE_MADE = 1_750_000_000
_TICKS_PER_SECOND = 100
_FIRST_PID = 901
_FIRST_INODE = 77001
_FIRST_DESCRIPTOR = 3
_MOUNTS_OF_HOST = "mnt:[4026531841]"
STANDARD_SOCKET = "/run/containerd/containerd.sock"
_MACHINES = {"x86_64": 62, "aarch64": 183}
"""e_machine of ELF (elf.h)."""

V2 = 'plugins."io.containerd.grpc.v1.cri"'
V3 = 'plugins."io.containerd.cri.v1.runtime"'


def handler(section: str, name: str, program: str = "", *, systemd_cgroup: bool = True) -> str:
    """Return the tables that define the handler."""
    table = f"{section}.containerd.runtimes.{name}"
    lines = [f"[{table}]", 'runtime_type = "io.containerd.runc.v2"', f"[{table}.options]"]
    lines += [f'BinaryName = "{program}"', f"SystemdCgroup = {str(systemd_cgroup).lower()}"]
    return "\n".join(lines) + "\n"


def default(section: str, name: str) -> str:
    return f'[{section}.containerd]\ndefault_runtime_name = "{name}"\n'


RUNC_V2, RUNC_V3 = handler(V2, "runc"), handler(V3, "runc")
NVIDIA_V2 = handler(V2, "nvidia", f"/{TOOLKIT_PROGRAM}")
NVIDIA_V3 = handler(V3, "nvidia", f"/{TOOLKIT_PROGRAM}")


@dataclass(frozen=True)
class Running:
    """Process: name, arguments, service, and listening sockets.

    `program`: the executable; by default the first argument.
    """

    comm: str
    words: tuple[str, ...]
    unit: str = ""
    listens: tuple[str, ...] = ()
    program: str = ""


@dataclass(frozen=True)
class Distribution:
    """Layout: `files` and `programs` below the root; `links` by path."""

    files: Mapping[str, str]
    processes: tuple[Running, ...]
    programs: tuple[str, ...] = (TOOLKIT_PROGRAM,)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()


_CONTAINERD = Running("containerd", ("/usr/bin/containerd",), "containerd.service", (STANDARD_SOCKET,))


def _kubelet(*words: str, program: str = "/usr/bin/kubelet", unit: str = "kubelet.service") -> Running:
    return Running("kubelet", (program, *words), unit)


def _kubelet_config(socket: str = "", driver: str = "systemd") -> str:
    endpoint = f"containerRuntimeEndpoint: unix://{socket}\n" if socket else ""
    return f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: {driver}\n{endpoint}"


def _eks(config: str) -> Distribution:
    kubelet = _kubelet("--config=/etc/kubernetes/kubelet/config.json")
    message = '{"kind": "KubeletConfiguration", "cgroupDriver": "systemd", "containerRuntimeEndpoint": "SOCKET"}'
    files = {
        STANDARD_FILE: config,
        "etc/kubernetes/kubelet/config.json": message.replace("SOCKET", f"unix://{STANDARD_SOCKET}"),
        "etc/eks/kubelet/environment": 'NODEADM_KUBELET_ARGS="--cloud-provider=external"',
    }
    return Distribution(files, (_CONTAINERD, kubelet))


def _snap_files(base: str, config: str) -> dict[str, str]:
    main = f"version = 2\nimports = ['{base}/etc/containerd/conf.d/*.toml']\n{default(V2, 'runc')}{RUNC_V2}"
    arguments = "var/snap/k8s/common/args"
    return {
        f"{base}/etc/containerd/config.toml".lstrip("/"): main,
        f"{base}/etc/containerd/conf.d/99-nvidia.toml".lstrip("/"): config,
        f"{arguments}/containerd": f'--address="{base}{STANDARD_SOCKET}"\n--config="{base}/{STANDARD_FILE}"\n',
        f"{arguments}/kubelet": f'--anonymous-auth=false\n--container-runtime-endpoint="{base}{STANDARD_SOCKET}"\n',
    }


def _snap_processes(base: str) -> tuple[Running, Running]:
    socket = f"{base}{STANDARD_SOCKET}"
    containerd = ("/snap/k8s/3000/bin/containerd", f"--config={base}/{STANDARD_FILE}", f"--address={socket}")
    return (
        Running("containerd", containerd, "snap.k8s.containerd.service", (socket,)),
        _kubelet(
            f"--container-runtime-endpoint={socket}",
            program="/snap/k8s/3000/bin/kubelet",
            unit="snap.k8s.kubelet.service",
        ),
    )


def _k8s_snap(base: str) -> Distribution:
    """Return Canonical Kubernetes from the snap. `base`: its containerd's folder if Docker's was installed first."""
    nvidia = f"version = 2\n{RUNC_V2}{handler(V2, 'nvidia', f'/{OPERATORS_PROGRAM}')}"
    dockers = {STANDARD_FILE: f"version = 2\n{RUNC_V2}"} if base else {}
    return Distribution(
        {**_snap_files(base, nvidia), **dockers},
        ((_CONTAINERD,) if base else ()) + _snap_processes(base),
        (TOOLKIT_PROGRAM, OPERATORS_PROGRAM),
    )


_RANCHER = "/var/lib/rancher"
_K3S_FILE = f"{_RANCHER}/k3s/agent/etc/containerd/config.toml"
_RKE2_FILE = f"{_RANCHER}/rke2/agent/etc/containerd/config.toml"
_K3S_SOCKET = "/run/k3s/containerd/containerd.sock"
_SNAP_BASE = "/var/lib/k8s-containerd/k8s-containerd"
_SNAP_BASE_SINCE_1_36 = "/var/lib/k8s-containerd"
_MICROK8S_SOCKET = "/var/snap/microk8s/common/run/containerd.sock"
_MICROK8S_ARGS = "/var/snap/microk8s/6089/args"
_K0S_SOCKET = "/run/k0s/containerd.sock"
_RANCHERS = (
    f'# File generated by k3s. DO NOT EDIT.\nversion = 3\n[grpc]\naddress = "{_K3S_SOCKET}"\n{RUNC_V3}{NVIDIA_V3}'
)


def _ranchers(name: str, defaults: str) -> dict[str, str]:
    """Return the generated configuration of containerd, and the kubelet's drop-ins (since 1.32)."""
    folder = f"var/lib/rancher/{name}/agent/etc"
    return {
        f"{folder}/containerd/config.toml": _RANCHERS,
        f"{folder}/kubelet.conf.d/{defaults}": _kubelet_config(_K3S_SOCKET),
    }


_CRIO_MAIN = """[crio.runtime]
default_runtime = "crun"
cgroup_manager = "systemd"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
runtime_type = "oci"
"""
_CRIO_NVIDIA = f"""[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.nvidia]
runtime_path = "/{OPERATORS_PROGRAM}"
runtime_type = "oci"
"""
_DAEMON_JSON = f"""{{
  "default-runtime": "nvidia",
  "exec-opts": ["native.cgroupdriver=systemd"],
  "runtimes": {{"nvidia": {{"path": "/{TOOLKIT_PROGRAM}", "runtimeArgs": []}}}}
}}
"""

DISTRIBUTIONS = {
    "kubeadm": Distribution(
        {
            STANDARD_FILE: f"version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n{default(V2, 'runc')}{RUNC_V2}",
            # The toolkit copies the whole table into its drop-in, since containerd 1 would lose the rest.
            "etc/containerd/conf.d/99-nvidia.toml": f"version = 2\n{default(V2, 'nvidia')}{RUNC_V2}"
            + handler(V2, "nvidia", f"/{OPERATORS_PROGRAM}"),
            "var/lib/kubelet/config.yaml": _kubelet_config(),
            "var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS="
            f'"--container-runtime-endpoint=unix:///var{STANDARD_SOCKET} --pod-infra-container-image=pause:3.10"',
        },
        (
            _CONTAINERD,
            _kubelet(
                "--config=/var/lib/kubelet/config.yaml",
                f"--container-runtime-endpoint=unix:///var{STANDARD_SOCKET}",
            ),
        ),
        (OPERATORS_PROGRAM,),
    ),
    "eks-al2023": _eks(f"version = 3\n[{V3}]\nenable_cdi = true\n{default(V3, 'nvidia')}{NVIDIA_V3}"),
    "eks-al2023-containerd-1": _eks(
        f"version = 2\n[{V2}]\nenable_cdi = true\n{default(V2, 'nvidia')}{RUNC_V2}{NVIDIA_V2}"
    ),
    "eks-al2": Distribution(
        {
            STANDARD_FILE: f"version = 2\n{default(V2, 'nvidia')}{NVIDIA_V2}",
            "etc/kubernetes/kubelet/kubelet-config.json": '{"kind": "KubeletConfiguration", "cgroupDriver": "systemd"}',
            "etc/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet \\\n"
            "    --config /etc/kubernetes/kubelet/kubelet-config.json \\\n"
            f"    --container-runtime-endpoint=unix://{STANDARD_SOCKET} \\\n    $KUBELET_EXTRA_ARGS\n",
        },
        (
            _CONTAINERD,
            _kubelet(
                *("--config", "/etc/kubernetes/kubelet/kubelet-config.json"),
                f"--container-runtime-endpoint=unix://{STANDARD_SOCKET}",
            ),
        ),
    ),
    "eks-ubuntu": Distribution(
        {
            STANDARD_FILE: f"version = 2\n{default(V2, 'nvidia')}{RUNC_V2}{NVIDIA_V2}",
            "var/snap/kubelet-eks/current/args": f"--cgroup-driver=systemd\n"
            f"--container-runtime-endpoint=unix://{STANDARD_SOCKET}\n",
        },
        (
            _CONTAINERD,
            _kubelet(
                "--cgroup-driver=systemd",
                f"--container-runtime-endpoint=unix://{STANDARD_SOCKET}",
                program="/snap/kubelet-eks/240/kubelet",
                unit="snap.kubelet-eks.daemon.service",
            ),
        ),
    ),
    "bottlerocket": Distribution(
        {
            STANDARD_FILE: f'version = 3\nimports = ["/etc/containerd/config.d/*.toml"]\n{default(V3, "nvidia")}',
            "etc/containerd/config.d/nvidia.toml": "version = 3\n"
            + handler(V3, "nvidia", "nvidia-container-runtime")
            + handler(V3, "nvidia-cdi", "nvidia-container-runtime.cdi")
            + handler(V3, "nvidia-legacy", "nvidia-container-runtime.legacy"),
            "etc/kubernetes/kubelet/config": _kubelet_config(STANDARD_SOCKET),
        },
        (_CONTAINERD, _kubelet("--config", "/etc/kubernetes/kubelet/config")),
        (TOOLKIT_PROGRAM, f"{TOOLKIT_PROGRAM}.cdi", f"{TOOLKIT_PROGRAM}.legacy"),
    ),
    "k3s": Distribution(
        _ranchers("k3s", "00-k3s-defaults.conf"),
        (
            # k3s hides its own flags.
            Running("k3s-agent", ("/usr/local/bin/k3s agent",), "k3s-agent.service", (), "/usr/local/bin/k3s"),
            Running("containerd", ("containerd", "-c", _K3S_FILE), "k3s-agent.service", (_K3S_SOCKET,)),
        ),
    ),
    "rke2": Distribution(
        _ranchers("rke2", "00-rke2-defaults.conf"),
        (
            Running("rke2", ("/usr/local/bin/rke2 agent",), "rke2-agent.service", (), "/usr/local/bin/rke2"),
            Running("containerd", ("containerd", "-c", _RKE2_FILE), "rke2-agent.service", (_K3S_SOCKET,)),
            Running(
                "kubelet",
                ("kubelet", f"--config-dir={_RANCHER}/rke2/agent/etc/kubelet.conf.d"),
                "rke2-agent.service",
                (),
                f"{_RANCHER}/rke2/data/v1.34.1-rke2r1/bin/kubelet",
            ),
        ),
    ),
    "microk8s": Distribution(
        {
            # MicroK8s defines the second handler on every node, without its program.
            f"{_MICROK8S_ARGS}/containerd.toml".lstrip("/"): f"version = 2\n{default(V2, 'nvidia')}{RUNC_V2}"
            + handler(V2, "nvidia", f"/{OPERATORS_PROGRAM}")
            + handler(V2, "nvidia-container-runtime", "nvidia-container-runtime"),
            f"{_MICROK8S_ARGS}/containerd".lstrip("/"): "--config ${SNAP_DATA}/args/containerd.toml\n"
            "--address ${SNAP_COMMON}/run/containerd.sock\n",
            f"{_MICROK8S_ARGS}/kubelet".lstrip("/"): "--anonymous-auth=false\n"
            "--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n",
        },
        (
            Running(
                "kubelite",
                ("/snap/microk8s/6089/kubelite", f"--kubelet-args-file={_MICROK8S_ARGS}/kubelet"),
                "snap.microk8s.daemon-kubelite.service",
            ),
            Running(
                "containerd",
                (
                    "/snap/microk8s/6089/bin/containerd",
                    *("--config", f"{_MICROK8S_ARGS}/containerd.toml"),
                    *("--address", _MICROK8S_SOCKET),
                ),
                "snap.microk8s.daemon-containerd.service",
                (_MICROK8S_SOCKET,),
            ),
        ),
        (OPERATORS_PROGRAM,),
        {"var/snap/microk8s/current": "6089"},
    ),
    "k8s-snap": _k8s_snap(_SNAP_BASE),
    "k8s-snap-since-1.36": _k8s_snap(_SNAP_BASE_SINCE_1_36),
    "k8s-snap-in-the-standard-place": _k8s_snap(""),
    # A fault: a node of the snap, with the toolkit configured for the containerd at the standard path.
    "two-containerds": Distribution(
        {
            **_snap_files(_SNAP_BASE, "version = 2\n# Nothing but a registry.\n"),
            STANDARD_FILE: f"version = 2\n# NVIDIA Container Runtime Configuration\n{NVIDIA_V2}"
            f"# Set NVIDIA as default runtime for GPU workloads\n{default(V2, 'nvidia')}",
        },
        (_CONTAINERD, *_snap_processes(_SNAP_BASE)),
        (TOOLKIT_PROGRAM, OPERATORS_PROGRAM),
    ),
    "aks": Distribution(
        {
            STANDARD_FILE: f"version = 2\n{default(V2, 'nvidia-container-runtime')}{RUNC_V2}"
            + handler(V2, "nvidia-container-runtime", f"/{TOOLKIT_PROGRAM}"),
            "etc/kubernetes/azure.json": "{}",
            "etc/default/kubelet": f"KUBELET_FLAGS=--container-runtime-endpoint=unix://{STANDARD_SOCKET}",
        },
        (
            _CONTAINERD,
            _kubelet("--container-runtime-endpoint", STANDARD_SOCKET, program="/usr/local/bin/kubelet"),
        ),
    ),
    "gke": Distribution(
        {
            STANDARD_FILE: f"version = 2\n{RUNC_V2}",
            "home/kubernetes/kubelet-config.yaml": _kubelet_config(),
        },
        (
            _CONTAINERD,
            _kubelet(*("--config", "/home/kubernetes/kubelet-config.yaml"), program="/home/kubernetes/bin/kubelet"),
        ),
        programs=(),
        folders=("home/kubernetes/bin/nvidia",),
    ),
    "k0s": Distribution(
        {
            "etc/k0s/containerd.toml": "# k0s_managed=true\nversion = 3\nimports = ['/etc/k0s/containerd.d/*.toml']\n",
            "etc/k0s/containerd.d/nvidia.toml": f"version = 3\n{NVIDIA_V3}",
            "var/lib/k0s/kubelet-config.yaml": _kubelet_config(_K0S_SOCKET),
        },
        (
            Running("k0s", ("/usr/local/bin/k0s", "worker"), "k0sworker.service"),
            Running(
                "containerd",
                (
                    "/var/lib/k0s/bin/containerd",
                    f"--address={_K0S_SOCKET}",
                    "--config=/etc/k0s/containerd.toml",
                ),
                "k0sworker.service",
                (_K0S_SOCKET,),
            ),
            _kubelet(
                "--config=/var/lib/k0s/kubelet-config.yaml",
                program="/var/lib/k0s/bin/kubelet",
                unit="k0sworker.service",
            ),
        ),
    ),
    "talos": Distribution(
        {
            "etc/cri/containerd.toml": "version = 3\nimports = ['/etc/cri/conf.d/cri.toml']\n",
            "etc/cri/conf.d/cri.toml": "version = 3\n"
            + handler(V3, "nvidia", "/usr/local/bin/nvidia-container-runtime"),
            "etc/cri/conf.d/10-nvidia-container-runtime.part": "",
            "etc/kubernetes/kubelet.yaml": _kubelet_config(STANDARD_SOCKET, "cgroupfs"),
        },
        (
            Running("containerd", ("/bin/containerd", "--address", "/system/run/containerd/containerd.sock")),
            Running(
                "containerd",
                ("/bin/containerd", "--address", STANDARD_SOCKET, "--config", "/etc/cri/containerd.toml"),
                listens=(STANDARD_SOCKET,),
            ),
            _kubelet("--config=/etc/kubernetes/kubelet.yaml", program="/usr/local/bin/kubelet", unit=""),
        ),
        ("usr/local/bin/nvidia-container-runtime",),
    ),
    "openshift": Distribution(
        {
            "etc/crio/crio.conf.d/00-default": _CRIO_MAIN,
            "etc/crio/crio.conf.d/99-nvidia.conf": _CRIO_NVIDIA,
            "etc/kubernetes/kubelet.conf": _kubelet_config(),
            "etc/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet \\\n"
            "      --config=/etc/kubernetes/kubelet.conf \\\n"
            "      --container-runtime-endpoint=/var/run/crio/crio.sock\n",
        },
        (
            Running("crio", ("/usr/bin/crio",), "crio.service", ("/var/run/crio/crio.sock",)),
            _kubelet("--config=/etc/kubernetes/kubelet.conf", "--container-runtime-endpoint=/var/run/crio/crio.sock"),
        ),
        (OPERATORS_PROGRAM, "usr/bin/crun"),
        folders=("etc/machine-config-daemon",),
    ),
    "docker": Distribution(
        {
            "etc/docker/daemon.json": _DAEMON_JSON,
            STANDARD_FILE: 'disabled_plugins = ["cri"]\n',
            "var/lib/kubelet/config.yaml": _kubelet_config("/var/run/cri-dockerd.sock"),
        },
        (
            _CONTAINERD,
            Running("dockerd", ("/usr/bin/dockerd", "-H", "fd://"), "docker.service", ("/run/docker.sock",)),
            Running(
                "cri-dockerd",
                ("/usr/bin/cri-dockerd", "--container-runtime-endpoint", "fd://"),
                "cri-docker.service",
                ("/run/cri-dockerd.sock",),
            ),
            _kubelet("--config=/var/lib/kubelet/config.yaml"),
        ),
    ),
}


class ContainerRuntime:
    """Container runtime of a simulated node: its files and processes."""

    def __init__(self, root: Path, write: Callable[[str, object], None]) -> None:
        self._root = root
        self._write = write
        self._laid_out = DISTRIBUTIONS["eks-al2023"]
        self._pids: list[int] = []
        self.runs = False
        """Whether the processes start at a boot: on a node without them, no check asks for a container runtime."""

    def install(self, distribution: str) -> None:
        """Replace the existing runtime; no process runs before `start`."""
        for path in (*self._laid_out.files, *self._laid_out.programs, *self._laid_out.links):
            (self._root / path).unlink(missing_ok=True)
            self._forget_empty((self._root / path).parent)
        for path in self._laid_out.folders:
            self._forget_empty(self._root / path)
        self._laid_out = DISTRIBUTIONS[distribution]
        for path, text in self._laid_out.files.items():
            self.put(path, text)
        for path in self._laid_out.programs:
            self.put_program(path)
        for path, target in self._laid_out.links.items():
            (self._root / path).symlink_to(target)
        for path in self._laid_out.folders:
            (self._root / path).mkdir(parents=True)

    def put(self, path: str, text: str) -> None:
        """Write a file as the image contains it, unchanged since."""
        self._write(path, text)
        os.utime(self._root / path, (IMAGE_MADE, IMAGE_MADE))

    def put_program(self, path: str, architecture: str = "x86_64") -> None:
        """Write an executable ELF file; only its header is read."""
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little end first
        executable, version, size = 2, 1, 64
        fields = (executable, _MACHINES[architecture], version, 0, 0, 0, 0, size, 56, 0, 64, 0, 0)
        file.write_bytes(identity + struct.pack("<HHIQQQIHHHHHH", *fields))
        file.chmod(0o755)
        os.utime(file, (IMAGE_MADE, IMAGE_MADE))

    def boot(self, age_seconds: float) -> None:
        """Show the host's mounts, and start the processes if they run on this node."""
        self._link("proc/1/ns/mnt", _MOUNTS_OF_HOST)
        if self.runs:
            self.start(age_seconds)

    def start(self, age_seconds: float) -> None:
        """Start the processes of the runtime with this age."""
        self.stop()
        self.runs = True
        uptime = float((self._root / "proc/uptime").read_text().split()[0])
        started = int(max(0.0, uptime - age_seconds) * _TICKS_PER_SECOND)
        sockets = [path for process in self._laid_out.processes for path in process.listens]
        inodes = {path: inode for inode, path in enumerate(sockets, _FIRST_INODE)}
        for pid, process in enumerate(self._laid_out.processes, _FIRST_PID):
            self._pids.append(pid)
            self._run(pid, process, started, inodes)

    def stop(self) -> None:
        for pid in self._pids:
            shutil.rmtree(self._root / f"proc/{pid}", ignore_errors=True)
        self._pids.clear()
        self.runs = False

    def _forget_empty(self, folder: Path) -> None:
        """Remove the folder and its empty parents: some distributions are detected by a folder."""
        while folder != self._root and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def _run(self, pid: int, process: Running, started: int, inodes: Mapping[str, int]) -> None:
        """Write the process's files in /proc (proc(5)); `started`: ticks after boot."""
        folder = f"proc/{pid}"
        self._write(f"{folder}/comm", process.comm)
        about = f"{pid} ({process.comm}) S 1 {pid} {pid} 0 -1 4194560 {'0 ' * 8}20 0 1 0 {started} 0"
        self._write(f"{folder}/stat", about)
        (self._root / folder / "cmdline").write_text("".join(f"{word}\0" for word in process.words))
        self._write(
            f"{folder}/cgroup", f"0::/system.slice/{process.unit}" if process.unit else "0::/podruntime/runtime"
        )
        self._write(f"{folder}/net/unix", _listening(inodes))
        self._link(f"{folder}/exe", process.program or process.words[0])
        self._link(f"{folder}/root", "/")
        self._link(f"{folder}/ns/mnt", _MOUNTS_OF_HOST)
        self._link(f"{folder}/fd/0", "/dev/null")
        for descriptor, path in enumerate(process.listens, _FIRST_DESCRIPTOR):
            self._link(f"{folder}/fd/{descriptor}", f"socket:[{inodes[path]}]")

    def _link(self, path: str, target: str) -> None:
        link = self._root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _listening(inodes: Mapping[str, int]) -> str:
    """Return /proc/net/unix: each listening socket, and one connection to it, which has the same name."""
    lines = ["Num       RefCount Protocol Flags    Type St Inode Path"]
    for path, inode in inodes.items():
        lines.append(f"0000000000000000: 00000002 00000000 00010000 0001 01 {inode} {path}")
        lines.append(f"0000000000000000: 00000003 00000000 00000000 0001 03 {inode + 1000} {path}")
    return "\n".join(lines)
