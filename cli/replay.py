"""`gpu-healthcheck replay`: judge a saved log, and say which rule fired on which line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from cli.words import EXIT_CODES, SEVERITY_STYLES, STATUS_STYLES
from healthcheck import record as records
from healthcheck.checks import CHECKS
from healthcheck.expectation import Expectation
from healthcheck.memory import Standing
from healthcheck.model import Nature
from healthcheck.probes.capture_bytes import CaptureError
from healthcheck.probes.capture_files import Captures, Kind
from healthcheck.profiles import find_profile
from healthcheck.record import Identity
from healthcheck.replay import Replay
from healthcheck.settings import SettingsError, read_settings
from healthcheck.verdict import Verdict, decide

USAGE = 3
_LONGEST_SHOWN = 160

_FILES = typer.Argument(metavar="FILE...", help="Saved logs of one node, oldest first; - is standard input.")


def replay(
    files: Annotated[list[str], _FILES],
    kind: Annotated[Kind | None, typer.Option("--as", help="What the files are; default: by their content.")] = None,
    instance_type: Annotated[str, typer.Option("--instance-type", help="What the node is expected to be.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also what was read and is no fault.")] = False,
) -> None:
    """Judge saved kernel logs. Exit code: 0 pass or warn, 1 fail, 2 unknown, 3 usage or unreadable input."""
    captures = Captures(files, kind)
    replayed = _replayed(captures, instance_type)
    memory = replayed.ended(captures.boot_id, captures.undated_by)
    verdict = decide(memory, replayed.outcomes())
    if as_json:
        assert replayed.now is not None
        identity = Identity(captures.host, instance_type)
        record = records.render(verdict, memory, identity, replayed.now.wall + captures.undated_by)
        sys.stdout.write(records.dump(record) + "\n")
    else:
        _show(", ".join(files), verdict, replayed)
    if verbose:
        _show_passed_over(captures, replayed)
    raise typer.Exit(EXIT_CODES[verdict.status])


def _replayed(captures: Captures, instance_type: str) -> Replay:
    try:
        settings = read_settings(Path(os.environ.get("CONFIG_DIR", "/etc/gpu-healthcheck")))
    except SettingsError as error:
        _end("\n".join(str(one) for one in error.bad))
    expected = Expectation(find_profile(settings.profiles, instance_type), instance_type, policy=settings.values.policy)
    events = tuple(check for check in CHECKS if check.nature is Nature.EVENT)
    values = settings.values
    replayed = Replay(events, expected, values.monitor_ttl_seconds, values.escalate_after)
    try:
        for batch in captures.batches():
            replayed.take(batch)
    except CaptureError as error:
        _end(str(error))
    return replayed


def _end(message: str) -> NoReturn:
    sys.stderr.write(f"gpu-healthcheck replay: {message}\n")
    raise typer.Exit(USAGE)


def _show(name: str, verdict: Verdict, replayed: Replay) -> None:
    """Each finding in three lines: what, by which rule on which line, and that line."""
    console = Console(highlight=False, soft_wrap=True)
    for standing in verdict.standing:
        console.print(_finding(standing))
        rule, source = standing.finding.rule or "none", _printable(standing.finding.source)
        line = _printable(replayed.line_of(standing))
        console.print(Text(f"  rule {rule}, {source}\n" + (f"  {line}\n" if line else ""), "dim"))
    status = (verdict.status.value, STATUS_STYLES[verdict.status])
    console.print(Text.assemble(f"{_printable(name)}: ", status, f", severity {verdict.severity.name}"))


def _finding(standing: Standing) -> Text:
    finding = standing.finding
    times = f" ({standing.count} times)" if standing.count > 1 else ""
    severity = (f"{finding.severity.name} {finding.reason}", SEVERITY_STYLES[finding.severity])
    return Text.assemble(severity, f" on {finding.subject}{times}: {_printable(finding.detail)}")


def _printable(text: str) -> str:
    """What a log says, on one line and without what steers a terminal."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= _LONGEST_SHOWN else line[: _LONGEST_SHOWN - 1] + "…"


def _show_passed_over(captures: Captures, replayed: Replay) -> None:
    """On standard error, so that `--json` keeps standard output for the record."""
    passed = captures.passed_over
    said = [f"no fault: {reason} on {subject}: {count}" for (reason, subject), count in replayed.ignored.most_common()]
    for count, what in (
        (passed.refused, "lines refused, their facility is not the kernel's"),
        (passed.quoted, "lines quoted, something else stands before the message"),
        (passed.told_twice, "events told again in another section"),
    ):
        if count:
            said.append(f"{what}: {count}")
    said += [f"not read to its end: {what}" for what in passed.cut]
    sys.stderr.writelines(f"{_printable(one)}\n" for one in said)
