"""The host's processes: facts about one, and the owner of a socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Host
from gpu_healthcheck.healthcheck.probes.container_runtime import processes
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import read_container_runtime
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import (
    KnownProcesses,
    Process,
    find,
    flag_of,
    holder_of,
    root_of,
    socket_path,
)
from gpu_healthcheck.sim.node import SimulatedNode

HOST = Path("/")
LISTENER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
for word in sys.argv[1:]:
    if word.startswith("--address="):
        listener.bind(word.partition("=")[2])
        listener.listen()
print("ready", flush=True)
sys.stdin.read()
"""
SHORT_LIVED = """
import ctypes, os
while True:
    children = []
    for _ in range(50):
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(15, b"nv-fabricmanage", 0, 0, 0)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
"""
Start = Callable[..., Process]


def test_the_age_of_a_process_is_that_of_its_pid_whatever_it_is_called(node: SimulatedNode) -> None:
    node.services.run(90000, "a) S 1 (", 12.5)

    assert processes.ages(node.root, ["90000", "90001"]) == {"90000": pytest.approx(12.5, abs=0.01)}
    node.hide_host_processes()
    assert processes.ages(node.root, ["90000"]) == {}


@pytest.mark.skipif(not processes.are_the_hosts(HOST), reason="the processes of this machine are hidden")
def test_the_ages_of_real_processes_are_in_the_order_of_their_starts() -> None:
    with subprocess.Popen(["sleep", "60"]) as young:
        ages = processes.ages(HOST, [str(young.pid), "1", "4194305"])
        young.kill()

    assert ages.keys() == {str(young.pid), "1"}
    assert 0 <= ages[str(young.pid)] < ages["1"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Real processes of any name, that listen on `--address=`, as `find` shows them; they end with the test."""
    running: list[subprocess.Popen[str]] = []
    script = tmp_path / "listener.py"
    script.write_text(LISTENER)

    def begin(name: str, *words: str, within: Sequence[str] = ()) -> Process:
        program = tmp_path / name
        if not program.is_symlink():
            program.symlink_to(sys.executable)
        command = [*within, str(program), "-I", str(script), *words]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        output = running[-1].stdout
        assert output is not None
        assert output.readline() == "ready\n"
        return next(one for one in find(HOST).processes if one.pid == running[-1].pid)

    yield begin
    for process in running:
        process.communicate()


def test_a_real_process_has_arguments_file_and_start_time(start: Start) -> None:
    process = start("containerd", "--config=/x.toml")

    assert (process.name, process.arguments[-1]) == ("containerd", "--config=/x.toml")
    assert process.program == str(Path(sys.executable).resolve())
    assert process.namespace == str(Path("/proc/self/ns/mnt").readlink())
    assert process.since_boot is not None
    assert 0 < process.since_boot <= processes.uptime(HOST)


def test_a_process_that_ends_during_the_read_is_ignored() -> None:
    """Without its control group a user's process would be the host's: with enough of them a service seems to run."""
    user = subprocess.Popen([sys.executable, "-I", "-c", SHORT_LIVED])
    try:
        processes = [
            process for _ in range(200) for process in find(HOST).processes if process.name == "nv-fabricmanager"
        ]
    finally:
        user.kill()
        user.wait()

    assert [process for process in processes if process.since_boot is None] == []


def test_a_real_listener_is_found_by_its_socket(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")
    other = start("crio", f"--address={tmp_path}/other.sock")
    holder = start("containerd", f"--address={path}")
    kubelet = start("kubelet")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)  # which has the name too, and does not listen

        assert holder_of(HOST, kubelet, path, [other, kubelet, holder]) == holder
    assert holder_of(HOST, kubelet, f"{path}2", [other, kubelet, holder]) is None


def test_runtime_of_a_real_kubelet_is_the_listener_on_its_socket(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    (tmp_path / "kubelet.yaml").write_text(f"containerRuntimeEndpoint: unix://{path}\n")
    (tmp_path / "used.toml").write_text("version = 2\n")
    unused = start("containerd", "--config=/nowhere.toml", f"--address={tmp_path}/unused.sock")
    holder = start("containerd", f"--config={tmp_path}/used.toml", f"--address={path}")
    kubelet = start("kubelet", f"--config={tmp_path}/kubelet.yaml")

    seen = read_container_runtime(Host(HOST, read_once={find: KnownProcesses((unused, holder, kubelet))}))

    assert (seen.path, seen.socket, seen.pid) == (f"{tmp_path}/used.toml", str(path), holder.pid)
    assert seen.architecture == os.uname().machine
    assert seen.known_from == f"containerRuntimeEndpoint in {tmp_path}/kubelet.yaml"


OTHER_MOUNTS = """
import subprocess, sys
from pathlib import Path
from gpu_healthcheck.healthcheck.model import Host
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import read_container_runtime
folder, listener = sys.argv[1:]
mount = f'mount -t tmpfs none {folder}/etc && touch {folder}/etc/config.toml && exec "$@"'
words = [listener, f"--config={folder}/etc/config.toml", f"--address={folder}/c.sock"]
commands = (
    ["unshare", "--mount", "sh", "-c", mount, "sh", f"{folder}/containerd", "-I", *words],
    [f"{folder}/kubelet", "-I", listener, f"--container-runtime-endpoint=unix://{folder}/c.sock"],
)
for command in commands:
    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True).stdout.readline()
