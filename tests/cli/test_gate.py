"""`gpu-healthcheck gate`: what it loads and writes at its start, and --local on a machine without an agent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.node import SimulatedNode
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
from cli.__main__ import main
main()
"""
SLURM = "#!/bin/sh\nexec gpu-healthcheck gate --local >&2\n"


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_it_loads_the_standard_library_alone_and_writes_no_file() -> None:
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
    assert others == {"__main__", "cli", "cli.__main__"}


class Machine:
    """A p5.48xlarge without an agent."""

    def __init__(self, host: SimulatedNode) -> None:
        self.host = host
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
        done = self.run(f"--port={free_port()}", "--timeout=60", *words)
        return done.returncode, done.stderr.splitlines()[-1]


@pytest.fixture
def machine(short_root: Path) -> Iterator[Machine]:
    with SimulatedNode.create(short_root / "n", "p5.48xlarge") as host:
        yield Machine(host)


def test_a_healthy_machine_starts_jobs(machine: Machine) -> None:
    code, line = machine.check()

    assert (code, "no finding of RESET or worse on the node; checked 0 s ago" in line) == (0, True)


def test_a_faulty_machine_is_drained_with_one_line_about_the_reason(machine: Machine) -> None:
    machine.host.xid(3, 79, "GPU has fallen off the bus.")
    code, line = machine.check()

    assert code == 75
    assert "Xid79 (REBOOT) on GPU 3" in line
    assert line.endswith("; no job starts here")


def test_a_finding_below_the_severity_of_the_settings_drains_no_machine(machine: Machine) -> None:
    machine.host.xid(3, 62, "0x1 0x2 0x3")
    (machine.settings / "GATE_SEVERITY").write_text("REBOOT")

    assert machine.check()[0] == 0
    machine.host.xid(3, 79, "GPU has fallen off the bus.")
    assert machine.check()[0] == 75


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--fail-closed"], 69)])
def test_a_machine_that_cannot_be_checked_starts_jobs(machine: Machine, options: list[str], code: int) -> None:
    machine.host.write_value("nvml/error/nvmlInitWithFlags", 999)
    ended, line = machine.check(*options)

    assert ended == code
    assert "NvmlError" in line


def test_an_invalid_setting_drains_no_machine(machine: Machine) -> None:
    (machine.settings / "GATE_SEVERITY").write_text("LOUD")
    code, line = machine.check()

    assert (code, "the settings are invalid" in line) == (0, True)


def test_a_driver_that_does_not_answer_in_time_drains_no_machine(machine: Machine) -> None:
    machine.host.hang()
    done = machine.run(f"--port={free_port()}", "--timeout=2")

    assert (done.returncode, "no end within" in done.stderr) == (0, True)
