"""`gpu-healthcheck replay`: judge a saved log, and say which rule fired on which line; or a saved look, anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from cli.one_look import judged, show
from cli.replay_dcgm import Document, judge_document
from cli.words import EXIT_CODES, SEVERITY_STYLES, STATUS_STYLES
from healthcheck.captures import evidence_file
from healthcheck.captures.blocks import CaptureError
from healthcheck.captures.evidence_file import EvidenceError, Look
from healthcheck.captures.files import Captures, Kind
from healthcheck.captures.replay import Replay
from healthcheck.catalog.profiles import find_profile
from healthcheck.checks import CHECKS
from healthcheck.checks.expectation import Expectation
from healthcheck.host.console import Screen
from healthcheck.host.streams import complain, say, write_json
from healthcheck.memory.findings import Standing
from healthcheck.model import Nature
from healthcheck.settings import Settings, SettingsError, read_settings
from healthcheck.text import json_rows
from healthcheck.text.printable import printable
from healthcheck.verdict import record as records
from healthcheck.verdict.record import Identity
from healthcheck.verdict.verdict import Verdict, decide

USAGE = 3
_LONGEST_SHOWN = 160

_FILES = typer.Argument(
    metavar="FILE...", help="Saved logs of one node, oldest first, or evidence; - is standard input."
)


def replay(
    files: Annotated[list[str], _FILES],
    kind: Annotated[Kind | None, typer.Option("--as", help="What the files are; default: by their content.")] = None,
    instance_type: Annotated[str, typer.Option("--instance-type", help="What the node is expected to be.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also what was read and is no fault.")] = False,
) -> None:
    """Judge saved logs or evidence. Exit code: 0 pass or warn, 1 fail, 2 unknown, 3 usage or unreadable input."""
    captures, settings = Captures(files, kind), _settings()
    try:
        replayed = _replayed(captures, instance_type, settings)
        if captures.evidence is not None:
            look = _look(captures.evidence, instance_type, settings)
            _judge_again(files[0], look, as_json=as_json, verbose=verbose)
        if captures.dcgm is not None:
            document = Document(files[0], captures.dcgm, captures.saved_at)
            raise typer.Exit(judge_document(document, instance_type, settings, as_json=as_json))
    except CaptureError as error:
        _end(str(error))
    except EvidenceError as error:
        _end(f"{files[0]}: {error}")
    memory = replayed.ended(captures.boot_id, captures.undated_by)
    verdict = decide(memory, replayed.outcomes(captures.unobserved()))
    if as_json:
        assert replayed.now is not None
        identity = Identity(captures.host, instance_type)
        record = records.render(verdict, memory, identity, replayed.now.wall + captures.undated_by)
        write_json(json_rows.as_json(record))
    else:
        _show(", ".join(files), verdict, replayed)
    if verbose:
        _show_passed_over(captures, replayed)
    raise typer.Exit(EXIT_CODES[verdict.status])


def _settings() -> Settings:
    try:
        return read_settings(Path(os.environ.get("CONFIG_DIR", "/etc/gpu-healthcheck")))
    except SettingsError as error:
        _end("\n".join(str(one) for one in error.bad))


def _replayed(captures: Captures, instance_type: str, settings: Settings) -> Replay:
    expected = Expectation(find_profile(settings.profiles, instance_type), instance_type, policy=settings.values.policy)
    events = tuple(check for check in CHECKS if check.nature is Nature.EVENT)
    values = settings.values
    replayed = Replay(events, expected, values.monitor_ttl_seconds, values.escalate_after)
    for batch in captures.batches():
        replayed.take(batch)
    return replayed


def _look(raw: bytes, instance_type: str, settings: Settings) -> Look:
    """The look as it was saved, its expectations too; with another instance type, that one's profile of here."""
    look = evidence_file.read(raw)
    if not instance_type:
        return look
    profile = find_profile(settings.profiles, instance_type)
    return replace(look, expected=replace(look.expected, instance_type=instance_type, profile=profile))


def _judge_again(name: str, look: Look, *, as_json: bool, verbose: bool) -> NoReturn:
    try:
        result = judged(look)
    except (ArithmeticError, ValueError) as error:  # such as 1e300 seconds: JSON can say it and no probe ever does
        raise EvidenceError(f"its values make no sense: {error}") from error
    standing = tuple(_sourced(one, name) for one in result.memory.standing)
    result = replace(result, memory=replace(result.memory, standing=standing))
    show(result, as_json=as_json, verbose=verbose)
    raise typer.Exit(EXIT_CODES[result.verdict.status])


def _sourced(standing: Standing, name: str) -> Standing:
    """A level rests on the file as a whole, and the rule is its check's."""
    finding = standing.finding
    return replace(standing, finding=replace(finding, source=name, rule=finding.rule or standing.check))


def _end(message: str) -> NoReturn:
    complain("replay", message)
    raise typer.Exit(USAGE)


def _show(name: str, verdict: Verdict, replayed: Replay) -> None:
    """Each finding in three lines: what, by which rule on which line, and that line."""
    console = Screen(soft_wrap=True)
    for standing in verdict.standing:
        console.print(_finding(standing))
        rule, source = standing.finding.rule or "none", printable(standing.finding.source, _LONGEST_SHOWN)
        line = printable(replayed.line_of(standing), _LONGEST_SHOWN)
        console.print(Text(f"  rule {rule}, {source}\n" + (f"  {line}\n" if line else ""), "dim"))
    for cause in dict.fromkeys(row.cause for row in verdict.unobserved):
        console.print(Text(f"could not look: {cause.cause.name}: {printable(cause.detail)}", "magenta"))
    status = (verdict.status.value, STATUS_STYLES[verdict.status])
    console.print(Text.assemble(f"{printable(name, _LONGEST_SHOWN)}: ", status, f", severity {verdict.severity.name}"))


def _finding(standing: Standing) -> Text:
    finding = standing.finding
    times = f" ({standing.count} times)" if standing.count > 1 else ""
    severity = (f"{finding.severity.name} {finding.reason}", SEVERITY_STYLES[finding.severity])
    return Text.assemble(severity, f" on {finding.subject}{times}: {printable(finding.detail, _LONGEST_SHOWN)}")


def _show_passed_over(captures: Captures, replayed: Replay) -> None:
    """On standard error, so that `--json` keeps standard output for the record."""
    passed = captures.passed_over
    said = [f"no fault: {reason} on {subject}: {count}" for (reason, subject), count in replayed.ignored.most_common()]
    for count, what in (
        (passed.refused, "lines refused, their facility is not the kernel's"),
        (passed.quoted, "lines quoted, something else stands before the message"),
        (passed.repeated, "events told again in another section"),
    ):
        if count:
            said.append(f"{what}: {count}")
    said += [f"not read to its end: {what}" for what in passed.cut]
    for one in said:
        say(printable(one, _LONGEST_SHOWN))
