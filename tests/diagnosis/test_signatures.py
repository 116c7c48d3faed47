"""The tables of signatures: each row has the writer of the text, its sources, and its meaning."""

from __future__ import annotations

import pytest

from diagnosis.causes import CAUSES, crashing, not_started, rejected, running, runtime_handlers
from diagnosis.facts.symptoms import Signature, TextSource

TABLES = (
    *(crashing.CRASH_TEXTS, crashing.COMPONENT_TEXTS, not_started.INJECTION_TEXTS, not_started.CREATE_TEXTS),
    *(not_started.CONFIG_TEXTS, not_started.VOLUME_TEXTS, not_started.IMAGE_TEXTS, not_started.SANDBOX_TEXTS),
    *(rejected.ALLOCATE_TEXTS, runtime_handlers.HANDLER_TEXTS, runtime_handlers.CLASS_TEXTS, running.NO_GPU_TEXTS),
    *(running.LOST_TEXTS, running.DOES_WITHOUT_TEXTS),
)
ROWS = [row for table in TABLES for row in table]
REPEATED = ["a", " ", "\\n", '"', "failed to create shim ", 'exec: "', "fork/exec /nvidia-c", "couldn't find key ", "/"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pattern[:40])
def test_every_row_has_its_source_its_places_and_a_cause_that_is_declared(row: Signature) -> None:
    assert row.source
    assert row.places
    assert row.cause in CAUSES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pattern[:40])
def test_no_text_keeps_a_row_busy(row: Signature) -> None:
    """One that does would never come back from this."""
    longest = 64 * 1024 if TextSource.LOG in row.places else 4096

    looked = [row.search((text * longest)[:longest]) for text in REPEATED]

    assert len(looked) == len(REPEATED)