seen = read_container_runtime(Host(Path("/")))
print(seen.path, len(seen.missing_imports), seen.since_boot is not None)
"""
NAMESPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _may_unshare() -> bool:
    try:
        return subprocess.run([*NAMESPACES, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _may_unshare(), reason="needs root: processes with a /proc and mounts of their own")
def test_the_files_of_a_process_with_other_mounts_are_read_as_it_sees_them(tmp_path: Path) -> None:
    """As with a containerd in a confined snap: another file has the same path on the host."""
    (tmp_path / "listener.py").write_text(LISTENER)
    (tmp_path / "look.py").write_text(OTHER_MOUNTS)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/config.toml").write_text("imports = ['gone.toml']\n")
    for name in ("containerd", "kubelet"):
        (tmp_path / name).symlink_to(sys.executable)
    command = [
        *NAMESPACES,
        sys.executable,
        "-I",
        str(tmp_path / "look.py"),
        str(tmp_path),
        str(tmp_path / "listener.py"),
    ]

    message = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert message == f"{tmp_path}/etc/config.toml 0 True\n"


# The simulated /proc.


def test_only_the_known_programs_are_listed(node: SimulatedNode) -> None:
    node.write_value("proc/950/comm", "containerd-shim")
    node.write_value("proc/951/comm", "kubelet")
    node.write_value("proc/951/stat", (node.root / "proc/902/stat").read_text().replace(") S ", ") Z ").strip())
    (node.root / "proc/952").symlink_to("901")

    runtime = [
        (process.pid, process.name) for process in find(node.root).processes if process.name != processes.FABRIC_MANAGER
    ]
    assert runtime == [(901, "containerd"), (902, "kubelet")]


def test_a_process_that_tells_little_is_there_all_the_same(node: SimulatedNode) -> None:
    for name in ("exe", "ns/mnt"):
        (node.root / f"proc/901/{name}").unlink()
    for name in ("cmdline", "cgroup"):
        (node.root / f"proc/901/{name}").write_bytes(b"\xff\0\n" * 9000)

    process = find(node.root).processes[0]

    assert (process.name, process.program, process.unit, process.namespace) == ("containerd", "", "", "")
    assert root_of(node.root, process) == node.root


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/containerd.service", "containerd.service"),
        ("0::/../../system.slice/snap.k8s.containerd.service", "snap.k8s.containerd.service"),
        ("12:cpu:/\n1:name=systemd:/system.slice/k3s.service/agent\n0::/", "k3s.service"),
        ("0::/kubelet.slice/kubelet-x.slice/a.service/b.service", "b.service"),
        ("0::/podruntime/runtime", ""),
        ("0::/system.slice/a;reboot.service", ""),
        ("", ""),
    ],
)
def test_the_unit_is_the_innermost_service(cgroup: str, unit: str, node: SimulatedNode) -> None:
    node.write_value("proc/901/cgroup", cgroup)

    assert find(node.root).processes[0].unit == unit


def test_a_deleted_program_is_recognised_by_its_path(node: SimulatedNode) -> None:
    """It was upgraded, and runs on."""
    (node.root / "proc/901/exe").unlink()
    (node.root / "proc/901/exe").symlink_to("/usr/bin/containerd (deleted)")

    assert find(node.root).processes[0].program == "/usr/bin/containerd"


@pytest.mark.parametrize(
    ("own", "below"),
    [("link", ""), ("folder", "proc/901/root"), ("none", ""), ("the same mounts", "")],
)
def test_in_a_captured_tree_no_link_leads_out_of_it(own: str, below: str, node: SimulatedNode) -> None:
    """/proc/PID/root is a link to / there."""
    link = node.root / "proc/901/root"
    if own in ("folder", "none"):
        link.unlink()
    if own == "folder":
        link.mkdir()
    mounts = node.root / "proc/901/ns/mnt"
    if own != "the same mounts":
        mounts.unlink()
        mounts.symlink_to("mnt:[4026532999]")
        (node.root / "proc/901/ns/mnt:[4026532999]").touch()  # a file of that name is no namespace

    assert root_of(node.root, find(node.root).processes[0]) == node.root / below


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--config", "a"], "a"),
        (["--config=a"], "a"),
        (["-config=a"], "a"),
        (["-c", "a"], "a"),
        (["--config=a", "-c=b"], "b"),
        (["--config=a=b"], "a=b"),
        (["--config"], ""),
        (["--configs=a", "config=a"], ""),
        ([], ""),
    ],
)
def test_the_last_value_of_a_flag_counts(words: list[str], value: str) -> None:
    assert flag_of(words, "config", "c") == value


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("unix:///run/a.sock", "/run/a.sock"),
        ("unix:/run/a.sock", "/run/a.sock"),
        ("unix:////var/run/a.sock", "/run/a.sock"),
        ("/var/run/a.sock", "/run/a.sock"),
        ("/link/a.sock", "/opt/a.sock"),
        ("/loop/a.sock", "/loop/a.sock"),
    ],
)
def test_a_socket_has_one_name(endpoint: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/opt")
    (tmp_path / "loop").symlink_to("loop")

    assert socket_path(tmp_path, endpoint) == path


@pytest.mark.parametrize("kind", ["pipe", "folder", "nothing", "nonsense"])
def test_malformed_list_of_sockets_names_no_process(kind: str, node: SimulatedNode) -> None:
    path = node.root / "proc/902/net/unix"
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "nonsense":
            path.write_bytes(b"\xff\n" * 99 + b"00010000 /run/containerd/containerd.sock\n")
    containerd, kubelet = find(node.root).processes[:2]

    assert holder_of(node.root, kubelet, "/run/containerd/containerd.sock", [containerd]) is None
