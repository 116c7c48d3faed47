"""SXid errors of NVSwitch.

The severity word in the line (such as `Fatal`) decides, because the numbers changed between driver versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows
from gpu_healthcheck.healthcheck.catalog.policy import OVERRIDDEN, Policy, Ruling, step_for
from gpu_healthcheck.healthcheck.model import Severity

CLASSES: Mapping[str, tuple[Severity, str]] = {
    "fatal": (Severity.RESET, "always fatal"),
    "fatal-unless-contained": (Severity.RESET, "fatal, unless the switch contained it to one port"),
    "either": (Severity.MONITOR, "fatal or not, as given in its line"),
    "non-fatal": (Severity.MONITOR, "not fatal"),
    "": (Severity.MONITOR, "as given in its line"),
}
"""Severity by number, for a line without `Fatal` or `Non-fatal`. If both are possible, it is MONITOR."""
_WORDS: Mapping[str, Severity] = {
    # After a fatal error of a switch, all GPUs connected to it must be reset together with it.
    "fatal": Severity.RESET,
    "non-fatal": Severity.MONITOR,
    "correctable": Severity.MONITOR,
}
SWITCH = "nvswitch"
"""Kind of the subject of an SXid."""
ADVICE = (
    f"RESET: {step_for(Severity.RESET, (SWITCH,))}. If you only reset all GPUs and switches, release the node: it "
    f"can't detect that reset. MONITOR: {step_for(Severity.MONITOR, (SWITCH,))}."
)


class SxidRow(Struct, frozen=True):
    """One SXid of the driver's list.

    `why` is the reason for the severity if the log line has neither `Fatal` nor `Non-fatal`.
    """

    code: int
    mnemonic: str
    kind: str
    why: str
    source: str

    @property
    def rule(self) -> str:
        return f"sxid.csv:{self.code}"


@cache
def sxid_table() -> Mapping[int, SxidRow]:
    table: dict[int, SxidRow] = {}
    for line, row in read_rows("sxid.csv"):
        code = int(row["code"])
        if row["class"] not in CLASSES or code in table:
            raise ValueError(f"sxid.csv:{line}: code {code}, class {row['class']!r}")
        table[code] = SxidRow(code, row["mnemonic"], row["class"], row["why"], row["source"])
    return table


def rule_sxid(code: int, word: str, policy: Policy) -> Ruling:
    """Return the ruling for an SXid on this cluster.

    `word` is `Fatal`, `Non-fatal` or `Correctable` from the line, or empty if the line has none.
    """
    reason = f"SXid{code}"
    if reason in policy.overrides:
        return Ruling(policy.overrides[reason], OVERRIDDEN)
    return rule_by_table(code, word)


def rule_by_table(code: int, word: str) -> Ruling:
    """Return the ruling of NVIDIA's table, without the cluster's overrides."""
    row = sxid_table().get(code)
    rule = row.rule if row else "sxid.csv: no such code"
    by_number = CLASSES[row.kind][0] if row else Severity.MONITOR
    return Ruling(_WORDS.get(word.lower(), by_number), rule)
