"""Work of `gpu-healthcheck replay`: judge a saved log, each line by its rule."""

from __future__ import annotations

import typer
from rich.text import Text

from cli.json_documents import write_as
from cli.local_settings import LocalSettings, read_here
from cli.replay import ReplayOptions
from cli.words import EXIT_CODES, SEVERITY_STYLES, STATUS_STYLES
from healthcheck.captures.blocks import CaptureError
from healthcheck.captures.capture_files import Captures
from healthcheck.captures.replay import KERNEL_CHECKS, Replay
from healthcheck.catalog.profiles import find_profile
from healthcheck.checks.expectation import Expectation
from healthcheck.host.console import Screen
from healthcheck.host.program import USAGE
from healthcheck.host.streams import complain, say
from healthcheck.memory.findings import ActiveFinding
from healthcheck.text import json_rows
from healthcheck.text.printable import printable
from healthcheck.verdict import record as records
from healthcheck.verdict.record import Identity
from healthcheck.verdict.verdict import Verdict, decide

_LONGEST_SHOWN = 160


def judge_files(options: ReplayOptions) -> int:
    """Returns the exit code."""
    captures, here = Captures(list(options.files), options.kind), read_here("replay")
    try:
        replayed = _replayed(captures, options.instance_type, here)
        if captures.evidence is not None:
            from cli.replay_look import judge_look  # noqa: PLC0415 - a log needs few checks, a check cycle all of them

            return judge_look(captures.evidence, options, here)
        if captures.dcgm is not None:
            from cli.replay_dcgm import Document, judge_document  # noqa: PLC0415 - the same

            return judge_document(Document(options.files[0], captures.dcgm, captures.saved_at), options, here)
    except CaptureError as error:
        complain("replay", str(error))
        raise typer.Exit(USAGE) from None
    return _judge_log(captures, replayed, options)


def _judge_log(captures: Captures, replayed: Replay, options: ReplayOptions) -> int:
    memory = replayed.ended(captures.boot_id, captures.undated_by)
    verdict = decide(memory, replayed.outcomes(captures.unobserved()))
    if options.form:
        assert replayed.now is not None
        identity = Identity(captures.host, options.instance_type)
        record = records.render(verdict, memory, identity, replayed.now.wall + captures.undated_by)
        write_as(options.form, json_rows.as_json(record), indent=None)
    else:
        _show(", ".join(options.files), verdict, replayed)
    if options.verbose:
        _show_passed_over(captures, replayed)
    return EXIT_CODES[verdict.status]


def _replayed(captures: Captures, instance_type: str, here: LocalSettings) -> Replay:
    expected = Expectation(find_profile(here.profiles, instance_type), instance_type, policy=here.policy)
    replayed = Replay(KERNEL_CHECKS, expected, here.number("MONITOR_TTL"), here.number("ESCALATE_AFTER"))
    for batch in captures.batches():
        replayed.take(batch)
    return replayed


def _show(name: str, verdict: Verdict, replayed: Replay) -> None:
    """Print three lines per finding: the finding, its rule with the place of the log line, and that line."""
    console = Screen(soft_wrap=True)
    for standing in verdict.standing:
        console.print(_finding(standing))
        rule, source = standing.finding.rule or "none", printable(standing.finding.source, _LONGEST_SHOWN)
        line = printable(replayed.line_of(standing), _LONGEST_SHOWN)
        console.print(Text(f"  rule {rule}, {source}\n" + (f"  {line}\n" if line else ""), "dim"))
    for cause in dict.fromkeys(row.cause for row in verdict.unobserved):
        console.print(Text(f"could not check: {cause.cause.name}: {printable(cause.detail)}", "magenta"))
    status = (verdict.status.value, STATUS_STYLES[verdict.status])
    console.print(Text.assemble(f"{printable(name, _LONGEST_SHOWN)}: ", status, f", severity {verdict.severity.name}"))


def _finding(standing: ActiveFinding) -> Text:
    finding = standing.finding
    times = f" ({standing.count} times)" if standing.count > 1 else ""
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
