"""Shared code of the checks that judge each GPU: readings, addresses, and GPUs that do not answer."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    Finding,
    Grace,
    Judgement,
    NotConfigured,
    Reason,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes import pci, services
from gpu_healthcheck.healthcheck.probes.nvml import error_causes
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

DRIVER_GRACE = Grace(120.0, "the driver was loaded")
"""Time in which a loaded driver initialises the GPUs, one after another (docs/rules.md 11)."""
LINK_GRACE = Grace(180.0, "the driver was loaded")
"""Time in which the fabric starts and its links are trained (docs/rules.md 20)."""
FABRIC_GRACE = Grace(180.0, "the fabric manager was started")
"""Time for the GPUs' registration with their fabric and its manager (docs/rules.md 20)."""
FABRIC_COMING_UP = UnobservedCause(
    "FabricComingUp",
    "GPUs are registering with their NVLink fabric, or its manager is connecting to them.",
    f"Wait: they are judged {FABRIC_GRACE.seconds:.0f} s after {FABRIC_GRACE.since}.",
)
NVIDIA_DRIVER = "nvidia"


def is_fabric_coming_up(evidence: Evidence, expected: Expectation) -> bool:
    """Whether the fabric has had too little time to be judged.

    The time begins at the start of the fabric manager, or at the load of the driver if no fabric manager runs here.
    """
    manager = evidence[services.SERVICES].find(services.FABRIC_MANAGER)
    age = manager.age_seconds if manager else None
    return (expected.driver_age_seconds if age is None else age) < FABRIC_GRACE.seconds


def takes_part_in_fabric(gpu: nvml.Gpu) -> bool:
    """Whether the GPU is part of a fabric.

    MIG mode turns off the links of some GPUs (Fabric Manager User Guide, Interoperability With MIG).
    """
    divided = gpu.mig_mode is not None and gpu.mig_mode.current
    return gpu.fabric is not None and gpu.fabric.state != nvml.NO_FABRIC and not divided


def answering(evidence: Evidence, *readings: str) -> Generator[Judgement, None, tuple[nvml.Gpu, ...]]:
    """Return the GPUs that answer with these readings, as the value of `yield from`.

    A GPU or a reading without an answer yields "could not check" for this GPU only; `gpu-count` reports the fault
    itself. A reading that a GPU does not support is None and not an error.
    """
    answer = evidence[nvml.NVML].answer
    if isinstance(answer, Unobserved):
        yield answer
        return ()
    if not answer.gpus:
        yield NotConfigured("NVML lists no GPU")
    for gpu in placed(answer, shown_functions(evidence)):
        if gpu.error != nvml.SUCCESS:
            yield silent(gpu, gpu.error)
        else:
            yield from unread(gpu, *readings)
    return tuple(gpu for gpu in answer.gpus if gpu.error == nvml.SUCCESS and not set(readings) & set(gpu.errors))


def placed(answer: nvml.Gpus, functions: Iterable[pci.PciFunction]) -> Iterator[nvml.Gpu]:
    """Yield each GPU that NVML lists, with its address.

    The address of a GPU without a handle cannot be read. NVML lists GPUs in PCI order, so these GPUs are matched in
    order with the PCI functions that belong to no other GPU.
    """
    known = {gpu.address for gpu in answer.gpus}
    left = [
        function
        for function in functions
        if function.is_gpu and function.address not in known and function.driver in (NVIDIA_DRIVER, "")
    ]
    # NVML never lists a function without a driver.
    unclaimed = iter(
        [function.address for function in sorted(left, key=lambda function: function.driver != NVIDIA_DRIVER)]
    )
    for gpu in answer.gpus:
        yield gpu if gpu.address else replace(gpu, address=next(unclaimed, ""))


def shown_functions(evidence: Evidence) -> tuple[pci.PciFunction, ...]:
    """Return the PCI functions, or nothing if the check cycle did not read them.

    Use it in checks that do not require them.
    """
    return () if evidence.unread(pci.FUNCTIONS) else evidence[pci.FUNCTIONS]


