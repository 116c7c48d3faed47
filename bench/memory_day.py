"""Size of the memory file after a simulated day of constant failures."""

from __future__ import annotations

import json
import time

from bench.flood import start_command
from bench.outcome import Outcome, Row
from bench.stage import Stage
from healthcheck.memory.findings import MOST_STANDING

AIM_GROWTH_MIB, AIM_FILE_BYTES = 2.0, 1 << 20
_WARM_HOURS = 2
"""Hours after which the tables are loaded and the limits reached."""
_SECONDS_AN_HOUR = 120.0
_NOTES = (
    "memory-24h: a separate process: lines through the event checks, check cycles, resets, reboots, releases, swaps;",
    "            the memory file with its fsync every 20 s of its clock. Flat: against the end of hour 2",
)


def measure(stage: Stage) -> Outcome:
    hours, began = stage.length.memory_hours, time.monotonic()
    folder = stage.folder / "memory-day"
    with start_command(stage, "bench.memory_day_program", str(hours), str(folder)) as program:
        rows = [json.loads(program.ask("go on", _SECONDS_AN_HOUR)) for _ in range(hours)]
    sizes = [row["rss_mib"] for row in rows]
    warm = sizes[min(_WARM_HOURS, hours) - 1]
    growth, longest = max(sizes) - warm, max(row["file_bytes"] for row in rows)
    standing = max(row["standing"] for row in rows)
    took = time.monotonic() - began
    return Outcome(
        (
            Row(
                f"memory over {hours} h of simulated faults",
                f"flat (+{AIM_GROWTH_MIB:g} MiB)",
                f"RSS {warm:.1f} after {_WARM_HOURS} h, max {max(sizes):.1f}, last {sizes[-1]:.1f} MiB ({took:.0f} s)",
                stage.length.met(growth <= AIM_GROWTH_MIB),
            ),
            Row(
                "its memory file",
                f"≤ {AIM_FILE_BYTES >> 20} MiB",
                f"max {longest / 1024:.0f} KiB, {standing} findings (≤ {MOST_STANDING})",
                stage.length.met(longest <= AIM_FILE_BYTES and standing <= MOST_STANDING),
            ),
        ),
        {"hours": rows},
        _NOTES,
    )
