"""Check: messages of the NVIDIA driver without an Xid number: GPU lost or not started, driver loaded, name of a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import driver_errors
from gpu_healthcheck.healthcheck.checks.driver_reasons import INIT_FAILED, LIBRARY_MISMATCH, PROBE_FAILED
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    KernelEvent,
    Nature,
    Outcome,
    Reason,
    Recurrence,
    Severity,
)
from gpu_healthcheck.healthcheck.model.node_facts import SAME_LOAD_SECONDS
from gpu_healthcheck.healthcheck.probes import kernel_log
from gpu_healthcheck.healthcheck.probes.pci import normalise_address

FELL_OFF_BUS = Reason(
    "GpuFellOffBus",
    Severity.REBOOT,
    "A GPU fell off the bus: the driver can no longer reach it over PCIe, while it runs or when it detects GPUs.",
    "Drain and reboot the node; replace it when the GPU is lost again.",
)
RESET_REQUIRED = Reason(
    "DriverResetRequired",
    Severity.RESET,
    "A GPU takes no work until it is reset: the driver rejects work with NV_ERR_RESET_REQUIRED.",
    "Drain the node and reload the driver, or reboot: the line names no GPU. If you only reset GPUs, release the node: "
    "it can't detect that the right GPU was reset.",
)
REBOOT_REQUIRED = Reason(
    "DriverRebootRequired",
    Severity.REBOOT,
    "CUDA programs fail until the node reboots: the driver's memory manager (UVM) had a fatal error. Every new "
    "program fails.",
    "Drain and reboot the node; find the Xid before this line in the kernel log.",
    source="open-gpu-kernel-modules, src/nvidia/src/kernel/rmapi/nv_gpu_ops.c, nvGpuOpsReportFatalError: the driver"
    " sets the recovery action of every GPU to reboot",
)
NOT_RESPONDING = Reason(
    "GpuNotResponding",
    Severity.MONITOR,
    "A GPU does not respond: the driver waits for it or its firmware (GSP) in vain. Signs are its watchdog, a "
    "heartbeat, a GSP timeout, the end of all channels, or a wait that repeats for minutes.",
    "Find out whether programs or nvidia-smi hang on a GPU; if they do, or if the line recurs, drain and reboot the"
    " node.",
    threshold="a line, at once; a wait of nvidia-modeset: 3 lines within 60 s or more, none 60 s after the last",
    source="open-gpu-kernel-modules, kernel_rc_watchdog.c, kernel_gsp.c and kernel_rc_notification.c; nvkms-dma.c",
)
NVLINK_TRAINING = Reason(
    "NvLinkTrainingFailed",
    Severity.MONITOR,
    "A GPU's NVLinks do not start: the driver can't detect or train them in any try.",
    "Check `nvidia-smi nvlink --status`; if it hangs or a link is down, drain and reboot the node: the links stay down"
    " until then.",
    threshold="3 lines, at most 10 min apart: a single retry at start is no fault",
    source="open-gpu-kernel-modules, kernel_nvlink.c and kernel_nvlink_gh100.c; leptonai/gpud #1272",
)
PCIE_ERROR = Reason(
    "GpuPcieError",
    Severity.REBOOT,
    "A GPU's PCIe link had a fatal error: AER or DPC reset the link, and the GPU's driver can't recover from that.",
    "Drain and reboot the node; replace it if the error recurs.",
    threshold="the line of a fatal error, and within 10 s a line that the GPU's driver can't recover",
    source="Linux, drivers/pci/pcie/err.c, aer.c and dpc.c",
)
OTHER_DRIVER = Reason(
    "GpuBoundToOtherDriver",
    Severity.MONITOR,
    "A GPU is held by another kernel module: NVIDIA's driver can't use it. The GPU is sound.",
    "Block the module that the detail names (blacklist it in the node's image, rebuild its initramfs) and reboot.",
    source="open-gpu-kernel-modules, kernel-open/nvidia/nv-pci.c, check_for_bound_driver",
)

DRIVER_LOADED = "DriverLoaded"
GPU_NAMED = "GpuNamed"
PCIE_FATAL, PCIE_RECOVERED = "PcieFatalError", "PcieRecovered"
"""Names of messages that are not faults by themselves."""

_BEGINS = "NVRM: "
_ALL_BEGIN = (*driver_errors.BEGINS, "pcieport ")
_OF_ANOTHER_CHECK = ("NVRM: Xid (", "nvidia-nvswitch")
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
_MENTION = re.compile(rf"NVRM: (?s:.{{0,1024}}?)(?:\bXid\b.{{0,16}}?{_ADDRESS}|(?<=.{{16}})\bXid\b|off the bus)")
"""Line about an Xid or a GPU off the bus. `Xid` without an address counts only after more characters than a process
name has, because some kernel records begin with a process name: `NVRM: Xid 79[12]: segfault`."""
_NO_GPU_OF_ITS_OWN = "driver"
_LONGEST_DETAIL = 200
_TEXT = r"[^\n]{0,512}?"
_SYMPTOM = re.compile(
    rf"NVRM:? (?:GPU {_ADDRESS}: )?(?:GPU\d{{1,3}}:? )?(?P<function>\w{{10,64}}: (?:GPU\d{{1,3}}:? )?)?(?:"
    r"(?P<lost>GPU (?:is lost|lost from the bus)\b|A GPU crash dump has been created\b"
    r"|API_GPU_ATTACHED_SANITY_CHECK failed"
    rf"|(?(function){_TEXT}(?:NV_ERR_GPU_IS_LOST\b|\bGPU (?:is )?lost\b|\(0x0{{7}}[fF]\)"
    r"|Check whether GPU is present on the bus|sanity check failed 0x0{0,7}f\b"
    # NV_ERR_GPU_IS_LOST by its number.
    rf"|(?i:fail|error|unable|cannot){_TEXT}\b\w{{0,8}}[sS]tatus[ =:]{{1,3}}(?:0x0{{0,7}})?[fF]\b)|(?!)))"
    r"|(?P<silent>RC watchdog: GPU is probably locked!|\*{2,80} ?(?:GSP Timeout|GSP-CrashCat Report)\b"
    r"|RC all channels for critical error (?P<code>\d{1,5})\b|GSP-RM heartbeat timed out|GSP ERROR: .{0,40}(?i:timeout)"
    r"|Rate limiting GSP RPC error prints for GPU at (?P<limited>PCI:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})"
    rf"|(?(function){_TEXT}(?:(?i:heartbeat time(?:d )?out)|Back to back GSP RPC timeout|GPU marked for reset"
    r"|Timeout after \d{1,5}s of waiting for RPC response from GPU)|(?!)))"
    rf"|(?P<nvlink>(?(function)(?:{_TEXT}(?i:link ?train|train\w{{0,4}} link|rx ?det)){_TEXT}(?i:fail)|(?!))))"
)
"""Message in which the driver gives up a GPU, by the kind of its group.

