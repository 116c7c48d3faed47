"""Memory of a starting agent: the content of the node-local file, adapted to this machine and boot."""

from __future__ import annotations

from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.telemetry import Telemetry
from healthcheck.checks.examine import failure
from healthcheck.host import clock
from healthcheck.memory.exits import begin
from healthcheck.memory.file import MemoryFile, MemoryFileError
from healthcheck.memory.findings import Memory
from healthcheck.model import ProbeError, Shortage
from healthcheck.probes.kernel_log import boot_id
from healthcheck.probes.machine import machine_id

log = structlog.get_logger()


class StartState(Struct, frozen=True):
    """Memory at the start of the agent, with the reasons for a lost or partial one."""

    memory: Memory
    was_lost: bool = False
    """The file can't be read; the Node's record may have more findings."""
    unreadable: str = ""
    """Reason and message of the damage."""


def start_from(file: MemoryFile | None, root: Path, telemetry: Telemetry) -> StartState:
    """Load the memory. `file` None: a dry run or a standby, which starts without one.

    This is the boundary of the file: whatever it contains, an agent starts, and the file is kept under another name.
    """
    if file is None:
        return StartState(_begun(Memory(), None, root))
    try:
        before = file.read()
        return StartState(_begun(before or Memory(), file, root), before is None, file.unlocked)
    except Shortage:
        raise
    except MemoryFileError as error:
        unreadable = str(error)
    except Exception as error:  # noqa: BLE001 - boundary of the memory file
        unreadable = f"{file.path}: {failure(error)}; {file.set_aside()}"
    telemetry.memory_errors.inc()
    log.warning("the memory file can't be read", error=unreadable)
    return StartState(_begun(Memory(), file, root), was_lost=True, unreadable=unreadable)


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
    log.info("memory", boot_id=boot, cursor=memory.cursor, active=[finding.finding.reason for finding in memory.active])
    return memory
