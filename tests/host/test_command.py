"""Children that answer, crash, hang, talk nonsense or will not die. Each is a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host.command import (
    Child,
    ChildError,
    MissedDeadline,
    Program,
    ProgramEnd,
    StillStuck,
    StoppedOnRequest,
    how_it_ended,
)
from tests.waiting import eventually

SHORT, LONG = 0.3, 30.0
ECHO = "for line in sys.stdin: print(line.strip()[::-1], flush=True)"


@pytest.fixture
def start() -> Iterator[Callable[[str], Child]]:
    children: list[Child] = []

    def make(program: str) -> Child:
        children.append(Child((sys.executable, "-c", f"import os, signal, sys, time\n{program}")))
        return children[-1]

    yield make
    for child in children:
        child.end()


Start = Callable[[str], Child]


def is_gone(pid: int) -> bool:
    """Whether nothing runs under this id; one that died and waits to be collected does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_child_answers_many_requests(start: Start) -> None:
    child = start(ECHO)

    assert [child.ask(word, LONG) for word in ("look", "again")] == [b"kool", b"niaga"]
    assert child.pid is not None
    assert child.ask("third", LONG) == b"driht"


def test_child_answer_in_pieces_is_one_answer(start: Start) -> None:
    child = start("for _ in sys.stdin:\n for piece in 'abc\\n': os.write(1, piece.encode()); time.sleep(0.02)")

    assert child.ask("look", LONG) == b"abc"


@pytest.mark.parametrize(
    ("death", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the child was ended by SIGSEGV"),
        ("os.abort()", "the child was ended by SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the child was ended by SIGKILL"),
        ("os._exit(7)", "the child ended with exit code 7"),
        ("sys.exit()", "the child ended with exit code 0"),
        ("os.write(1, b'half an ans'); os._exit(1)", "the child ended with exit code 1"),
    ],
)
def test_child_that_ends_during_a_request_is_an_error_and_replaced(start: Start, death: str, message: str) -> None:
    child = start(f"for line in sys.stdin:\n if 'die' in line:\n  {death}\n print('well', flush=True)")
    child.ask("look", LONG)
    first = child.pid

    with pytest.raises(ChildError, match=message) as caught:
        child.ask("die", LONG)

    assert not isinstance(caught.value, MissedDeadline)
    assert child.ask("look", LONG) == b"well"
    assert child.pid != first


def test_child_that_ended_between_requests_is_replaced(start: Start) -> None:
    child = start(ECHO)
    child.ask("look", LONG)
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    gone = child.pid
    eventually(lambda: is_gone(gone))

    assert child.ask("look", LONG) == b"kool"
    assert child.pid != gone


@pytest.mark.parametrize(
    "hang",
    [
        "time.sleep(999)",
        "os.write(1, b'half an ans'); time.sleep(999)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(999)",
        "while True: os.write(1, b'.'); time.sleep(0.05)",
    ],
)
def test_child_that_misses_its_deadline_is_killed_and_replaced(start: Start, hang: str) -> None:
    child = start(f"for line in sys.stdin:\n if 'hang' in line:\n  {hang}\n print('well', flush=True)")
    child.ask("look", LONG)
    hung = child.pid
    assert hung

    with pytest.raises(MissedDeadline, match="no answer in time; its process was killed") as caught:
        child.ask("hang", SHORT)

    assert (caught.value.pid, child.pid, child.stuck_pid) == (None, None, None)
    assert is_gone(hung)
    assert child.ask("look", LONG) == b"well"


def test_child_is_killed_with_its_children(start: Start) -> None:
    child = start("import subprocess\nfor _ in sys.stdin:\n print(subprocess.Popen(['sleep', '999']).pid, flush=True)")
    grandchild = int(child.ask("start one", LONG))
    assert not is_gone(grandchild)

    child.end()

    eventually(lambda: is_gone(grandchild))


