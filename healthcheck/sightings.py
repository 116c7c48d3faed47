"""What the kernel log's records, one after the other, make of the memory: NVIDIA's workflows over a window of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from healthcheck.exits import escalated, is_acknowledged, recovered
from healthcheck.memory import Hit, Memory, Standing, age_seconds, gpu_address, worst_first
from healthcheck.model import Finding, Nature, Now, Outcome, Severity, Sighting

WINDOW_SECONDS = 60.0
"""Events of one GPU this close in kernel time are judged together (contract, section 2, workflows)."""
CONSEQUENCE = "Xid45"
"""Preemptive cleanup: only a consequence where any other Xid stands beside it (Xid catalogue, WORKFLOW_XID_45)."""
REPEATS: Mapping[str, str] = {"Xid13": "Xid13Repeated", "Xid31": "Xid31Repeated"}
"""One is an application's bug; on one GPU, and with 13 on one TPC, again and again it is the hardware's."""
REPEATS_WITHIN_SECONDS = 86400.0
REPEATS_FROM = 3
"""Different processes."""
_MOST_HITS = 16
_MOST_GPUS = 64


def noticed(memory: Memory, outcomes: Iterable[Outcome], now: Now, escalate_after: int = 0) -> Memory:
    """The memory after records came from the log, in the log's own order."""
    sightings = [(one, outcome.check) for outcome in outcomes for one in outcome.sightings]
    for sighting, check in sorted(sightings, key=lambda pair: pair[0].seq):
        memory = _noticed(memory, sighting, check, now, escalate_after)
    return replace(memory, standing=worst_first(memory.standing)) if sightings else memory


def _noticed(memory: Memory, sighting: Sighting, check: str, now: Now, escalate_after: int) -> Memory:
    if sighting.driver_loaded:
        return replace(memory, driver_loaded_at=sighting.at)
    address = gpu_address(sighting.subject)
    if sighting.uuid:
        return _named(memory, address, sighting.uuid)
    if sighting.recovered:
        return recovered(memory, address, sighting.at, now)
    finding = sighting.finding
    if finding is not None and _is_consequence(memory, sighting, address):
        finding = None
    memory = _beside(memory, sighting, address)
    if finding is not None:
        memory = _stood(memory, finding, sighting, check, now, escalate_after)
    if sighting.reason in REPEATS:
        memory = _hit(memory, sighting, check, address, now)
    return memory


def _named(memory: Memory, address: str, uuid: str) -> Memory:
    """The driver says which GPU is there, before its first Xid. What NVML said of the same GPU says more."""
    known = memory.gpus.get(address, {})
    if known.get("uuid", uuid) == uuid and known:
        return memory
    others = {other: about for other, about in memory.gpus.items() if other != address}
    return replace(memory, gpus={**dict(list(others.items())[1 - _MOST_GPUS :]), address: {"uuid": uuid}})


def _is_consequence(memory: Memory, sighting: Sighting, address: str) -> bool:
    if sighting.reason != CONSEQUENCE or sighting.finding is None or sighting.finding.severity >= Severity.RESET:
        return False
    last = memory.last_xid.get(address)
    return sighting.follows or (last is not None and abs(sighting.at - last) <= WINDOW_SECONDS)


def _beside(memory: Memory, sighting: Sighting, address: str) -> Memory:
    """Another Xid explains the cleanups around it: those before it are withdrawn, those after it never stand."""
    if not address or not sighting.reason.startswith("Xid") or sighting.reason == CONSEQUENCE:
        return memory

    def is_withdrawn(one: Standing) -> bool:
        return (
            one.finding.reason == CONSEQUENCE
            and gpu_address(one.finding.subject) == address
            and one.finding.severity < Severity.RESET
            and one.boot_id == memory.boot_id
            and sighting.at - one.last_at <= WINDOW_SECONDS
            and one.last_seen - one.first_seen <= timedelta(seconds=WINDOW_SECONDS)
        )

    standing = memory.standing
    if any(is_withdrawn(one) for one in standing):
        standing = tuple(one for one in standing if not is_withdrawn(one))
    others = {other: at for other, at in memory.last_xid.items() if other != address}
    last = {**dict(list(others.items())[1 - _MOST_GPUS :]), address: sighting.at}
    return replace(memory, standing=standing, last_xid=last)


