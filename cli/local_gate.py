"""`gpu-healthcheck gate --local` on a machine without an agent: one check cycle within a deadline."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import Any

import typer
from msgspec import to_builtins

from cli.judged_cycle import judged
from cli.this_machine import light_cycle
from healthcheck.model import Status
from healthcheck.verdict.gate import Decision, GateState, decide_node

UNKNOWN = "unknown"
"""Decision without an answer."""


def check_here(seconds: float) -> dict[str, Any]:
    """Return the verdict of this machine as the answer of an agent; `unknown` if it could not be checked in time."""
    answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
    # A driver that does not answer may keep the thread for ever: the deadline is the caller's.
    threading.Thread(target=lambda: answers.put(_check()), name="check", daemon=True).start()
    try:
        return answers.get(timeout=max(seconds, 0.0))
    except Empty:
        return _unknown("the check of this machine did not end within --timeout")


def _check() -> dict[str, Any]:
    """Return the verdict. A defect or an invalid setting of ours drains no node."""
    try:
        _, cycle, settings = light_cycle()
        verdict = judged(cycle).verdict
    except typer.Exit:
        return _unknown("the settings are invalid")
    except Exception as error:  # noqa: BLE001 - the last boundary
        return _unknown(f"{type(error).__name__}: {error}")
    answer = decide_node(GateState(cycle.hostname, verdict.standing, settings.values.gate_severity, 0.0))
    if answer.decision == Decision.START and verdict.status is Status.UNKNOWN:
        return _unknown("; ".join(f"{check.cause.cause.name}: {check.cause.detail}" for check in verdict.unobserved))
    return dict(to_builtins(answer))


def _unknown(why: str) -> dict[str, Any]:
    return {"decision": UNKNOWN, "message": why}
