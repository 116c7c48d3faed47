"""Output of `check --save-evidence`, judged by `replay`: equal except for replay's additions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.console import typed

_JUDGED = ("status", "severity", "checks", "unobserved", "hostname", "instance_type", "machine", "boot_id", "timestamp")


def is_judged_again(path: Path, seen: dict[str, Any], exit_code: int) -> bool:
    """Whether a replay of the file ends as the look did, with the look's record; asserts each part of it."""
    done = typed(["replay", "--json", str(path)], {"CONFIG_DIR": "/nowhere"})
    again = json.loads(done.stdout)

    assert done.returncode == exit_code
    assert {key: again[key] for key in _JUDGED} == {key: seen[key] for key in _JUDGED}
    assert [_without_source(row) for row in again["findings"]] == [_without_source(row) for row in seen["findings"]]
    assert {row["source"] for row in again["findings"]} <= {str(path)}
    return all(row["rule"] for row in again["findings"])


def _without_source(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in row.keys() - {"rule", "source"}}
