"""Severity of an error: its ruling, changes from the settings of a cluster, and the operator's step that ends it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.model import Severity, Threshold


class Ruling(Struct, frozen=True):
    """A severity, and the row or setting that gives it. PASS means that there is no fault."""

    severity: Severity
    rule: str
    """Source of the severity: `xid.csv:79`, `severity-overrides`, `NVLINK_DEFAULT`."""
    reading: str = ""
    """Meaning of a decoded line in addition to its code, as text for people."""


def worst(rulings: list[Ruling]) -> Ruling:
    """Return the ruling with the worst severity; the first if there are several."""
    return max(rulings, key=lambda ruling: ruling.severity)


STEPS: Mapping[Severity, str] = {
    Severity.PASS: "no finding; only counted",
    Severity.MONITOR: "nothing now; check again when it recurs",
    Severity.RESET: "drain the node and reset the GPU, or reboot",
    Severity.REBOOT: "drain and reboot the node",
    Severity.ISOLATE: "keep work away and replace the node",
}
"""Steps for findings on GPUs."""
RELOAD = "drain the node and reload the driver, or reboot"
"""Step for RESET of a switch or of the driver as a whole, which the reset of one GPU does not end."""
RELOADED = frozenset({"driver", "nvswitch"})
"""Kinds of subjects that are reset when the driver is reloaded and every GPU answers afterwards."""


def step_for(severity: Severity, subjects: Iterable[str]) -> str:
    """Return the step that ends findings of this severity on these subjects, each of them `kind/name` or a kind."""
    other_kinds = {subject.partition("/")[0] for subject in subjects} - {"gpu"}
    if severity is not Severity.RESET or not other_kinds:
        return STEPS[severity]
    return RELOAD if other_kinds <= RELOADED else STEPS[Severity.REBOOT]


_CODE = re.compile(r"(xid|sxid|dcgm)\s+(\d{1,5})\Z", re.IGNORECASE)
_PREFIXES = {"xid": "Xid", "sxid": "SXid", "dcgm": "Dcgm"}
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{1,62}\Z")
_AFTER = re.compile(
    r"(?P<severity>\S+)\s+after\s+(?P<count>\d{1,4})\s+in\s+(?P<window>\d{1,5})(?P<unit>[smh])\Z", re.ASCII
)
_LOGGED = re.compile(r"S?Xid[1-9]\d{0,4}\Z", re.ASCII)
MOST_COUNTED = 16
"""Largest count of a threshold: as many processes as the memory keeps for one finding."""
_UNITS = {"s": 1, "m": 60, "h": 3600}
_LEAST_SECONDS, _MOST_SECONDS = 60, 86400
OVERRIDDEN = "severity-overrides"
"""Rule of a severity from the cluster's settings."""
_EXAMPLE = "`xid 43 = RESET after 3 in 10m`"
GRAMMAR = f"`Reason = SEVERITY` or `xid 13 = RESET`, or with a count {_EXAMPLE}"
_RAISED = tuple(severity.name for severity in Severity if severity > Severity.PASS)
_ALLOWED = " or ".join((", ".join(s.name for s in Severity if s < Severity.ISOLATE), Severity.ISOLATE.name))


class Policy(Struct, frozen=True):
    """Severity settings of a cluster.

    `overrides` maps a reason (`Xid13`, `GpuCountLow`) to its severity on this cluster. `thresholds` maps a reason to
    the worse severity that it has from a number of processes.
    """

    overrides: Mapping[str, Severity] = field(default_factory=dict)
    nvlink_default: Severity = Severity.RESET
    nvlink5_default: Severity = Severity.MONITOR
    strict_pshc: bool = False
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)

    def severity_of(self, reason: str, default: Severity) -> Severity:
        return self.overrides.get(reason, default)


def parse_overrides(text: str) -> dict[str, Severity]:
    """Return the severities of `severity-overrides` by reason. Raises ValueError, which names an invalid line."""
    return _parse(text)[0]


def parse_thresholds(text: str) -> dict[str, Threshold]:
    """Return the thresholds of `severity-overrides` by reason. Raises ValueError, which names an invalid line."""
    return _parse(text)[1]


def _parse(text: str) -> tuple[dict[str, Severity], dict[str, Threshold]]:
    severities: dict[str, Severity] = {}
    thresholds: dict[str, Threshold] = {}
    for line_number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        left, equals, right = (part.strip() for part in line.partition("="))
        reason = _reason(left)
        if not equals or reason is None:
            raise ValueError(f"line {line_number}: {line[:60]!r}; write {GRAMMAR}")
        if "after" in right.split():
            thresholds[reason] = _threshold(reason, right, f"line {line_number}: {line[:60]!r}; ")
        else:
            severities[reason] = _severity(right, line_number)
    return severities, thresholds


def _severity(word: str, line_number: int) -> Severity:
    if word not in Severity.__members__:
        raise ValueError(f"line {line_number}: severity {word[:40]!r}; allowed are {_ALLOWED}; write {GRAMMAR}")
    return Severity[word]


def _threshold(reason: str, text: str, line: str) -> Threshold:
    if not _LOGGED.match(reason):
        raise ValueError(f"{line}`after` counts Xid and SXid lines of the kernel log, as in {_EXAMPLE}")
    found = _AFTER.match(text)
    if found is None:
        raise ValueError(f"{line}write `SEVERITY after COUNT in TIME`, as in {_EXAMPLE}")
    seconds, count = int(found["window"]) * _UNITS[found["unit"]], int(found["count"])
    if found["severity"] not in _RAISED:
        raise ValueError(f"{line}severities with `after` are {', '.join(_RAISED)}, as in {_EXAMPLE}")
    if not 2 <= count <= MOST_COUNTED:
        raise ValueError(f"{line}the count is 2 to {MOST_COUNTED}, as in {_EXAMPLE}")
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise ValueError(f"{line}the time is 1m to 24h, as in {_EXAMPLE}")
    return Threshold(Severity[found["severity"]], count, seconds)


def _reason(word: str) -> str | None:
    code = _CODE.match(word)
    if code:
        return _PREFIXES[code[1].lower()] + str(int(code[2]))
    return word if _REASON.match(word) else None
