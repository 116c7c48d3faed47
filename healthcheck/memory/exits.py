"""Removal of findings for which there is evidence that one of their exits occurred (`exit_table`).

A finding ends in no other way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.severities import ESCALATED
from gpu_healthcheck.healthcheck.memory.exit_table import (
    ALL_RESET,
    DRIVER_LOADED,
    INSTANCE_GONE,
    LEVEL_2_PASSED,
    LIBRARY_FITS,
    MEASURED,
    NOT_SHOWN,
    OTHER_GPU,
    QUARANTINE,
    REBOOT,
    RECOVERED,
    RECOVERY_XID,
    RELEASE,
    RESET,
    TIME,
)
from gpu_healthcheck.healthcheck.memory.findings import (
    MOST_GPUS,
    Acknowledgement,
    ActiveFinding,
    FirstObservation,
    Key,
    Memory,
    Release,
    age_seconds,
    differs,
    gpu_address,
    gpu_identity,
    located,
    with_newest,
    worst_first,
)
from gpu_healthcheck.healthcheck.memory.moves import relocated
from gpu_healthcheck.healthcheck.memory.rdma_ports import accepted, rebooted
from gpu_healthcheck.healthcheck.memory.reason_names import RDMA, REMAP_FAILED, REMAP_PENDING
from gpu_healthcheck.healthcheck.model import Finding, Nature, Now, Passed, Severity
from gpu_healthcheck.healthcheck.model.node_facts import ONCE_HAD, SAME_LOAD_SECONDS, EarlierHardware
from gpu_healthcheck.healthcheck.probes.nvml.gpus import SUCCESS, Gpu

_REMAP_FAILURE = "Xid64"
REMAP_XIDS = frozenset({"Xid63", _REMAP_FAILURE})
"""Xids that log a pending replacement of a memory row by a spare row; NVML reports later whether it succeeded."""
LONGEST_CYCLE_SECONDS = 60.0
"""Deadline of a light probe: an event this shortly before a cycle's end may be later than the cycle's NVML answer."""
ESCALATE_WITHIN = timedelta(days=7)
_MOST_ACKNOWLEDGED = 512
_MOST_CHARACTERS = 1 << 17
"""Limit for the texts of all acknowledgements: two of the longest releases. The file has room for the rest too."""
_MOST_COUNTED = 1 << 31
_RELEASE, _PASSED = "release", "passed"
"""Keys of first observations."""
_MOST_ENDED, _MOST_ENDS = 256, 16


def begin(before: Memory, machine: str, boot_id: str, now: Now) -> Memory:
    """Return the memory at the start of a program on this machine and boot.

    Another machine inherits no findings. Another boot ends the events below ISOLATE. A level remains until a check
    cycle shows that it is gone.
    """
    if before.machine and machine and before.machine != machine:
        # A deep record that was adopted belongs to the previous machine.
        return Memory(machine, boot_id, adopted_records=before.adopted_records)
    if before.boot_id == boot_id:
        return replace(before, machine=machine or before.machine)
    memory = _end(before, REBOOT.is_open_to, now.wall)
    return replace(
        memory,
        machine=machine or before.machine,
        boot_id=boot_id,
        cursor=None,
        driver_loaded_at=None,
        first=replace(memory.first, rdma=rebooted(memory.first.rdma)),
        suspects={},
        # Acknowledgements by a position in the old boot's log apply to no event of the new boot.
        acknowledged=tuple(
            acknowledgement for acknowledgement in memory.acknowledged if acknowledgement.cursor is None
        ),
        recovery={},
        last_xid={},
        hits={},
    )


def expired(memory: Memory, now: Now, monitor_ttl_seconds: float) -> Memory:
    """Return the memory without the MONITOR events that have expired.

    Events of a higher severity never expire.
    """

    def has_passed(finding: ActiveFinding) -> bool:
        if not TIME.is_open_to(finding):
            return False
        return age_seconds(memory, now, finding.boot_id, finding.last_at, finding.last_seen) >= monitor_ttl_seconds

    return _without(memory, has_passed)


def recovered(memory: Memory, address: str, at: float, now: Now) -> Memory:
    """Return the memory after the GPU at `address` was reset at `at`: earlier findings end.

    The reset is shown by the GPU's recovery action or by the GPU answering again.
    """

    def is_past(finding: ActiveFinding) -> bool:
        if _is_after(finding, at, memory):
            return False
        if finding.finding.subject == "node":  # each GPU of the node has a separate recovery action
            return RECOVERED.is_open_to(finding) and not memory.recovery.keys() - {address}
        if gpu_address(finding.finding.subject) != address:
            return False
        if differs(finding.finding.about, memory.gpus.get(address, {})):
            return False
        return RESET.is_open_to(finding) or RECOVERED.is_open_to(finding)

    memory = _end(memory, is_past, now.wall)
    return _counted_from(memory, lambda finding: gpu_address(finding.finding.subject) == address, at)


def gpus_answered(memory: Memory, gpus: Iterable[Gpu], began: float, now: Now) -> Memory:
    """Return the memory after a read of NVML that began at `began` (monotonic).

    It records which GPUs answered, and ends the findings that these answers disprove.
    """
    listed = tuple(gpus)
    answering = {gpu.address: gpu for gpu in listed if gpu.address and gpu.error == SUCCESS}
    memory = _without(
        memory, lambda finding: LIBRARY_FITS.is_open_to(finding) and not _is_after(finding, began, memory)
    )
    if _is_other_hardware(memory, answering.values()):
        # The machine has no readable ID, but its GPUs show that it was replaced.
        kept = tuple(finding for finding in memory.active if finding.boot_id == memory.boot_id)
        memory = replace(memory, active=kept, gpus={}, ended={}, recovery={}, first=EarlierHardware())
    # If fewer GPUs answer than before, a GPU that answers nowhere may be present but silent.
    are_all_here = len(answering) >= len(memory.gpus)
    memory = relocated(memory, answering)
    for address, gpu in answering.items():
        memory = _rows_replaced(_in_its_place(memory, address, gpu, are_all_here), address, gpu, now)
        memory = _recovery_seen(memory, address, gpu, began, now)
    if listed and len(answering) == len(listed):
        memory = _all_reset(memory, answering, began, now)
    return replace(memory, gpus_boot_id=memory.boot_id) if answering else memory


def driver_loaded(memory: Memory, at: float) -> Memory:
    """Return the memory after the driver reported at `at` (monotonic) that it is loaded.

    If it has just reported GPUs that it could not initialise, they failed in this load. Otherwise it initialised all.
    """
    logged = [
        finding for finding in memory.active if DRIVER_LOADED.is_open_to(finding) and finding.boot_id == memory.boot_id
    ]
    has_failed = any(abs(at - finding.last_at) <= SAME_LOAD_SECONDS for finding in logged)
    return replace(memory if has_failed else every_gpu_initialised(memory, at), driver_loaded_at=at)


def every_gpu_initialised(memory: Memory, at: float) -> Memory:
    """Return the memory after evidence from `at` (monotonic) that the driver has initialised all its GPUs."""
    return _without(memory, lambda finding: DRIVER_LOADED.is_open_to(finding) and not _is_after(finding, at, memory))


def passed(memory: Memory, began: datetime, seen: FirstObservation | None = None) -> Memory:
    """Return the memory after a quarantine run with level 4 that began at `began` and passed.

    The run ends findings on the hardware that it tested. It ends no finding observed after it began, and none logged
    after its result was first observed (`seen`). A GPU that still requests a recovery action is not healthy yet.
    """

    def is_well(finding: ActiveFinding) -> bool:
        if (
            not QUARANTINE.is_open_to(finding)
            or finding.last_seen >= began
            or (seen and _was_logged_after(finding, seen, memory))
        ):
            return False
        recovering = gpu_address(finding.finding.subject) in memory.recovery
        return finding.finding.tier is Severity.ISOLATE or not recovering

    return _without(memory, is_well)


def retested(memory: Memory, passed: Iterable[Passed], began: datetime) -> Memory:
    """Return the memory without the findings of level 2 and of slow GPUs that a run passed which began at `began`.

    Findings of level 4 need more: see `passed`.
    """
    passed_keys = {(result.reason, result.subject) for result in passed}

    def has_passed(finding: ActiveFinding) -> bool:
        is_open = LEVEL_2_PASSED.is_open_to(finding) or MEASURED.is_open_to(finding)
        if not is_open or finding.last_seen >= began:
            return False
        return not passed_keys.isdisjoint({finding.key, (finding.finding.reason, "")})

    return _without(memory, has_passed)


def after_release(memory: Memory, release: Release, now: Now) -> Memory:
    """Return the memory after a person's release: the named findings end, and reset counts are cleared.

    Applying the same release again changes nothing. A release covers events observed here before the release itself was
    observed, whatever its date. A deep test's record may name a GPU by something other than its address.
    """
    observation = FirstObservation(_name_of(release), now.wall)
    known = memory.first_observations.get(_RELEASE)
    if known is not None and known.name == observation.name:
        return memory
    last_seen = {finding.key: finding.last_seen for finding in memory.active}
    located_rows = (replace(row, subject=located(memory.gpus, row.subject)) for row in release.findings)
    rows = tuple(dict.fromkeys((*release.findings, *located_rows)))

    def is_released(finding: ActiveFinding) -> bool:
        # A level is observed in every cycle, but the record is not written each time.
        return RELEASE.is_open_to(finding) and any(
            row.key == finding.key
            and (finding.nature is Nature.LEVEL or row.covers(finding.boot_id, finding.seq, finding.last_seen))
            for row in rows
        )

    # If the clock was set back, findings may have times later than now. They were observed too.
    acknowledged = [
        replace(row, last_seen=min(row.last_seen, max(now.wall, last_seen.get(row.key, now.wall)))) for row in rows
    ]
    kept = [acknowledgement for acknowledgement in memory.acknowledged if acknowledgement not in acknowledged]
    released = [active.finding for active in memory.active if is_released(active)]
    losses = [finding for finding in released if finding.source == ONCE_HAD]
    of_ports = [finding for finding in losses if finding.subject.startswith(RDMA)]
    first = replace(memory.first, rdma=accepted(memory.first.rdma, of_ports)) if of_ports else memory.first
    if len(of_ports) < len(losses):
        first = replace(first, gpus=0)
    return replace(
        _without(memory, is_released),
        first=first,
        released=Release(release.by, release.reason, min(release.at, now.wall), ()),
        acknowledged=_newest((*kept, *acknowledged)),
        ended={},
        first_observations={**memory.first_observations, _RELEASE: observation},
    )


def quarantined(memory: Memory, name: str, began: datetime, now: Now) -> Memory:
    """Return the memory after a passed quarantine run that the Node's record reports.

    `name` identifies the run.
    """
    observation = memory.first_observations.get(_PASSED)
    if observation is None or observation.name != name:
        places = (finding.seq for finding in memory.active if finding.boot_id == memory.boot_id)
        observation = FirstObservation(
            name, now.wall, memory.boot_id, max((-1 if memory.cursor is None else memory.cursor, *places))
        )
        memory = replace(memory, first_observations={**memory.first_observations, _PASSED: observation})
    return passed(memory, min(began, observation.at), observation)


def _was_logged_after(finding: ActiveFinding, seen: FirstObservation, memory: Memory) -> bool:
    if finding.seq < 0 or not seen.boot_id or finding.boot_id != memory.boot_id:
        return False
    return seen.boot_id != memory.boot_id or finding.seq > seen.cursor


def within_log(memory: Memory) -> Memory:
    """Limit the log positions of this boot to the last position of the log, which was read to its end."""
    end = -1 if memory.cursor is None else memory.cursor

    def is_beyond(boot_id: str, place: int | None) -> bool:
        return boot_id == memory.boot_id and place is not None and place > end

    acknowledged = tuple(
        replace(acknowledgement, cursor=end)
        if is_beyond(acknowledgement.boot_id, acknowledgement.cursor)
        else acknowledgement
        for acknowledgement in memory.acknowledged
    )
    active = tuple(
        replace(finding, seq=end) if is_beyond(finding.boot_id, finding.seq) else finding for finding in memory.active
    )
    return replace(memory, acknowledged=acknowledged, active=active)


def adopted(memory: Memory, recorded: Memory, now: Now) -> Memory:
    """Return the memory with the entries that only the Node's record still has.

    This restores the memory after the file on the node was lost. If both have an entry, the worse one is kept: the log
    repeats one event, not always with the same severity.
    """
    recorded = _by_now(recorded, now)
    acknowledged = tuple(
        acknowledgement for acknowledgement in recorded.acknowledged if acknowledgement not in memory.acknowledged
    )
    memory = replace(
        memory,
        released=memory.released or recorded.released,
        acknowledged=_newest((*acknowledged, *memory.acknowledged)),
        adopted_records={**recorded.adopted_records, **memory.adopted_records},
    )
    # The log was read before the Node, so events that a person had released are in the memory again.
    memory = _without(
        memory,
        lambda finding: (
            finding.nature is Nature.EVENT
            and is_acknowledged(memory, finding.key, finding.boot_id, finding.seq, finding.last_seen)
        ),
    )
    active = {finding.key: finding for finding in recorded.active}
    for finding in memory.active:
        active[finding.key] = _worse_of(finding, active.get(finding.key))
    return replace(memory, active=worst_first(active.values()))


def _worse_of(finding: ActiveFinding, recorded: ActiveFinding | None) -> ActiveFinding:
    """Return the worse of two findings, with the earlier of their first observations.

    Both exist if a check cycle ended before the record on the Node was read.
    """
    if recorded is None or recorded.nature is not finding.nature:
        return finding
    seen = replace(finding, first_seen=min(finding.first_seen, recorded.first_seen))
    if recorded.finding.severity <= finding.finding.severity:
        return seen
    return replace(seen, finding=recorded.finding, check=recorded.check)


def _by_now(recorded: Memory, now: Now) -> Memory:
    """Limit the times of a record to now, and its counts to a maximum.

    Any client with access to the Node may have written the record.
    """

    def seen(finding: ActiveFinding) -> ActiveFinding:
        first, last = (min(at, now.wall) for at in (finding.first_seen, finding.last_seen))
        at, count = min(finding.last_at, now.monotonic), min(finding.count, _MOST_COUNTED)
        return replace(finding, first_seen=first, last_seen=last, last_at=at, count=count)

    released = recorded.released
    return replace(
        recorded,
        active=tuple(map(seen, recorded.active)),
        acknowledged=tuple(
            replace(acknowledgement, last_seen=min(acknowledgement.last_seen, now.wall))
            for acknowledgement in recorded.acknowledged
        ),
        released=replace(released, at=min(released.at, now.wall)) if released else None,
    )


def _newest(acknowledged: tuple[Acknowledgement, ...]) -> tuple[Acknowledgement, ...]:
    """Return as many of the newest acknowledgements as fit, whatever texts they contain.

    Dropping an acknowledgement hides no fault.
    """
    kept: list[Acknowledgement] = []
    characters_left = _MOST_CHARACTERS
    for acknowledgement in reversed(acknowledged[-_MOST_ACKNOWLEDGED:]):
        characters_left -= len(acknowledgement.reason) + len(acknowledgement.subject) + len(acknowledgement.boot_id)
        if characters_left < 0:
            break
        kept.append(acknowledgement)
    return tuple(reversed(kept))


def _name_of(word: Release) -> str:
    """Return an identifier of a release that is the same at each read."""
    return hashlib.blake2s(repr(word).encode("utf-8", "replace"), digest_size=12).hexdigest()


def is_acknowledged(memory: Memory, key: Key, boot_id: str, seq: int, seen: datetime) -> bool:
    """Whether a person has released this event already."""
    return any(
        acknowledgement.key == key and acknowledgement.covers(boot_id, seq, seen)
        for acknowledgement in memory.acknowledged
    )


def escalated(memory: Memory, finding: Finding, now: Now, escalate_after: int) -> Finding:
    """Return the finding, with ISOLATE if resets or reboots have ended it on this GPU too often (rule 6)."""
    ends = memory.ended.get((finding.reason, gpu_identity(finding.about)), ())
    if finding.reason == _REMAP_FAILURE and finding.severity in (Severity.RESET, Severity.REBOOT):
        why = _why_memory_is_beyond_repair(memory, finding, len(ends))
    else:
        recent = [end for end in ends if abs(now.wall - end) <= ESCALATE_WITHIN]
        is_due = escalate_after and _can_escalate(finding) and len(recent) >= escalate_after
        why = f"recurred after {len(recent)} resets or reboots in 7 days" if is_due else ""
    if not why:
        return finding
    isolated = replace(finding, severity=Severity.ISOLATE, detail=f"{why}: {finding.detail}", rule=ESCALATED)
    return replace(isolated, catalogued=None, catalogued_rule="")


def _why_memory_is_beyond_repair(memory: Memory, finding: Finding, ends: int) -> str:
    """Return why a repeated Xid 64 requires a replacement GPU: resets did not repair its memory.

    Return '' if a reset must be tried first.
    """
    if any(active.key == (REMAP_FAILED, f"gpu/{gpu_address(finding.subject)}") for active in memory.active):
        return f"together with {REMAP_FAILED}"
    if ends and _can_escalate(finding):
        return f"recurred after {ends} resets or reboots"
    return ""


def ended_by_reset(memory: Memory, finding: ActiveFinding, wall: datetime) -> Memory:
    """Record that a reset or a reboot ended the finding."""
    identity = gpu_identity(finding.finding.about)
    if not _can_escalate(finding.finding):
        return memory
    key = (finding.finding.reason, identity)
    ends = (*memory.ended.get(key, ()), wall)[-_MOST_ENDS:]
    return replace(memory, ended=with_newest(memory.ended, key, ends, _MOST_ENDED))


def _can_escalate(finding: Finding) -> bool:
    return (
        finding.severity in (Severity.RESET, Severity.REBOOT)
        and finding.escalates
        and gpu_address(finding.subject) != ""
        and gpu_identity(finding.about) != ""
    )


def _is_after(finding: ActiveFinding, at: float, memory: Memory) -> bool:
    return finding.boot_id == memory.boot_id and finding.last_at > at


def _in_its_place(memory: Memory, address: str, gpu: Gpu, are_all_here: bool) -> Memory:
    """Remove findings of another GPU at this address, or of a MIG instance that no longer exists."""

    def is_about_another(finding: ActiveFinding) -> bool:
        if gpu_address(finding.finding.subject) != address:
            return False
        # A level found at this address is about the GPU that is there now.
        if differs(finding.finding.about, gpu.about):
            return NOT_SHOWN.is_open_to(finding) or (are_all_here and OTHER_GPU.is_open_to(finding))
        return INSTANCE_GONE.is_open_to(finding) and _instance_is_gone(finding.finding.subject, gpu)

    def is_its_own(finding: ActiveFinding) -> bool:
        return gpu_address(finding.finding.subject) == address and not differs(finding.finding.about, gpu.about)

    memory = _without(memory, is_about_another)
    named = tuple(
        replace(finding, finding=replace(finding.finding, about=_named(finding.finding.about, gpu.about)))
        if is_its_own(finding)
        else finding
        for finding in memory.active
    )
    known = memory.gpus.get(address, {})
    about = gpu.about if differs(known, gpu.about) else _named(known, gpu.about)
    return replace(memory, active=named, gpus=with_newest(memory.gpus, address, about, MOST_GPUS))


def _named(known: Mapping[str, str], seen: Mapping[str, str]) -> Mapping[str, str]:
    """Return the names of one GPU. If a read yields fewer names than before, the known ones are kept."""
    return seen if known.keys() <= seen.keys() else {**known, **seen}


def _recovery_seen(memory: Memory, address: str, gpu: Gpu, began: float, now: Now) -> Memory:
    """Apply evidence of a reset: the recovery action is None again, or the GPU answers after a reload.

    The pending action is the last action shown by NVML, or the action in the text of Xid 154. A GPU can fail and be
    reset in the time between two reads.
    """
    pending = memory.recovery.get(address, 0)
    action = gpu.recovery_action
    loaded = memory.driver_loaded_at
    if any(
        finding.finding.reason == RECOVERY_XID and gpu_address(finding.finding.subject) == address
        for finding in memory.active
        if _is_after(finding, began, memory)
    ):
        # NVML may have answered before the log announced the action.
        return memory
    if pending and action == 0:
        memory = recovered(memory, address, began, now)
    if loaded is not None and began > loaded and not action and gpu.recovery_error == SUCCESS:
        memory = recovered(memory, address, loaded, now)
    if action is None and gpu.recovery_error != SUCCESS:
        return memory
    # If the driver does not support recovery actions, none is pending.
    recovery = {other: pending_action for other, pending_action in memory.recovery.items() if other != address}
    return replace(memory, recovery={**recovery, address: action} if action else recovery)


def _all_reset(memory: Memory, answering: Mapping[str, Gpu], began: float, now: Now) -> Memory:
    """Apply evidence of a reset of the NVSwitches and all GPUs: after a driver load, every GPU answers."""
    loaded = memory.driver_loaded_at
    if loaded is None or began <= loaded or not memory.gpus.keys() <= answering.keys():
        return memory
    if any(gpu.recovery_action or gpu.recovery_error != SUCCESS for gpu in answering.values()):
        return memory
    memory = _end(
        memory, lambda finding: ALL_RESET.is_open_to(finding) and not _is_after(finding, loaded, memory), now.wall
    )
    return _counted_from(memory, lambda finding: gpu_address(finding.finding.subject) == "", loaded)


def _counted_from(memory: Memory, is_of: Callable[[ActiveFinding], bool], at: float) -> Memory:
    """Return the memory without the counts of processes before a reset at `at` (monotonic)."""

    def counted(finding: ActiveFinding) -> ActiveFinding:
        if not finding.processes or finding.boot_id != memory.boot_id or not is_of(finding):
            return finding
        kept = tuple(process for process in finding.processes if process.at > at)
        return finding if kept == finding.processes else replace(finding, processes=kept)

    active = tuple(map(counted, memory.active))
    return replace(memory, active=active) if active != memory.active else memory


def _rows_replaced(memory: Memory, address: str, gpu: Gpu, now: Now) -> Memory:
    """Apply evidence of a reset to logged row remapping events: rows were pending, and none are now.

    Without an earlier read that showed pending rows, this is not evidence. If the driver could not even record the row
    of an Xid 64, NVML shows neither a pending nor a failed row. Only events before the last read that showed pending
    rows are ended.
    """
    remap = gpu.row_remap
    if remap is None or remap.pending or remap.failed:
        return memory
    waiting = (REMAP_PENDING, gpu.subject)
    seen = [
        finding.last_at for finding in memory.active if finding.key == waiting and finding.boot_id == memory.boot_id
    ]

    def is_past(finding: ActiveFinding) -> bool:
        if finding.finding.reason not in REMAP_XIDS or gpu_address(finding.finding.subject) != address:
            return False
        if differs(finding.finding.about, gpu.about):
            return False
        return RESET.is_open_to(finding) and not _is_after(finding, seen[0] - LONGEST_CYCLE_SECONDS, memory)

    return _end(memory, is_past, now.wall) if seen else memory


def _instance_is_gone(subject: str, gpu: Gpu) -> bool:
    instance = subject.rpartition("/gi")[2]
    return gpu.instances is not None and instance.isdigit() and int(instance) not in gpu.instances


def _is_other_hardware(memory: Memory, gpus: Iterable[Gpu]) -> bool:
    known = {about["serial"] for about in memory.gpus.values() if about.get("serial")}
    seen = {gpu.serial for gpu in gpus if gpu.serial}
    # If fewer GPUs answer than before, the silent ones may still be here.
    return 0 < len(known) <= len(seen) and known.isdisjoint(seen)


def _end(memory: Memory, ends: Callable[[ActiveFinding], bool], wall: datetime) -> Memory:
    """Remove the findings that a reset or a reboot ends, and count these ends in case the findings recur."""
    gone = [finding for finding in memory.active if ends(finding)]
    for finding in gone:
        memory = ended_by_reset(memory, finding, wall)
    return (
        replace(memory, active=tuple(finding for finding in memory.active if finding not in gone)) if gone else memory
    )


def _without(memory: Memory, gone: Callable[[ActiveFinding], bool]) -> Memory:
    kept = tuple(finding for finding in memory.active if not gone(finding))
    return memory if len(kept) == len(memory.active) else replace(memory, active=kept)
