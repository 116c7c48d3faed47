"""Decoder of the numbers in an NVLink Xid, by NVIDIA's sheets.

Xid 74 has seven registers, Xids 144-150 have the words intrInfo and status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows
from gpu_healthcheck.healthcheck.catalog.policy import Ruling, worst
from gpu_healthcheck.healthcheck.model import Severity

LAYOUTS = ("before R575", "from R575")
"""Layouts of intrInfo. A line does not contain its driver version, but no word has different meanings in the two."""

_WORDS = r"\(\s*(?P<words>0x[0-9a-fA-F]{1,8}(?:[\s,]+0x[0-9a-fA-F]{1,8}){0,31})\s*\)"
_NVLINK4 = re.compile(rf"NVLink: fatal error detected on link -?\d{{1,3}}\s*{_WORDS}", re.IGNORECASE)
_NVLINK5 = re.compile(
    rf"\b(?P<unit>[A-Z][A-Z0-9_]{{1,31}}(?: Degraded)?)\s+(?:Link )?(?i:Non-?fatal|Fatal)\b[^(]{{0,80}}{_WORDS}"
)
_ACTIONS: Mapping[str, Severity] = {
    "IGNORE": Severity.PASS,
    "CONTINUE": Severity.MONITOR,
    "RESET_GPU": Severity.RESET,
    # NVIDIA's instruction: follow an accompanying Xid 154, else restart the application. The line of Xid 154 has its
    # own action.
    "XID_154_EVAL": Severity.MONITOR,
}


class RegisterBit(Struct, frozen=True):
    """One register bit of Xid 74. `severity` is None if NVIDIA gives a cause but no immediate action."""

    register: int
    bit: int
    severity: Severity | None
    meaning: str
    source: str

    @property
    def rule(self) -> str:
        return f"nvlink4_decode.csv:{self.register}.{self.bit}"


class Nvlink5Row(Struct, frozen=True):
    """One row of NVIDIA's sheet for Xids 144-150.

    `masks` has one mask and one value of intrInfo for each layout.
    """

    line: int
    code: int
    units: tuple[str, str]
    masks: tuple[tuple[int, int], tuple[int, int]]
    status_is: str
    """Comparison of the status word: `any`, `bit` (one of its bits) or `value` (the whole word)."""
    statuses: tuple[int, ...]
    action: str
    grade: str
    source: str

    @property
    def severity(self) -> Severity:
        return _ACTIONS[self.action]

    @property
    def rule(self) -> str:
        return f"nvlink5_decode.csv:{self.line}"

    def layouts_of(self, intr_info: int) -> tuple[int, ...]:
        """Return the layouts in which this row matches the word."""
        return tuple(index for index, (mask, value) in enumerate(self.masks) if intr_info & mask == value)

    def has_status(self, status: int | None) -> bool:
        if self.status_is == "any":
            return True
        if status is None:
            return False
        if self.status_is == "value":
            return status in self.statuses
        return any(status & bit for bit in self.statuses)


@cache
def nvlink4_table() -> Mapping[tuple[int, int], RegisterBit]:
    """Return the set bits as pairs of register (from 1) and bit number (from 0, the lowest)."""
    table: dict[tuple[int, int], RegisterBit] = {}
    for line, row in read_rows("nvlink4_decode.csv"):
        key = (int(row["register"]), int(row["bit"]))
        if key in table or not 0 <= key[1] < 32:
            raise ValueError(f"nvlink4_decode.csv:{line}: register {key[0]}, bit {key[1]}")
        severity = _ACTIONS[row["action"]] if row["action"] else None
        table[key] = RegisterBit(*key, severity, row["meaning"], row["source"])
    return table


@cache
def nvlink5_table() -> tuple[Nvlink5Row, ...]:
    return tuple(_nvlink5_row(line, row) for line, row in read_rows("nvlink5_decode.csv"))


def _nvlink5_row(line: int, row: Mapping[str, str]) -> Nvlink5Row:
    if row["action"] not in _ACTIONS or row["status_is"] not in ("any", "bit", "value"):
        raise ValueError(f"nvlink5_decode.csv:{line}: {row['action']!r}, {row['status_is']!r}")
    before, _, since = row["unit"].partition("/")
    return Nvlink5Row(
        line,
        int(row["xid"]),
        (before, since or before),
        (_mask(row["intr_info_before_r575"], line), _mask(row["intr_info_from_r575"], line)),
        row["status_is"],
        tuple(int(word, 16) for word in row["status"].split("/") if word),
        row["action"],
        row["grade"],
        row["source"],
    )


def _mask(bits: str, line: int) -> tuple[int, int]:
    """Parse a mask: return the bits that are compared and their required values. `-` matches either value."""
    if len(bits) != 32 or set(bits) - set("-01"):
        raise ValueError(f"nvlink5_decode.csv:{line}: {bits!r} is no mask of 32 bits")
    return int(bits.translate(str.maketrans("-01", "011")), 2), int(bits.replace("-", "0"), 2)


def rule_nvlink4(text: str, default: Severity) -> Ruling:
    """Return the severity and rule for an Xid 74 from its registers, or `default` if no row applies."""
    found = _NVLINK4.search(text)
    return rule_registers(read_words(found["words"]) if found else (), default)


def rule_registers(registers: Sequence[int], default: Severity) -> Ruling:
    """Return the worst ruling of all set bits."""
    otherwise = Ruling(default, "NVLINK_DEFAULT")
    rulings = [
        _rule_bit(index, bit, otherwise)
        for index, register in enumerate(registers, 1)
        for bit in range(register.bit_length())
        if register >> bit & 1
    ]
    return worst(rulings) if rulings else otherwise


def _rule_bit(register: int, bit: int, otherwise: Ruling) -> Ruling:
    row = nvlink4_table().get((register, bit))
    if row is None:
        return Ruling(otherwise.severity, otherwise.rule, f"register {register}, bit {bit}: not in NVIDIA's table")
    reading = f"register {register}, bit {bit}: {row.meaning}"
    if row.severity is None:
        return Ruling(otherwise.severity, otherwise.rule, reading)
    return Ruling(row.severity, row.rule, reading)


def rule_nvlink5(code: int, text: str, default: Severity) -> Ruling:
    """Return the ruling for Xids 144-150 by unit, intrInfo and status, or `default` if no row matches."""
    found = _NVLINK5.search(text)
    words = read_words(found["words"]) if found else ()
    return rule_words(code, found["unit"] if found else "", words, default)


def rule_words(code: int, unit: str, words: Sequence[int], default: Severity) -> Ruling:
    """Return the ruling for the words of Xids 144-150. Only the first two words are used.

    If one of the matching rows has the name `unit`, only the rows with this name apply.
    """
    otherwise = Ruling(default, "NVLINK5_DEFAULT")
    if not words:
        return otherwise
    status = words[1] if len(words) > 1 else None
    rows = matching_rows(code, unit, words[0], status)
    rulings = [
        Ruling(row.severity, row.rule, f"{' or '.join(dict.fromkeys(row.units))}: {row.grade}, {row.action}")
        for row in rows
    ]
    known_bits = sum({bit for row in rows if row.status_is == "bit" for bit in row.statuses})
    if known_bits and status and status & ~known_bits:
        # An unknown bit is set together with bits that may be ignored.
        rulings.append(otherwise)
    return worst(rulings) if rulings else otherwise


# A flapping link logs the same words thousands of times.
@lru_cache(maxsize=1024)
def matching_rows(code: int, unit: str, intr_info: int, status: int | None) -> tuple[Nvlink5Row, ...]:
    """Return the rows that match these words, in either layout."""
    rows = [
        (row, layout)
        for row in nvlink5_table()
        if row.code == code and row.has_status(status)
        for layout in row.layouts_of(intr_info)
    ]
    named = [(row, layout) for row, layout in rows if row.units[layout].casefold() == unit.casefold()]
    return tuple(dict.fromkeys(row for row, _ in named or rows))


def read_words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in re.split(r"[\s,]+", text))
