"""Check: libfabric, through which jobs use EFA, lists each EFA device that programs can open."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
    Unobserved,
)
from gpu_healthcheck.healthcheck.probes.efa.libfabric import LIBFABRIC, Listing
from gpu_healthcheck.healthcheck.text.naming import named

MISSING = Reason(
    "EfaProviderMissing",
    Severity.MONITOR,
    "An EFA device is invisible to libfabric: programs can open it, but the EFA provider does not list it. Jobs run "
    "without it, or fail.",
    "Run `fi_info -p efa` with FI_LOG_LEVEL=warn on the node; it names the device that it can't open.",
    flickers=True,
    threshold="fewer `-rdm` domains than EFA devices with a uverbs device",
    source="libfabric, fi_efa(7) and issue 12708",
)
_MOST_NAMED = 4
"""Most devices named in a detail; the others are only counted."""


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    reading = evidence[LIBFABRIC]
    if reading.absent:
        yield NotConfigured(reading.absent)
    elif reading.answer is None:
        yield TooEarly("fi_info has not answered yet")
    elif isinstance(reading.answer, Unobserved):
        yield reading.answer
    else:
        yield from _listing(reading.answer)


def _listing(answer: Listing) -> Iterator[Judgement]:
    devices, missing = len(answer.devices), answer.missing
    if missing:
        yield MISSING.on("node", _detail(answer))
    version = f" {answer.version}" if answer.version else ""
    yield Observation(f"provider efa{version} lists {devices - len(missing)} EFA devices", f"{devices}", "/sys")


def _detail(answer: Listing) -> str:
    devices, missing = len(answer.devices), answer.missing
    if len(missing) == devices:
        output = f": {answer.says}" if answer.says else ""
        return f"fi_info -p efa lists none of {devices} EFA devices (exit code {answer.exit_code}){output}"
    names = named(missing, _MOST_NAMED)
    return f"fi_info -p efa lists {devices - len(missing)} of {devices} EFA devices; missing: {names}"


CHECK = Check("efa-provider", "2-efa-enumeration", (LIBFABRIC,), judge, (MISSING,))
