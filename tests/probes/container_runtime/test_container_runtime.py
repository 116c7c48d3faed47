"""The container runtime of the kubelet, and its surroundings."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from healthcheck.model import Host, ProbeError
from healthcheck.probes.container_runtime import facts
from healthcheck.probes.container_runtime.configuration import read_container_runtime
from healthcheck.probes.container_runtime.facts import ContainerRuntime, Live, RuntimeBinary
from sim.container_runtime import DISTRIBUTIONS, IMAGE_MADE, NVIDIA_V2, TOOLKIT_PROGRAM
from sim.node import SimulatedNode

STANDARD = "/run/containerd/containerd.sock"
FILE = "/etc/containerd/config.toml"
SNAP, SNAP_SINCE_1_36 = "/var/lib/k8s-containerd/k8s-containerd", "/var/lib/k8s-containerd"
K3S_SOCKET = "/run/k3s/containerd/containerd.sock"
MICROK8S_SOCKET = "/var/snap/microk8s/common/run/containerd.sock"
FLAG, FIELD = "--container-runtime-endpoint of kubelet", "containerRuntimeEndpoint in"
RANCHER = "/var/lib/rancher"
# Name, unit, the kubelet's socket, who says so, the file, and the handlers of its runtime.
EXPECTED = {
    "kubeadm": ("kubeadm", "containerd.service", STANDARD, FLAG, FILE, "runc nvidia"),
    "eks-al2023": (
        *("EKS AL2023", "containerd.service", STANDARD),
        *(f"{FIELD} /etc/kubernetes/kubelet/config.json", FILE, "nvidia"),
    ),
    "eks-al2023-containerd-1": (
        *("EKS AL2023", "containerd.service", STANDARD),
        *(f"{FIELD} /etc/kubernetes/kubelet/config.json", FILE, "runc nvidia"),
    ),
    "eks-al2": ("EKS AL2", "containerd.service", STANDARD, FLAG, FILE, "nvidia"),
    "eks-ubuntu": ("EKS Ubuntu", "containerd.service", STANDARD, FLAG, FILE, "runc nvidia"),
    "bottlerocket": (
        *("Bottlerocket", "containerd.service", STANDARD),
        *(f"{FIELD} /etc/kubernetes/kubelet/config", FILE, "nvidia nvidia-cdi nvidia-legacy"),
    ),
    "k3s": (
        *("k3s", "k3s-agent.service", K3S_SOCKET),
        f"{FIELD} {RANCHER}/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf",
        *(f"{RANCHER}/k3s/agent/etc/containerd/config.toml", "runc nvidia"),
    ),
    "rke2": (
        *("RKE2", "rke2-agent.service", K3S_SOCKET),
        f"{FIELD} {RANCHER}/rke2/agent/etc/kubelet.conf.d/00-rke2-defaults.conf",
        *(f"{RANCHER}/rke2/agent/etc/containerd/config.toml", "runc nvidia"),
    ),
    "microk8s": (
        *("MicroK8s", "snap.microk8s.daemon-containerd.service", MICROK8S_SOCKET),
        "--container-runtime-endpoint of kubelite",
        *("/var/snap/microk8s/6089/args/containerd.toml", "runc nvidia nvidia-container-runtime"),
    ),
    "k8s-snap": (
        *("Canonical Kubernetes", "snap.k8s.containerd.service", f"{SNAP}{STANDARD}", FLAG),
        *(f"{SNAP}{FILE}", "runc nvidia"),
    ),
    "k8s-snap-since-1.36": (
        *("Canonical Kubernetes", "snap.k8s.containerd.service", f"{SNAP_SINCE_1_36}{STANDARD}", FLAG),
        *(f"{SNAP_SINCE_1_36}{FILE}", "runc nvidia"),
    ),
    "k8s-snap-in-the-standard-place": (
        *("Canonical Kubernetes", "snap.k8s.containerd.service", STANDARD, FLAG, FILE, "runc nvidia"),
    ),
    "two-containerds": (
        *("Canonical Kubernetes", "snap.k8s.containerd.service", f"{SNAP}{STANDARD}", FLAG, f"{SNAP}{FILE}", "runc"),
    ),
    "aks": ("AKS", "containerd.service", STANDARD, FLAG, FILE, "runc nvidia-container-runtime"),
    "gke": ("GKE", "containerd.service", STANDARD, "default of kubelet", FILE, "runc"),
    "k0s": (
        *("k0s", "k0sworker.service", "/run/k0s/containerd.sock"),
        *(f"{FIELD} /var/lib/k0s/kubelet-config.yaml", "/etc/k0s/containerd.toml", "nvidia"),
    ),
    "talos": ("Talos", "", STANDARD, f"{FIELD} /etc/kubernetes/kubelet.yaml", "/etc/cri/containerd.toml", "nvidia"),
    "openshift": ("OpenShift", "crio.service", "/run/crio/crio.sock", FLAG, "/etc/crio/crio.conf", "crun nvidia"),
    "docker": (
        *("", "docker.service", "/run/cri-dockerd.sock"),
        *(f"{FIELD} /var/lib/kubelet/config.yaml", "/etc/docker/daemon.json", "runc nvidia"),
    ),
}


def read(node: SimulatedNode) -> ContainerRuntime:
    return read_container_runtime(Host(node.root))


def handlers(seen: ContainerRuntime) -> str:
    assert seen.used is not None
    return " ".join(handler.name for handler in seen.used.handlers)


def test_every_distribution_that_is_simulated_is_expected_here() -> None:
    assert sorted(EXPECTED) == sorted(DISTRIBUTIONS)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_kubelets_runtime_is_found_by_the_processes(distribution: str, node: SimulatedNode) -> None:
    node.run_kubernetes(distribution)

    seen = read(node)

    assert seen.used is not None
    result = (seen.distribution, seen.unit, seen.socket, seen.known_from, seen.used.path, handlers(seen))
    assert result == EXPECTED[distribution]
    assert (seen.used.problem, seen.assumed) == (None, False)
    assert {file.written for file in seen.used.files} == {IMAGE_MADE}
    assert seen.started is not None
    assert [step for step in seen.how if step.startswith("held by ")] != []


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_on_a_captured_tree_it_is_assumed_from_the_layout(distribution: str, node: SimulatedNode) -> None:
    node.run_kubernetes(distribution)
    node.hide_host_processes()

    seen = read(node)

    assert seen.used is not None
    name, _, socket, _, _, names = EXPECTED[distribution]
    assert (seen.distribution, seen.socket, handlers(seen)) == (name, socket, names)
    assert (seen.assumed, seen.started, seen.kubelet.pid if seen.kubelet else 0) == (True, None, 0)
    assert seen.known_from.startswith("assumed, since no kubelet is visible")
    assert seen.how[0].startswith("no kubelet is visible")
    assert seen.how[-1].startswith("assumed: ")


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_tree_without_proc_is_read_as_hidden_processes(distribution: str, node: SimulatedNode) -> None:
    node.run_kubernetes(distribution)
    node.hide_host_processes()
    hidden = read(node)
    shutil.rmtree(node.root / "proc")

    assert read(node) == hidden


def test_on_a_host_without_a_kubelet_nothing_is_assumed(node: SimulatedNode) -> None:
    node.stop_kubernetes()

    assert read(node) == ContainerRuntime(None, "no kubelet runs on this node", for_gpus=True)


def test_a_tree_without_anything_of_it_says_so(tmp_path: Path) -> None:
    why = read_container_runtime(Host(tmp_path)).why_none
    assert why == "no kubelet, and no configuration of a container runtime at any usual path"


@pytest.mark.parametrize(
    ("endpoint", "file", "path"),
    [
        ("/run/crio/crio.sock", "etc/crio/crio.conf", "/etc/crio/crio.conf"),
        ("/run/cri-dockerd.sock", "etc/docker/daemon.json", "/etc/docker/daemon.json"),
        ("/run/crio/crio.sock", "etc/docker/daemon.json", None),
        ("/run/other.sock", "etc/crio/crio.conf", None),
    ],
)
def test_on_a_captured_tree_the_kubelets_files_outrank_what_else_is_there(
    endpoint: str, file: str, path: str | None, tmp_path: Path
) -> None:
    config = f"kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///var{endpoint}\n"
    for name, text in ((file, ""), ("etc/containerd/config.toml", ""), ("var/lib/kubelet/config.yaml", config)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)

    seen = read_container_runtime(Host(tmp_path))

    assert (seen.used.path if seen.used else None, seen.socket, seen.assumed) == (path, endpoint, True)
    assert seen.used is not None or seen.why_none.startswith(f"the kubelet's runtime would be at {endpoint}")


def capture(root: Path, kubelets: str, *files: str) -> ContainerRuntime:
    """A tree with /sys, the kubelet's endpoint and these files besides."""
    config = f"kind: KubeletConfiguration\n{kubelets}\n"
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    for name, text in {"var/lib/kubelet/config.yaml": config, **dict.fromkeys(files, "")}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return read_container_runtime(Host(root))