Free text counts only after the name of a function, which is longer than a process name. Newer drivers print an index
before it; no other source has this index.
"""
_NVLINK = re.compile(r"NVRM:? (?:GPU\d{1,3}:? )?knvlink\w*(?:Train|RxDet|Discover)\w*: [^\n]{0,256}?(?i:fail)")
_SYMPTOM_WORDS = (
    *("LOST", "lost", "0000f", "0000F", "0xf", "status f", "present on the bus", "SANITY_CHECK", "crash dump"),
    *("watchdog", "GSP Timeout", "GSP-Crash", "GSP ERROR", "GSP RPC", "from GPU", "eartbeat", "marked for reset"),
    *("RC all", "train", "Train", "Det"),
)
"""Each line that `_SYMPTOM` matches contains one of these."""
_LOST_BY_MODESET = re.compile(
    r"nvidia-modeset: ERROR: GPU:\d{1,3}: Failed to query display engine channel state: [0-9a-fx:]{4,48}:0x0{7}f\b"
)
_WAITS = re.compile(
    r"nvidia-modeset: (?:ERROR|WARNING): GPU:\d{1,3}: (?:Error while waiting for GPU progress|Idling display engine"
    r" timed out)\b"
)
_LOST_NUMBER = "79"
_GPU_DESCRIBED = re.compile(rf"NVRM: GPU (?:at )?{_ADDRESS}: (?:GPU is on Board|GPU serial number|GPU-)")
"""Line that precedes the notice of a crash dump at once."""
_MOST_BETWEEN = 8
_NO_FIRMWARE = re.compile(
    rf"nvidia {_ADDRESS}: Direct firmware load for (?P<file>nvidia/[\w.]{{1,32}}/gsp_\w{{1,32}}\.bin) failed with"
    r" error -2\s*\Z"
)
"""The file does not exist (ENOENT). It is no fault if the GPU starts all the same: some drivers go on without GSP."""
_CRASH_DUMP = "NVRM: A GPU crash dump has been created"
_BOUND = re.compile(rf"NVRM: GPU {_ADDRESS} is already bound to (?P<module>[\w-]{{2,56}})(?:\.\s*\Z|{_CUT})")
_ON_PURPOSE = re.compile(r".*vfio|pci-stub|.*pciback|uio|nvidia\Z", re.IGNORECASE)
"""Drivers with which a person hands a GPU to a virtual machine or to a program."""
_WRAPPED = re.compile(r"\n\s*NVRM: *")
_UNSUPPORTED = (
    # Of each pair: the driver's words, and what ends it.
    (re.compile(r"requires use of the NVIDIA open kernel modules"), "install the open kernel modules"),
    (re.compile(r"vGPU .{0,80}not supported by open|Incompatible Guest/Host drivers"), "install the vGPU driver"),
    (re.compile(r"not supported by open nvidia\.ko"), "install the proprietary kernel modules"),
    (
        re.compile(r"not supported by the .{0,40}\bNVIDIA|not supported by the \d[\d.]*|not supported by the\s*\Z"),
        "install a driver release that supports it, or the vGPU guest driver in a virtual machine",
    ),
    (re.compile(r"supported through the NVIDIA \S{1,16} Legacy drivers"), "install that legacy driver"),
    (
        re.compile(r"Open nvidia\.ko is only ready for use on Data Center GPUs"),
        "set the module option NVreg_OpenRmEnableUnsupportedGpus=1, or install the proprietary kernel modules",
    ),
    (re.compile(r"vGPU (?:is )?not supported"), "install the vGPU guest driver"),
)
_SUPPORT = re.compile(
    rf"NVRM: (?:The NVIDIA (?:v?GPU {_ADDRESS}|\S.{{0,48}} GPU)\s|installed in |in this system |Open nvidia\.ko is "
    r"|(?:\w{10,64}: )?(?:vGPU |Incompatible Guest/Host))"
)
"""Beginning of a message about a GPU that the driver does not support."""
_PCIE_LINE = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:(?:AER|DPC): )?"
_PCIE_STATE = re.compile(
    rf"(?:pcieport|nvidia) (?P<port>{_PCIE_LINE}(?:(?P<recovered>[Dd]evice recovery successful)"
    r"|PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)"
    r"|(?:Multiple )?Uncorrect(?:ed|able) \(Fatal\) error (?:message )?received|containment event, status"
    r"|ERR_FATAL detected|unmasked uncorrectable error detected)"
)
_PCIE_FAILED = re.compile(
    rf"nvidia (?P<address>{_PCIE_LINE}(?:can't recover \(no error_detected callback\)|device has no AER-aware driver)"
)
_PROBE_ERROR = re.compile(
    r"nvidia(?:: probe of)? (?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:: probe with driver nvidia)?"
    r" failed with error -\d{1,4}\s*\Z"
)
_DEVICES = re.compile(r"NVRM: The NVIDIA probe routine failed for (\d{1,4}) dev")
_TRIES = Recurrence(count=3, seconds=0.0, pause=600.0)
_FOR_MINUTES = Recurrence(count=3, seconds=60.0, pause=60.0)


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
    recurs: Recurrence | None = None


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
_MESSAGE_WORDS = (
    *("has fal", "fallen", "nitAdapter", "nit_adapter", "probe routine", "None of the", "BAR", "global fatal"),
    *("RESET_REQUIRED", "API mismatch"),
)
"""Each line that `_MESSAGES` match contains one of these."""
_UNSUPPORTED_GPU = _Message(INIT_FAILED, _SUPPORT, Severity.MONITOR, PROBE_FAILED)
_GPU_LOST, _GPU_SILENT = _Message(FELL_OFF_BUS, _SYMPTOM), _Message(NOT_RESPONDING, _SYMPTOM)
_LINKS_DOWN = _Message(NVLINK_TRAINING, _NVLINK, recurs=_TRIES)
_OF_OTHER_MODULES = (
    _Message(FELL_OFF_BUS, _LOST_BY_MODESET),
    _Message(NOT_RESPONDING, _WAITS, recurs=_FOR_MINUTES),
    _Message(PCIE_ERROR, _PCIE_FAILED),
    _Message(INIT_FAILED, _PROBE_ERROR, rule=PROBE_FAILED),
)


def judge(evidence: Evidence, _: Expectation) -> Iterator[Judgement]:
    not_probed_at: float | None = None
    ring = evidence[kernel_log.RING]
    for index, record in enumerate(ring):
        if not record.text.startswith(_ALL_BEGIN) or record.text.startswith(_OF_ANOTHER_CHECK):
            continue
        if record.text.startswith(_NOT_PROBED):
            not_probed_at = record.at
        elif (
            record.text.startswith(_NONE_TAKEN)
            and not_probed_at is not None
            and 0 <= record.at - not_probed_at <= SAME_LOAD_SECONDS
        ):
            continue  # all GPUs are bound to another driver
        elif event := read_message(record):
            not_probed_at = None
            before = ring[max(index - _MOST_BETWEEN, 0) : index]
            is_dump = record.text.startswith(_CRASH_DUMP)
            yield _on_described(event, before) if is_dump else _for_lack_of_firmware(event, before)


def read_message(record: kernel_log.Record) -> KernelEvent | None:
    """Parse one line of the driver. Return None if it matches no known message."""
    if kernel_log.is_packet_filters(record.text):
        return None
    if not record.text.startswith("NVRM"):
        return _read_of_other_module(record)
    if record.text.startswith(_LOADED):
        detail = record.text.removeprefix(_BEGINS)[:_LONGEST_DETAIL]
        return KernelEvent(DRIVER_LOADED, _NO_GPU_OF_ITS_OWN, record.seq, record.at, detail=detail, driver_loaded=True)
    named = _NAMED.match(record.text)
    if named:
        return KernelEvent(GPU_NAMED, _subject(named), record.seq, record.at, uuid=named["uuid"])
    return _read_unsupported(record) or _read_listed(record) or _read_bound(record) or _read_symptom(record)


def _read_listed(record: kernel_log.Record) -> KernelEvent | None:
    if not any(map(record.text.__contains__, _MESSAGE_WORDS)):
        return None
    return _first_of(_MESSAGES, record)


def _first_of(messages: Iterable[_Message], record: kernel_log.Record) -> KernelEvent | None:
    for message in messages:
        found = message.form.match(record.text)
        if found:
            return _fault(record, message, _subject(found))
    return None


def _read_unsupported(record: kernel_log.Record) -> KernelEvent | None:
    """Parse a message in which the driver names what the GPU requires. The GPU is sound."""
    begin = _SUPPORT.match(record.text)
    if begin is None:
        return None
    text = _WRAPPED.sub(" ", record.text)
    fix = next((fix for words, fix in _UNSUPPORTED if words.search(text)), "")
    if not fix:
        return None
    event = _fault(record, _UNSUPPORTED_GPU, _subject(begin))
    return _detailed(event, f"{fix}: {event.detail}"[:_LONGEST_DETAIL])


def _read_bound(record: kernel_log.Record) -> KernelEvent | None:
    """Parse the line about a GPU that another module holds; None if a person passes it to a virtual machine."""
    bound = _BOUND.match(record.text)
    if bound is None or _ON_PURPOSE.match(bound["module"]):
        return None
    event = _fault(record, _Message(OTHER_DRIVER, _BOUND), _subject(bound))
    return _detailed(event, f"the kernel module {bound['module']} holds it")


def _read_symptom(record: kernel_log.Record) -> KernelEvent | None:
    """Parse a message in which the driver gives up a GPU without an Xid."""
    if not any(map(record.text.__contains__, _SYMPTOM_WORDS)):
        return None
    found = _SYMPTOM.match(record.text)
    if found is None:
        return _first_of((_LINKS_DOWN,), record)
    limited = normalise_address(found["limited"] or "")
    subject = f"gpu/{limited}" if limited else _subject(found)
    if found["nvlink"]:
        return _fault(record, _LINKS_DOWN, subject)
    is_lost = found["lost"] or found["code"] == _LOST_NUMBER
    return _fault(record, _GPU_LOST if is_lost else _GPU_SILENT, subject)


def _read_of_other_module(record: kernel_log.Record) -> KernelEvent | None:
    """Parse a line of nvidia-modeset, or of the kernel about a PCIe port or a device that is bound to the driver."""
    state = _PCIE_STATE.match(record.text)
    if state is None:
        return _first_of(_OF_OTHER_MODULES, record)
    reason = PCIE_RECOVERED if state["recovered"] else PCIE_FATAL
    return KernelEvent(reason, f"pcie/{state['port']}", record.seq, record.at, detail=record.text[:_LONGEST_DETAIL])


def _on_described(event: KernelEvent, before: Sequence[kernel_log.Record]) -> KernelEvent:
    """Return the event on the GPU that the driver described at once before it; unchanged without such a line."""
    for record in reversed(before):
        found = _GPU_DESCRIBED.match(record.text)
        if found and 0 <= event.at - record.at <= SAME_LOAD_SECONDS and event.finding:
            subject = _subject(found)
            return replace(event, subject=subject, finding=replace(event.finding, subject=subject))
    return event


def _for_lack_of_firmware(event: KernelEvent, before: Sequence[kernel_log.Record]) -> KernelEvent:
    """Return a GPU's failure to start as that of a sound GPU if the kernel lacked its firmware shortly before."""
    if event.finding is None or event.reason != INIT_FAILED.name:
        return event
    for record in before:
        lacks = _NO_FIRMWARE.match(record.text)
        if lacks and _subject(lacks) == event.subject and event.at - record.at <= SAME_LOAD_SECONDS:
            sound = replace(event.finding, severity=Severity.MONITOR, rule=PROBE_FAILED)
            detail = f"install the driver's firmware file {lacks['file']}: {event.detail}"
            return _detailed(replace(event, finding=sound), detail)
    return event


