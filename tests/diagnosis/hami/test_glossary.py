"""Every word that HAMi uses has a meaning, a source, and the releases that have it."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from cli.app import app
from cli.index import words
from diagnosis.causes.hami import filtering
from diagnosis.hami import card_options, grants, node_lock, registration
from diagnosis.hami.hami_glossary import hami_words
from diagnosis.hami.reasons import Code

NAMES = {one.name for one in hami_words()}
KEYS = [
    *(getattr(grants, name) for name in ("NODE", "TIME", "ALLOCATED", "TO_ALLOCATE", "MIG_ALLOCATIONS", "BIND_PHASE")),
    *(
        getattr(card_options, name)
        for name in ("USE_TYPE", "AVOID_TYPE", "USE_UUID", "AVOID_UUID", "NUMA_BIND", "MODE")
    ),
    *(grants.BIND_TIME, card_options.NODE_POLICY, card_options.GPU_POLICY, node_lock.LOCK, registration.CORDON),
]


def test_every_code_that_is_judged_is_explained() -> None:
    assert {code.value for code in Code} <= NAMES
    assert {name for pattern in [filtering.WORD.pattern] for name in re.findall(r"[A-Z][A-Za-z]+", pattern)} <= NAMES


def test_every_annotation_that_is_read_is_explained() -> None:
    assert set(KEYS) <= NAMES


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
