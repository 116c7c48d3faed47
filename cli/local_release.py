"""`gpu-healthcheck release --local`: release this machine's events in a file that `check` reads."""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace
from rich.text import Text

from gpu_healthcheck.cli.judged_cycle import CheckResult, judged
from gpu_healthcheck.cli.output.lines import print_line
from gpu_healthcheck.cli.this_machine import light_cycle, state_dir
from gpu_healthcheck.cli.words import SEVERITY_STYLES, severity_words
from gpu_healthcheck.healthcheck.captures.evidence_file import EvidenceCycle
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, FAULT
from gpu_healthcheck.healthcheck.host.streams import complain
from gpu_healthcheck.healthcheck.memory.exit_table import RELEASE
from gpu_healthcheck.healthcheck.memory.exits import after_release, begin
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, ActiveFinding, Memory, Release
from gpu_healthcheck.healthcheck.model import Severity, Shortage
from gpu_healthcheck.healthcheck.probes.kernel_log import RING
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.printable import printable


def release_here(by: str, reason: str, *, dry_run: bool) -> int:
    """Release this machine's events, and return the exit code."""
    root, cycle, _ = light_cycle()
    if unread_log := cycle.evidence.unread(RING):
        complain("release", f"the kernel log can't be read: {printable(unread_log.detail)}")
        return COULD_NOT
    folder = state_dir(root)
    before = judged(cycle)
    events = [finding for finding in before.memory.active if RELEASE.is_open_to(finding)]
    console = Screen(soft_wrap=True)
    if not events:
        console.print("nothing to release: no finding on this machine needs one")
        return _shown_rest(before, console)
    console.print("this machine: would release" if dry_run else "this machine: releasing")
    _show(events, console)
    new_release = Release(by or getpass.getuser(), reason, cycle.now.wall, _acknowledgements(events, cycle))
    if not dry_run:
        try:
            _write(folder, cycle, new_release)
        except (MemoryFileError, Shortage) as error:
            complain("release", str(error))
            return COULD_NOT
        console.print(f"released by {printable(new_release.by)}: {printable(reason)}")
    rest = _shown_rest(judged(replace(cycle, acknowledged=(*cycle.acknowledged, *new_release.findings))), console)
    return 0 if dry_run else rest


def _acknowledgements(events: Iterable[ActiveFinding], cycle: EvidenceCycle) -> tuple[Acknowledgement, ...]:
    """Return the acknowledgement of these events up to the present end of the log; later events are not covered."""
    end = max((record.seq for record in cycle.evidence[RING]), default=-1)
    return tuple(
        Acknowledgement(
            *event.key, event.boot_id, end if event.seq >= 0 else None, max(event.last_seen, cycle.now.wall)
        )
        for event in events
    )


def _write(folder: Path, cycle: EvidenceCycle, new_release: Release) -> None:
    """Add the release to the file of this machine. Raises MemoryFileError, Shortage."""
    file = MemoryFile(folder)
    if not file.acquire():
        raise MemoryFileError(f"{folder}: an agent runs on this node; `gpu-healthcheck release NODE` reaches it")
    try:
        try:
            known = file.read()
        except MemoryFileError as error:  # the file is moved aside, so earlier releases no longer count
            complain("release", str(error))
            known = None
        memory = begin(known or Memory(), cycle.machine, cycle.boot_id, cycle.now)
        file.write(after_release(memory, new_release, cycle.now))
    finally:
        file.unlock()


def _shown_rest(after: CheckResult, console: Screen) -> int:
    """Print the findings that are still active; a level fault ends only with its cause."""
    verdict = after.verdict
    if verdict.active:
        console.print("still active")
        _show(verdict.active, console)
    words = severity_words(verdict.status, verdict.severity.name)
    console.print(f"this machine: {', '.join(filter(None, (verdict.status.value, words)))}")
    is_active = any(active.finding.severity >= Severity.RESET for active in verdict.active)
    return FAULT if is_active else 0


def _show(findings: Iterable[ActiveFinding], console: Screen) -> None:
    for finding in findings:
        severity = Text(f"  {finding.finding.severity.name:8}", SEVERITY_STYLES[finding.finding.severity])
        seen = f"{finding.nature.value}, last observed {timestamp(finding.last_seen)}"
        what = f"{finding.finding.reason} on {finding.finding.subject} ({seen})"
        print_line(console, severity, Text(printable(what)))