def test_child_with_an_endless_answer_is_replaced(start: Start) -> None:
    child = start(
        "for line in sys.stdin:\n while 'much' in line: os.write(1, b'x' * 65536)\n print('well', flush=True)"
    )

    with pytest.raises(ChildError, match="longer than 4194304 bytes"):
        child.ask("much", LONG)

    assert child.ask("look", LONG) == b"well"


def test_child_can_be_ended_twice(start: Start) -> None:
    child = start(ECHO)
    child.ask("look", LONG)
    pid = child.pid
    assert pid

    assert (child.end(), child.end()) == (None, None)
    assert is_gone(pid)


def test_child_has_only_the_given_environment() -> None:
    program = "import os, sys\nfor _ in sys.stdin: print(sorted(set(os.environ) - {'LC_CTYPE'}), flush=True)"
    child = Child((sys.executable, "-c", program), env={"ONLY": "this"})

    assert child.ask("look", LONG) == b"['ONLY']"
    child.end()


class FrozenDisk:
    """A file system that is frozen: who writes to it waits in D state, and no signal ends that."""

    def __init__(self, directory: Path) -> None:
        self.mount, self._image = directory / "mount", directory / "image"
        self.mount.mkdir()
        self._image.write_bytes(b"")
        os.truncate(self._image, 8 << 20)
        _tool("mkfs.ext4", "-q", "-F", self._image)
        _tool("mount", "-o", "loop", self._image, self.mount)

    def freeze(self) -> None:
        _tool("fsfreeze", "--freeze", self.mount)

    def thaw(self) -> None:
        subprocess.run(["fsfreeze", "--unfreeze", self.mount], check=False, capture_output=True)

    def remove(self) -> None:
        self.thaw()
        eventually(lambda: subprocess.run(["umount", self.mount], check=False, capture_output=True).returncode == 0)


def _tool(*words: str | Path) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no D state can be made here: {error}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root can freeze a file system")
    frozen_disk = FrozenDisk(tmp_path)
    yield frozen_disk
    frozen_disk.remove()


def test_child_that_cannot_be_killed_is_reported_and_none_started(disk: FrozenDisk, start: Start) -> None:
    file = str(disk.mount / "file")
    child = start(
        "for line in sys.stdin:\n"
        f" if 'stick' in line: os.open({file!r}, os.O_CREAT | os.O_WRONLY)\n"
        " print('well', flush=True)"
    )
    child.ask("look", LONG)
    stuck = child.pid
    assert stuck
    disk.freeze()

    with pytest.raises(MissedDeadline, match=f"process {stuck} can't be killed") as caught:
        child.ask("stick", SHORT)
    assert (caught.value.pid, child.stuck_pid, child.pid) == (stuck, stuck, None)
    assert Path(f"/proc/{stuck}/stat").read_text().rpartition(")")[2].split()[0] == "D"

    with pytest.raises(StillStuck, match=f"process {stuck} is still inside the driver"):
        child.ask("look", LONG)
    assert child.pid is None
    assert child.end() == stuck

    disk.thaw()
    eventually(lambda: child.stuck_pid is None)
    assert child.ask("look", LONG) == b"well"


# Programs that run to their end.

ENVIRONMENT = {"PATH": os.defpath, "LC_CTYPE": "C.UTF-8"}


@pytest.fixture
def program() -> Iterator[Program]:
    one = Program(ENVIRONMENT, grace_seconds=SHORT)
    yield one
    one.end()


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, signal, subprocess, sys, time\n{text}")


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("os.write(1, b'out'); os.write(2, b'err')", ProgramEnd(0, b"out", b"err")),
        ("sys.exit(61)", ProgramEnd(61, b"", b"")),
        ("os.write(1, b'half'); os.kill(os.getpid(), signal.SIGSEGV)", ProgramEnd(-signal.SIGSEGV, b"half", b"")),
        ("os.write(1, sys.stdin.buffer.read() or b'nothing to read')", ProgramEnd(0, b"nothing to read", b"")),
        ("os.close(1); os.close(2); time.sleep(0.1); os._exit(4)", ProgramEnd(4, b"", b"")),
        ("os.write(2, b'e' * 300_000); os.write(1, b'o' * 1_000_000)", ProgramEnd(0, b"o" * 1_000_000, b"e" * 300_000)),
    ],
)
def test_program_end_has_outputs_and_exit_code(program: Program, text: str, ended: ProgramEnd) -> None:
    assert program.run(python(text), LONG) == ended


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (0, "ended with exit code 0"),
        (61, "ended with exit code 61"),
        (-11, "was ended by SIGSEGV"),
        (-40, "was ended by signal 40"),
    ],
)
def test_exit_code_is_described(code: int, message: str) -> None:
    assert how_it_ended(code) == message