def _stood(memory: Memory, finding: Finding, sighting: Sighting, check: str, now: Now, escalate_after: int) -> Memory:
    """A new event stands, a known one is counted; one that a person has released is neither."""
    seen = _seen(sighting, now)
    key = (finding.reason, finding.subject)
    if is_acknowledged(memory, key, memory.boot_id, sighting.seq, seen):
        return memory
    about = memory.gpus.get(gpu_address(finding.subject), {})
    finding = replace(finding, about=finding.about or about)
    known = next((one for one in memory.standing if one.key == key), None)
    if known is None:
        told = escalated(memory, finding, now, escalate_after)
        fresh = Standing(told, check, Nature.EVENT, seen, seen, 1, memory.boot_id, sighting.at, sighting.seq)
        return replace(memory, standing=(*memory.standing, fresh))
    # The same reason can be milder the next time (Xid 154 names an action): the worse one has not left yet.
    worse = known.finding if known.finding.severity > finding.severity else finding
    again = replace(
        known,
        finding=replace(worse, about=finding.about or known.finding.about),
        last_seen=max(known.last_seen, seen),
        count=known.count + 1,
        boot_id=memory.boot_id,
        last_at=sighting.at,
        seq=sighting.seq,
    )
    return replace(memory, standing=tuple(again if one is known else one for one in memory.standing))


def _hit(memory: Memory, sighting: Sighting, check: str, address: str, now: Now) -> Memory:
    """Remember whom it hit; the third process on one GPU, and on no other, makes it the GPU's own fault."""
    key = (sighting.reason, address)
    seen = _seen(sighting, now)
    known = memory.hits.get(key, ())
    others = tuple(one for one in known if (one.process, one.place) != (sighting.process, sighting.place))
    hits = (*others, Hit(sighting.process, sighting.place, sighting.at, seen))[-_MOST_HITS:]
    rest = {other: one for other, one in memory.hits.items() if other != key}
    memory = replace(memory, hits={**dict(list(rest.items())[1 - _MOST_GPUS :]), key: hits})
    return _repeated(memory, sighting, check, address, now) if sighting.process else memory


def _repeated(memory: Memory, sighting: Sighting, check: str, address: str, now: Now) -> Memory:
    recent = {
        key: [one for one in hits if _is_recent(memory, one, now)]
        for key, hits in memory.hits.items()
        if key[0] == sighting.reason
    }
    here = recent.pop((sighting.reason, address), [])
    if any(recent.values()) or (sighting.reason == "Xid13" and not sighting.place):
        return memory
    processes = {one.process for one in here if one.process and one.place == sighting.place}
    if len(processes) < REPEATS_FROM:
        return memory
    where = f" on {sighting.place}" if sighting.place else ""
    finding = Finding(
        REPEATS[sighting.reason],
        Severity.MONITOR,
        f"gpu/{address}",
        f"{REPEATS_FROM} or more processes{where} within 24 h, and on no other GPU; quarantine the node to test it",
        rule=f"{REPEATS[sighting.reason]}: {REPEATS_FROM} processes",
        source=sighting.source,
        seq=sighting.seq,
        at=sighting.at,
    )
    return _stood(memory, finding, sighting, check, now, 0)


def _is_recent(memory: Memory, hit: Hit, now: Now) -> bool:
    return age_seconds(memory, now, memory.boot_id, hit.at, hit.seen) < REPEATS_WITHIN_SECONDS


def _seen(sighting: Sighting, now: Now) -> datetime:
    """The log's own time, never before it and never in the future: the wall clock may have jumped."""
    return now.wall - timedelta(seconds=max(now.monotonic - sighting.at, 0.0))
