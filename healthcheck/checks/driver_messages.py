"""Lines of the NVIDIA driver that have no number: a GPU lost or not started, a driver loaded, a GPU's name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from healthcheck.checks.driver_reasons import INIT_FAILED, LIBRARY_MISMATCH
from healthcheck.checks.expectation import Expectation
from healthcheck.model import Check, Evidence, Finding, Judgement, Nature, Reason, Severity, Sighting
from healthcheck.probes import kernel_log
from healthcheck.probes.pci import normalise_address

FELL_OFF_BUS = Reason(
    "GpuFellOffBus",
    Severity.REBOOT,
    "The driver can't reach a GPU over PCIe any more, while it runs or when it looks for GPUs.",
    "Drain and reboot the node; replace it when the GPU is lost again.",
)
RESET_REQUIRED = Reason(
    "DriverResetRequired",
    Severity.RESET,
    "The driver refuses work with NV_ERR_RESET_REQUIRED: a GPU has to be reset first.",
    "Drain the node and reload the driver, or reboot: the line names no GPU. After a reset of the GPUs without that, "
    "release the node: nothing on it proves that it was the right one.",
)
DRIVER_LOADED = "DriverLoaded"
GPU_NAMED = "GpuNamed"
"""What a line can say that is no fault."""

_BEGINS = "NVRM: "
_ADDRESS = r"(?P<address>(?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_NEXT_LINE = r"\s+(?:NVRM: )?"
_LOADED = "NVRM: loading NVIDIA UNIX "
_NAMED = re.compile(
    rf"NVRM: GPU at {_ADDRESS}: (?P<uuid>GPU-[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}})\s*\Z"
)
_NO_GPU_OF_ITS_OWN = "driver"
_LONGEST_DETAIL = 200


class _Message(Struct, frozen=True):
    """A line as its source writes it, from its first character on: text that quotes one is no fault."""

    reason: Reason
    form: re.Pattern[str]
    severity: Severity | None = None
    """None: the reason's own."""


_MESSAGES = (
    # Older drivers write `GPU at 0000:18:00.0 has fallen off the bus.`
    _Message(FELL_OFF_BUS, re.compile(rf"NVRM: GPU (?:at )?{_ADDRESS}(?:: GPU)? has fallen off the bus\.?\s*\Z")),
    _Message(
        FELL_OFF_BUS,
        # One record of three lines; a syslog has them apart, and only the last one says what happened.
        re.compile(
            rf"NVRM: (?:The NVIDIA GPU {_ADDRESS}{_NEXT_LINE}(?:\(PCI ID: [0-9a-fA-F]{{4}}:[0-9a-fA-F]{{4}}\) )?"
            rf"installed in this system has{_NEXT_LINE})?fallen off the bus and is not responding to commands\.?\s*\Z"
        ),
    ),
    _Message(
        INIT_FAILED,
        re.compile(rf"NVRM: (?:GPU {_ADDRESS}: )?RmInitAdapter failed! \(0x[0-9a-f]+:0x[0-9a-f]+:\d+\)\s*\Z"),
    ),
    _Message(
        INIT_FAILED,
        # Older drivers write `rm_init_adapter failed for device bearing minor number 0`.
        re.compile(
            rf"NVRM: (?:GPU {_ADDRESS}: )?rm_init_adapter failed(?:, device| for device bearing) minor number \d+\s*\Z"
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
    # Any program's attempt: it may have a library of its own. NVML's error 18 tells whether the node's is meant.
    _Message(LIBRARY_MISMATCH, re.compile(r"NVRM: API mismatch: the client "), Severity.MONITOR),
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    for record in seen[kernel_log.RING]:
        if record.text.startswith(_BEGINS) and (sighting := read_message(record)):
            yield sighting


def read_message(record: kernel_log.Record) -> Sighting | None:
    """What one line of the driver says; None when it is none of these."""
    if kernel_log.is_packet_filters(record.text):
        return None
    if record.text.startswith(_LOADED):
        detail = record.text.removeprefix(_BEGINS)[:_LONGEST_DETAIL]
        return Sighting(DRIVER_LOADED, _NO_GPU_OF_ITS_OWN, record.seq, record.at, detail=detail, driver_loaded=True)
    named = _NAMED.match(record.text)
    if named:
        return Sighting(GPU_NAMED, _subject(named), record.seq, record.at, uuid=named["uuid"])
    for message in _MESSAGES:
        found = message.form.match(record.text)
        if found:
            return _fault(record, message, _subject(found))
    return None


def _subject(found: re.Match[str]) -> str:
    address = normalise_address(found.groupdict().get("address") or "")
    return f"gpu/{address}" if address else _NO_GPU_OF_ITS_OWN


def _fault(record: kernel_log.Record, message: _Message, subject: str) -> Sighting:
    reason, severity = message.reason.name, message.severity or message.reason.severity
    # One line for a person, whatever the driver wrapped.
    detail = " ".join(record.text.replace("\nNVRM: ", " ").removeprefix(_BEGINS).split())[:_LONGEST_DETAIL]
    finding = Finding(reason, severity, subject, detail, rule=reason, seq=record.seq, at=record.at)
    return Sighting(reason, subject, record.seq, record.at, finding, detail)


CHECK = Check(
    "driver-messages",
    "0-nvidia-smi",
    (kernel_log.RING,),
    judge,
    (FELL_OFF_BUS, INIT_FAILED, RESET_REQUIRED, LIBRARY_MISMATCH),
    Nature.EVENT,
    (_BEGINS,),
)