NAMES = "containerRuntimeEndpoint: unix://"


@pytest.mark.parametrize(
    ("kubelets", "files", "not_found"),
    [
        (f"{NAMES}/run/foo/containerd.sock", ("etc/containerd/config.toml",), True),
        (f"{NAMES}/run/foo/containerd.sock", (), True),
        # Whatever else a kubelet speaks to may be no runtime of ours.
        (f"{NAMES}/run/other.sock", ("etc/containerd/config.toml",), False),
        (f"{NAMES}/run/crio/crio.sock", ("etc/containerd/config.toml",), False),
        (f"{NAMES}{K3S_SOCKET}", ("etc/hosts",), True),
        # The saved tree lacks /etc, or the files that this distribution always has there.
        (f"{NAMES}{STANDARD}", (), True),
        (f"{NAMES}{STANDARD}", ("etc/kubernetes/kubelet/config.json",), True),
        (f"{NAMES}{STANDARD}", ("etc/cri/conf.d/10-nvidia-container-runtime.part",), True),
        # No endpoint is named.
        ("cgroupDriver: systemd", ("etc/hosts",), False),
    ],
)
def test_a_containerd_that_the_kubelet_names_and_nobody_finds_was_not_looked_at(
    kubelets: str, files: tuple[str, ...], not_found: bool, tmp_path: Path
) -> None:
    seen = capture(tmp_path, kubelets, *files)

    assert (seen.used, seen.not_found) == (None, not_found)
    assert not not_found or seen.why_none.startswith(f"the kubelet's runtime would be at {seen.socket}: ")


