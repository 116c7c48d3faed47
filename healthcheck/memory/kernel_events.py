"""Application of kernel log records to the memory, in log order.

Within a time window, it follows NVIDIA's Xid workflows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.policy import MOST_COUNTED, OVERRIDDEN
from gpu_healthcheck.healthcheck.catalog.severities import at_threshold, is_reached
from gpu_healthcheck.healthcheck.catalog.xid import NONE
from gpu_healthcheck.healthcheck.memory.exit_table import DEVICE_RECOVERED, RECOVERY_XID, SMOOTHING_OFF
from gpu_healthcheck.healthcheck.memory.exits import driver_loaded, escalated, is_acknowledged, recovered
from gpu_healthcheck.healthcheck.memory.findings import (
    MOST_GPUS,
    ActiveFinding,
    CountedProcess,
    Memory,
    ProcessEntry,
    ProcessHit,
    age_seconds,
    gpu_address,
    pid_of,
    with_newest,
    worst_first,
)
from gpu_healthcheck.healthcheck.memory.rdma_ports import with_link
from gpu_healthcheck.healthcheck.memory.reason_names import (
    DRIVER_MESSAGES,
    FELL_OFF_BUS,
    INIT_FAILED,
    LOCKED,
    MLX5_LINKS,
    MLX5_MESSAGES,
    MLX5_NOT_RESPONDING,
    MLX5_RECOVERED,
    MLX5_UNRECOVERABLE,
    NOT_RESPONDING,
    NVLINK_TRAINING,
    PCIE_ERROR,
    PCIE_FATAL,
    PCIE_RECOVERED,
)
from gpu_healthcheck.healthcheck.model import Finding, KernelEvent, Nature, Now, Outcome, Severity
from gpu_healthcheck.healthcheck.text.moments import ago

WINDOW_SECONDS = 60.0
"""Events of one GPU this close in kernel time are judged together (docs/rules.md 17)."""
CONSEQUENCE = "Xid45"
"""Preemptive cleanup: only a consequence if another Xid is in the window (Xid catalogue, WORKFLOW_XID_45)."""
_TIERS_OF_ACTIONS = (Severity.RESET, Severity.REBOOT)
"""Tiers that, announced by Xid 154, replace the tiers of the GPU's events in the window (docs/rules.md 17)."""
REPEATS: Mapping[str, str] = {"Xid13": "Xid13Repeated", "Xid31": "Xid31Repeated"}
"""Xids to their reasons when repeated. A single one is an application's bug. Repeated on only one GPU, and for
Xid 13 on one TPC, it is a hardware fault."""
REPEATS_WITHIN_SECONDS = 86400.0
REPEATS_FROM = 3
"""Number of different processes from which an Xid counts as repeated."""
SMOOTHING_ON = "Xid162"
"""Power smoothing works again, which ends Xid 163 (Xid catalogue)."""
SYMPTOMS = frozenset({FELL_OFF_BUS, NOT_RESPONDING, NVLINK_TRAINING, PCIE_ERROR})
"""Reasons of lines that an Xid of the same GPU and time explains, or a line that names the lost GPU."""
_LOST, _STOPPED = "Xid79", "Xid8"
_WATCHDOG = "RC watchdog"
_LONGEST_DETAIL = 200
_PCIE_SECONDS = 10.0
"""Maximum time from a fatal PCIe error to the line that the GPU's driver can't recover."""
_MOST_HITS = 16
_CLOCKS_DIFFER_SECONDS = 10.0
"""Allowed difference of the log's clock from the clock of process ages, within `REPEATS_WITHIN_SECONDS`."""
_ONE_EXCEPTION_SECONDS = 1.0
"""Maximum time between the lines of one exception."""


def after_kernel_log(memory: Memory, outcomes: Iterable[Outcome], now: Now, escalate_after: int = 0) -> Memory:
    """Return the memory after new log records were applied in log order."""
    events = [(event, outcome.check) for outcome in outcomes for event in outcome.events]
    if not events:
        return memory
    reading = _Reading(memory, now, escalate_after)
    for event, check in sorted(events, key=lambda pair: pair[0].seq):
        reading.add(event, check)
    return replace(reading.memory, active=worst_first(reading.active.values()))


