"""The tables of signatures: each row has the writer of the text, its sources, and its meaning."""

from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.causes import CAUSES, crashing
from gpu_healthcheck.diagnosis.causes.pod_startup_table import NO_DEVICE_FILE
from gpu_healthcheck.diagnosis.facts.symptoms import Symptom, recognised, shortened, texts_in
from gpu_healthcheck.diagnosis.model import Cause, CauseSeverity, Signature, TextSource, starting

ROWS = [text for cause in CAUSES for text in cause.texts]
ROWS += [NO_DEVICE_FILE, *(text for _, text in crashing.COMPONENT_TEXTS)]
NAMES = {cause.name for cause in CAUSES}
REPEATED = ["a", " ", "\\n", '"', "failed to create shim ", 'exec: "', "fork/exec /nvidia-c", "couldn't find key ", "/"]
REPEATED += ["CUDA error ", "cudaMalloc(", "NVML: "]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pattern[:40])
def test_signature_names_its_writer_and_sources(row: Signature) -> None:
    assert row.writer
    assert row.sources


def test_causes_follow_only_causes_that_are_declared() -> None:
    assert {name for cause in CAUSES for name in cause.follows} <= NAMES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pattern[:40])
def test_signature_matches_in_bounded_time(row: Signature) -> None:
    """A pattern with exponential backtracking would not return."""
    longest = 64 * 1024 if TextSource.LOG in row.sources else 4096

    first = " ".join(row.literals)  # without one of them, the pattern is not searched for
    matches = [row.search((first + text * longest)[:longest]) for text in REPEATED]

    assert len(matches) == len(REPEATED)


def test_long_evidence_keeps_its_beginning_the_match_and_the_end() -> None:
    noise = "failed to create shim task: OCI runtime create failed: " * 9
    end = "open /run/nvidia/driver/usr/lib64/libnvidia-ml.so.550.54: no such file or directory (error 2)"
    symptom = Symptom(TextSource.WAITING, "StartError", f"{noise}nvidia-container-cli: {noise}{end}", "main")
    cause = Cause("Known", CauseSeverity.HIGH, None, "", "", texts=(starting("nvidia-container-cli", "toolkit"),))
    known = recognised(texts_in(TextSource.WAITING, (cause,)), (symptom,))

    assert shortened(symptom.text).startswith("failed to create shim task")
    assert shortened(symptom.text).endswith(end)
    assert known is not None
    assert "nvidia-container-cli: failed" in known.quote
    assert known.quote.endswith(end)
    assert len(shortened(symptom.text)) == len(known.quote) == 300
