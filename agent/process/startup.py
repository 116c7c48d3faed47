"""Memory of a starting agent: the content of the node-local file, adapted to this machine and boot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.state.last_failure import forget_failure, read_failure
from agent.telemetry import Telemetry
from healthcheck.host import clock
from healthcheck.memory.exits import begin
from healthcheck.memory.file import MemoryFile, MemoryFileError
from healthcheck.memory.findings import Memory
from healthcheck.model import ProbeError
from healthcheck.probes.kernel_log import boot_id
from healthcheck.probes.machine import machine_id

log = structlog.get_logger()

_MOST_FAILURES = 2


class StartState(Struct, frozen=True):
    """Memory at the start of the agent, with the reasons for a lost or partial one."""

    memory: Memory
    was_lost: bool = False
    """The file can't be read; the Node's record may have more findings."""
    unreadable: str = ""
    """Reason and message of the damage."""
    set_aside: str = ""
    """Why the content of the file was not used."""

    @property
    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield reason and message of each warning."""
        if self.unreadable:
            yield "MemoryUnreadable", self.unreadable
        if self.set_aside:
            yield "MemorySetAside", self.set_aside


def start_from(file: MemoryFile | None, root: Path, telemetry: Telemetry) -> StartState:
    """Load the memory. `file` None: a dry run or a standby, which starts without one."""
    if file is None:
        return StartState(_begun(Memory(), None, root))
    set_aside = _set_aside_after_failures(file, telemetry)
    before, unreadable = None, file.unlocked
    try:
        before = file.read()
    except MemoryFileError as error:
        telemetry.memory_errors.inc()
        unreadable = str(error)
        log.warning("the memory file can't be read", error=unreadable)
    return StartState(_begun(before or Memory(), file, root), before is None, unreadable, set_aside)


def _begun(before: Memory, file: MemoryFile | None, root: Path) -> Memory:
    """Return the memory for this boot of this machine."""
    try:
        boot = boot_id(root)
    except ProbeError as error:
        # A failed read ends nothing: active findings stay, and the whole log is judged again.
        before, boot = replace(before, cursor=None), before.boot_id
        log.warning("the boot can't be identified", error=str(error))
    try:
        machine = machine_id(root)
    except ProbeError as error:
        machine = before.machine
        log.warning("the machine can't be identified", error=str(error))
    if file is not None and before.machine and machine and before.machine != machine:
        log.warning("the memory belongs to another machine and is not used", was=file.set_aside("other-machine"))
    memory = begin(before, machine, boot, clock.now())
    log.info(
        "memory", boot_id=boot, cursor=memory.cursor, standing=[finding.finding.reason for finding in memory.standing]
    )
    return memory


def _set_aside_after_failures(file: MemoryFile, telemetry: Telemetry) -> str:
    """Set a memory aside that may have ended the agent twice in the same way; return a description, or '' if unchanged.

    Active findings return from the Node's own record and the kernel log.
    """
    last = read_failure(file.directory)
    if last.times < _MOST_FAILURES:
        return ""
    where = file.set_aside("after-failures")
    forget_failure(file.directory)  # the next start, possibly of a rollout, keeps the new memory
    telemetry.set_aside.labels("memory").inc()
    log.error("the memory was moved aside", failure=last.words, times=last.times, memory=where)
    return f"the agent ended {last.times} times in a row by {last.words}; its memory: {where}"
