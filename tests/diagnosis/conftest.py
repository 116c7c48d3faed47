"""The rule for printed commands, applied to each result of each diagnosis of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from gpu_healthcheck.diagnosis.causes import diagnose
from gpu_healthcheck.diagnosis.causes.first_fixes import with_fixes_first
from gpu_healthcheck.diagnosis.model import FoundCause
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from tests.diagnosis.remedy_rule import violations


def _checked(snapshot: Snapshot, found: FoundCause) -> FoundCause:
    result = with_fixes_first(snapshot, found)
    assert violations(snapshot, result) == []
    return result


@pytest.fixture(autouse=True, scope="module")
def _commands_keep_the_rule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check the results, except where the work of a diagnosis is counted."""
    if request.module.__name__.endswith("test_growth"):
        yield
        return
    with patch.object(diagnose, "with_fixes_first", _checked):
        yield
