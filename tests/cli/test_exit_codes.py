"""Exit of every command without a cluster, without a reader, or after wrong usage.

The table of exit codes is in docs/commands.md.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gpu_healthcheck import healthcheck
from gpu_healthcheck.cli import app as commands
from gpu_healthcheck.cli.app import app
from tests.console import typed
from tests.waiting import GIVE_UP_SECONDS, eventually

ROOT = Path(__file__).parents[2]
NODE = {"NODE_NAME": "gpu-node-1"}
ASK_A_CLUSTER = {
    "status": ("status",),
    "status -o json": ("status", "-o", "json"),
    "release": ("release", "gpu-node-1", "--reason", "x"),
    "quarantine": ("quarantine", "gpu-node-1"),
    "quarantine --dry-run": ("quarantine", "gpu-node-1", "--dry-run"),
    "verify": ("verify",),
    "uninstall": ("uninstall",),
    "sweep --dry-run": ("sweep", "--dry-run"),
    "sweep": ("sweep",),
}
PROGRAMS = {"agent": ("agent",), "sweep-run": ("sweep-run",), "quarantine-run": ("quarantine-run",)}


def run(*words: str, program: str = "cli", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "CONFIG_DIR": "/nowhere", **variables}
    return subprocess.run(
        [sys.executable, "-m", program, *words],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def run_quickly(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, except for separate programs."""
    if words[0] in {"sweep", *PROGRAMS}:
        return run(*words, **variables)
    done = typed(words, {"PATH": os.environ["PATH"], "HOME": "/nowhere", "CONFIG_DIR": "/nowhere", **variables})
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def unreachable(folder: Path) -> str:
    path = folder / "kubeconfig"
    document = {
        "current-context": "away",
        "clusters": [{"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
        "contexts": [{"name": "away", "context": {"cluster": "away", "user": "me"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.mark.parametrize("words", [*ASK_A_CLUSTER.values(), *PROGRAMS.values()], ids=[*ASK_A_CLUSTER, *PROGRAMS])
def test_command_without_a_cluster_exits_with_2_and_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_quickly(*words, **NODE, REPORT_DIR=str(tmp_path), STATE_DIR=str(tmp_path), METRICS_PORT="0")
    lines = [line for line in done.stderr.splitlines() if '"level": "info"' not in line]

    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert (
        "can't connect to a cluster: no file ~/.kube/config, and this is no pod: use --kubeconfig, or set" in lines[0]
    )


QUICK_TO_GIVE_UP = {name: words for name, words in ASK_A_CLUSTER.items() if words[0] != "sweep"}


@pytest.mark.parametrize("words", QUICK_TO_GIVE_UP.values(), ids=QUICK_TO_GIVE_UP)
def test_command_exits_with_2_if_the_cluster_does_not_answer(words: tuple[str, ...], tmp_path: Path) -> None:
    _does_not_answer(run_quickly(*words, KUBECONFIG=unreachable(tmp_path)))


@pytest.mark.cluster
def test_sweep_exits_with_2_after_its_retries(tmp_path: Path) -> None:
    """With `--dry-run`, the first request is the same."""
    _does_not_answer(run(program="tests.sweeper.impatient", PATIENCE_SECONDS="1", KUBECONFIG=unreachable(tmp_path)))


def _does_not_answer(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("Connection refused") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ASK_A_CLUSTER.values(), ids=ASK_A_CLUSTER)
def test_options_choose_the_cluster(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_quickly(*words, "--kubeconfig", unreachable(tmp_path), "--context", "other")

    assert done.returncode == 2
    assert f"can't connect to a cluster: no context 'other' in {tmp_path}/kubeconfig: there are away" in done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_without_its_node_name_exits_with_3(name: str) -> None:
    done = run(name)

    assert (done.returncode, done.stderr) == (3, f"gpu-healthcheck {name}: NODE_NAME is not set\n")


EVERY = [*PROGRAMS.values(), ("sweep",), ("status",), ("check",)]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_unknown_option_exits_with_3(words: tuple[str, ...]) -> None:
    done = run_quickly(*words, "--no-such-option")

    assert (done.returncode, done.stdout) == (3, "")
    assert "--no-such-option" in done.stderr
    assert "--help" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("status", "--output", "xml"), "xml"),
        (("release",), "NODE"),
        (("quarantine",), "NODE"),
        (("quarantine", "Not_A_Name"), "'Not_A_Name' is not a valid node name"),
        (("replay",), "FILE"),
        (("replay", "/nowhere"), "/nowhere"),
        (("replay", "/dev"), "/dev"),
        (("nonsense",), "No such command 'nonsense'"),
    ],
)
def test_wrong_usage_exits_with_3(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _end_of(words, monkeypatch) == 3
    assert message in capsys.readouterr().err


def _end_of(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of a command in this process."""
    monkeypatch.setenv("CONFIG_DIR", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["gpu-healthcheck", *words])
    monkeypatch.setattr(commands, "end_with_whoever_reads", lambda: None)
    with pytest.raises(SystemExit) as ended:
        commands.run()
    return ended.value.code


@pytest.mark.parametrize("words", [("--version",), ("version",)])
def test_version_is_printed(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, words)

    assert (done.exit_code, done.stdout) == (0, f"{healthcheck.__version__}\n")


def test_no_command_lists_all_commands() -> None:
    done = CliRunner().invoke(app, [])

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: gpu-healthcheck COMMAND [options]")
    assert [name for name in ("check", "status", "quarantine", "explain") if name not in done.stdout] == []


def test_defect_of_this_program_is_no_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpu_healthcheck.cli.check.judged", lambda _: 1 / 0)

    assert _end_of(("check",), monkeypatch) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


PRINTERS = [
    ("check",),
    ("explain",),
    ("--help",),
    ("status",),
    ("sweep", "--help"),
    ("replay", "--json", "/dev/null"),
]


@pytest.mark.parametrize("words", PRINTERS, ids=" ".join)
def test_closed_pipe_ends_a_command_silently(words: tuple[str, ...]) -> None:
    """`| head -0`: the reader ends before any output."""
    ended = _with_outputs_closed(words)

    assert "Traceback" not in ended.stderr
    assert "BrokenPipe" not in ended.stderr
    assert ended.returncode in ((141,) if words not in NOTHING_SAID else (2, 3))


NOTHING_SAID = [("status",), ("replay", "--json", "/dev/null")]
"""On standard output: there is no cluster, and no line in the file."""


def _with_outputs_closed(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            [sys.executable, "-m", "cli", *words],
            env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "CONFIG_DIR": "/nowhere"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write)


def test_closed_pipe_of_a_shell_has_the_usual_exit_code() -> None:
    shell = f"{sys.executable} -m cli explain | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=True)

    assert (done.stdout.splitlines()[-1], done.stderr) == ("141", "")


def test_full_disk_is_reported() -> None:
    command = [sys.executable, "-m", "cli", "explain"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr == "gpu-healthcheck: the output can't be written: No space left on device\n"


@pytest.mark.parametrize("words", ["version", "--help", "explain Xid79"])
def test_closed_output_is_reported(words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m cli {words} >&-"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (2, "gpu-healthcheck: the output can't be written: Bad file descriptor\n")


@pytest.mark.parametrize(("words", "code"), [("version 2>&- <&-", 0), ("nonsense 2>&-", 3), ("replay - <&-", 3)])
def test_other_closed_streams_change_no_result(words: str, code: int) -> None:
    assert subprocess.run(f"{sys.executable} -m cli {words}", shell=True, cwd=ROOT, check=False).returncode == code


def test_ctrl_c_exits_with_130() -> None:
    process = subprocess.Popen([sys.executable, "-m", "cli", "replay", "-"], cwd=ROOT, stdin=subprocess.PIPE)
    eventually(lambda: _waits_for_input(process.pid))
    process.send_signal(signal.SIGINT)

    assert process.wait(GIVE_UP_SECONDS) == 130


def _waits_for_input(pid: int) -> bool:
    """Whether the kernel shows the process inside read() of descriptor 0."""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 ")


def test_documented_exit_codes_cover_each_command() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    names = [name for name in PROGRAMS if name != "agent"] + [words[0] for words in ASK_A_CLUSTER.values()]

    assert [name for name in (*names, "agent", "check", "replay", "explain") if f"`{name}" not in page] == []
    assert sorted(map(int, re.findall(r"^\| (\d+) \|", page, re.MULTILINE))) == [0, 1, 2, 3, 130, 141]


@pytest.mark.parametrize("left", range(6))
def test_check_without_file_descriptors_could_not_check(left: int, tmp_path: Path) -> None:
    program = (
        "import resource, sys; from gpu_healthcheck.cli.app import run\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (3 + {left}, 3 + {left}))\n"
        f"sys.argv = ['gpu-healthcheck', 'check', '--root', {str(tmp_path)!r}]; run()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    if not done.stdout:
        (line,) = done.stderr.splitlines()
        assert line.startswith("gpu-healthcheck: could not check: ")
        assert "Too many open files" in line
