"""Parse the scheduling options of HAMi's extender from its command line and environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from msgspec import Struct, field

from diagnosis.snapshot.pods import HAMI_EXTENDER, Container, PodSpec
from healthcheck.text.durations import duration

LOCK_EXPIRES = timedelta(minutes=5)
"""Expiry of a node's lock, unless the extender sets it (from 2.7)."""
_LOCK = "HAMI_NODELOCK_EXPIRE"


class CommandLine(Struct, frozen=True):
    """Options of the extender; the chart's defaults if none are visible.

    `node_labels`: only nodes with all of these labels are considered.
    """

    node_policy: str = "binpack"
    gpu_policy: str = "spread"
    scheduler_name: str = ""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    lock_expires: timedelta = LOCK_EXPIRES


def command_line(spec: PodSpec) -> CommandLine:
    """Parse the options of the scheduler's pods."""
    extender = next((container for container in spec.containers if container.name == HAMI_EXTENDER), Container(""))
    flags, plain = extender.flags, CommandLine()
    expires = flags.get("node-lock-timeout") or extender.env.get(_LOCK, "")
    return CommandLine(
        flags.get("node-scheduler-policy") or plain.node_policy,
        flags.get("gpu-scheduler-policy") or plain.gpu_policy,
        flags.get("scheduler-name", ""),
        _labels(flags.get("node-label-selector", "")),
        duration(expires) or plain.lock_expires,
    )


def _labels(text: str) -> dict[str, str]:
    """Parse labels written as `gpu=on,pool=a`."""
    pairs = (word.partition("=") for word in text.split(",") if "=" in word)
    return {key.strip(): value.strip() for key, _, value in pairs}
