"""Find the lines of a component's log that report why it fails. Pure.

The logs of a GPU cluster have many forms: logrus and slog (level=fatal), klog (E0610 …), JSON, zap, and the plain
output of the driver's installer, of compilers and of package managers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.symptoms import shortened

_LONGEST = 400
_MOST_LINES = 200
_LEVEL = re.compile(
    r"(?i:\blevel=\"?|\"(?:level|severity)\":\s*\")(?P<key>\w+)"
    r"|(?<!\w)(?P<klog>[IWEF])\d{4} \d\d:\d\d:\d\d"
    r"|^(?:.{0,50}?[\s\[])??(?P<word>DEBU|INFO|WARN|ERRO|FATA|PANI|CRIT)[A-Z]*[\[\]:\s]"
)
"""Level of a line: the value of a key, the letter of klog, or a word in capitals near the beginning."""
_HARMLESS = ("i", "w", "trac", "debu", "info", "noti", "warn")
_FATAL_LEVELS = ("f", "fata", "pani", "dpan", "crit")
_FATAL = re.compile(r"(?:^|Z )(?:panic|fatal error): |\bFATAL\b")
_ERROR = re.compile(r"\berror(?:\[\w+\])?: |(?:^|Z )E: |\*\*\* .{0,300}(?:Error \d|Stop\.)", re.IGNORECASE)
_MESSAGE_ERROR = re.compile(r"\bmsg=\"?Error\b")
"""Error that the operator's validator logs with level=info."""
_TELLING = re.compile(
    r"error|fail|could not|unable to|cannot|can't|no devices|refused|denied|rejected|not found", re.IGNORECASE
)
_CONSEQUENCE = re.compile(
    r"exit(?:ed with)? (?:status|code):? -?\d+\W*$|Installation has failed|context canceled\W*$"
    r"|Waiting for unfinished jobs|retrying (?:after|in) \d",
    re.IGNORECASE,
)
"""Reports only that an earlier step failed."""
_NOISE = re.compile(
    r"(?:^|Z )(?:\++ |warning: |\"[\w.-]+\": )|debconf: |kernel/dkms\.conf|update-alternatives: "
    r"|Assertion failure: selected configuration not currently applied",
    re.IGNORECASE,
)
"""Traces of a shell, settings that a program prints, and messages that a successful run prints too."""
_BEGIN = re.compile(
    r"NVIDIA Software Installer|DRIVER_ARCH is|Starting driver uninstallation|Starting (?:nvidia-toolkit|"
    r"nvidia-ctk-installer|NVIDIA Device Plugin|FS watcher|gpu-feature-discovery|dcgm-exporter)|Updating to MIG config"
)
"""First line of a run of a component."""
_JSON = re.compile(r'"(msg|message|error|err)":\s*"((?:[^"\\]|\\.){0,2000})"')
_NVRM = re.compile(r"(?:\[ *\d+\.\d+\] )?NVRM: ")
"""Begin of each line of a message of the kernel module."""
_SEARCHED = 16384
_FATAL_RANK, _ERROR_RANK, _TELLING_RANK, _CONSEQUENCE_RANK, _OTHER = range(5)


class Hint(Struct, frozen=True):
    """Fix for messages that match a pattern, as a step of a remedy."""

    pattern: str
    fix: str


def fix_of(texts: str, hints: Iterable[Hint]) -> str:
    """Return the first fix for these texts; '' if they contain no known message. A line end counts as a space."""
    message = " ".join(_NVRM.sub("", texts).split())[-_SEARCHED:]
    return next((each.fix for each in hints if re.search(each.pattern, message, re.IGNORECASE)), "")


def telling_lines(log: str, *, ended: bool) -> tuple[str, ...]:
    """Return the lines of the last run that report why the component fails, without consequences.

    Of a container that has ended, these are its first error, from which others follow, and its first fatal error. In
    one that still runs, the last error describes its present state.
    """
    lines = failed_run(log)
    ranks = [_rank(line) for line in lines]
    worst = min(ranks, default=_OTHER)
    at = [number for number, rank in enumerate(ranks) if rank == worst]
    if ended and worst <= _ERROR_RANK:
        at = sorted({at[0], next(number for number, rank in enumerate(ranks) if rank <= _ERROR_RANK)})
    elif at:
        at = at[:1] if ended and worst != _OTHER else at[-1:]
    return tuple(shortened(_of_json(lines[number]), _LONGEST) for number in at)


def failed_run(log: str) -> list[str]:
    """Return the lines of the last run in the log that reports a failure; without any, those of the last run."""
    lines = [line.strip() for line in log.splitlines()[-_MOST_LINES:] if line.strip()]
    begins = [0, *(number for number, line in enumerate(lines) if number and _BEGIN.search(line))]
    ends = [*begins[1:], len(lines)]
    runs = [lines[begin:end] for begin, end in zip(begins, ends, strict=True)]
    failed = (run for run in reversed(runs) if any(_rank(line) < _CONSEQUENCE_RANK for line in run))
    return next(failed, runs[-1])


def _rank(line: str) -> int:
    found = _LEVEL.search(line)
    level = (found[found.lastgroup or 0] or "").lower()[:4] if found else ""
    if _NOISE.search(line) or (level in _HARMLESS and not _MESSAGE_ERROR.search(line)):
        return _OTHER
    if _CONSEQUENCE.search(line):
        return _CONSEQUENCE_RANK
    if level in _FATAL_LEVELS or _FATAL.search(line):
        return _FATAL_RANK
    if level in ("e", "err", "erro") or _ERROR.search(line) or _MESSAGE_ERROR.search(line):
        return _ERROR_RANK
    return _TELLING_RANK if _TELLING.search(line) else _OTHER


def _of_json(line: str) -> str:
    """Return message and error of a JSON line, without its stack trace; other lines as they are."""
    fields = dict(_JSON.findall(line))
    return ": ".join(fields[name] for name in ("msg", "message", "error", "err") if fields.get(name)) or line
