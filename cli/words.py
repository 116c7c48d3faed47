"""Terminal style of a verdict, exit codes, and the end of a command with an error."""

from __future__ import annotations

from typing import NoReturn

import typer

from gpu_healthcheck.healthcheck.cluster.errors import Forbidden
from gpu_healthcheck.healthcheck.host.program import INTERRUPTED, USAGE
from gpu_healthcheck.healthcheck.host.streams import complain, write_document
from gpu_healthcheck.healthcheck.model import Severity, Status

EXIT_CODES = {Status.PASS: 0, Status.WARN: 0, Status.FAIL: 1, Status.UNKNOWN: 2}
STATUS_STYLES = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.UNKNOWN: "magenta",
    Status.NOT_CONFIGURED: "dim",
}
SEVERITY_STYLES = {
    Severity.PASS: "green",
    Severity.MONITOR: "yellow",
    Severity.RESET: "red",
    Severity.REBOOT: "bold red",
    Severity.ISOLATE: "bold white on red",
}
STYLES: dict[str, str] = {
    **{status.value: style for status, style in STATUS_STYLES.items()},
    **{severity.name: style for severity, style in SEVERITY_STYLES.items()},
}
"""Styles of statuses and severities by name."""


def explained(error: Exception) -> str:
    """Return the error as text, with the permission that the user lacks."""
    if isinstance(error, Forbidden):
        return f"you need permission to {error.verb} {error.resource}: {error}"
    return str(error)


def confirmed(command: str, question: str) -> bool:
    """Return the user's answer. Without an answer on standard input, end the command."""
    try:
        return typer.confirm(question)
    except typer.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            write_document("\n")
            end(command, "no answer on standard input, so nothing was changed; --yes does not ask", INTERRUPTED)
        raise


def severity_words(status: str, severity: str, noun: str = "severity ") -> str:
    """Return what follows a status: the severity of its findings, or that an unknown status is none about hardware."""
    if severity not in ("", Severity.PASS.name):
        return f"{noun}{severity}"
    return "something could not be checked" if status == Status.UNKNOWN else ""


def end(command: str, message: str, code: int = USAGE) -> NoReturn:
    """Print the error, and end the command."""
    complain(command, message)
    raise typer.Exit(code)
