"""Find the line of a component's log that reports why it fails. Pure.

The logs of a GPU cluster have many forms: logrus and slog (level=fatal), klog (E0610 …), JSON, zap, and the plain
output of the driver's installer, of compilers and of package managers.
"""

from __future__ import annotations

import re

from diagnosis.facts.symptoms import shortened

_LONGEST = 400
_MOST_LINES = 200
_LEVEL = re.compile(
    r"(?i:\blevel=\"?|\"(?:level|severity)\":\s*\")(?P<key>\w+)"
    r"|(?<!\w)(?P<klog>[IWEF])\d{4} \d\d:\d\d:\d\d"
    r"|^(?:.{0,50}?[\s\[])??(?P<word>DEBUG|INFO|WARN|WARNING|ERROR|FATAL|PANIC|CRITICAL)[\]:\s]"
)
"""Level of a line: the value of a key, the letter of klog, or a word in capitals near the beginning."""
_HARMLESS = ("i", "w", "trace", "debug", "info", "notice", "warn", "warning")
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
_NOISE = re.compile(r"(?:^|Z )\++ |debconf: |kernel/dkms\.conf|update-alternatives: |(?:^|Z )warning: ", re.IGNORECASE)
"""Traces of a shell, and messages that a successful run prints too."""
_BEGIN = re.compile(
    r"NVIDIA Software Installer|DRIVER_ARCH is|Starting driver uninstallation|Starting (?:nvidia-toolkit|"
    r"nvidia-ctk-installer|NVIDIA Device Plugin|FS watcher|gpu-feature-discovery|dcgm-exporter)"
)
"""First line of a run of a component."""
_JSON = re.compile(r'"(msg|message|error|err)":\s*"((?:[^"\\]|\\.){0,2000})"')
_FATAL_RANK, _ERROR_RANK, _TELLING_RANK, _CONSEQUENCE_RANK, _OTHER = range(5)


def telling_line(log: str, *, ended: bool) -> str:
    """Return the line of the last run that reports why the component fails: the worst by level, without consequences.

    Of equally bad lines, the first one counts if the container has ended: the others follow from it. In a container
    that still runs, the last one describes its present state.
    """
    lines = failed_run(log)
    ranks = [_rank(line) for line in lines]
    worst = min(ranks, default=_OTHER)
    found = [line for line, rank in zip(lines, ranks, strict=True) if rank == worst] or [""]
    return shortened(_of_json(found[0 if ended and worst != _OTHER else -1]), _LONGEST)


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
    level = (found[found.lastgroup or 0] or "").lower() if found else ""
    if _NOISE.search(line) or (level in _HARMLESS and not _MESSAGE_ERROR.search(line)):
        return _OTHER
    if _CONSEQUENCE.search(line):
        return _CONSEQUENCE_RANK
    if level in ("f", "fatal", "panic", "dpanic", "critical") or _FATAL.search(line):
        return _FATAL_RANK
    if level in ("e", "error", "err") or _ERROR.search(line) or _MESSAGE_ERROR.search(line):
        return _ERROR_RANK
    return _TELLING_RANK if _TELLING.search(line) else _OTHER


def _of_json(line: str) -> str:
    """Return message and error of a JSON line, without its stack trace; other lines as they are."""
    fields = dict(_JSON.findall(line))
    return ": ".join(fields[name] for name in ("msg", "message", "error", "err") if fields.get(name)) or line
