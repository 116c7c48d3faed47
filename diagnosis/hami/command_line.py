"""What the command line and environment of HAMi's extender say of how it chooses. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from diagnosis.snapshot.pods import HAMI_EXTENDER, Container, PodSpec

LOCK_EXPIRES = timedelta(minutes=5)
"""Of a node, unless the extender is told otherwise (from 2.7)."""
_LOCK = "HAMI_NODELOCK_EXPIRE"
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|h|m|s)){1,4}\Z", re.ASCII)
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)", re.ASCII)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_LONGEST = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """As the chart has it where nothing is visible. `node_labels`: only nodes with all of them are looked at."""

    node_policy: str = "binpack"
    gpu_policy: str = "spread"
    scheduler_name: str = ""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    lock_expires: timedelta = LOCK_EXPIRES


def command_line(spec: PodSpec) -> CommandLine:
    """Of the scheduler's pods."""
    extender = next((one for one in spec.containers if one.name == HAMI_EXTENDER), Container(""))
    flags, plain = extender.flags, CommandLine()
    expires = flags.get("node-lock-timeout") or extender.env.get(_LOCK, "")
    return CommandLine(
        flags.get("node-scheduler-policy") or plain.node_policy,
        flags.get("gpu-scheduler-policy") or plain.gpu_policy,
        flags.get("scheduler-name", ""),
        _labels(flags.get("node-label-selector", "")),
        duration(expires) or plain.lock_expires,
    )


def duration(text: str) -> timedelta | None:
    """As Go writes one: `5m`, `1m30s`, `300s`. None for what is none, or is no time at all."""
    if not _DURATION.match(text):
        return None
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    return timedelta(seconds=seconds) if 0 < seconds < _LONGEST.total_seconds() else None


def _labels(text: str) -> dict[str, str]:
    """Of `gpu=on,pool=a`."""
    pairs = (one.partition("=") for one in text.split(",") if "=" in one)
    return {key.strip(): value.strip() for key, _, value in pairs}
