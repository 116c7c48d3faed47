"""The tables of signatures: each row has the writer of the text, its sources, and its meaning."""

from __future__ import annotations

import pytest

from diagnosis.causes import CAUSES, crashing
from diagnosis.causes.starting_causes import NO_DEVICE_FILE
from diagnosis.model import Signature, TextSource

ROWS = [text for cause in CAUSES for text in cause.texts]
ROWS += [NO_DEVICE_FILE, *(text for _, text in crashing.COMPONENT_TEXTS)]
NAMES = {cause.name for cause in CAUSES}
REPEATED = ["a", " ", "\\n", '"', "failed to create shim ", 'exec: "', "fork/exec /nvidia-c", "couldn't find key ", "/"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pattern[:40])
def test_every_text_has_its_writer_and_its_sources(row: Signature) -> None:
    assert row.writer
    assert row.sources


def test_causes_follow_only_causes_that_are_declared() -> None:
    assert {name for cause in CAUSES for name in cause.follows} <= NAMES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pattern[:40])
def test_no_text_keeps_a_row_busy(row: Signature) -> None:
    """One that does would never come back from this."""
    longest = 64 * 1024 if TextSource.LOG in row.sources else 4096

    looked = [row.search((text * longest)[:longest]) for text in REPEATED]

    assert len(looked) == len(REPEATED)
