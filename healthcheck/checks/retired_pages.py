"""Check: memory pages of a GPU that are no longer used because they were faulty (before Ampere)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.per_gpu import all_lack, answering, found, unread
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    counted,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

SETTING = "MAX_RETIRED_PAGES_SBE"

PENDING = Reason(
    "RetiredPagesPending",
    Severity.RESET,
    "A GPU's memory has faulty pages: they wait for retirement, and stay in use until the GPU is reset.",
    "Drain the node and reset the GPU, or reboot.",
    source="nvml.h, nvmlDeviceGetRetiredPagesPendingStatus; DCGM's error 6, PENDING_PAGE_RETIREMENTS",
)
LIMIT = Reason(
    "RetiredPagesLimit",
    Severity.ISOLATE,
    "A GPU's memory wears out: its table of retired pages, with 64 entries, is nearly full.",
    "Keep work away from the node and replace the GPU.",
    threshold=f"more than {SETTING} pages, by default {Expectation().max_retired_pages_sbe}",
    source="DCGM's error 7, RETIRED_PAGES_LIMIT",
)


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    gpus = yield from answering(evidence)
    for gpu in gpus:
        yield from _judge_gpu(gpu, expected.max_retired_pages_sbe)
        yield from unread(gpu, "retired_pages")
    if all_lack(gpus, "retired_pages"):
        yield NotConfigured("no GPU here retires pages: from Ampere on they remap rows")
    elif page_counts := [
        pages.single_bit + pages.double_bit for gpu in gpus if (pages := gpu.retired_pages) is not None
    ]:
        most = expected.max_retired_pages_sbe
        yield Observation(
            f"up to {counted(max(page_counts), 'retired page')} on a GPU", f"at most {most}, none pending", SETTING
        )


def _judge_gpu(gpu: nvml.Gpu, most: int) -> Iterator[Judgement]:
    pages = gpu.retired_pages
    if pages is None:
        return
    if pages.pending:
        yield found(PENDING, gpu, "pages are retired at the next reset of the GPU")
    # Pages retired for single-bit and double-bit errors share the GPU's table, and DCGM's limit is for their sum.
    if pages.single_bit + pages.double_bit > most:
        retired = f"{pages.single_bit} pages retired for single-bit and {pages.double_bit} for double-bit errors"
        yield found(LIMIT, gpu, f"{retired}, more than {SETTING} = {most}")


CHECK = Check("retired-pages", "0-nvidia-smi", (nvml.NVML,), judge, (PENDING, LIMIT))
