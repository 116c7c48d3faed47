"""Text from outside: its possible effects on a terminal, a reader's eyes, and a file."""

from __future__ import annotations

import unicodedata
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Release
from gpu_healthcheck.healthcheck.model import (
    PROBE_FAILED,
    Finding,
    Judgement,
    KernelEvent,
    NotConfigured,
    Observation,
    Passed,
    Printable,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.text.printable import LONGEST, are_printable, printable
from tests.hostile import ANY_TEXT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ""),
        ("NVRM: Xid (PCI:0000:18:00): 79", "NVRM: Xid (PCI:0000:18:00): 79"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\tb\r\nc\x7f", "a\\tb\\r\\nc\\x7f"),
        ("\u202egnp.exe\u2066\u061c\u200e", "\\u202egnp.exe\\u2066\\u061c\\u200e"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("half \ud83d a pair", "half \\ud83d a pair"),
        ("\u2028\u2029\x85", "\\u2028\\u2029\\x85"),
        ("\U000e0041tag", "\\U000e0041tag"),
        ("filler\u3164", "filler\\u3164"),
        ("no\u00a0break, wide\u3000blank", "no break, wide blank"),
        ("計算ノード Žluťoučký кот ñ 😀", "計算ノード Žluťoučký кот ñ 😀"),
        ("[/x][bold]C:\\x", "[/x][bold]C:\\x"),
    ],
)
def test_printable_escapes_invisible_characters(text: str, message: str) -> None:
    assert printable(text) == message


@given(ANY_TEXT)
def test_printable_returns_only_visible_characters(text: str) -> None:
    message = printable(text)

    assert (message.isprintable(), len(message) <= LONGEST) == (True, True)
    assert not {unicodedata.category(name) for name in message} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert message.encode().decode() == message


@given(st.lists(ANY_TEXT | st.text("ab\x7f\n ")))
def test_are_printable_is_true_only_for_unchanged_texts(texts: list[str]) -> None:
    if are_printable(texts):
        assert texts == [printable(text) for text in texts]


def test_plain_texts_are_printable() -> None:
    assert are_printable(["Ready", "", "kubelet is posting ready status"])


@given(ANY_TEXT, st.integers(16, 64))
def test_printable_does_not_change_its_result(text: str, longest: int) -> None:
    message = printable(text, longest)

    assert printable(message, longest) == message


@given(st.text(st.characters(categories=("L", "N", "P", "S"), exclude_characters="\u115f\u1160\u2800\u3164\uffa0")))
def test_printable_keeps_visible_characters(text: str) -> None:
    assert printable(text) == text


@given(ANY_TEXT, ANY_TEXT)
def test_printable_distinguishes_names_with_invisible_characters(before: str, after: str) -> None:
    assert printable(f"{before}\u200b{after}", 10**6) != printable(f"{before}{after}", 10**6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 19 + "…"),
        ("x" * 18 + "\x1b", "x" * 18 + "…"),
        ("x" * 15 + "\u202e\x1b", "x" * 15 + "…"),
        ("x" * 10 + "\x1b" * 1000, "x" * 10 + "\\x1b\\x1b…"),
        ("ス" * 10**6, "ス" * 19 + "…"),
    ],
)
def test_printable_shortens_between_characters(text: str, message: str) -> None:
    assert printable(text, 20) == message


PRINTABLE = [Finding, KernelEvent, Unobserved, Passed, NotConfigured, TooEarly, Observation, Release, Acknowledgement]


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_texts_of_a_cause_are_printable(name: str, meaning: str, action: str) -> None:
    cause = UnobservedCause(name, meaning, action)
    assert (cause.name + cause.meaning + cause.action).isprintable()


@given(data=st.data())
@pytest.mark.parametrize("kind", PRINTABLE)
def test_texts_of_results_are_printable(kind: type[Printable], data: st.DataObject) -> None:
    text = {
        field.name: data.draw(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=2) if field.name == "about" else ANY_TEXT)
        for field in fields(kind)
        if field.type is str or field.name == "about"
    }
    other: dict[str, object] = {"severity": Severity.RESET, "seq": 1, "at": None, "cursor": None}
    other |= {"findings": (), "last_seen": None, "cause": PROBE_FAILED}
    wanted = {field.name for field in fields(kind) if field.required}
    printable = kind(**{name: value for name, value in other.items() if name in wanted}, **text)

    shown = [getattr(printable, name) for name in text if name != "about"]
    shown += [word for pair in getattr(printable, "about", {}).items() for word in pair]
    assert [entry for entry in shown if not entry.isprintable()] == []
    assert replace(printable) == printable


def test_all_results_of_checks_are_tested() -> None:
    assert set(get_args(Judgement)) <= set(PRINTABLE)