class _Reading:
    """A batch of records being applied.

    Active findings are kept by key, so that a flood of records needs no search.
    """

    def __init__(self, memory: Memory, now: Now, escalate_after: int) -> None:
        self.memory = memory
        """The memory, except its field `active`, which is outdated during the batch."""
        self.active = {finding.key: finding for finding in memory.active}
        self._cleanups = {key for key in self.active if key[0] == CONSEQUENCE}
        self._symptoms = {key for key in self.active if key[0] in SYMPTOMS}
        self._acknowledged = {acknowledgement.key for acknowledgement in memory.acknowledged}
        self._now = now
        self._escalate_after = escalate_after

    def add(self, event: KernelEvent, check: str) -> None:
        if check == MLX5_MESSAGES and event.finding is None:
            self._add_of_rdma(event)
            return
        address = gpu_address(event.subject)
        if event.driver_loaded:
            self._change(lambda whole: driver_loaded(whole, event.at))
        elif event.uuid:
            self.memory = _named(self.memory, address, event.uuid)
        elif event.reason in (PCIE_FATAL, PCIE_RECOVERED):
            self._add_of_pcie(event)
        elif event.recovery_action == NONE:
            self._recover(address, event.at)
        elif not event.of_a_test:
            self._read(event, check, address)

    def _add_of_rdma(self, event: KernelEvent) -> None:
        """Apply a message about an RDMA device that is not a fault: its recovery, or its link."""
        if event.reason == MLX5_RECOVERED:
            for key, finding in list(self.active.items()):
                if key[1] == event.subject and DEVICE_RECOVERED.is_open_to(finding):
                    del self.active[key]
        elif event.reason in MLX5_LINKS:
            ports = with_link(self.memory.first.rdma, event.subject, event.at, up=MLX5_LINKS[event.reason])
            if ports is not self.memory.first.rdma:
                self.memory = replace(self.memory, first=replace(self.memory.first, rdma=ports))

    def _add_of_pcie(self, event: KernelEvent) -> None:
        """Record a fatal error of a PCIe port, or withdraw the error from which the port has recovered."""
        if event.reason == PCIE_FATAL:
            hits = (ProcessHit("", "", event.at, _seen(event, self._now)),)
            self.memory = replace(self.memory, hits=with_newest(self.memory.hits, (PCIE_FATAL, ""), hits, MOST_GPUS))
            return
        for key, finding in list(self.active.items()):
            if key[0] == PCIE_ERROR and self._is_now(finding) and event.at - finding.last_at <= WINDOW_SECONDS:
                del self.active[key]

    def _recover(self, address: str, at: float) -> None:
        # The next check cycle observes the same reset again. It must not count as a second reset, or end later events.
        recovery = {other: action for other, action in self.memory.recovery.items() if other != address}
        self._change(lambda whole: recovered(replace(whole, recovery=recovery), address, at, self._now))

    def _change(self, change: Callable[[Memory], Memory]) -> None:
        """Apply a change to the whole memory, including the active findings."""
        self.memory = change(replace(self.memory, active=tuple(self.active.values())))
        self.active = {finding.key: finding for finding in self.memory.active}

    def _read(self, event: KernelEvent, check: str, address: str) -> None:
        finding = event.finding
        if event.reason == SMOOTHING_ON:
            self.active.pop((SMOOTHING_OFF, event.subject), None)
        if event.recovery_action and address:
            pending = with_newest(self.memory.recovery, address, event.recovery_action, MOST_GPUS)
            self.memory = replace(self.memory, recovery=pending)
        if finding is not None and not _is_consequence(self.memory, event, address) and self._is_news(event):
            self._stand(finding, event, check, self._escalate_after)
        if check == MLX5_MESSAGES:
            self._withdraw_missed_heartbeat(event.subject)
        if address and event.reason.startswith("Xid") and event.reason != CONSEQUENCE:
            self._explain_cleanups(event, address)
            self._explain_symptoms(event.reason, event.subject)
            self.memory = _with_reset(self.memory, address, event.at)
        if address and event.reason == RECOVERY_XID:
            self._apply_action(event, address)
        if event.reason in REPEATS:
            event = replace(event, place=_place(self.memory, event, address))
            self.memory = _hit(self.memory, event, address, self._now)
            repeated = _repeated(self.memory, event, address, self._now)
            if repeated is not None:
                self._stand(repeated, event, check, 0)

    def _withdraw_missed_heartbeat(self, subject: str) -> None:
        """Withdraw the missed heartbeat, or the unfinished command, of an RDMA device that failed: both are one event.

        The driver logs it just before the failure (poll_health in health.c), and as long as the failure lasts.
        """
        failure, missed = (self.active.get((name, subject)) for name in (MLX5_UNRECOVERABLE, MLX5_NOT_RESPONDING))
        if failure is None or missed is None or failure.boot_id != missed.boot_id:
            return
        is_one_event = failure.first_seen - missed.first_seen <= timedelta(seconds=WINDOW_SECONDS)
        if is_one_event and missed.finding.severity <= failure.finding.severity:
            del self.active[missed.key]

    def _is_news(self, event: KernelEvent) -> bool:
        """Whether the event is a fault by itself: it recurred as required, and no active finding explains it."""
        if event.recurs is not None and not self._has_recurred(event):
            return False
        if event.reason == INIT_FAILED:
            return not self._is_of_unsupported_gpus(event)
        if event.reason not in SYMPTOMS:
            return True
        if event.reason == PCIE_ERROR:
            fatal = self.memory.hits.get((PCIE_FATAL, ""), ())
            if not any(0 <= event.at - hit.at <= _PCIE_SECONDS for hit in fatal):
                return False
        explaining = [
            finding
            for finding in self.active.values()
            if self._is_now(finding) and _explains(finding, event.reason, event.subject, event.detail, event.at)
        ]
        for finding in explaining:
            self._add_detail(finding, event.detail)
        return not explaining

    def _is_now(self, finding: ActiveFinding) -> bool:
        return finding.nature is Nature.EVENT and finding.boot_id == self.memory.boot_id

    def _has_recurred(self, event: KernelEvent) -> bool:
        """Whether this line completes the recurrence of its event. The first lines and the last one are recorded."""
        recurs, key = event.recurs, (event.reason, gpu_address(event.subject))
        assert recurs is not None
        hits = self.memory.hits.get(key, ())
        if hits and event.at - hits[-1].at > recurs.pause:
            hits = ()
        hits = (*hits[: recurs.count - 1], ProcessHit("", "", event.at, _seen(event, self._now)))
        self.memory = replace(self.memory, hits=with_newest(self.memory.hits, key, hits, MOST_GPUS))
        return len(hits) >= recurs.count and event.at - hits[0].at >= recurs.seconds

    def _is_of_unsupported_gpus(self, event: KernelEvent) -> bool:
        """Whether a failure to start GPUs is that of sound GPUs for which the driver named what they require."""
        if event.finding is None or event.finding.base[0] is Severity.MONITOR:
            return False
        address = gpu_address(event.subject)
        unsupported = [
            finding
            for (reason, subject), finding in self.active.items()
            if reason == INIT_FAILED
            and finding.finding.base[0] is Severity.MONITOR
            and self._is_now(finding)
            and abs(event.at - finding.last_at) <= WINDOW_SECONDS
            and (not address or gpu_address(subject) in (address, ""))
        ]
        return len(unsupported) >= event.devices

    def _explain_symptoms(self, reason: str, subject: str) -> None:
        """Withdraw the symptoms shortly before a finding that explains them."""
        cause = self.active.get((reason, subject))
        if cause is None:
            return
        for key in list(self._symptoms):
            symptom = self.active.get(key)
            if symptom is None or key == cause.key or not self._is_now(symptom):
                continue
            if _explains(cause, *key, symptom.finding.detail, symptom.last_at):
                self._add_detail(cause, symptom.finding.detail)
                del self.active[key]
                self._symptoms.discard(key)

    def _add_detail(self, cause: ActiveFinding, symptom: str) -> None:
        """Add the watchdog's advice to an Xid 8."""
        finding = cause.finding
        if finding.reason == _STOPPED and _WATCHDOG in symptom and LOCKED not in finding.detail:
            detail = f"{finding.detail[: _LONGEST_DETAIL - len(LOCKED) - 2]}; {LOCKED}"
            self.active[cause.key] = replace(cause, finding=replace(finding, detail=detail))

    def _stand(self, finding: Finding, event: KernelEvent, check: str, escalate_after: int) -> None:
        """Add a new event, or count a known event again. An event that a person has released is skipped."""
        seen = _seen(event, self._now)
        key, boot_id = (finding.reason, finding.subject), self.memory.boot_id
        if key in self._acknowledged and is_acknowledged(self.memory, key, boot_id, event.seq, seen):
            return
        about = finding.about or self.memory.gpus.get(gpu_address(finding.subject), {})
        known = self.active.get(key)
        finding = replace(finding, about=about or (known.finding.about if known else finding.about))
        if event.reason != RECOVERY_XID:
            finding = _at_tier(finding, self._announced(gpu_address(finding.subject), event.at))
        processes = _counted(known, event, boot_id) if finding.reason == event.reason else ()
        finding = _at_threshold(finding, known, event, processes)
        if known is None or _rank(known.finding) < _rank(finding):
            finding = escalated(self.memory, finding, self._now, escalate_after)
        if known is None:
            active = ActiveFinding(finding, check, Nature.EVENT, seen, seen, 1, boot_id, event.at, event.seq)
            active = replace(active, processes=processes)
        else:
            # The same reason can recur with a milder severity (Xid 154 names an action). The worse one is still active.
            worse = known.finding if _rank(known.finding) > _rank(finding) else finding
            active = replace(
                known,
                finding=replace(worse, about=finding.about),
                last_seen=max(known.last_seen, seen),
                count=known.count + 1,
                boot_id=boot_id,
                last_at=event.at,
                seq=event.seq,
                processes=processes,
            )
        self.active[key] = active
        if finding.reason == CONSEQUENCE:
            self._cleanups.add(key)
        if finding.reason in SYMPTOMS:
            self._symptoms.add(key)
            self._explain_symptoms(*key)

    def _announced(self, address: str, at: float) -> Severity | None:
        """Return the tier of the recovery action that Xid 154 announced for this GPU within the window."""
        finding = self.active.get((RECOVERY_XID, f"gpu/{address}"))
        if finding is None or finding.boot_id != self.memory.boot_id or abs(at - finding.last_at) > WINDOW_SECONDS:
            return None
        return finding.finding.severity if finding.finding.severity in _TIERS_OF_ACTIONS else None

    def _apply_action(self, event: KernelEvent, address: str) -> None:
        """Set the GPU's events in the window to the tier of the action that was announced just now."""
        tier = self._announced(address, event.at)
        for key, finding in list(self.active.items()):
            is_code = finding.check == DRIVER_MESSAGES or key[0].removeprefix("Xid").isdecimal()
            if not is_code or key[0] == RECOVERY_XID or gpu_address(key[1]) != address:
                continue
            if tier is not None and _is_milder_alone(finding, event.at, tier, self.memory):
                self.active[key] = replace(finding, finding=_at_tier(finding.finding, tier))

    def _explain_cleanups(self, event: KernelEvent, address: str) -> None:
        """Withdraw the cleanups shortly before another Xid, which explains them."""
        for key in list(self._cleanups):
            finding = self.active.get(key)
            if finding is None or gpu_address(key[1]) != address or not _is_withdrawn(finding, event, self.memory):
                continue
            del self.active[key]
            self._cleanups.discard(key)