@pytest.mark.parametrize("files", [("etc/hosts",), ("etc/hosts", "var/lib/kubelet/kubeadm-flags.env")])
def test_a_containerd_without_its_file_has_its_defaults_in_a_whole_tree(files: tuple[str, ...], tmp_path: Path) -> None:
    seen = capture(tmp_path, f"{NAMES}{STANDARD}", *files)

    assert seen.used is not None
    assert (seen.used.path, seen.used.files, seen.used.handlers, seen.assumed) == (FILE, (), (), True)


def test_while_nobody_knows_its_release_its_defaults_do_not_tell_whether_it_reads_cdi(tmp_path: Path) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.json").write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}))

    assert capture(tmp_path, f"{NAMES}{STANDARD}").not_found


@pytest.mark.parametrize(("there", "not_found"), [((), True), (("opt/toolkit/other",), False)])
def test_a_file_that_leads_nowhere_is_none_unless_its_folder_was_not_saved(
    there: tuple[str, ...], not_found: bool, tmp_path: Path
) -> None:
    (tmp_path / "etc/containerd").mkdir(parents=True)
    (tmp_path / "etc/containerd/config.toml").symlink_to("/opt/gone.toml")

    seen = capture(tmp_path, f"{NAMES}{STANDARD}", *there)

    assert (seen.not_found, seen.used is None) == (not_found, not_found)


@pytest.mark.parametrize(
    ("file", "version", "systemd"),
    [
        ("etc/containerd/config.toml", 2, True),
        ("etc/containerd/config.toml", 3, None),
        # Left over: the kubelet of k3s has another socket.
        ("var/lib/rancher/k3s/agent/etc/containerd/config.toml", 2, None),
    ],
)
def test_on_a_captured_tree_the_kubelets_file_tells_its_cgroup_driver(
    file: str, version: int, systemd: bool | None, tmp_path: Path
) -> None:
    config = "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n"
    texts = {file: f"version = {version}\n", "var/lib/kubelet/config.yaml": f"{config}cgroupDriver: systemd\n"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)

    kubelet = read_container_runtime(Host(tmp_path)).kubelet

    assert (kubelet.systemd_cgroup if kubelet else None) is systemd


