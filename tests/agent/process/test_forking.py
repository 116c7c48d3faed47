"""A forked process is like any other: the tests of agents depend on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.forking import Forked, heeds
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

PROGRAM = """\
import os, signal, sys, threading
print(*sys.argv[1:], os.environ.get("SAID"), os.getcwd(), flush=True)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, threading.active_count(), file=sys.stderr)
{end}
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def begun(out: Path, end: str, monkeypatch: pytest.MonkeyPatch, **variables: str) -> Forked:
    """The program, which ends so."""
    folder = out.parent / "modules"
    folder.mkdir()
    (folder / "forked_program.py").write_text(PROGRAM.format(end=end))
    monkeypatch.chdir(folder)
    with out.open("wb") as file:
        return Forked([sys.executable, "-m", "forked_program", "a", "b c"], variables, file.fileno())


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("sys.exit('why')", 1),
        ("raise OSError('how')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_its_exit_is_reported_like_any_programs(
    out: Path, end: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = begun(out, end, monkeypatch, SAID="this")

    assert program.wait() == code
    assert program.poll() == code
    folder = out.parent / "modules"
    message = out.read_text()
    assert f"a b c this {folder}\n" in message
    assert "True 1\n" in message
    assert ("why" in end) == ("why" in message)
    assert ("OSError: how" in message) == ("raise" in end)
    program.terminate()  # it has ended: no signal is sent to a process with its reused number


def test_it_hears_signals_and_is_waited_for(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = begun(out, "signal.pause()", monkeypatch)
    eventually(lambda: "True" in out.read_text())

    assert program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    program.terminate()
    assert program.wait() == -signal.SIGTERM
    eventually(lambda: not Path(f"/proc/{program.pid}").exists())


@pytest.mark.parametrize(
    ("variables", "is_forked"),
    [
        ({"CHECK_INTERVAL": "10"}, True),
        ({"LD_PRELOAD": "/nowhere/library.so"}, False),
        ({"PYTHONHASHSEED": "1"}, False),
        ({"https_proxy": "http://127.0.0.1:9"}, False),
        (dict(os.environ), True),
    ],
    ids=["a setting", "a library before others", "Python's own", "a proxy", "nothing new"],
)
def test_what_a_fork_cannot_heed_is_no_forks(variables: dict[str, str], is_forked: bool) -> None:
    assert heeds(variables) == is_forked