def silent(gpu: nvml.Gpu, code: int, what: str = "") -> Unobserved:
    """Return "could not check" for a GPU, or for one of its readings.

    The GPU gave an error or an invalid answer.
    """
    about = f"{gpu.subject}: {what}" if what else gpu.subject
    # A GPU without an address may be any known GPU.
    place = gpu.subject if gpu.address else ""
    if code == nvml.NONSENSE:
        return Unobserved(error_causes.NONSENSE, f"{about}: NVML's answer is implausible", place)
    return Unobserved(error_causes.GPU_NOT_ANSWERING, f"{about}: NVML error {code}", place)


def unread(gpu: nvml.Gpu, *readings: str) -> Iterator[Unobserved]:
    """Yield "could not check" for each of these readings that failed, with its error."""
    for name in readings:
        if name in gpu.errors:
            yield silent(gpu, gpu.errors[name], name.replace("_", " "))


def unknown_yet(gpu: nvml.Gpu, reading: str, reason: Reason) -> Iterator[TooEarly]:
    """Yield a judgement that keeps an earlier finding active if the GPU lacks the reading.

    The GPU never supported the reading, or no longer does. The fault shown by the reading never disappears from a GPU.
    """
    if getattr(gpu, reading) is None and reading not in gpu.errors:
        yield TooEarly(f"{gpu.subject} does not report its {reading.replace('_', ' ')}", gpu.subject, (reason.name,))


def all_lack(gpus: tuple[nvml.Gpu, ...], *readings: str) -> bool:
    """Whether the GPUs answer but none supports any of these readings: the check does not apply."""
    return bool(gpus) and all(
        getattr(gpu, name) is None and name not in gpu.errors for gpu in gpus for name in readings
    )


def found(reason: Reason, gpu: nvml.Gpu, detail: str) -> Finding:
    """Return a finding with this reason on this GPU."""
    return Finding(reason.name, reason.severity, gpu.subject, detail, gpu.about, flickers=reason.flickers)


def earlier_gpus(evidence: Evidence) -> tuple[tuple[nvml.Gpu, ...], float] | None:
    """Return the GPUs of the previous check cycle and the seconds since then, or None if unknown."""
    earlier = evidence.earlier(nvml.NVML)
    if earlier is None or isinstance(earlier[0].answer, Unobserved):
        return None
    return earlier[0].answer.gpus, earlier[1]


def earlier_reads(gpu: nvml.Gpu, evidence: Evidence) -> Iterator[tuple[nvml.Gpu, float]]:
    """Yield the same GPU in the history and in the previous check cycle, with its age in seconds, youngest first."""
    reading = evidence[nvml.NVML]
    reads = [(earlier.gpus, reading.read_at - earlier.at) for earlier in reading.history]
    if (before := earlier_gpus(evidence)) is not None:
        reads.append(before)
    for gpus, age in sorted(reads, key=lambda read: read[1]):
        if (earlier_gpu := same(gpu, gpus)) is not None:
            yield earlier_gpu, age


def earlier_read(gpu: nvml.Gpu, evidence: Evidence, seconds: float) -> tuple[nvml.Gpu, float] | None:
    """Return the youngest earlier read of a GPU that is at least so many seconds old, with its age."""
    return next((read for read in earlier_reads(gpu, evidence) if read[1] >= seconds), None)


def is_loaded(gpu: nvml.Gpu) -> bool:
    """Whether the GPU works: by its recent utilisation, else by its processes."""
    if gpu.load is not None and gpu.load.utilisation is not None:
        return gpu.load.utilisation.total > 0
    return bool(gpu.processes)


def same(gpu: nvml.Gpu, gpus: Iterable[nvml.Gpu]) -> nvml.Gpu | None:
    """Return the entry of `others` for the same GPU at the same address, or None if there is none."""
    return next(
        (candidate for candidate in gpus if (candidate.address, candidate.uuid) == (gpu.address, gpu.uuid)), None
    )


def settled(finding: Finding, expected: Expectation, grace: Grace = DRIVER_GRACE) -> Judgement:
    """Return the finding, or "could not check" while a driver that was just loaded initialises its GPUs."""
    if expected.driver_age_seconds >= grace.seconds:
        return finding
    wait = f"judged {grace.seconds:.0f} s after {grace.since}"
    return Unobserved(error_causes.DRIVER_JUST_LOADED, f"{finding.detail}; {wait}", finding.subject)