def test_processes_that_cannot_be_looked_at_are_no_kubelet_that_is_gone(node: SimulatedNode) -> None:
    comm = node.root / "proc/902/comm"
    comm.unlink()
    comm.symlink_to("/proc/self/mem")  # nothing lies at its beginning: EIO

    with pytest.raises(ProbeError, match="Input/output error"):
        read(node)


@pytest.mark.parametrize(("path", "text"), [("proc/uptime", "soon"), ("proc/stat", "cpu 1 2 3\nbtime soon\n")])
def test_without_a_boot_time_no_start_is_shown(path: str, text: str, node: SimulatedNode) -> None:
    node.write_value(path, text)

    assert read(node).started is None


BOOTED, UPTIME = 1_790_000_000, 86_400.0


@pytest.mark.parametrize(
    ("written", "flag"),
    [
        (BOOTED - 1, True),
        (BOOTED + 3600, True),
        # As it was saved, or after that by who copied it without its time.
        (BOOTED + UPTIME - 60, False),
        (BOOTED + UPTIME + 30 * 86_400, False),
    ],
)
def test_when_a_captured_trees_runtime_was_started_its_own_clock_tells(
    written: float, flag: bool, node: SimulatedNode
) -> None:
    node.write_value("proc/stat", f"cpu  1 2 3 4\nintr 5 6\nbtime {BOOTED}\nprocesses 7\n")
    node.write_value("proc/uptime", f"{UPTIME:.2f} 1.00")
    os.utime(node.root / FILE.lstrip("/"), (written, written))

    seen = read(node)

    assert seen.since_boot is not None
    assert seen.started == (BOOTED + seen.since_boot if flag else None)


def test_on_the_machine_itself_our_clock_tells_when_it_was_started(node: SimulatedNode) -> None:
    node.write_value("proc/sys/kernel/random/boot_id", Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    node.write_value("proc/stat", "btime 1")
    node.write_value("proc/uptime", f"{UPTIME:.2f} 1.00")
    os.utime(node.root / FILE.lstrip("/"))

    seen = read(node)

    assert seen.since_boot is not None
    assert seen.started == pytest.approx(time.time() - UPTIME + seen.since_boot, abs=60)


# Several runtimes: signs of the kubelet's own, in this order.


def test_what_another_containerd_reads_is_kept_apart(node: SimulatedNode) -> None:
    node.run_kubernetes("two-containerds")

    seen = read(node)

    assert handlers(seen) == "runc"
    assert [(configuration.path, [each.name for each in configuration.handlers]) for configuration in seen.others] == [
        (FILE, ["nvidia"])
    ]
    assert seen.how == (
        f"kubelet (pid 903, snap.k8s.kubelet.service): --container-runtime-endpoint={SNAP}{STANDARD}",
        f"{FLAG}: {SNAP}{STANDARD}",
        "held by containerd (pid 902, snap.k8s.containerd.service)",
        f"which reads {SNAP}{FILE} (by a flag)",
    )


def test_whoever_listens_on_the_socket_outranks_what_their_flags_say(node: SimulatedNode) -> None:
    """Process 901 is the standard containerd, 902 the snap's, 903 the kubelet."""
    node.run_kubernetes("k8s-snap")
    for pid in (901, 902):
        (node.root / f"proc/{pid}/fd/3").rename(node.root / f"proc/{pid}/fd/30")
    (node.root / "proc/901/fd/30").rename(node.root / "proc/902/fd/31")
    (node.root / "proc/902/fd/30").rename(node.root / "proc/901/fd/31")

    seen = read(node)

    assert seen.used is not None
    assert seen.used.path == FILE


@pytest.mark.parametrize("distribution", sorted(set(DISTRIBUTIONS) - {"docker"}))
def test_without_the_kernels_word_the_flags_and_files_of_the_runtimes_tell(
    distribution: str, node: SimulatedNode
) -> None:
    """As without CAP_SYS_PTRACE: no descriptors can be read."""
    node.run_kubernetes(distribution)
    for folder in (node.root / "proc").glob("9*/fd"):
        shutil.rmtree(folder)

    seen = read(node)

    assert seen.used is not None
    assert (seen.used.path, seen.assumed) == (EXPECTED[distribution][4], False)
    assert [step for step in seen.how if step.endswith("is configured to listen there")] != []


def test_a_containerd_in_a_container_is_no_other_runtime_of_the_node(node: SimulatedNode) -> None:
    node.run_kubernetes("k8s-snap")
    mounts = node.root / "proc/901/ns/mnt"
    mounts.unlink()
    mounts.symlink_to("mnt:[4026532999]")
    node.remove_file("etc/containerd/config.toml")

    assert read(node).others == ()


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "/n"}}}', facts.DOCKER),
        ("etc/crio/crio.conf.d/99-nvidia.conf", '[crio.runtime.runtimes.nvidia]\nruntime_path = "/n"\n', facts.CRIO),
        ("etc/containerd/config.toml", f"version = 2\n{NVIDIA_V2}", facts.CONTAINERD),
    ],
)
def test_configuration_of_an_unused_runtime_is_reported(path: str, text: str, kind: str, node: SimulatedNode) -> None:
    node.run_kubernetes("k3s")
    node.put_file(path, text)

    assert [(configuration.kind, configuration.handlers[-1].name) for configuration in read(node).others] == [
        (kind, "nvidia")
    ]


