"""GPUs at another address: boards swapped between slots, or buses renumbered at boot. Pure functions, no I/O.

A finding is about a board. It follows the serial, then the UUID; its subject has the address where that GPU is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Key, Memory, differs, gpu_address, worst_first
from gpu_healthcheck.healthcheck.model import Nature
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu


def relocated(memory: Memory, answering: Mapping[str, Gpu]) -> Memory:
    """Return the memory with each finding at the present address of its GPU. `answering` is by address.

    If fewer GPUs answer than before, a board that answers nowhere may be present but silent. If another board answers
    at its address, its findings use its UUID or serial until it answers.
    """
    may_be_silent = len(answering) < len(memory.gpus)
    by_name = _by_name(answering)
    active: dict[Key, ActiveFinding] = {}
    for finding in memory.active:
        moved = _moved(_named_anew(finding, memory, answering), by_name)
        if moved is finding and may_be_silent:
            moved = _displaced(finding, answering)
        known = active.get(moved.key)
        if known is None or known.finding.severity < moved.finding.severity:
            active[moved.key] = moved
    gone = {address for address, about in memory.gpus.items() if _place(about, by_name) not in (None, address)}
    gpus = {address: about for address, about in memory.gpus.items() if address not in gone or address in answering}
    if len(gpus) == len(memory.gpus) and all(active.get(finding.key) is finding for finding in memory.active):
        return memory
    return replace(memory, active=worst_first(active.values()), gpus=gpus)


def _by_name(answering: Mapping[str, Gpu]) -> Mapping[tuple[str, str], str]:
    """Return addresses by serial and UUID. A serial that two GPUs of one board share identifies neither."""
    named = [((key, about[key]), at) for at, gpu in answering.items() if (about := gpu.about) for key in about]
    often = Counter(name for name, _ in named)
    return {name: address for name, address in named if name[0] in ("serial", "uuid") and often[name] == 1}


def _place(about: Mapping[str, str], by_name: Mapping[tuple[str, str], str]) -> str | None:
    """Return the address where the GPU with these names answers; None if it answers nowhere."""
    places = (by_name.get((key, about[key])) for key in ("serial", "uuid") if key in about)
    return next((place for place in places if place), None)


def _named_anew(finding: ActiveFinding, memory: Memory, answering: Mapping[str, Gpu]) -> ActiveFinding:
    """Return the event with the names of the GPU now at its address, if logged in this boot before NVML answered."""
    address = gpu_address(finding.finding.subject)
    if memory.gpus_boot_id in ("", memory.boot_id) or finding.boot_id != memory.boot_id or address not in answering:
        return finding
    about = answering[address].about
    return (
        finding if finding.finding.about == about else replace(finding, finding=replace(finding.finding, about=about))
    )


def _displaced(finding: ActiveFinding, answering: Mapping[str, Gpu]) -> ActiveFinding:
    address, about = gpu_address(finding.finding.subject), finding.finding.about
    name = about.get("uuid") or about.get("serial")
    if finding.nature is Nature.LEVEL or not name or address not in answering:
        return finding
    return _at(finding, name) if differs(about, answering[address].about) else finding


def _moved(finding: ActiveFinding, by_name: Mapping[tuple[str, str], str]) -> ActiveFinding:
    address = gpu_address(finding.finding.subject)
    place = _place(finding.finding.about, by_name) if address else None
    if place is None or place == address:
        return finding
    return _at(finding, place)


def _at(finding: ActiveFinding, place: str) -> ActiveFinding:
    subject = finding.finding.subject.replace(gpu_address(finding.finding.subject), place, 1)
    return replace(finding, finding=replace(finding.finding, subject=subject))
