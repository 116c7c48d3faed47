"""Speed of `gpu-healthcheck replay` on a saved kernel log, and the growth of its memory with the log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.outcome import Outcome, Row, percentile, summary
from bench.program import OneRun, ignore, run_once
from bench.stage import Stage

AIM_MB_PER_SECOND = 50.0
AIM_GROWTH_MIB = 16.0
_CODES = (13, 31, 43, 45, 79, 94)
_GPU_LINE_EVERY = 4000
_CHATTER = (
    'audit: type=1400 audit({0}.{1}:7): apparmor="ALLOWED" operation="open" profile="x" pid={0}',
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{0}: link becomes ready",
    "docker0: port {0}(veth{1}) entered blocking state",
    "usb 1-{0}: new high-speed USB device number {1} using xhci_hcd",
    "TCP: request_sock_TCP: Possible SYN flooding on port {0}. Sending cookies.",
)
_BOOTED = datetime(2026, 11, 1, tzinfo=UTC)
_EXIT_CODES = (0, 1)
"""Without and with a fault in the log."""
_NOTES = (
    "replay: the whole command including the start of Python; the file is in the page cache",
    "        invented kernel chatter, one line in 4,000 about a GPU",
)


def measure(stage: Stage) -> Outcome:
    size = stage.length.replay_megabytes * 1_000_000
    rows: list[Row] = []
    raw: dict[str, object] = {}
    for form in ("dmesg", "syslog"):
        log, small = _written(stage.folder, form, size), _written(stage.folder, form, size // 100)
        runs = [_run(stage, log) for _ in range(stage.length.replays)]
        speeds = [log.stat().st_size / 1e6 / run.seconds for run in runs]
        growth = max(run.peak_mib for run in runs) - _run(stage, small).peak_mib
        what = f"replay of a {size // 1_000_000} MB kernel log ({form})"
        rows += [
            Row(
                what,
                f"≥ {AIM_MB_PER_SECOND:g} MB/s",
                f"p50 {percentile(speeds, 0.5):.0f}, min {min(speeds):.0f} MB/s ({len(runs)} times)",
                stage.length.met(min(speeds) >= AIM_MB_PER_SECOND),
            ),
            stage.at_most("its memory in excess of that for a hundredth of the log", AIM_GROWTH_MIB, "MiB", growth),
        ]
        raw[form] = {"mb_per_second": summary(speeds), "growth_mib": round(growth, 1)}
        log.unlink()
    return Outcome(tuple(rows), raw, _NOTES)


def _run(stage: Stage, log: Path) -> OneRun:
    environment = stage.bare_environment | {"CONFIG_DIR": str(stage.folder / "none")}
    return run_once(("cli", "replay", "--json", str(log)), environment, _EXIT_CODES, ignore)


def _written(folder: Path, form: str, size: int) -> Path:
    path = folder / f"replay-{form}-{size}.log"
    with path.open("w") as log:
        for line in _lines(form):
            log.write(line)
            if log.tell() >= size:
                return path
    raise AssertionError("the lines never end")


def _lines(form: str) -> Iterator[str]:
    chance, at, number = random.Random(1), 0.0, 0
    while True:
        at, number = at + chance.random() * 2, number + 1
        text = _gpu_line(chance) if number % _GPU_LINE_EVERY == 0 else _chatter(chance)
        if form == "dmesg":
            yield f"[{at:12.6f}] {text}\n"
        else:
            yield f"{_BOOTED + timedelta(seconds=at):%b %d %H:%M:%S} ip-10-0-0-1 kernel: {text}\n"


def _gpu_line(chance: random.Random) -> str:
    bus, code, pid = chance.choice((0x53, 0x64, 0x75)), chance.choice(_CODES), chance.randrange(99999)
    return f"NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={pid}, name=python3, Ch 00000008"


def _chatter(chance: random.Random) -> str:
    return chance.choice(_CHATTER).format(chance.randrange(9999), chance.randrange(9999))
