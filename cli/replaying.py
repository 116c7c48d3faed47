"""What `gpu-healthcheck replay` does: judge a saved log, each line by its rule; or a saved look, anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import typer
from rich.text import Text

from cli.documents import write_as
from cli.one_look import judged, show
from cli.replay import ReplayWish
from cli.replay_dcgm import Document, judge_document
from cli.words import EXIT_CODES, SEVERITY_STYLES, STATUS_STYLES
from healthcheck.captures import evidence_file
from healthcheck.captures.blocks import CaptureError
from healthcheck.captures.evidence_file import EvidenceError, Look
from healthcheck.captures.files import Captures
from healthcheck.captures.replay import Replay
from healthcheck.catalog.profiles import find_profile
from healthcheck.checks import CHECKS
from healthcheck.checks.expectation import Expectation
from healthcheck.host.console import Screen
from healthcheck.host.streams import complain, say
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


def judge_files(wish: ReplayWish) -> int:
    """Returns the exit code."""
    captures, settings, name = Captures(list(wish.files), wish.kind), _settings(), wish.files[0]
    try:
        replayed = _replayed(captures, wish.instance_type, settings)
        if captures.evidence is not None:
            return _judge_again(name, _look(captures.evidence, wish.instance_type, settings), wish)
        if captures.dcgm is not None:
            document = Document(name, captures.dcgm, captures.saved_at)
            return judge_document(document, wish.instance_type, settings, wish.form)
    except CaptureError as error:
        _end(str(error))
    except EvidenceError as error:
        _end(f"{name}: {error}")
    return _judge_log(captures, replayed, wish)


def _judge_log(captures: Captures, replayed: Replay, wish: ReplayWish) -> int:
    memory = replayed.ended(captures.boot_id, captures.undated_by)
    verdict = decide(memory, replayed.outcomes(captures.unobserved()))
    if wish.form:
        assert replayed.now is not None
        identity = Identity(captures.host, wish.instance_type)
        record = records.render(verdict, memory, identity, replayed.now.wall + captures.undated_by)
        write_as(wish.form, json_rows.as_json(record), indent=None)
    else:
        _show(", ".join(wish.files), verdict, replayed)
    if wish.verbose:
        _show_passed_over(captures, replayed)
    return EXIT_CODES[verdict.status]


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


def _judge_again(name: str, look: Look, wish: ReplayWish) -> int:
    try:
        result = judged(look)
    except (ArithmeticError, ValueError) as error:  # such as 1e300 seconds: JSON can say it and no probe ever does
        raise EvidenceError(f"its values make no sense: {error}") from error
    standing = tuple(_sourced(one, name) for one in result.memory.standing)
    result = replace(result, memory=replace(result.memory, standing=standing))
    show(result, wish.form, verbose=wish.verbose)
    return EXIT_CODES[result.verdict.status]


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