def _explains(cause: ActiveFinding, reason: str, subject: str, detail: str, at: float) -> bool:
    """Whether an active finding explains a symptom: the same GPU is lost, or has a grave Xid of the same time.

    A symptom that names no GPU is that of the GPU with the Xid.
    """
    found, address = cause.finding, gpu_address(subject)
    if cause.key == (reason, subject) or (address and gpu_address(found.subject) != address):
        return False
    if found.reason in (_LOST, FELL_OFF_BUS):
        return reason != FELL_OFF_BUS or found.reason == _LOST or (not address and gpu_address(found.subject) != "")
    code = found.reason.removeprefix("Xid")
    if reason == FELL_OFF_BUS or found.reason in (code, CONSEQUENCE):
        return False
    is_of_the_time = abs(at - cause.last_at) <= WINDOW_SECONDS
    if reason == PCIE_ERROR:
        return is_of_the_time and found.severity >= Severity.REBOOT
    is_grave = found.severity >= Severity.RESET or found.reason == _STOPPED
    return is_of_the_time and (is_grave or f"critical error {code}." in detail)


def _rank(finding: Finding) -> tuple[Severity, Severity]:
    """Return the severity in force, then the catalogue's."""
    return finding.severity, finding.base[0]


def _at_tier(finding: Finding, tier: Severity | None) -> Finding:
    """Return the finding at the tier of an announced recovery action. ISOLATE and cluster overrides stay."""
    if tier is None or finding.base[0] in (Severity.PASS, Severity.ISOLATE, tier):
        return finding
    if finding.rule.startswith(OVERRIDDEN):
        severity = finding.severity if finding.rule == OVERRIDDEN else max(finding.severity, tier)
        return replace(finding, severity=severity, catalogued=tier, catalogued_rule=RECOVERY_XID)
    return replace(finding, severity=tier, rule=RECOVERY_XID)


