"""The words that our records, labels and commands use beside the reasons of findings: what each of them means.

The runbook's table of what could not look is made from the causes here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cli.setting_words import settings_in_words
from cli.words import SEVERITY_MEANS
from healthcheck.checks import CHECKS, DEEP_CHECKS, GROUPS, SHORT_NAMES
from healthcheck.model import PREFIX
from healthcheck.node.state import CONDITION
from healthcheck.verdict.acknowledgement import UNTOLD

SETTING = "a setting"
_RUNBOOK = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class Word:
    """`kind`: what sort of word it is; `more`: where there is more about it."""

    name: str
    kind: str
    meaning: str
    more: str


CAUSES = (
    (
        ("NvmlLibraryNotFound",),
        "the driver is not installed, or lies where nobody looks: the message names what was tried",
    ),
    (("DriverNotLoaded", "DriverLibraryMismatch"), "the kernel module is missing, or was upgraded without a reboot"),
    (("DriverNotAnswering",), "one deadline was missed; the next look decides"),
    (("DriverBeingChanged", "DriverJustLoaded"), "an upgrade or a MIG change is going on; it passes"),
    (
        ("NvmlCrashed", "NvmlNonsense", "NvmlError", "GpuNotAnswering"),
        "the driver's answer is no answer: `nvidia-smi` on the node",
    ),
    (
        ("EfaNotAnswering",),
        "an EFA device refuses to tell its counters: `dmesg | grep -i efa`; the driver may have given it up",
    ),
    (
        ("LibfabricNotAnswering",),
        "`fi_info -p efa` did not end within 10 s: an EFA device that its driver waits for; `dmesg | grep -i efa`",
    ),
    (
        ("LibfabricFailed",),
        "`fi_info -p efa` could not be run, or crashed: run it in our pod; the message has its last line",
    ),
    (("NothingRecognised",), "no line of a saved log is the kernel's: `docs/replay.md` has the forms"),
    (
        ("LinesNotRead",),
        "lines of the driver in a saved log stand behind a prefix that is not known: save it in a form that is",
    ),
    (
        ("EfaLoopbackNotRun",),
        "fi_pingpong could not be run on a device (a library, a right, locked memory, stopped): its words are there",
    ),
    (
        ("AllReduceNotRun",),
        "all_reduce_perf could not be run, or met an error that need not be the hardware's: its words are there",
    ),
    (
        ("RunStopped",),
        "somebody ended the quarantine run, or its time was over, before this test had ended: run it again",
    ),
    (("NotFinished",), "the record is of a run that goes on, or that was killed without a word: run it again"),
    (
        ("FabricComingUp",),
        "GPUs are registering with their NVLink fabric: judged 180 s after the fabric manager's start",
    ),
    (("FabricStateUnknown",), "the driver names a state of the fabric that is newer than this program"),
    (("HostProcessesHidden",), "the pod lacks `hostPID`, or `HOST_ROOT/proc` is not the host's"),
    (
        ("ServiceUncertain",),
        "only processes in privileged containers have the name of the node's service, or more than anybody looks at",
    ),
    (
        ("RuntimeConfigUnreadable",),
        "a file of the container runtime's is too large, may not be read, or lies where a saved tree has nothing",
    ),
    (
        ("ContainerRuntimeNotAnswering",),
        "nobody answers at the container runtime's socket, or not in time: `systemctl status containerd`",
    ),
    (("KernelLogUnreadable",), "`/dev/kmsg` can't be opened: the pod is not privileged"),
    (
        ("DcgmAlreadyRunning", "DcgmInUse", "DcgmStopped", "DcgmKilled", "DcgmAborted"),
        "something else used the GPUs or the hostengine, or ended the test: it is tried again",
    ),
    (("DcgmTimedOut", "DcgmDriverTimeout"), "the test did not end within `DCGM_TIMEOUT`; `dmesg` on the node"),
    (
        ("DcgmNoHostengine", "DcgmVersionMismatch"),
        "`DCGM_HOST` names no hostengine that answers, or one of another version than `dcgmi`",
    ),
    (
        ("DcgmNotHomogeneous", "DcgmNotSupported", "DcgmAllSkipped", "DcgmTestSkipped"),
        "DCGM does not test these GPUs, or not together",
    ),
    (
        ("DcgmDiagNotInstalled", "DcgmTestsNotFound", "DcgmTestsMissing", "DcgmNotLaunched", "DcgmLibraryMissing"),
        "a part of DCGM is missing: from 4.0 on the diagnostic is a package of its own",
    ),
    (
        ("DcgmAbsent", "DcgmNotInstalled"),
        "the image has no `dcgmi`: a deep run needs its target `full`, also beside slim agents",
    ),
    (
        ("DcgmGpuLost", "DcgmResetRequired", "DcgmNvmlNotLoaded"),
        "the driver keeps DCGM from a GPU; the findings of NVML say which",
    ),
    (
        ("DcgmNoGpus", "DcgmGpuLeftOut", "DcgmGpusDetached", "DcgmPaused"),
        "DCGM sees none, or other GPUs than NVML; `dcgmi discovery -l`",
    ),
    (
        ("DcgmNoPermission", "DcgmRefused", "DcgmTestNotRun"),
        "DCGM could not, was not allowed to, or knows an option not: its words are there",
    ),
    (
        ("DcgmCutOff", "DcgmTooLong", "DcgmNoData", "DcgmNonsense", "DcgmContradiction", "DcgmFailed"),
        "the answer is none, or contradicts itself: run `dcgmi diag -r 2 -j` by hand",
    ),
    (("AgentSilent",), "the node's agent has told nothing for hours: `kubectl get pods -n gpu-healthcheck -o wide`"),
    (("NotLookedYet", "NotLooked"), "the agent's first look has not ended, or left this out: it passes"),
    (("ProbeFailed",), "the message names the source"),
    (
        ("CheckFailed", "KernelLogRecordSetAside"),
        "a fault of ours: the message names it, and what else was seen counts; tell the project",
    ),
)
"""Why a check could not look, and what to look at then; causes of one row are looked into in the same way."""

_RECOMMENDATIONS = {
    "return-to-service": "Nothing that was found or still stands keeps the node from work: uncordon it.",
    "reset": "A reset of the GPU mends what was found, as far as anybody knows. Quarantine the node again afterwards.",
    "reboot": "Nothing less than a reboot mends what was found. Quarantine the node again afterwards.",
    "replace": "What was found is mended by no reset and no reboot, or came back after the node's return.",
    "rerun": "It was cut off, or a test could not look: nobody can tell. Mend that, and quarantine the node again.",
}
_STATUSES = {
    "pass": "Everything that belongs to the node was looked at, and no fault was found.",
    "warn": "The worst finding is MONITOR: the node works on.",
    "fail": "A finding of RESET or worse stands.",
    "unknown": "A check that the node needs could not look, and nothing worse is known: neither a fault nor a pass.",
    "not-configured": "The check's tool or device does not belong to this node. It is neither a pass nor unknown.",
}
_LABELS = {
    "status": "How the node is: pass, warn, fail or unknown.",
    "severity": "The worst finding that stands, or PASS.",
    "last-check": "When its agent last wrote the Node: at each change, and about once an hour.",
    "mode": "A deep run uses the node: sweep, l2 or quarantine.",
    "enabled": "A person's word that this is a GPU node, where no other label says so.",
}
_TAINTS = {
    "unhealthy": "The verdict keeps new work away. The agent lifts it when the verdict is better, or on a release.",
    "maintenance": "A deep test uses the GPUs and keeps new work away. It goes when the test has ended.",
    "startup": "Whoever made the node set it. The agent takes it off after a first look that finds no fault.",
}
_CONDITION = "Its status: True for pass and warn, False for fail, Unknown; its reason is the worst finding's."
_EVENTS = {
    "GpuHealthPass": "The node's status became pass.",
    "GpuHealthWarn": "The node's status became warn.",
    "GpuHealthFail": "The node's status became fail.",
    "GpuHealthUnknown": "The node's status became unknown.",
    "BadSetting": "A value of the configuration is not allowed: it is named with what is, and the last good one stays.",
    "UnknownSetting": "A key of the configuration is no setting: it is named with the one that may be meant.",
    "BadAnnotation": "An annotation of ours on the node is no record: it is passed over, or written anew.",
    "AnnotationSetAside": "An annotation that the agent failed at is passed over until it changes; the others count.",
    "RecordLeftOut": "The node is too full for the record: labels and taint stand without it.",
    "OldRecord": "A record of the scripts before us was shown once, and does not count: its taint does not stand.",
    "MemoryUnreadable": "The agent's file on the node can't be read; it is rebuilt from the Node and the kernel's log.",
    "MemorySetAside": "The agent failed at its file on the node: it lies aside, and is rebuilt from the Node.",
    "KernelLogOverrun": "Kernel log records were overwritten before the agent had read them.",
    "KernelLogUnreadable": "Lines of the kernel's log are no records, or cut short.",
    "KernelLogRecordSetAside": "A kernel log record that nobody could judge was set aside; the others count.",
    "TaintWithheld": "The fleet budget has no place for the node's taint; it is tried again after each look.",
    "SwitchedOff": "Labels or the taint were taken away as the settings switch them off.",
    "Released": "A person's release was taken: what it names counts no more.",
}
_ANNOTATIONS = {
    "results": "What the agent knows of its node: the record, as JSON.",
    "sweep-result": "The record of the last level 2, by a sweep or by the agent.",
    "quarantine-result": "The record of the last quarantine run: what it tested, what it found, and what to do.",
    "run": "Who has the node for a deep run, and until when; past that time anybody may take it away.",
    "release": "A person's word that findings are dealt with, until the agent has taken it over.",
    "cordoned-by": "The quarantine run that cordoned the node: nobody else's cordon is lifted by us.",
}


def words() -> Mapping[str, tuple[Word, ...]]:
    """Every word of ours, in small letters and without our prefix; some are of more than one kind."""
    known: dict[str, tuple[Word, ...]] = {}
    for one in _all():
        known[one.name.lower()] = (*known.get(one.name.lower(), ()), one)
    return known


def without_prefix(said: str) -> str:
    """As `words` has it: `…/mode` is `mode`."""
    return said.lower().removeprefix(f"{PREFIX}/")


def _all() -> Iterator[Word]:
    for names, look_at in CAUSES:
        yield from (Word(name, "why a check could not look", look_at, f"{_RUNBOOK}#could-not-look") for name in names)
    yield from _of("a recommendation", _RECOMMENDATIONS, f"{_RUNBOOK}#what-quarantine-recommends")
    yield from _of("a severity", {one.name: f"What to do: {does}." for one, does in SEVERITY_MEANS.items()}, _RUNBOOK)
    yield from _of("a status", _STATUSES, "docs/record.md")
    yield from _of("a label of the node", _LABELS, "README.md")
    yield from _of("a taint of the node", _TAINTS, "docs/neighbours.md")
    yield from _of("an annotation of the node", _ANNOTATIONS, "docs/record.md")
    yield Word(CONDITION, "a condition of the node", _CONDITION, "docs/neighbours.md")
    yield from _of("an Event on the node", _EVENTS, f"{_RUNBOOK}#could-not-look")
    yield from _of("a group of checks", _groups(), "docs/checks.md")
    yield from _of("a group of checks", _short_names(), "docs/commands.md#checks-by-name")
    yield from _checks()
    yield from _of(SETTING, dict(settings_in_words()), "kubernetes/manifests/03-config.yaml")
    yield from _of("a metric of the agent", _metrics(), "docs/metrics.md")
    yield Word(
        UNTOLD,
        "the reason of a finding",
        "The record of a deep run states a severity, and names no finding for it that anybody can read.",
        f"{_RUNBOOK}#{UNTOLD.lower()}",
    )


def _of(kind: str, meanings: Mapping[str, str], more: str) -> Iterable[Word]:
    return (Word(name, kind, meaning, more) for name, meaning in meanings.items())


def _short_names() -> dict[str, str]:
    names = {check.name for check in (*CHECKS, *DEEP_CHECKS)}
    return {short: f"Stands for {name}." for short, name in SHORT_NAMES.items() if short not in names}


def _checks() -> Iterator[Word]:
    """Each in the first words of its own file."""
    for check in (*CHECKS, *DEEP_CHECKS):
        what, _, _ = (sys.modules[check.judge.__module__].__doc__ or "").strip().partition("\n\n")
        reasons = ", ".join(reason.name for reason in check.reasons)
        told = f"{' '.join(what.split())} It is of group {check.group}, and finds {reasons}."
        yield Word(check.name, "a check", told, "docs/checks.md")


def _metrics() -> dict[str, str]:
    from healthcheck.telemetry import Telemetry  # noqa: PLC0415 - no other command needs what it brings along

    return {one.name: f"{one.meaning} ({', by '.join((one.kind, *one.labels))})" for one in Telemetry().metrics}


def _groups() -> dict[str, str]:
    """Each with its checks; one without any is of another program."""
    checks = {group: [one.name for one in (*CHECKS, *DEEP_CHECKS) if one.group == group] for group in GROUPS.values()}
    return {group: f"Its checks: {', '.join(names) or 'none yet'}." for group, names in checks.items()}
