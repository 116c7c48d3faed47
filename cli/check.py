"""`gpu-healthcheck check`: probe this machine once, judge it and print the result, without a cluster."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from gpu_healthcheck.cli.judged_cycle import judged
from gpu_healthcheck.cli.level_2_run import Level2Run, who_uses
from gpu_healthcheck.cli.options import AsJson, InstanceType, JsonOrYaml, OutputFormat, form_of, path
from gpu_healthcheck.cli.output.cycle_table import show
from gpu_healthcheck.cli.this_machine import (
    after_first_read,
    check_once,
    find_root,
    instance_type_of,
    probing,
    usable_settings,
)
from gpu_healthcheck.cli.words import EXIT_CODES, end
from gpu_healthcheck.healthcheck.captures import evidence_file
from gpu_healthcheck.healthcheck.captures.evidence_file import EvidenceCycle, EvidenceError
from gpu_healthcheck.healthcheck.checks import dcgm_diag, gpu_siblings
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, INTERRUPTED
from gpu_healthcheck.healthcheck.host.streams import complain, say
from gpu_healthcheck.healthcheck.model import Host
from gpu_healthcheck.healthcheck.text.printable import printable

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CHECK...]",
        help="Group numbers or check names; default: CHECKS_LIGHTWEIGHT. 1 runs DCGM's level 2 for minutes.",
    ),
]
Root = Annotated[
    Path | None, typer.Option("--root", metavar="FOLDER", parser=path, help="Check the host tree mounted here.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print the evidence for the verdict.")]
SaveEvidence = Annotated[
    Path | None,
    typer.Option(
        "--save-evidence",
        metavar="FILE",
        parser=path,
        help="Write the evidence for `replay`; it contains serial numbers, UUIDs and the kernel log.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Run level 2 although pods or processes use the GPUs.")]
_SHORTEST_SECONDS, _LONGEST_SECONDS = 20, 600
"""Limits of --interval. The driver's samples cover about 20 s."""
_DIGITS = re.compile("[0-9]{2,3}")
Now = Annotated[
    bool,
    typer.Option(
        "--now", help="With `siblings`: read the GPUs twice while a job runs, and compare the GPUs of each pod at once."
    ),
]


def _interval(text: str | int) -> int:
    """Parse the option --interval. Raises typer.BadParameter."""
    if _DIGITS.fullmatch(str(text)) and _SHORTEST_SECONDS <= int(text) <= _LONGEST_SECONDS:
        return int(text)
    raise typer.BadParameter(f"{_SHORTEST_SECONDS} to {_LONGEST_SECONDS} seconds are allowed")


Interval = Annotated[
    int,
    typer.Option(
        "--interval", metavar="SECONDS", parser=_interval, help="Time between the two reads of --now, 20 to 600 s."
    ),
]


def check(  # noqa: PLR0913, PLR0917 - each is an option of the command
    names: Names = None,
    output: JsonOrYaml = None,
    as_json: AsJson = False,
    root: Root = None,
    instance_type: InstanceType = "",
    verbose: Verbose = False,
    save_evidence: SaveEvidence = None,
    force: Force = False,
    compare_now: Now = False,
    interval: Interval = 60,
) -> None:
    """Check this node once and print the verdict.

    Exit code: 0 pass or warn, 1 fail, 2 unknown, 3 usage, 130 Ctrl-C.
    """
    form = form_of(output, OutputFormat.JSON, as_json=as_json)
    settings, checks = usable_settings(names or [], root)
    if compare_now:
        if checks != (gpu_siblings.CHECK,) or root is not None or save_evidence:
            raise typer.BadParameter("--now is for `check siblings`, without other checks, --root and --save-evidence")
        checks = (gpu_siblings.NOW,)
    if save_evidence and (reason := evidence_file.why_not(save_evidence)):
        end("check", f"--save-evidence: {reason}")
    host_root, here = find_root(root), root is None
    instance_type = instance_type or (instance_type_of(host_root) if here else "")
    level_2 = Level2Run(settings.values, host_root) if dcgm_diag.LEVEL_2 in checks else None
    with probing(host_root, here=here) as host:
        if level_2 is not None:
            _must_be_idle(host, force=force)
        asked = replace(host, ask_dcgm=level_2.run if level_2 else None)
        if compare_now:
            asked = after_first_read(asked, interval)
        cycle = check_once(asked, checks, instance_type, settings, here=here)
    result = judged(cycle)
    show(result, form, verbose=verbose)
    if here and os.geteuid() and result.verdict.unobserved:
        say("not running as root: checks that could not run may need root")
    if save_evidence:
        _save(save_evidence, cycle)
    was_stopped = level_2 is not None and level_2.was_stopped
    raise typer.Exit(INTERRUPTED if was_stopped else EXIT_CODES[result.verdict.status])


def _must_be_idle(host: Host, *, force: bool) -> None:
    """Exit if a process uses the GPUs: level 2 loads them, and would fail or slow that process down."""
    if force or not (used := who_uses(host)):
        return
    complain("check", f"{dcgm_diag.LEVEL_2.group}: {printable(used)}")
    if not sys.stdin.isatty():
        say("nothing was tested; --force tests anyway")
        raise typer.Exit(COULD_NOT)
    if not typer.confirm("Test anyway?", err=True):
        raise typer.Exit(COULD_NOT)


def _save(file: Path, cycle: EvidenceCycle) -> None:
    try:
        evidence_file.write(file, cycle)
    except EvidenceError as error:
        end("check", f"--save-evidence: {error}")
