"""`gpu-healthcheck replay`: judge a saved log, each line by its rule, or a saved check cycle."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import replace
from rich.text import Text

from gpu_healthcheck.cli.local_settings import LocalSettings, read_here
from gpu_healthcheck.cli.options import AsJson, InstanceType, JsonOrYaml, OutputFormat, form_of, one_of
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.cli.words import EXIT_CODES, SEVERITY_STYLES, STATUS_STYLES, end, severity_words
from gpu_healthcheck.healthcheck.captures.blocks import CaptureError
from gpu_healthcheck.healthcheck.captures.capture_files import Captures
from gpu_healthcheck.healthcheck.captures.kind import InputKind
from gpu_healthcheck.healthcheck.captures.replay import KERNEL_CHECKS, Replay
from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.streams import say
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding
from gpu_healthcheck.healthcheck.text import boundary
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import Identity
from gpu_healthcheck.healthcheck.verdict.verdict import Verdict, decide

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="Saved logs of one node, oldest first, or evidence; - is standard input."),
]
As = Annotated[
    InputKind | None,
    typer.Option(
        "--as",
        metavar="KIND",
        help=f"Kind of the files: {', '.join(InputKind)}; default: by their content.",
        **one_of(InputKind),
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also show lines that are no fault.")]
_LONGEST_SHOWN = 160


def replay(
    files: Files,
    kind: As = None,
    instance_type: InstanceType = "",
    output: JsonOrYaml = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Judge saved logs or evidence.

    Exit code: 0 pass or warn, 1 fail, 2 unknown, 3 usage or unreadable input.
    """
    form = form_of(output, OutputFormat.JSON, as_json=as_json)
    captures, here = Captures(list(files), kind), read_here("replay")
    expected = Expectation(find_profile(here.profiles, instance_type), instance_type, policy=here.policy)
    try:
        replayed = _replayed(captures, expected, here)
        if captures.evidence is not None:
            code = _judge_cycle(files[0], captures.evidence, expected, form, verbose=verbose)
        elif captures.dcgm is not None:
            from gpu_healthcheck.cli.replay_dcgm import judge_document  # noqa: PLC0415 - a log does not need the checks

            code = judge_document(files[0], captures.dcgm, captures.saved_at, expected, form)
        else:
            code = _judge_log(", ".join(files), captures, replayed, instance_type, form)
            if verbose:
                _show_passed_over(captures, replayed)
    except CaptureError as error:
        end("replay", str(error))
    raise typer.Exit(code)


def _replayed(captures: Captures, expected: Expectation, here: LocalSettings) -> Replay:
    replayed = Replay(KERNEL_CHECKS, expected, here.number("MONITOR_TTL"), here.number("ESCALATE_AFTER"))
    for batch in captures.batches():
        replayed.take(batch)
    return replayed


def _judge_cycle(name: str, raw: bytes, expected: Expectation, form: OutputFormat | None, *, verbose: bool) -> int:
    """Judge and show a saved check cycle, with an instance type by that type's profile on this machine.

    Raises CaptureError if the file is not a check cycle, or has invalid values.
    """
    from gpu_healthcheck.cli.judged_cycle import judged  # noqa: PLC0415 - a log needs few checks, a check cycle all of them
    from gpu_healthcheck.cli.output.cycle_table import show  # noqa: PLC0415
    from gpu_healthcheck.healthcheck.captures import evidence_file  # noqa: PLC0415

    try:
        cycle = evidence_file.read(raw)
        if kind := expected.instance_type:
            cycle = replace(cycle, expected=replace(cycle.expected, instance_type=kind, profile=expected.profile))
        result = judged(cycle)
    except evidence_file.EvidenceError as error:
        raise CaptureError(f"{name}: {error}") from error
    except (ArithmeticError, ValueError) as error:  # such as 1e300 seconds: valid JSON, but never a probe's value
        raise CaptureError(f"{name}: its values are invalid: {error}") from error
    sourced = tuple(_sourced(finding, name) for finding in result.memory.active)
    result = replace(result, memory=replace(result.memory, active=sourced))
    show(result, form, verbose=verbose)
    return EXIT_CODES[result.verdict.status]


def _sourced(active_finding: ActiveFinding, name: str) -> ActiveFinding:
    """Return the row of a level finding: the evidence is the whole file, and the rule is the rule of the check."""
    finding = active_finding.finding
    return replace(active_finding, finding=replace(finding, source=name, rule=finding.rule or active_finding.check))


def _judge_log(name: str, captures: Captures, replayed: Replay, instance_type: str, form: OutputFormat | None) -> int:
    memory = replayed.ended(captures.boot_id, captures.undated_by)
    verdict = decide(memory, replayed.outcomes(captures.unobserved()))
    if form:
        assert replayed.now is not None
        identity = Identity(captures.host, instance_type)
        record = records.render(verdict, memory, identity, replayed.now.wall + captures.undated_by)
        write_as(form, boundary.as_json(record), indent=None)
    else:
        _show(name, verdict, replayed)
    return EXIT_CODES[verdict.status]


def _show(name: str, verdict: Verdict, replayed: Replay) -> None:
    """Print three lines per finding: the finding, its rule with the place of the log line, and that line."""
    console = Screen(soft_wrap=True)
    for active_finding in verdict.active:
        console.print(_finding(active_finding))
        rule, source = active_finding.finding.rule or "none", printable(active_finding.finding.source, _LONGEST_SHOWN)
        line = printable(replayed.line_of(active_finding), _LONGEST_SHOWN)
        console.print(Text(f"  rule {rule}, {source}\n" + (f"  {line}\n" if line else ""), "dim"))
    for cause in dict.fromkeys(row.cause for row in verdict.unobserved):
        console.print(Text(f"could not check: {cause.cause.name}: {printable(cause.detail)}", "magenta"))
    status = (verdict.status.value, STATUS_STYLES[verdict.status])
    words = severity_words(verdict.status, verdict.severity.name)
    console.print(Text.assemble(f"{printable(name, _LONGEST_SHOWN)}: ", status, f", {words}" if words else ""))


def _finding(active_finding: ActiveFinding) -> Text:
    finding = active_finding.finding
    times = f" ({active_finding.count} times)" if active_finding.count > 1 else ""
    severity = (f"{finding.severity.name} {finding.reason}", SEVERITY_STYLES[finding.severity])
    return Text.assemble(severity, f" on {finding.subject}{times}: {printable(finding.detail, _LONGEST_SHOWN)}")


def _show_passed_over(captures: Captures, replayed: Replay) -> None:
    """Print the lines without a fault to standard error: with `--json`, standard output is the record."""
    passed = captures.passed_over
    messages = [
        f"no fault: {reason} on {subject}: {count}" for (reason, subject), count in replayed.ignored.most_common()
    ]
    for count, what in (
        (passed.refused, "lines refused, their facility is not the kernel's"),
        (passed.quoted, "lines quoted, with other text before the message"),
        (passed.repeated, "events repeated in another section"),
    ):
        if count:
            messages.append(f"{what}: {count}")
    messages += [f"not read to its end: {what}" for what in passed.cut]
    for text in messages:
        say(printable(text, _LONGEST_SHOWN))
