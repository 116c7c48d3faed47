"""Evidence files: one check cycle, written by `check --save-evidence` and judged again by `replay`.

The file can be replayed on any machine. The format is JSON that people can read. It holds the node's identity, the
input of the verdict, and for each probe its facts or the reason why there are none.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert, to_builtins
from msgspec.json import decode
from msgspec.structs import replace

from gpu_healthcheck import healthcheck
from gpu_healthcheck.healthcheck.captures.kind import EVIDENCE_FORMAT, MOST_EVIDENCE
from gpu_healthcheck.healthcheck.checks import CHECKS, DEEP_CHECKS
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.host import node_file
from gpu_healthcheck.healthcheck.host.opening import want_folder
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement
from gpu_healthcheck.healthcheck.model import Check, Evidence, Now, Probe, ProbeError, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.text import strict_json
from gpu_healthcheck.healthcheck.text.json_cost import JsonCostError, refuse_costly
from gpu_healthcheck.healthcheck.text.moments import EARLIEST, LATEST, held

SCHEMA = 2
"""Version of the format. 1, of 0.3.0, lists the parts of a container runtime's report by handler.

It is raised if older programs would misread the file.

It stays if a key is added, or if a key with a default is removed.
"""


class EvidenceError(ValueError):
    """Error for a file that is not an evidence file or cannot be written.

    The message gives the path and the reason.
    """


_MOST_VALUES = 4_000_000
"""Most JSON values in a file. 64 MiB of kernel log records have 3 million."""


class EvidenceCycle(Struct, frozen=True):
    """One check cycle of one node with all input of its verdict.

    Judging it again gives the same verdict.
    """

    hostname: str
    machine: str
    boot_id: str
    now: Now
    checks: tuple[Check, ...]
    expected: Expectation
    monitor_ttl_seconds: float
    evidence: Evidence
    acknowledged: tuple[Acknowledgement, ...] = ()
    """Events that people released on this machine."""


class _ProbeResult(Struct, frozen=True):
    """The facts that one probe read, or the reason why it could not read them."""

    facts: Any = None
    unread: Unobserved | None = None
    seconds: float = 0.0


class _ProbeResults(Struct, frozen=True):
    """Results of the probes by name. `at` is in seconds of CLOCK_MONOTONIC."""

    at: float
    probes: dict[str, Any]


class _File(Struct, frozen=True):
    """The file after its first two keys."""

    agent_version: str
    hostname: str
    machine: str
    boot_id: str
    wall: Annotated[datetime, Meta(tz=True)]
    monotonic: float
    monitor_ttl_seconds: float
    checks: tuple[str, ...]
    expected: dict[str, Any]
    """Expected values. null means the default: JSON has no infinity, so infinity is written as null."""
    look: _ProbeResults
    before: _ProbeResults | None = None
    acknowledged: tuple[Acknowledgement, ...] = ()


def why_not(path: Path) -> str:
    """Return the reason why no evidence file can be written at this path, or an empty string.

    Call this function before a long check cycle, so that a wrong path fails early.
    """
    if str(path) == "-":
        return "evidence can't be written to standard output: name a file"
    try:
        want_folder(path.parent)
        if not stat.S_ISREG(path.stat().st_mode):  # since Python 3.14, `exists` hides all errors
            return f"{path}: it exists, but is not a file"
    except FileNotFoundError:
        pass
    except ProbeError as error:
        return str(error)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return "" if os.access(path.parent, os.W_OK) else f"{path.parent}: can't be written to"


def write(path: Path, cycle: EvidenceCycle) -> None:
    """Replace the file; only its owner can read it.

    Raises EvidenceError; the previous file then remains.
    """
    content = json.dumps(_content(cycle), indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(content) > MOST_EVIDENCE:
        raise EvidenceError(
            f"{path}: {len(content) >> 20} MiB of evidence; at most {MOST_EVIDENCE >> 20} MiB can be read again"
        )
    try:
        node_file.replace_for_owner(path, content)
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}") from error


def read(raw: bytes) -> EvidenceCycle:
    """Parse an evidence file. Raises EvidenceError with the position of the error in the file."""
    if len(raw) > MOST_EVIDENCE:
        raise EvidenceError(f"more than {MOST_EVIDENCE >> 20} MiB")
    try:
        refuse_costly(raw, _MOST_VALUES)
    except JsonCostError as error:
        raise EvidenceError(str(error)) from error
    try:
        document = decode(raw)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"not JSON: {error}") from error
    try:
        strict_json.refuse_deep(document)
        strict_json.refuse_twice(raw)
    except ValueError as error:
        raise EvidenceError(str(error)) from error
    if not isinstance(document, dict) or document.get("format") != EVIDENCE_FORMAT:
        raise EvidenceError(f'not an evidence file: it does not begin with "format": "{EVIDENCE_FORMAT}"')
    if document.get("schema") not in (1, SCHEMA) or isinstance(document["schema"], bool):
        raise EvidenceError(f"schema {str(document.get('schema'))[:40]}; this version reads 1 and {SCHEMA}")
    file: _File = from_plain(_File, document)
    before = _evidence(file.before, "before") if file.before else None
    return EvidenceCycle(
        file.hostname,
        file.machine,
        file.boot_id,
        Now(_utc(file.wall), file.monotonic),
        tuple(_checks_named(file.checks)),
        from_plain(Expectation, {key: value for key, value in file.expected.items() if value is not None}, "expected"),
        file.monitor_ttl_seconds,
        _evidence(file.look, "look", before),
        tuple(
            replace(acknowledgement, last_seen=_utc(acknowledgement.last_seen)) for acknowledgement in file.acknowledged
        ),
    )


def _utc(wall: datetime) -> datetime:
    if wall.tzinfo is None or held(wall) != wall:
        raise EvidenceError(f"wall: only the years from {EARLIEST.year} to {LATEST.year} are supported")
    return held(wall)


def _content(cycle: EvidenceCycle) -> dict[str, Any]:
    evidence = cycle.evidence
    return {
        "format": EVIDENCE_FORMAT,
        "schema": SCHEMA,
        "agent_version": healthcheck.__version__,
        "hostname": cycle.hostname,
        "machine": cycle.machine,
        "boot_id": cycle.boot_id,
        "wall": cycle.now.wall.isoformat(),
        "monotonic": cycle.now.monotonic,
        "monitor_ttl_seconds": cycle.monitor_ttl_seconds,
        "checks": [check.name for check in cycle.checks],
        "expected": {key: None if value == math.inf else value for key, value in plain(cycle.expected).items()},
        "look": _results(evidence),
        "before": _results(evidence.before) if evidence.before else None,
        "acknowledged": plain(cycle.acknowledged),
    }


def _results(evidence: Evidence) -> dict[str, Any]:
    return {"at": evidence.at, "probes": {probe.name: _result(probe, evidence) for probe in evidence.probes}}


def _result(probe: Probe[Any], evidence: Evidence) -> dict[str, Any]:
    unread = evidence.unread(probe)
    result = {"unread": plain(unread)} if unread else {"facts": plain(evidence[probe])}
    return {"seconds": evidence.seconds.get(probe.name, 0.0), **result}


def plain(value: Any) -> Any:
    """Convert facts, or another part of an `EvidenceCycle`, to values that JSON can hold. A cause becomes its name."""
    return to_builtins(value, str_keys=True, enc_hook=_name)


def _name(value: Any) -> str:
    if isinstance(value, UnobservedCause):
        return value.name
    raise NotImplementedError(type(value))


def _evidence(saved: _ProbeResults, path: str, before: Evidence | None = None) -> Evidence:
    # Ignore probes that exist only in other versions: no check of this version reads them.
    known = {probe.name: probe for check in (*CHECKS, *DEEP_CHECKS) for probe in check.needs}
    facts: dict[Probe[Any], Any] = {}
    seconds: dict[str, float] = {}
    for name, raw in saved.probes.items():
        if name not in known:
            continue
        at = f"{path}.probes.{name}"
        result = from_plain(_ProbeResult, raw, at)
        facts[known[name]] = result.unread or from_plain(known[name].facts, _with_kinds(result.facts), f"{at}.facts")
        seconds[name] = result.seconds
    return Evidence(facts, saved.at, before, seconds)


_KINDS = {
    "cause": "Unobserved",
    "driver_version": "Gpus",
    "listed": "Listing",
    "documents": "DiagAnswer",
    "wrong": "Reduced",
    "size": "Measured",
    "corrupt": "Broken",
    "says": "Failed",
}
"""Type of an answer by the first of these keys that it has. Files from before 0.3 do not record the type."""


def _with_kinds(facts: Any) -> Any:
    if isinstance(facts, list):
        return [_with_kinds(fact) for fact in facts]
    if not isinstance(facts, dict):
        return facts
    typed = {key: _with_kinds(value) for key, value in facts.items()}
    live, answer = typed.get("live"), typed.get("answer")
    if isinstance(live, dict) and isinstance(live.get("handlers"), list):
        typed["live"] = {**live, "configuration": _configuration_of(live)}
    if isinstance(answer, dict) and "type" not in answer:
        kind = next((kind for key, kind in _KINDS.items() if key in answer), None)
        typed["answer"] = {"type": kind, **answer} if kind else answer
    return typed


def _configuration_of(live: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration in a runtime's report of schema 1. Raises EvidenceError."""
    try:
        types, binaries, drivers = (dict(live.get(key) or ()) for key in ("types", "binaries", "systemd_cgroups"))
        handlers = [
            {
                "name": name,
                "runtime_type": types.get(name, ""),
                "binary": binaries.get(name, ""),
                "systemd_cgroup": drivers.get(name),
            }
            for name in live["handlers"]
        ]
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"live: {error}") from error
    kept = {key: live[key] for key in ("default", "cdi", "cdi_folders") if live.get(key) is not None}
    return {"handlers": handlers, **kept}


def _checks_named(names: tuple[str, ...]) -> Iterator[Check]:
    known: Mapping[str, Check] = {check.name: check for check in (*CHECKS, *DEEP_CHECKS)}
    if not names:
        raise EvidenceError("checks: the list is empty")
    for name in dict.fromkeys(names):
        if name not in known:
            raise EvidenceError(f"checks: {name[:40]!r} is not a check of this version, {healthcheck.__version__}")
        yield known[name]


def from_plain(kind: Any, value: Any, path: str = "") -> Any:
    """Convert a value that `plain` returned back to this type.

    Raises EvidenceError with the path to the invalid value.
    """
    try:
        return convert(value, kind, str_keys=True, dec_hook=_cause)
    except ValidationError as error:
        message, _, inner_path = str(error).replace("`", "").partition(" - at $")
        full_path = (path + inner_path).lstrip(".")
        raise EvidenceError(f"{full_path[:200]}: {message}" if full_path else message) from error


def _cause(kind: type, value: Any) -> Any:
    if kind is UnobservedCause and isinstance(value, str):
        return UnobservedCause.named(value)
    raise TypeError(f"Expected the name of a cause, got {type(value).__name__}")
