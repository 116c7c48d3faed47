"""`gpu-healthcheck gate`: what it loads and writes at its start, and --local on a machine without an agent."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpu_healthcheck.cli import gate
from gpu_healthcheck.healthcheck.host import http_server
from gpu_healthcheck.sim.node import SimulatedNode
from tests.permissions import as_nobody
from tests.waiting import GIVE_UP_SECONDS

ROOT = Path(__file__).parents[2]
START = """
import atexit, sys
written = []
def hook(event, arguments):
    if event == "open" and (set(str(arguments[1])) & set("wxa+")):
        written.append(arguments[0])
sys.addaudithook(hook)
atexit.register(lambda: print(written, *sys.modules, sep="\\n", file=sys.stderr))
from gpu_healthcheck.cli.__main__ import main
main()
"""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs its prolog as root")
NOBODY = 65534
SLURM = "#!/bin/sh\nexec gpu-healthcheck gate --local >&2\n"


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_gate_loads_only_the_standard_library() -> None:
    """So it runs with a read-only root. -S: no other package can be found."""
    words = ["gate", "--agent=127.0.0.1", f"--port={free_port()}", "--pod=x"]
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-c", START, *words],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    _, written, *modules = done.stderr.splitlines()
    others = {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}

    assert (done.returncode, written) == (0, "[]")
    assert others == {"__main__", "gpu_healthcheck", "gpu_healthcheck.cli", "gpu_healthcheck.cli.__main__"}


class Machine:
    """A p5.48xlarge without an agent. `state` is the folder in which an agent would have its socket."""

    def __init__(self, host: SimulatedNode) -> None:
        self.host = host
        self.state = host.root / "var/lib/gpu-healthcheck"
        self.state.mkdir(parents=True)
        self.settings = host.root / "settings"
        self.settings.mkdir()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        self.host.kernel_log.replay()  # a new reader of the log gets all of it
        programs = self.host.root / "programs"
        programs.mkdir(exist_ok=True)
        command = programs / "gpu-healthcheck"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@" {" ".join(words)}\n')
        command.chmod(0o755)
        prolog = programs / "prolog"
        prolog.write_text(SLURM)
        variables = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOST_ROOT": str(self.host.root),
            "CONFIG_DIR": str(self.settings),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1",
            "KUBECONFIG": "/nowhere",
        }
        return subprocess.run(
            ["/bin/sh", str(prolog)],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=GIVE_UP_SECONDS,
        )

    def check(self, *words: str) -> tuple[int, str]:
        """Run the prolog, and return its exit code and its last line."""
        done = self.run("--timeout=60", *words)
        return done.returncode, done.stderr.splitlines()[-1]


@pytest.fixture
def machine(short_root: Path) -> Iterator[Machine]:
    with SimulatedNode.create(short_root / "n", "p5.48xlarge") as host:
        yield Machine(host)


@AS_ROOT
def test_gate_local_starts_jobs_on_a_healthy_machine(machine: Machine) -> None:
    code, line = machine.check()

    assert (code, "no finding of RESET or worse on the node; checked 0 s ago" in line) == (0, True)


@AS_ROOT
def test_gate_local_refuses_jobs_on_a_faulty_machine(machine: Machine) -> None:
    machine.host.xid(3, 79, "GPU has fallen off the bus.")
    code, line = machine.check()

    assert code == 75
    assert "Xid79 (REBOOT) on GPU 3" in line
    assert line.endswith("; no job starts here")


@AS_ROOT
def test_gate_local_ignores_findings_below_its_severity(machine: Machine) -> None:
    machine.host.xid(3, 62, "0x1 0x2 0x3")
    (machine.settings / "GATE_SEVERITY").write_text("REBOOT")

    assert machine.check()[0] == 0
    machine.host.xid(3, 79, "GPU has fallen off the bus.")
    assert machine.check()[0] == 75


@AS_ROOT
@pytest.mark.parametrize(("options", "code"), [([], 0), (["--fail-closed"], 69)])
def test_gate_local_starts_jobs_if_it_could_not_check(machine: Machine, options: list[str], code: int) -> None:
    machine.host.write_value("nvml/error/nvmlInitWithFlags", 999)
    ended, line = machine.check(*options)

    assert ended == code
    assert "NvmlError" in line


@AS_ROOT
def test_gate_local_starts_jobs_with_an_invalid_setting(machine: Machine) -> None:
    (machine.settings / "GATE_SEVERITY").write_text("LOUD")
    code, line = machine.check()

    assert (code, "the settings are invalid" in line) == (0, True)


@AS_ROOT
def test_gate_local_starts_jobs_if_the_driver_does_not_answer(machine: Machine) -> None:
    machine.host.hang()
    done = machine.run("--timeout=2")

    assert (done.returncode, "no end within" in done.stderr) == (0, True)


@contextmanager
def answering(listener: socket.socket, answer: bytes) -> Iterator[None]:
    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(BrokenPipeError):  # the gate may have left
                connection.recv(4096)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def decision(name: str) -> bytes:
    return b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"decision": name, "message": "from the socket"}).encode()


@AS_ROOT
@pytest.mark.parametrize(("name", "code"), [("refuse", 75), ("start", 0)])
def test_gate_local_uses_the_answer_of_roots_agent(machine: Machine, name: str, code: int) -> None:
    with answering(http_server.listen_for_root(machine.state / gate.SOCKET), decision(name)):
        assert machine.check() == (code, "from the socket")


@AS_ROOT
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 503 Service Unavailable\r\n\r\nthe agent starts\n"])
def test_gate_local_checks_if_the_agent_does_not_answer(machine: Machine, answer: bytes) -> None:
    with answering(http_server.listen_for_root(machine.state / gate.SOCKET), answer):
        code, line = machine.check()
    assert (code, "no finding of RESET or worse on the node" in line) == (0, True)


@AS_ROOT
@pytest.mark.parametrize("name", ["refuse", "start"])
def test_gate_local_never_asks_the_port(machine: Machine, name: str) -> None:
    if name == "start":
        machine.host.xid(3, 79, "GPU has fallen off the bus.")
    listener = socket.create_server(("127.0.0.1", 0))
    with answering(listener, decision(name)):
        code, line = machine.check(f"--port={listener.getsockname()[1]}", "--agent=127.0.0.1")
    assert (code, "from the socket" in line) == (75 if name == "start" else 0, False)


def of_another_user(state: Path) -> socket.socket:
    listener = http_server.listen_for_root(state / gate.SOCKET)
    os.chown(state / gate.SOCKET, NOBODY, NOBODY)
    return listener


def that_others_may_write(state: Path) -> socket.socket:
    listener = http_server.listen_for_root(state / gate.SOCKET)
    (state / gate.SOCKET).chmod(0o666)
    return listener


def with_another_listener(state: Path) -> socket.socket:
    """The file belongs to root, the process does not."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(state / gate.SOCKET))
    (state / gate.SOCKET).chmod(0o600)
    with as_nobody():
        listener.listen()
    return listener


