"""Judging GPU by GPU: what a check asks of each one that answers, where it is, and what keeps it from asking."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from msgspec.structs import replace

from healthcheck.checks.expectation import Expectation
from healthcheck.model import Evidence, Finding, Grace, Judgement, NotConfigured, Reason, TooEarly, Unobserved
from healthcheck.probes import pci
from healthcheck.probes.nvml import causes
from healthcheck.probes.nvml import gpus as nvml

DRIVER_GRACE = Grace(120.0, "the driver was loaded")
"""docs/rules.md 11: GPUs come up one after another when the driver is loaded."""
LINK_GRACE = Grace(180.0, "the driver was loaded")
"""docs/rules.md 20: what the fabric is given to come up; its links are trained in that time."""
NVIDIA_DRIVER = "nvidia"


def answering(seen: Evidence, *readings: str) -> Generator[Judgement, None, tuple[nvml.Gpu, ...]]:
    """The GPUs that answer, these readings included, as the value of `yield from`.

    A GPU or a reading that does not answer is could-not-look, for that GPU alone; what the fault of it is, `gpu-count`
    tells. A reading that a GPU does not have is None, and no error.
    """
    answer = seen[nvml.NVML].answer
    if isinstance(answer, Unobserved):
        yield answer
        return ()
    if not answer.gpus:
        yield NotConfigured("NVML lists no GPU")
    for gpu in placed(answer, shown_functions(seen)):
        if gpu.error != nvml.SUCCESS:
            yield silent(gpu, gpu.error)
        else:
            yield from unread(gpu, *readings)
    return tuple(gpu for gpu in answer.gpus if gpu.error == nvml.SUCCESS and not set(readings) & set(gpu.errors))


def placed(answer: nvml.Gpus, functions: Iterable[pci.PciFunction]) -> Iterator[nvml.Gpu]:
    """Every GPU that NVML lists, with its address. One without a handle can't be asked for it.

    NVML counts in PCI order, so those without an address line up with the functions that nobody claimed.
    """
    known = {gpu.address for gpu in answer.gpus}
    left = [one for one in functions if one.is_gpu and one.address not in known and one.driver in (NVIDIA_DRIVER, "")]
    # A function without a driver was never NVML's to count.
    unclaimed = iter([one.address for one in sorted(left, key=lambda one: one.driver != NVIDIA_DRIVER)])
    for gpu in answer.gpus:
        yield gpu if gpu.address else replace(gpu, address=next(unclaimed, ""))


def shown_functions(seen: Evidence) -> tuple[pci.PciFunction, ...]:
    """What PCI shows, for a check that can do without: nothing where the look did not read it."""
    return () if seen.unread(pci.FUNCTIONS) else seen[pci.FUNCTIONS]


def silent(gpu: nvml.Gpu, code: int, what: str = "") -> Unobserved:
    """A GPU, or one reading of it, gave an error or nonsense in the place of an answer."""
    about = f"{gpu.subject}: {what}" if what else gpu.subject
    # One that does not even tell its address may be any of those that are known.
    place = gpu.subject if gpu.address else ""
    if code == nvml.NONSENSE:
        return Unobserved(causes.NONSENSE, f"{about}: NVML's answer makes no sense", place)
    return Unobserved(causes.GPU_NOT_ANSWERING, f"{about}: NVML error {code}", place)


def unread(gpu: nvml.Gpu, *readings: str) -> Iterator[Unobserved]:
    """Which of these readings it failed to give, each with the error."""
    for name in readings:
        if name in gpu.errors:
            yield silent(gpu, gpu.errors[name], name.replace("_", " "))


def unknown_yet(gpu: nvml.Gpu, reading: str, reason: Reason) -> Iterator[TooEarly]:
    """Where the GPU has no such reading, or no longer: what it told of a fault that no GPU forgets still stands."""
    if getattr(gpu, reading) is None and reading not in gpu.errors:
        yield TooEarly(f"{gpu.subject} does not tell its {reading.replace('_', ' ')}", gpu.subject, (reason.name,))


def all_lack(gpus: tuple[nvml.Gpu, ...], *readings: str) -> bool:
    """Whether they answer and none of them has any of these readings: there is nothing here to look at."""
    return bool(gpus) and all(
        getattr(gpu, name) is None and name not in gpu.errors for gpu in gpus for name in readings
    )


def found(reason: Reason, gpu: nvml.Gpu, detail: str) -> Finding:
    """The reason as a finding on this GPU."""
    return Finding(reason.name, reason.severity, gpu.subject, detail, gpu.about, flickers=reason.flickers)


def earlier_gpus(seen: Evidence) -> tuple[tuple[nvml.Gpu, ...], float] | None:
    """The GPUs as the look before met them, and how many seconds ago; None where that is not known."""
    earlier = seen.earlier(nvml.NVML)
    if earlier is None or isinstance(earlier[0].answer, Unobserved):
        return None
    return earlier[0].answer.gpus, earlier[1]


def same(gpu: nvml.Gpu, others: Iterable[nvml.Gpu]) -> nvml.Gpu | None:
    """The one of them that is this GPU, at the same place; None: another one sat there, or none."""
    return next((one for one in others if (one.address, one.uuid) == (gpu.address, gpu.uuid)), None)


def settled(finding: Finding, expected: Expectation) -> Judgement:
    """The finding, or could-not-look there while a driver that was just loaded brings its GPUs up."""
    if expected.driver_age_seconds >= DRIVER_GRACE.seconds:
        return finding
    wait = f"judged {DRIVER_GRACE.seconds:.0f} s after {DRIVER_GRACE.since}"
    return Unobserved(causes.DRIVER_JUST_LOADED, f"{finding.detail}; {wait}", finding.subject)