def _is_milder_alone(finding: ActiveFinding, at: float, tier: Severity, memory: Memory) -> bool:
    """Whether the action announced at `at` applies to this event.

    An action lowers the tier only if it is announced within the window of the event's first line. Events that began
    earlier keep their tier.
    """
    if finding.nature is not Nature.EVENT or finding.boot_id != memory.boot_id or at - finding.last_at > WINDOW_SECONDS:
        return False
    since_first = at - finding.last_at + (finding.last_seen - finding.first_seen).total_seconds()
    return tier > finding.finding.base[0] or since_first <= WINDOW_SECONDS


def _named(memory: Memory, address: str, uuid: str) -> Memory:
    """Record the GPU's UUID, which the driver logs before its first Xid.

    If NVML has already described the same GPU, keep its more complete names.
    """
    known = memory.gpus.get(address, {})
    if known.get("uuid", uuid) == uuid and known:
        return memory
    return replace(memory, gpus=with_newest(memory.gpus, address, {"uuid": uuid}, MOST_GPUS))


def _is_consequence(memory: Memory, event: KernelEvent, address: str) -> bool:
    if event.reason != CONSEQUENCE or event.finding is None or event.finding.severity >= Severity.RESET:
        return False
    last = memory.last_xid.get(address)
    return event.follows > 0 or (last is not None and abs(event.at - last) <= WINDOW_SECONDS)