def in_a_folder_of_another_user(state: Path) -> socket.socket:
    os.chown(state, NOBODY, NOBODY)
    return http_server.listen_for_root(state / gate.SOCKET)


def in_a_folder_that_others_may_write(state: Path) -> socket.socket:
    state.chmod(0o775)
    return http_server.listen_for_root(state / gate.SOCKET)


def below_a_folder_of_another_user(state: Path) -> socket.socket:
    os.chown(state.parent, NOBODY, NOBODY)
    return http_server.listen_for_root(state / gate.SOCKET)


def behind_a_link(state: Path) -> socket.socket:
    listener = http_server.listen_for_root(state / "elsewhere")
    (state / gate.SOCKET).symlink_to("elsewhere")
    return listener


def behind_a_link_to_the_folder(state: Path) -> socket.socket:
    state.rename(state.with_name("elsewhere"))
    state.symlink_to("elsewhere")
    return http_server.listen_for_root(state.with_name("elsewhere") / gate.SOCKET)


def behind_a_regular_file(state: Path) -> socket.socket:
    (state / gate.SOCKET).touch()
    return http_server.listen_for_root(state / "elsewhere")


@AS_ROOT
@pytest.mark.parametrize(
    "listen",
    [
        of_another_user,
        that_others_may_write,
        with_another_listener,
        in_a_folder_of_another_user,
        in_a_folder_that_others_may_write,
        below_a_folder_of_another_user,
        behind_a_link,
        behind_a_link_to_the_folder,
        behind_a_regular_file,
    ],
)
def test_gate_local_ignores_a_socket_another_user_can_replace(
    machine: Machine, listen: Callable[[Path], socket.socket]
) -> None:
    with answering(listen(machine.state), decision("refuse")):
        done = machine.run("--timeout=60")

    first, *_, last = done.stderr.splitlines()
    assert (done.returncode, "no finding of RESET or worse on the node" in last) == (0, True)
    assert first.startswith("gpu-healthcheck gate: ")
    assert first.endswith(": this machine is checked instead")


@AS_ROOT
@pytest.mark.parametrize(("options", "code"), [([], 0), (["--fail-closed"], 69)])
def test_gate_local_needs_root(capsys: pytest.CaptureFixture[str], options: list[str], code: int) -> None:
    with as_nobody():
        assert gate.main(["--local", *options]) == code
    assert "--local needs root: only root can ask" in capsys.readouterr().err
