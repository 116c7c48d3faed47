"""Check: messages of the NVIDIA driver without an Xid number: GPU lost or not started, driver loaded, name of a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from healthcheck.checks.driver_reasons import INIT_FAILED, LIBRARY_MISMATCH, PROBE_FAILED
from healthcheck.checks.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, KernelEvent, Nature, Outcome, Reason, Severity
from healthcheck.model.node_facts import SAME_LOAD_SECONDS
from healthcheck.probes import kernel_log
from healthcheck.probes.pci import normalise_address

FELL_OFF_BUS = Reason(
    "GpuFellOffBus",
    Severity.REBOOT,
    "The driver can no longer reach a GPU over PCIe, while it runs or when it detects GPUs.",
    "Drain and reboot the node; replace it when the GPU is lost again.",
)
RESET_REQUIRED = Reason(
    "DriverResetRequired",
    Severity.RESET,
    "The driver rejects work with NV_ERR_RESET_REQUIRED: a GPU must be reset first.",
    "Drain the node and reload the driver, or reboot: the line names no GPU. If you only reset GPUs, release the node: "
    "it can't detect that the right GPU was reset.",
)
REBOOT_REQUIRED = Reason(
    "DriverRebootRequired",
    Severity.REBOOT,
    "The driver's memory manager (UVM) had a fatal error: every new CUDA program on the node fails until a reboot.",
    "Drain and reboot the node; find the Xid before this line in the kernel log.",
    source="open-gpu-kernel-modules, src/nvidia/src/kernel/rmapi/nv_gpu_ops.c, nvGpuOpsReportFatalError: the driver"
    " sets the recovery action of every GPU to reboot",
)

DRIVER_LOADED = "DriverLoaded"
GPU_NAMED = "GpuNamed"
"""Names of messages that are not faults."""

_BEGINS = "NVRM: "
_ADDRESS = r"(?P<address>(?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_NEXT_LINE = r"\s+(?:NVRM: )?"
_CUT = r"(?:>|…|\.{3})?\s*\Z"
"""A pager or `journalctl --no-full` may have cut the end of the line, and marked the cut."""
_LOADED = "NVRM: loading NVIDIA UNIX "
_NOT_PROBED = "NVRM: The NVIDIA probe routine was not called for "
_NONE_TAKEN = "NVRM: None of the NVIDIA "
_NAMED = re.compile(
    rf"NVRM: GPU at {_ADDRESS}: (?P<uuid>GPU-[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}})\s*\Z"
)
_SPEAKS = re.compile(rf"NVRM: (?s:.{{0,1024}}?)(?:\bXid\b.{{0,16}}?{_ADDRESS}|(?<=.{{16}})\bXid\b|off the bus)")
"""Line about an Xid or a GPU off the bus. `Xid` without an address counts only after more characters than a process
name has, because some kernel records begin with a process name: `NVRM: Xid 79[12]: segfault`."""
_NO_GPU_OF_ITS_OWN = "driver"
_LONGEST_DETAIL = 200


def _to_the_end(words: str) -> str:
    """Return a pattern for the rest of a line, or for a beginning of the rest if a pager cut the line."""
    rest = ""
    for letter in reversed(words):
        rest = f"(?:{re.escape(letter)}{rest})?"
    return rest + _CUT


class _Message(Struct, frozen=True):
    """A message as the driver writes it, from its first character: text that quotes a message is not a fault."""

    reason: Reason
    form: re.Pattern[str]
    severity: Severity | None = None
    """Severity of the finding; None: the severity of the reason."""
    rule: str = ""
    """Empty: the name of the reason."""


_MESSAGES = (
    # Older drivers write `GPU at 0000:18:00.0 has fallen off the bus.`
    _Message(
        FELL_OFF_BUS,
        re.compile(rf"NVRM: GPU (?:at )?{_ADDRESS}(?:: GPU)? has fal" + _to_the_end("len off the bus.")),
    ),
    _Message(
        FELL_OFF_BUS,
        # One record of three lines. A syslog has them as separate lines, and only the last one names the fault.
        re.compile(
            rf"NVRM: (?:The NVIDIA GPU {_ADDRESS}{_NEXT_LINE}(?:\(PCI ID: [0-9a-fA-F]{{4}}:[0-9a-fA-F]{{4}}\) )?"
            rf"installed in this system has{_NEXT_LINE})?fallen off the bus"
            + _to_the_end(" and is not responding to commands.")
        ),
    ),
    _Message(
        INIT_FAILED,
        re.compile(rf"NVRM: (?:GPU {_ADDRESS}: )?RmInitAdapter failed! \(0x[0-9a-fx:]*\)?{_CUT}"),
    ),
    _Message(
        INIT_FAILED,
        # Older drivers write `rm_init_adapter failed for device bearing minor number 0`.
        re.compile(
            rf"NVRM: (?:GPU {_ADDRESS}: )?rm_init_adapter failed(?:, device| for device bearing) min"
            rf"(?:or number \d+\s*\Z|{_to_the_end('or number ')})"
        ),
    ),
    # nvidia_init_module, nv.c: the driver found more GPUs than it could initialise. A function of another driver was
    # never probed, and has another line (`The NVIDIA probe routine was not called for 1 device(s).`).
    _Message(
        INIT_FAILED,
        re.compile(r"NVRM: The NVIDIA probe routine failed for \d{1,4} dev" + _to_the_end("ice(s).")),
        rule=PROBE_FAILED,
    ),
    _Message(
        INIT_FAILED,
        re.compile(
            r"NVRM: None of the NVIDIA (?:graphics adapters|devices) were init(?:ialized!\s*\Z|"
            + _to_the_end("ialized.")
            + ")"
        ),
        rule=PROBE_FAILED,
    ),
    # nv_pci_validate_bars, nv-pci.c. Very old drivers print no domain: such an address names no GPU.
    _Message(
        INIT_FAILED,
        re.compile(
            rf"NVRM: (?:This PCI I/O region assigned to your NVIDIA device is invalid:{_NEXT_LINE})?"
            rf"BAR\d is \d{{1,9}}M @ 0x[0-9a-f]{{1,16}} \((?:PCI:{_ADDRESS}\)\s*\Z|(?:PCI:[0-9a-fA-F:.]*\)?)?{_CUT})"
        ),
        rule=PROBE_FAILED,
    ),
    _Message(
        REBOOT_REQUIRED,
        re.compile(
            r"NVRM: (?:GPU\d{1,3} )?(?:\w{10,64}: )?uvm encountered global fatal error 0x[0-9a-f]{1,8}"
            + _to_the_end(", requiring os reboot to recover.")
        ),
    ),
    _Message(
        RESET_REQUIRED,
        # NV_ASSERT_OK and NV_CHECK_OK print the words of the status, its name and its number.
        re.compile(
            r"NVRM: (?:GPU\d{1,3} )?nv(?:Assert|Check)\w{0,32}: (?:Assertion|Check) failed: [\w ]{0,64}"
            r"\[?NV_ERR_RESET_REQUIRED\]? \(0x00000062\)"
        ),
    ),
    # Any program with another library version can cause this line. NVML's error 18 shows a mismatch on the node itself.
    _Message(LIBRARY_MISMATCH, re.compile(r"NVRM: API mismatch: the client "), Severity.MONITOR),
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    not_probed_at: float | None = None
    for record in seen[kernel_log.RING]:
        if not record.text.startswith(_BEGINS):
            continue
        if record.text.startswith(_NOT_PROBED):
            not_probed_at = record.at
        elif (
            record.text.startswith(_NONE_TAKEN)
            and not_probed_at is not None
            and 0 <= record.at - not_probed_at <= SAME_LOAD_SECONDS
        ):
            continue  # all GPUs are bound to another driver
        elif sighting := read_message(record):
            not_probed_at = None
            yield sighting


def read_message(record: kernel_log.Record) -> KernelEvent | None:
    """Parse one line of the driver. Return None if it matches no known message."""
    if kernel_log.is_packet_filters(record.text):
        return None
    if record.text.startswith(_LOADED):
        detail = record.text.removeprefix(_BEGINS)[:_LONGEST_DETAIL]
        return KernelEvent(DRIVER_LOADED, _NO_GPU_OF_ITS_OWN, record.seq, record.at, detail=detail, driver_loaded=True)
    named = _NAMED.match(record.text)
    if named:
        return KernelEvent(GPU_NAMED, _subject(named), record.seq, record.at, uuid=named["uuid"])
    for message in _MESSAGES:
        found = message.form.match(record.text)
        if found:
            return _fault(record, message, _subject(found))
    return None


def unread(records: Iterable[kernel_log.Record], outcomes: Iterable[Outcome]) -> Iterator[kernel_log.Record]:
    """Return the records about an Xid or a GPU off the bus that no check could parse."""
    read = {sighting.seq for outcome in outcomes for sighting in outcome.sightings}
    return (record for record in records if record.seq not in read and _speaks_of_a_fault(record.text))


def _speaks_of_a_fault(text: str) -> bool:
    if not text.startswith(_BEGINS) or not ("Xid" in text or "off the bus" in text):
        return False
    return _SPEAKS.match(text) is not None and not kernel_log.is_packet_filters(text)


def _subject(found: re.Match[str]) -> str:
    address = normalise_address(found.groupdict().get("address") or "")
    return f"gpu/{address}" if address else _NO_GPU_OF_ITS_OWN


def _fault(record: kernel_log.Record, message: _Message, subject: str) -> KernelEvent:
    reason, severity = message.reason.name, message.severity or message.reason.severity
    # Join the lines that the driver wrapped.
    detail = " ".join(record.text.replace("\nNVRM: ", " ").removeprefix(_BEGINS).split())[:_LONGEST_DETAIL]
    rule = message.rule or reason
    finding = Finding(reason, severity, subject, detail, rule=rule, seq=record.seq, at=record.at)
    return KernelEvent(reason, subject, record.seq, record.at, finding, detail)


CHECK = Check(
    "driver-messages",
    "0-nvidia-smi",
    (kernel_log.RING,),
    judge,
    (FELL_OFF_BUS, INIT_FAILED, RESET_REQUIRED, REBOOT_REQUIRED, LIBRARY_MISMATCH),
    Nature.EVENT,
    (_BEGINS,),
)
