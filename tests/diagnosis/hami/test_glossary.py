"""Every word that HAMi uses has a meaning, a source, and the releases that have it."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from cli.app import app
from cli.index import words
from diagnosis.causes.hami import filtering
from diagnosis.hami.hami_glossary import hami_words
from diagnosis.hami.reasons import Code
from diagnosis.snapshot import hami_node, hami_pod

NAMES = {one.name for one in hami_words()}
KEYS = {
    text
    for module in (hami_node, hami_pod)
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and "/" in text
}


def test_every_code_that_is_judged_is_explained() -> None:
    assert {code.value for code in Code} <= NAMES
    assert {name for pattern in [filtering.WORD.pattern] for name in re.findall(r"[A-Z][A-Za-z]+", pattern)} <= NAMES


def test_every_annotation_that_is_read_is_explained() -> None:
    assert len(KEYS) > 16
    assert KEYS <= NAMES


def test_no_word_of_hamis_hides_one_of_ours() -> None:
    twice = {word.name for word in hami_words() if len(words()[word.name.lower()]) > 1}
    assert twice == set()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("CardInsufficientMemory", "Since 2.6."),
        ("cardinsufficientmemory", "less free memory"),
        ("hami.io/node-nvidia-register", "JSON since 2.8"),
        ("hami.io/node-handshake", "an old request is normal"),
        ("FilteringFailed", "one event for each reason code"),
        ("hami_vgpu_memory_used_bytes", "It was vGPU_device_memory_usage_in_bytes up to 2.8. Since 2.9."),
        ("hami_gpu_memory_usage", "No release has it."),
        ("nvidia.com/priority", "0 is high, 1 is low"),
        ("nvidia.com/gpumem", "No node offers it"),
        ("GPU_CORE_UTILIZATION_POLICY", "force: always"),
        ("deviceSplitCount", "How many containers may share a card."),
        ("filterdevices", "Cards by uuid or index"),
    ],
)
def test_a_person_may_ask_for_it(word: str, message: str) -> None:
    answer = CliRunner().invoke(app, ["explain", word], env={"COLUMNS": "200"})
    assert answer.exit_code == 0
    assert message in re.sub(r"\s+", " ", answer.stdout)
