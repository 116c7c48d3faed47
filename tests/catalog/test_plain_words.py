"""Findings in plain words: the device as its tools show it, and what happened to it."""

from __future__ import annotations

import pytest

from gpu_healthcheck.cli.index import in_plain_words
from gpu_healthcheck.healthcheck.catalog.plain_words import plain_words
from gpu_healthcheck.healthcheck.catalog.xid import xid_table
from gpu_healthcheck.healthcheck.checks import MEANINGS

LONGEST = 78
GPU, ABOUT = "gpu/0000:75:00.0", {"index": "2", "uuid": "GPU-1"}
CODES = [f"Xid{code}" for code, row in xid_table().items() if row.meaning and not row.unused]


@pytest.mark.parametrize(
    ("reason", "subject", "words"),
    [
        ("Xid79", GPU, "GPU 2 fell off the bus"),
        ("RowRemapPending", GPU, "GPU 2's memory has faulty rows"),
        ("RowRemapPending", f"{GPU}/gi5", "MIG instance 5 of GPU 2's memory has faulty rows"),
        ("Xid13Repeated", GPU, "GPU 2: a program's kernel did something illegal"),
        ("DcgmDiagSoftware", GPU, "GPU 2: DCGM's software test failed"),
        ("DcgmDiagNewerThanThis", GPU, "GPU 2: a new DCGM test failed"),
        ("Xid999", GPU, "GPU 2 reported Xid999"),
        ("NotAReason", "node", "NotAReason"),
        ("SXid20034", "nvswitch/0000:85:00.0", "NVSwitch 0000:85:00.0 reported an error"),
        ("EfaLoopbackSlow", "efa/rdmap16s0", "EFA device rdmap16s0 is too slow"),
        ("RdmaPortDown", "rdma/mlx5_0", "RDMA port mlx5_0 is down"),
        ("GpuCountLow", "node", "GPUs are missing"),
        ("NvidiaRuntimeMissing", "runtime/containerd", "The container runtime can't give pods a GPU"),
    ],
)
def test_a_finding_begins_with_its_device_and_what_happened(reason: str, subject: str, words: str) -> None:
    about = ABOUT if subject.startswith("gpu/") else {}

    assert plain_words(reason, subject, about, MEANINGS) == words
    assert in_plain_words(reason, subject, about) == words


def test_a_gpu_without_an_index_has_its_address() -> None:
    assert plain_words("GpuLost", GPU, {}, MEANINGS) == "GPU 0000:75:00.0 fell off the bus"


@pytest.mark.parametrize("reason", [*MEANINGS, *CODES])
def test_every_reason_has_a_short_clause_that_names_the_device_once(reason: str) -> None:
    words = plain_words(reason, GPU, ABOUT, MEANINGS)

    assert words.startswith("GPU 2")
    assert not words.startswith("GPU 2 reported ")
    assert len(words) <= LONGEST
    assert words[-1] not in ":.;,"