def test_cri_dockerd_that_systemd_gave_its_socket_is_known_by_its_place(node: SimulatedNode) -> None:
    node.run_kubernetes("docker")
    for pid in (902, 903):
        shutil.rmtree(node.root / f"proc/{pid}/fd")

    seen = read(node)

    assert seen.used is not None
    assert (seen.used.kind, seen.used.path, seen.unit) == (facts.DOCKER, "/etc/docker/daemon.json", "docker.service")


@pytest.mark.parametrize(("socket", "not_found"), [("/run/other.sock", False), ("/run/foo/containerd.sock", True)])
def test_an_unknown_runtime_is_named_and_not_judged(socket: str, not_found: bool, node: SimulatedNode) -> None:
    (node.root / "proc/902/cmdline").write_text(f"kubelet\0--container-runtime-endpoint\0unix://{socket}\0")

    seen = read(node)

    assert (seen.used, seen.socket, seen.not_found) == (None, socket, not_found)
    assert seen.why_none == f"the kubelet's runtime is at {socket}: an unknown runtime"


def test_a_kubelet_without_running_containerd_is_recognised_by_its_socket(node: SimulatedNode) -> None:
    node.run_kubernetes("rke2")
    (node.root / "proc/902/comm").write_text("other\n")

    seen = read(node)

    assert seen.used is not None
    assert (seen.used.path, seen.started, seen.assumed) == (EXPECTED["rke2"][4], None, True)
    assert seen.how[-2] == "no process that listens there is visible"


# Files from templates, the cgroup driver, and the host itself.


@pytest.mark.parametrize(
    ("distribution", "there", "template"),
    [
        ("k3s", (), f"{RANCHER}/k3s/agent/etc/containerd/config-v3.toml.tmpl"),
        ("rke2", ("config.toml.tmpl",), f"{RANCHER}/rke2/agent/etc/containerd/config.toml.tmpl"),
        ("k3s", ("config.toml.tmpl", "config-v3.toml.tmpl"), f"{RANCHER}/k3s/agent/etc/containerd/config-v3.toml.tmpl"),
        ("microk8s", (), "/var/snap/microk8s/6089/args/containerd-template.toml"),
        ("kubeadm", (), ""),
        ("k8s-snap", (), ""),
    ],
)
def test_a_generated_file_is_reported_with_its_template(
    distribution: str, there: tuple[str, ...], template: str, node: SimulatedNode
) -> None:
    node.run_kubernetes(distribution)
    for name in there:
        node.put_file(f"{template.lstrip('/').rpartition('/')[0]}/{name}", "")

    used = read(node).used

    assert used is not None
    assert used.template == template


@pytest.mark.parametrize(
    ("distribution", "options", "systemd"),
    [
        ("kubeadm", "cgroupDriver: systemd", True),
        ("kubeadm", "cgroupDriver: cgroupfs", False),
        ("kubeadm", "", None),
        # From containerd 2 and CRI-O a kubelet asks it.
        ("eks-al2023", "cgroupDriver: systemd", None),
        ("openshift", "cgroupDriver: systemd", None),
    ],
)
def test_the_kubelets_own_cgroup_driver_is_reported(
    distribution: str, options: str, systemd: bool | None, node: SimulatedNode
) -> None:
    node.run_kubernetes(distribution)
    seen = read(node)
    assert seen.kubelet is not None
    text = f"kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix://{seen.socket}\n{options}"
    node.put_file(seen.kubelet.config.lstrip("/"), text)

    seen = read(node)

    assert seen.kubelet is not None
    assert seen.kubelet.systemd_cgroup is systemd


