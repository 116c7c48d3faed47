"""State of this version, by the rule of the version before it: after a rollback nothing is set aside.

If such a test fails, the format has changed in a way that needs another `schema` or another key (docs/upgrading.md).
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import jsonschema
import pytest

from gpu_healthcheck.healthcheck.deep import claim, deep_record
from gpu_healthcheck.healthcheck.memory import content
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import Nature, Outcome, Passed
from gpu_healthcheck.healthcheck.node.state import RESULTS, RUN
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.acknowledgement import dump_release, release_of
from gpu_healthcheck.healthcheck.verdict.verdict import decide
from tests.examples import (
    BOOT,
    GPU,
    IDENTITY,
    MACHINE,
    NODE,
    UNOBSERVED,
    WALL,
    active_finding,
    fault,
    memory_with,
    node,
    outcome_with,
)
from tests.formats import FOLDER
from tests.memory.test_file import MEMORY

BEFORE = "0.3.0"
LEVEL = active_finding(fault("RowRemapPending"), Nature.LEVEL, check="row-remap")


def reads(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((FOLDER / BEFORE / f"{name}.schema.json").read_text()))


@pytest.mark.parametrize("memory", [MEMORY, memory_with(), memory_with(active_finding(fault(), seq=7), LEVEL)])
def test_memory_file_is_valid_for_the_version_before(memory: Memory) -> None:
    head, body, _ = content.dump(memory).split(b"\n")

    assert json.loads(head)["schema"] == 2
    reads("memory").validate(json.loads(body))


def left_on_a_node() -> dict[str, Any]:
    """All that our programs leave on a Node, as JSON."""
    verdict = decide(MEMORY, [outcome_with(unobserved=UNOBSERVED)])
    message = records.dump(records.render(verdict, MEMORY, IDENTITY, WALL, "set"))
    outcome = Outcome("dcgm-diag-l2", "1-dcgm-diag-l2", findings=(fault(),), passed=(Passed("DcgmDiagPcie", GPU),))
    ran = deep_record.CompletedRun(NODE, "sweep", WALL, WALL, MACHINE, BOOT)
    taken = claim.acquire(node(), claim.Claim(claim.RunKind.L2, "agent", WALL + timedelta(hours=1)), WALL)
    assert taken is not None
    release = release_of(node(annotations={RESULTS: message}), "ann", "cable reseated", WALL)
    return {
        "results": json.loads(message),
        "deep": json.loads(records.dump(deep_record.render(outcome, ran))),
        "run": json.loads(taken["metadata"]["annotations"][RUN]),
        "release": json.loads(dump_release(release)),
    }


def test_annotations_are_valid_for_the_version_before() -> None:
    fields = left_on_a_node()
    reads("annotations").validate(fields)

    assert fields["results"]["findings"]
    assert fields["deep"]["findings"]
    assert fields["release"]["findings"]


@pytest.mark.parametrize("schema", [1, 3])
def test_memory_file_of_another_schema_is_set_aside(tmp_path: Any, schema: int) -> None:
    file = MemoryFile(tmp_path)
    assert file.acquire()
    file.path.write_bytes(content.dump(MEMORY).replace(b'"schema": 2', f'"schema": {schema}'.encode(), 1))

    with pytest.raises(MemoryFileError, match=f"schema {schema}; this version reads 2.*renamed to memory.unreadable"):
        file.read()
    file.unlock()


def test_key_of_a_later_version_is_ignored() -> None:
    body = json.loads(content.dump(MEMORY).split(b"\n")[1]) | {"of-a-later-version": [1]}
    body["findings"][0]["of-a-later-version"] = {}
    text = json.dumps(body).encode()
    head = json.dumps({"schema": 2, "sha256": content._digest(text), "of-a-later-version": 1}).encode()

    assert content.parse(head + b"\n" + text + b"\n") == MEMORY