def _is_withdrawn(finding: ActiveFinding, event: KernelEvent, memory: Memory) -> bool:
    return (
        finding.finding.severity < Severity.RESET
        and finding.boot_id == memory.boot_id
        and event.at - finding.last_at <= WINDOW_SECONDS
        and finding.last_seen - finding.first_seen <= timedelta(seconds=WINDOW_SECONDS)
    )


def _with_reset(memory: Memory, address: str, at: float) -> Memory:
    """Record the time of the GPU's last Xid: cleanups within the window after it do not become findings."""
    return replace(memory, last_xid=with_newest(memory.last_xid, address, at, MOST_GPUS))


def _counted(known: ActiveFinding | None, event: KernelEvent, boot_id: str) -> tuple[CountedProcess, ...]:
    """Return the last processes with this event, including that of the line.

    Lines of one process are one. A line without a process belongs to the previous line if that is within the window,
    so a storm without pids counts once until it pauses.
    """
    counted = _ended(known.processes, event) if known is not None and known.boot_id == boot_id else ()
    process = event.process
    if counted and abs(event.at - counted[-1].at) <= WINDOW_SECONDS and not (process and counted[-1].process):
        process, counted = process or counted[-1].process, counted[:-1]
    pid = pid_of(process)
    other_processes = tuple(earlier for earlier in counted if not pid or pid_of(earlier.process) != pid)
    return (*other_processes, CountedProcess(process, event.at))[-MOST_COUNTED:]


def _ended(entries: tuple[ProcessEntry, ...], event: KernelEvent) -> tuple[ProcessEntry, ...]:
    """Mark the earlier lines of the same pid that are older than the process of the line: the pid was used again.

    Without the start of the process, the same pid is the same process: one crash never counts as several.
    """
    if event.began is None:
        return entries
    pid, began = pid_of(event.process), event.began - _CLOCKS_DIFFER_SECONDS
    return tuple(
        replace(entry, process=f"{pid}@{entry.at:.0f}{entry.process[len(pid) :]}")
        if entry.at < began and pid_of(entry.process) == pid
        else entry
        for entry in entries
    )