@pytest.mark.parametrize(
    ("version", "generation", "systemd"),
    [("", "1.7", True), ("1.6.20~ds1", "1.6", True), ("1.7.28", "1.7", True), ("2.1.4-k3s1", "2.1", None)],
)
def test_the_running_containerd_decides_the_rules_for_its_files(
    version: str, generation: str, systemd: bool | None, node: SimulatedNode
) -> None:
    """From 2.0 on it tells the kubelet its cgroup driver, whatever that one's own is."""
    node.run_kubernetes("kubeadm")
    node.put_file(FILE.lstrip("/"), "version = 2\n" + NVIDIA_V2)
    live = Live("containerd", version)

    seen = read_container_runtime(Host(node.root, ask_container_runtime=lambda _: live))

    assert seen.used is not None
    assert seen.kubelet is not None
    assert (seen.live, seen.used.version, seen.used.generation) == (live, version, generation)
    assert seen.kubelet.systemd_cgroup is systemd


@pytest.mark.parametrize(("version", "own"), [("1.30.4", "runc"), ("1.31.0", "crun")])
@pytest.mark.parametrize("hidden", [False, True])
def test_the_crio_that_runs_says_which_handler_it_brings(
    version: str, own: str, hidden: bool, node: SimulatedNode
) -> None:
    node.run_kubernetes("openshift")
    if hidden:
        shutil.rmtree(node.root / "proc")
    live = Live("cri-o", version)

    seen = read_container_runtime(Host(node.root, ask_container_runtime=lambda _: live))

    assert seen.used is not None
    assert (seen.used.version, own in {handler.name for handler in seen.used.handlers}) == (version, True)


@pytest.mark.parametrize(("driver", "expected"), [("nvidia", True), ("vfio-pci", False), ("nouveau", False)])
def test_gpus_of_another_driver_are_for_no_container(driver: str, expected: bool, node: SimulatedNode) -> None:
    for gpu in node.gpus:
        link = node.root / f"sys/bus/pci/devices/{gpu.address}/driver"
        link.unlink()
        link.symlink_to(f"../../../../bus/pci/drivers/{driver}")

    assert read(node).for_gpus is expected


def test_a_program_is_missing_only_where_a_captured_tree_could_have_it(node: SimulatedNode) -> None:
    node.run_kubernetes("aks")
    (node.root / TOOLKIT_PROGRAM).unlink()
    missing = RuntimeBinary(f"/{TOOLKIT_PROGRAM}")
    assert read(node).programs == (missing,)
    shutil.rmtree(node.root / "sys")
    (node.root / "usr/bin/other").touch()
    assert read(node).programs == (missing,)

    shutil.rmtree(node.root / "usr/bin")

    assert read(node).programs == ()


def test_a_command_that_was_captured_as_text_has_its_words_too(node: SimulatedNode) -> None:
    node.run_kubernetes("eks-al2023")
    kubelet = next(path for path in node.root.glob("proc/9*") if (path / "comm").read_text().strip() == "kubelet")
    message = read(node).known_from
    command = kubelet / "cmdline"
    command.write_text(command.read_text().replace("\0", " ").strip() + "\n")

    assert read(node).known_from == message


def test_a_captured_tree_without_sys_tells_nothing_of_gpus(node: SimulatedNode) -> None:
    shutil.rmtree(node.root / "sys")

    assert read(node).for_gpus is None


def test_a_sys_without_pci_is_no_answer(node: SimulatedNode) -> None:
    shutil.rmtree(node.root / "sys/bus")

    with pytest.raises(ProbeError, match="sys/bus/pci/devices: No such file or directory"):
        read(node)


def test_the_architecture_is_that_of_the_hosts_own_programs(node: SimulatedNode) -> None:
    node.put_program("usr/bin/kubelet", "aarch64")

    assert read(node).architecture == "aarch64"