def test_program_has_only_the_given_path_and_environment(tmp_path: Path) -> None:
    script = tmp_path / "only-here"
    script.write_text("#!/bin/sh\necho $ONLY $HOME\n")
    script.chmod(0o755)

    assert Program({"PATH": str(tmp_path), "ONLY": "this"}, SHORT).run(("only-here",), LONG).out == b"this\n"
    with pytest.raises(ChildError, match="only-here: No such file or directory"):
        Program(ENVIRONMENT, SHORT).run(("only-here",), LONG)


def test_program_that_cannot_be_started_is_an_error(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "no-program"
    file.write_bytes(b"\x7fELF, but no more")
    (tmp_path / "locked").write_text("#!/bin/sh\n")
    file.chmod(0o755)

    for path, why in [
        ("/no/such/program", "No such file or directory"),
        (str(file), "Exec format error"),
        (str(tmp_path / "locked"), "Permission denied"),
        (str(tmp_path), "Permission denied"),
    ]:
        with pytest.raises(ChildError, match=f"{path}: {why}"):
            program.run((path,), LONG)
    assert program.run(python(""), LONG).code == 0


def test_program_has_its_own_session_and_is_killed_first_without_memory(program: Program) -> None:
    alone = "time.sleep(0.2); print(os.getpid() == os.getsid(0), open('/proc/self/oom_score_adj').read().strip())"

    assert program.run(python(alone), LONG).out == b"True 1000\n"


@pytest.mark.parametrize(
    "hang",
    [
        "time.sleep(999)",
        "os.close(1); os.close(2); time.sleep(999)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(999)",
        "while True: os.write(1, b'.'); time.sleep(0.05)",
    ],
)
def test_program_that_misses_its_deadline_is_ended(program: Program, hang: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    with pytest.raises(MissedDeadline, match=r"no end within 1 s; its process was ended") as caught:
        program.run(python(f"open({str(file)!r}, 'w').write(str(os.getpid()))\n{hang}"), 1.0)

    assert (caught.value.pid, program.stuck_pid) == (None, None)
    assert is_gone(int(file.read_text()))
    assert program.run(python("print('well')"), LONG).out == b"well\n"


@pytest.mark.parametrize("output", [1, 2])
def test_program_with_too_much_output_is_ended(program: Program, output: int) -> None:
    with pytest.raises(ChildError, match="its output is longer than 1048576 bytes") as caught:
        program.run(python(f"while True: os.write({output}, b'x' * 65536)"), LONG)

    assert not isinstance(caught.value, MissedDeadline)
    with pytest.raises(ChildError, match="longer than"):
        program.run(python("os.write(1, b'x' * 1_100_000)"), LONG)


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(999)"
LEAVES_A_CHILD = f"child = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}])"


def test_program_that_leaves_a_child_with_its_outputs_ends(program: Program) -> None:
    ended = program.run(python(f"{LEAVES_A_CHILD}\nprint(child.pid)"), LONG)

    assert ended.code == 0
    eventually(lambda: is_gone(int(ended.out)))


def test_program_runs_in_its_directory_with_its_own_output_limit(tmp_path: Path) -> None:
    program = Program(ENVIRONMENT, SHORT, most_output_bytes=2_000_000)

    assert program.run(("pwd", "-P"), LONG, tmp_path).out.decode().strip() == str(tmp_path.resolve())
    assert len(program.run(python("os.write(1, b'o' * 1_900_000)"), LONG).out) == 1_900_000
    with pytest.raises(ChildError, match="its output is longer than 2000000 bytes"):
        program.run(python("os.write(1, b'o' * 2_100_000)"), LONG)


def test_program_is_stopped_within_its_grace_period_and_none_started(tmp_path: Path) -> None:
    path, ready = tmp_path / "said", tmp_path / "ready"
    tidy = f"signal.signal(signal.SIGTERM, lambda *_: (open({str(path)!r}, 'w').write('tidied up'), sys.exit()))"
    text = f"{tidy}\nopen({str(ready)!r}, 'w').write('x')\ntime.sleep(999)"
    program, raised = Program(ENVIRONMENT, grace_seconds=LONG), []

    def run() -> None:
        try:
            program.run(python(text), LONG)
        except ChildError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(ready.exists)
    program.stop()
    thread.join()

    assert ([type(error) for error in raised], path.read_text()) == ([StoppedOnRequest], "tidied up")
    with pytest.raises(StoppedOnRequest, match="no program is started any more"):
        program.run(("true",), LONG)


def test_program_of_another_thread_can_be_ended(program: Program) -> None:
    ends: list[ProgramEnd] = []
    thread = threading.Thread(target=lambda: ends.append(program.run(("sleep", "999"), LONG)))
    thread.start()
    eventually(lambda: program._process is not None)

    assert program.end() is None
    thread.join()
    assert [end.code for end in ends] == [-signal.SIGKILL]


DEEP = f"""
import subprocess, sys
one = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True)
print(one.pid, flush=True)
{STUBBORN}
"""
"""Hears no SIGTERM, and neither does its child, which has a session of its own."""


def leaves_two(file: Path) -> str:
    """A program whose child and grandchild, in sessions of their own, ignore SIGTERM; the file has their pids."""
    return (
        f"child = subprocess.Popen([sys.executable, '-c', {DEEP!r}], stdout=-1, start_new_session=True)\n"
        f"pids = f'{{child.pid}} {{child.stdout.readline().decode()}}'\n"
        f"os.rename(open({str(file)!r} + '.new', 'w').write(pids) and {str(file)!r} + '.new', {str(file)!r})\n"
    )


def stopped_once(program: Program, there: Path) -> threading.Thread:
    """Stops it as soon as the file is there."""

    def stop() -> None:
        eventually(there.exists)
        program.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    return stopper


@pytest.mark.parametrize("ends", ["time.sleep(999)", STUBBORN], ids=["it hears SIGTERM", "it hears nothing"])
def test_program_is_ended_with_descendants_in_other_sessions(tmp_path: Path, ends: str) -> None:
    file = tmp_path / "pids"
    program = Program(ENVIRONMENT, grace_seconds=SHORT)
    stopper = stopped_once(program, file)

    with pytest.raises(StoppedOnRequest, match="its process was ended"):
        program.run(python(f"{leaves_two(file)}\n{ends}"), LONG)

    stopper.join()
    pids = [int(word) for word in file.read_text().split()]
    assert (len(pids), [pid for pid in pids if not is_gone(pid)], program.stuck_pid) == (2, [], None)


def test_descendant_that_cannot_be_killed_is_reported_and_no_program_started(disk: FrozenDisk, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    blocked = f"import os; open({str(ready)!r}, 'w'); os.open({str(disk.mount / 'file')!r}, os.O_CREAT | os.O_WRONLY)"
    program = Program(ENVIRONMENT, grace_seconds=SHORT)
    disk.freeze()
    stopper = stopped_once(program, ready)

    with pytest.raises(StoppedOnRequest, match="can't be killed"):
        program.run(python(f"subprocess.run([sys.executable, '-c', {blocked!r}])"), LONG)

    stopper.join()
    assert program.stuck_pid is not None
    with pytest.raises(StillStuck, match=f"process {program.stuck_pid} of an earlier run can't be killed"):
        program.run(python(""), LONG)
    disk.thaw()
    eventually(lambda: program.stuck_pid is None)
