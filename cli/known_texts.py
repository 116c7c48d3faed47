"""Recognise a log line, a message, or an error of CUDA, NVML, NCCL or libfabric."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from gpu_healthcheck.cli import index
from gpu_healthcheck.cli.index import IndexEntry
from gpu_healthcheck.healthcheck.catalog.cuda_errors import LibraryError, cuda_errors, fix_of, library_errors
from gpu_healthcheck.healthcheck.catalog.policy import Policy, Ruling
from gpu_healthcheck.healthcheck.catalog.sxid import rule_sxid
from gpu_healthcheck.healthcheck.catalog.xid import rule_xid, xid_table
from gpu_healthcheck.healthcheck.model import Severity

NUMBERED = ("cuda", "nvml", "nccl")
"""Libraries whose errors have numbers."""
_PAGES = {
    "CUDA": "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    "NVML": "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html",
    "NCCL": "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html",
    "libfabric": "https://github.com/aws/aws-ofi-nccl",
}
_LONGEST = 16384
_SHORTEST = 8
"""Shortest text to search for in messages, in characters; it has two words or more."""
_FEW_WORDS = 2
"""Messages of so few words occur everywhere: the name of the library has to precede them."""
_NUMBERED = re.compile(
    r"\b(cuda|nvml|nccl)[ _]?(?:error|failure|code|result|status)s?[ :=(]{1,3}(\d{1,3})\b(?!\.\d)"
    r"|\bcu(?:init|da[a-z]+)\b[\w() :=]{0,40}?\b(\d{3})\b(?!\.\d)"
)
"""Number of an error after the name of its library, or after a function of CUDA."""
_SHOWN = 80
_XID = re.compile(r"(?:NVRM|nvidia-nvswitch\d{0,4}): (S?X)id \([^()]{1,48}\): (\d{1,5}),?(.*)")
_IN_A_KERNEL_LOG = re.compile(r"NVRM: |nvidia-(?:nvswitch|modeset)|mlx5_core|NVSwitch|nvidia 0000")


def findings_in(text: str, policy: Policy) -> dict[str, Ruling]:
    """Return the reasons, as Xid79, of the findings that lines of a kernel log lead to, each with its ruling.

    Reasons that are no fault in these lines are included.
    """
    lines = [found.string[found.start() :] for line in text.splitlines() if (found := _IN_A_KERNEL_LOG.search(line))]
    if not lines:
        return {}
    from gpu_healthcheck.healthcheck.captures.kernel_logs import KernelLogReader, PassedOver  # noqa: PLC0415 - only for such lines
    from gpu_healthcheck.healthcheck.captures.replay import KERNEL_CHECKS, Replay  # noqa: PLC0415
    from gpu_healthcheck.healthcheck.checks.expectation import Expectation  # noqa: PLC0415

    replay = Replay(KERNEL_CHECKS, Expectation(policy=policy), monitor_ttl_seconds=3600)
    log = "".join(f"[ 1.{number:06}] {line}\n" for number, line in enumerate(lines)).encode()
    for batch in KernelLogReader(datetime.now(UTC), 0, PassedOver()).read("text", [log]):
        replay.take(batch)
    rulings: dict[str, Ruling] = {}
    for finding in sorted((each.finding for each in replay.memory.active), key=lambda each: -each.severity):
        rulings.setdefault(finding.reason, Ruling(finding.severity, finding.rule))
    for reason, _ in replay.ignored:
        rulings.setdefault(reason, Ruling(Severity.PASS, "the words of the line"))
    # An Xid that another one caused, an Xid 154 about a recovery, and the data of an SXid leave no finding.
    return rulings or {
        f"{kind}id{code}": (rule_xid if kind == "X" else rule_sxid)(int(code), words if kind == "X" else "", policy)
        for kind, code, words in _XID.findall(text)
    }


def is_unjudged_error(text: str) -> bool:
    """Whether a text is a line of the driver that reports an error and that no rule judges."""
    found = _IN_A_KERNEL_LOG.search(text)
    if found is None:
        return False
    from gpu_healthcheck.healthcheck.checks.driver_errors import reports_error  # noqa: PLC0415 - only for such lines

    return reports_error(text[found.start() :])


def recognise(text: str) -> Iterator[IndexEntry | LibraryError | str]:
    """Yield what a message is about: names of causes and reasons, errors of libraries, or a fix."""
    whole = text[-_LONGEST:]
    line = " ".join(whole.split())
    words = line.lower()
    is_phrase = len(words) >= _SHORTEST and " " in words
    found = [known for known in index.texts() if re.search(known.pattern, line if known.fix else whole, re.IGNORECASE)]
    if is_phrase and not found:
        found = [known for known in index.texts() if words in _literal(known.pattern)]
    errors = list(_errors_in(words))
    names = [known.name for known in found if known.name]
    yield from names
    for fix in dict.fromkeys(filter(None, (fix_of(name, line) for name in names))):
        yield IndexEntry(line[:_SHOWN], "the fix of this message", fix, "docs/diagnose.md")
    yield from errors
    if not names:
        yield from islice((_fix(known, line) for known in found), 1)
    if is_phrase:
        yield from _with_phrase(words)


def errors_numbered(library: str, number: int) -> tuple[LibraryError, ...]:
    """Return the error of a library with this number, if there is one."""
    return tuple(error for error in _all() if (error.library.lower(), error.number) == (library, number))


def errors_named(name: str) -> tuple[LibraryError, ...]:
    """Return the error with a name of an interface, as cudaErrorSystemNotReady."""
    return tuple(error for error in _all() if name.lower() in map(str.lower, error.names))


def entry_of(error: LibraryError, note: str = "") -> IndexEntry:
    number = "" if error.number is None else f" {error.number}"
    cause = f"In a cluster mostly {error.cause}." if error.cause else "Alone it indicates no cause in a cluster."
    message = f'{", ".join(error.names) or error.library}: "{" / ".join(error.messages)}".'
    meaning = " ".join(filter(None, (message, cause, note)))
    return IndexEntry(f"{error.library} error{number}", f"an error of {error.library}", meaning, _PAGES[error.library])


def error_names() -> Iterator[str]:
    for error in _all():
        yield from error.names


def _all() -> tuple[LibraryError, ...]:
    return (*cuda_errors(), *library_errors())


def _errors_in(words: str) -> Iterator[LibraryError]:
    """Yield the errors whose name, message or number is in the text; of messages in each other, the longest."""
    numbers = {(library or "cuda", int(number or of_call)) for library, number, of_call in _NUMBERED.findall(words)}
    found = [error for error in _all() if _is_in(error, words) or (error.library.lower(), error.number) in numbers]
    shown = [message.lower() for error in found for message in error.messages if message.lower() in words]
    for error in found:
        own = [message.lower() for message in error.messages]
        if not any(one != other and one in other for one in own for other in shown):
            yield error


def _is_in(error: LibraryError, words: str) -> bool:
    if any(re.search(rf"\b(?:nvml_)?{name.lower().removeprefix('nvml_')}\b", words) for name in error.names):
        return True
    for message in map(str.lower, error.messages):
        library = "" if message.count(" ") >= _FEW_WORDS else rf"\b{error.library.lower()}\w*\b.{{0,80}}"
        if words == message or re.search(rf"{library}{re.escape(message)}(?!\w)", words):
            return True
    return False


def _fix(known: index.KnownText, line: str) -> IndexEntry:
    found = re.search(known.pattern, line, re.IGNORECASE)
    name = (found[0] if found else line)[:_SHOWN]
    return IndexEntry(name, f"a message in {known.writer}", known.fix, "docs/diagnose.md")


def _literal(pattern: str) -> str:
    return re.sub(r"\\(.)", r"\1", pattern).lower()


def _with_phrase(words: str) -> Iterator[str]:
    """Yield the names of the reasons, Xids, causes and other terms whose meaning has these words."""
    for declared in index.reasons().values():
        reason = declared.reason
        if any(words in text.lower() for text in (reason.meaning, reason.action, reason.source)):
            yield reason.name
    for row in xid_table().values():
        if words in row.meaning.lower() or words in row.mnemonic.lower().replace("_", " "):
            yield f"Xid{row.code}"
    for entries in index.words().values():
        if any(words in entry.meaning.lower() for entry in entries):
            yield entries[0].name