def maybe_reused(memory: Memory, pids: Collection[str], at: float) -> set[str]:
    """Return the pids that earlier lines named, so long before this time that another process may have them now."""
    before = at - _CLOCKS_DIFFER_SECONDS
    known: list[tuple[CountedProcess | ProcessHit, ...]] = [
        *memory.hits.values(),
        *(active.processes for active in memory.active),
    ]
    return {
        pid for entries in known for entry in entries if entry.at < before and (pid := pid_of(entry.process)) in pids
    }


def _at_threshold(
    finding: Finding, known: ActiveFinding | None, event: KernelEvent, processes: tuple[CountedProcess, ...]
) -> Finding:
    """Return the finding at the cluster's threshold if its processes reach it. Its source is the line that did."""
    threshold = event.threshold
    if threshold is None or not is_reached(threshold, finding, [process.at for process in processes]):
        return finding
    reached = at_threshold(finding, threshold)
    if reached is finding:
        return finding
    source = known.finding.source if known is not None and known.finding.rule == reached.rule else event.source
    return replace(reached, source=source)


def _place(memory: Memory, event: KernelEvent, address: str) -> str:
    """Return the only place on the GPU where the process of the line failed; '' if unknown or several.

    R580 writes the places of an exception into lines without a process, and milliseconds later the process into a line
    without a place (driver 580.159.04 on an H200).
    """
    if event.place or not event.process:
        return event.place
    hits = memory.hits.get((event.reason, address), ())
    recent = [hit for hit in hits if not hit.process and 0 <= event.at - hit.at <= _ONE_EXCEPTION_SECONDS]
    places = {hit.place for hit in recent if hit.place}
    return places.pop() if len(places) == 1 else ""


def _hit(memory: Memory, event: KernelEvent, address: str, now: Now) -> Memory:
    """Record the process that the Xid affected."""
    key = (event.reason, address)
    known, pid = _ended(memory.hits.get(key, ()), event), pid_of(event.process)
    other_hits = tuple(hit for hit in known if hit.place != event.place or pid_of(hit.process) != pid)
    hits = (*other_hits, ProcessHit(event.process, event.place, event.at, _seen(event, now)))[-_MOST_HITS:]
    return replace(memory, hits=with_newest(memory.hits, key, hits, MOST_GPUS))


def _repeated(memory: Memory, event: KernelEvent, address: str, now: Now) -> Finding | None:
    """Return a finding on this GPU if the Xid recently affected three processes here and none on another GPU."""
    if not event.process or (event.reason == "Xid13" and not event.place):
        return None
    elsewhere = (hits for key, hits in memory.hits.items() if key[0] == event.reason and key[1] != address)
    # Newest first: in a storm over several GPUs the newest hit decides, and this test runs for each log line.
    if any(_is_recent(memory, hit, now) for hits in elsewhere for hit in reversed(hits)):
        return None
    on_this_gpu = [
        process_hit
        for process_hit in memory.hits[event.reason, address]
        if process_hit.process and process_hit.place == event.place
    ]
    # Oldest first, and each process once.
    if len(on_this_gpu) < REPEATS_FROM or not _is_recent(memory, on_this_gpu[-REPEATS_FROM], now):
        return None
    where = f" on {event.place}" if event.place else ""
    return Finding(
        REPEATS[event.reason],
        Severity.MONITOR,
        f"gpu/{address}",
        f"{REPEATS_FROM} or more processes{where} within 24 h, but on no other GPU; quarantine the node to test it",
        rule=f"{REPEATS[event.reason]}: {REPEATS_FROM} processes",
        source=event.source,
        seq=event.seq,
        at=event.at,
    )


def _is_recent(memory: Memory, hit: ProcessHit, now: Now) -> bool:
    return age_seconds(memory, now, memory.boot_id, hit.at, hit.seen) < REPEATS_WITHIN_SECONDS


def _seen(event: KernelEvent, now: Now) -> datetime:
    """Return the wall time of the event from its monotonic time, never in the future: the wall clock may jump."""
    return ago(now.wall, max(now.monotonic - event.at, 0.0))