def _detailed(event: KernelEvent, detail: str) -> KernelEvent:
    finding = event.finding
    return replace(event, detail=detail, finding=replace(finding, detail=detail) if finding else None)


def unread(
    records: Iterable[kernel_log.Record], outcomes: Iterable[Outcome]
) -> tuple[list[kernel_log.Record], list[kernel_log.Record]]:
    """Return the records about an Xid or a GPU off the bus that no check could parse, and those of other errors."""
    read = {event.seq for outcome in outcomes for event in outcome.events}
    faults: list[kernel_log.Record] = []
    errors: list[kernel_log.Record] = []
    for record in records:
        if record.seq in read:
            continue
        if _mentions_fault(record.text):
            faults.append(record)
        elif driver_errors.reports_error(record.text):
            errors.append(record)
    return faults, errors


def _mentions_fault(text: str) -> bool:
    if not text.startswith(_BEGINS) or not ("Xid" in text or "off the bus" in text):
        return False
    return _MENTION.match(text) is not None and not kernel_log.is_packet_filters(text)


def _subject(found: re.Match[str]) -> str:
    address = normalise_address(found.groupdict().get("address") or "")
    return f"gpu/{address}" if address else _NO_GPU_OF_ITS_OWN


def _fault(record: kernel_log.Record, message: _Message, subject: str) -> KernelEvent:
    reason, severity = message.reason.name, message.severity or message.reason.severity
    # Join the lines that the driver wrapped.
    text = _WRAPPED.sub(" ", record.text).removeprefix(_BEGINS)
    detail = " ".join(text.split())[:_LONGEST_DETAIL]
    rule = message.rule or reason
    finding = Finding(reason, severity, subject, detail, rule=rule, seq=record.seq, at=record.at)
    devices = _DEVICES.match(record.text)
    count = int(devices[1]) if devices else 1
    return KernelEvent(reason, subject, record.seq, record.at, finding, detail, recurs=message.recurs, devices=count)


CHECK = Check(
    "driver-messages",
    "0-nvidia-smi",
    (kernel_log.RING,),
    judge,
    (
        *(FELL_OFF_BUS, NOT_RESPONDING, PCIE_ERROR, NVLINK_TRAINING, OTHER_DRIVER),
        *(INIT_FAILED, RESET_REQUIRED, REBOOT_REQUIRED, LIBRARY_MISMATCH),
    ),
    Nature.EVENT,
    _ALL_BEGIN,
)
