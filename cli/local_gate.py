"""`gpu-healthcheck gate --local` on a machine without an agent: one check cycle in a child process with a deadline."""

from __future__ import annotations

import json
import os
from typing import Any

from gpu_healthcheck.healthcheck.host.command import ChildError, Program, isolated
from gpu_healthcheck.healthcheck.host.streams import say, write_json

UNKNOWN = "unknown"
"""Decision without an answer."""
_PATIENCE_SECONDS = 0.1


def check_here(seconds: float) -> dict[str, Any]:
    """Return the verdict of this machine as the answer of an agent; `unknown` if it could not be checked in time."""
    try:
        ended = Program(os.environ, _PATIENCE_SECONDS).run(isolated(__name__), max(seconds, 0.0))
    except ChildError as error:
        return _unknown(f"the check of this machine has no result: {error} (--timeout)")
    for line in ended.err.decode("utf-8", "replace").splitlines():
        say(line)
    answer = json.loads(ended.out) if ended.code == 0 else _unknown("the check of this machine failed")
    return dict(answer)


def main() -> int:
    """Run the child: check this machine and print the answer. A defect or an invalid setting of ours drains no node."""
    write_json(_check())
    return 0


def _check() -> Any:
    import typer  # noqa: PLC0415 - only the child needs the checks

    from gpu_healthcheck.cli.judged_cycle import judged  # noqa: PLC0415
    from gpu_healthcheck.cli.this_machine import light_cycle  # noqa: PLC0415
    from gpu_healthcheck.healthcheck.model import Status  # noqa: PLC0415
    from gpu_healthcheck.healthcheck.verdict.gate import Decision, GateState, decide_node  # noqa: PLC0415

    try:
        _, cycle, settings = light_cycle()
        verdict = judged(cycle).verdict
    except typer.Exit:
        return _unknown("the settings are invalid")
    answer = decide_node(GateState(cycle.hostname, verdict.active, settings.values.gate_severity, 0.0))
    if answer.decision == Decision.START and verdict.status is Status.UNKNOWN:
        return _unknown("; ".join(f"{check.cause.cause.name}: {check.cause.detail}" for check in verdict.unobserved))
    return answer


def _unknown(why: str) -> dict[str, Any]:
    return {"decision": UNKNOWN, "message": why}
