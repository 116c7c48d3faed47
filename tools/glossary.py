"""Terms of our records, labels and commands, other than the reasons of findings, with their meanings.

`make docs` writes them into index.json, which `explain` reads, and the causes into docs/could-not-check.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from agent.telemetry import Telemetry
from cli.index import REASON, SETTING, Declared, IndexEntry
from diagnosis.causes import CAUSES as DIAGNOSES
from diagnosis.hami.hami_glossary import hami_words
from diagnosis.hami.settings import KEYS, NODE_KEYS
from healthcheck import checks
from healthcheck.captures import capture_files as captures
from healthcheck.catalog.profiles import PROFILES_FILE
from healthcheck.catalog.steps import RELOAD, STEPS
from healthcheck.checks import CHECKS, DEEP_CHECKS, GROUPS, SHORT_NAMES, dcgm_diag
from healthcheck.deep import causes as deep
from healthcheck.memory.kernel_events import REPEATS, REPEATS_FROM
from healthcheck.model import Severity, UnobservedCause
from healthcheck.node.state import CONDITION, HARDWARE_READY, REBOOT_REQUIRED, REPLACEMENT_REQUIRED
from healthcheck.settings.declaration import NodeSettings, by_key, settings_of, written
from healthcheck.verdict.acknowledgement import UNTOLD

_PROFILES = "Expected devices of an instance type, one type per line: type|gpus|efa|nvlink|provider[|roce]."
_FINDINGS, _CAUSES, _ALERTS = "docs/findings.md", "docs/causes.md", "docs/alerts.md"
_ROOT = Path(__file__).parents[1]


CAUSES: tuple[UnobservedCause, ...] = (*checks.CAUSES, *captures.CAUSES, *deep.CAUSES)
"""All causes why a check could not run, in the order of docs/could-not-check.md."""

_RECOMMENDATIONS = {
    "return-to-service": "No active finding keeps the node from work: uncordon it.",
    "reset": "A reset of the GPU is the known fix. Quarantine the node again afterwards.",
    "reboot": "Only a reboot fixes the finding. Quarantine the node again afterwards.",
    "replace": "No reset and no reboot fixes the finding, or it recurred after the node's return.",
    "rerun": (
        "The run was interrupted, or a test could not run, so there is no result. Fix that, and quarantine the "
        "node again."
    ),
}
_STATUSES = {
    "pass": "All checks that apply to the node ran, and none found a fault.",
    "warn": "The worst finding is MONITOR: the node stays in service.",
    "fail": "A finding of RESET or worse is active.",
    "unknown": "A required check could not run, and no finding is worse: neither a fault nor a pass.",
    "not-configured": "The check's tool or device does not belong to this node. It is neither pass nor unknown.",
}
_LABELS = {
    "status": "Health of the node: pass, warn, fail or unknown.",
    "severity": "The worst active finding, or PASS.",
    "last-check": "Time of the agent's last write to the Node: at each change, and about once an hour.",
    "mode": "Kind of the run that uses the node: sweep, l2, quarantine or reset.",
    "enabled": "Set by a person for a GPU node without another label that marks it.",
}
_TAINTS = {
    "unhealthy": "The verdict keeps new work away. The agent lifts it when the verdict is better, or on a release.",
    "maintenance": "A deep test uses the GPUs and keeps new work away. The taint is removed when the test has ended.",
    "startup": "Set by the creator of the node. The agent removes it after a first check cycle without a fault.",
}
_CONDITION = "True for pass and warn, False for fail, else Unknown; the reason is that of the worst finding."
_REPAIR = {
    REBOOT_REQUIRED: "True while the node's severity is REBOOT. Written where REPAIR_CONDITIONS names it.",
    REPLACEMENT_REQUIRED: "True while the node's severity is ISOLATE. Written where REPAIR_CONDITIONS names it.",
    HARDWARE_READY: (
        "False while the severity is REPAIR_SEVERITY or worse and our taint is set; Unknown while neither is "
        "certain. On EKS, the node monitoring agent writes a condition of this name, which is kept."
    ),
}
_EVENTS = {
    "GpuHealthPass": "The node's status became pass.",
    "GpuHealthWarn": "The node's status became warn.",
    "GpuHealthFail": "The node's status became fail.",
    "GpuHealthUnknown": "The node's status became unknown.",
    "BadSetting": (
        "A value of the configuration is invalid: the message has the allowed values. The last valid value of this key "
        "stays, and all other keys act."
    ),
    "UnknownSetting": "A key of the configuration is no known setting. The message has the closest setting.",
    "GpuResetAbandoned": (
        "Neither the command nor the Job of a reset is left: the agent restored the operator's labels and released the "
        "claim. Run gpu-healthcheck reset again."
    ),
    "BadAnnotation": "An annotation of ours on the node is malformed: it is ignored or rewritten.",
    "InternalError": "A part of the agent failed on unexpected input and continues. The message names the part.",
    "RecordLeftOut": "The node has no room for the record: labels and taint are set without it.",
    "OldRecord": "A record of the earlier scripts was reported once and does not count; its taint is invalid.",
    "MemoryUnreadable": "The agent's file on the node can't be read; it is rebuilt from the Node and the kernel log.",
    "KernelLogOverrun": "Kernel log records were overwritten before the agent had read them.",
    "KernelLogUnreadable": "Lines of the kernel log are malformed or truncated.",
    "KernelLogRecordSetAside": "A kernel log record that could not be judged was skipped; the others count.",
    "TaintWithheld": "The fleet budget has no slot for the node's taint; the agent tries again after each check cycle.",
    "DeviceTainted": "DeviceTaintRules, or cordons of HAMi, replace the node's taint (DEVICE_TAINTS).",
    "DeviceTaintFailed": "DEVICE_TAINTS can't be applied, with the reason: a faulty GPU taints its whole node.",
    "DeviceTaintLifted": "No GPU of the node carries our taint any more.",
    "SwitchedOff": "Labels, the taint or conditions were removed because the settings switch them off.",
    "ConditionOwnedByOther": "Another program writes a condition of REPAIR_CONDITIONS; the agent does not write it.",
    "GateRefused": (
        "The gate refused pods because of this finding: docs/gate.md. One Event for each pod, at most 16 per hour; "
        "further pods share one Event for each finding when the hour has passed."
    ),
    "Released": "A person's release was accepted: the findings that it lists no longer count.",
}
_NVIDIA = {
    "NVIDIA_VISIBLE_DEVICES": (
        "Environment variable from which NVIDIA's container toolkit reads the GPUs of a container: all, none, void, "
        "indices or UUIDs. The device plugin sets it. Set by hand, it bypasses the allocation."
    ),
    "CUDA_VISIBLE_DEVICES": (
        "Environment variable that limits a CUDA program to some of its container's GPUs. HAMi and frameworks set it."
    ),
    "NVIDIA_REQUIRE_CUDA": "Condition of an image on the driver's version. The toolkit refuses to start the container.",
    "CUDA_LAUNCH_BLOCKING": "With 1, a CUDA error is reported at the kernel launch that caused it.",
    "NCCL_DEBUG": "With INFO, NCCL logs the network and the topology that it selects.",
    "mig.config": "Label nvidia.com/mig.config: the MIG layout that the operator's MIG manager applies to the node.",
    "ClusterPolicy": "Custom resource with the GPU operator's settings (nvidia.com/v1).",
    "GPUCluster": "Custom resource of the GPU operator from v26.7.0 for clusters with its DRA driver.",
    "BinaryName": "Key of containerd's configuration: program of a runtime handler, as nvidia-container-runtime.",
    "SystemdCgroup": "Key of containerd's configuration. It must agree with the kubelet's cgroupDriver.",
}
_KUBERNETES = {
    "RuntimeClass": "Name of a runtime handler that a pod can select with runtimeClassName.",
    "ResourceSlice": "List of devices that a DRA driver offers on a node.",
    "ResourceClaim": "Request of a pod for devices by DRA, and the devices that it was allocated.",
    "DeviceTaintRule": "Rule that taints single devices of a DRA driver. The agent writes them with DEVICE_TAINTS.",
    "UnexpectedAdmissionError": "Reason of a failed pod: the kubelet could not get its devices from the device plugin.",
    "TopologyAffinityError": "Reason of a failed pod: its devices are not on the NUMA nodes that the kubelet requires.",
    "FailedCreatePodSandBox": "Event of a pod: the container runtime could not create the pod's sandbox.",
    "pprof": (
        "Profiles of a Go program, at /debug/pprof of its port. `go tool pprof http://ADDRESS/debug/pprof/profile` "
        "shows which functions use the CPU."
    ),
}
_REPEATED = {
    repeated: f"{REPEATS_FROM} processes met {xid} within a day on this GPU, and on no other: suspect the GPU, and "
    "quarantine the node once it is free."
    for xid, repeated in REPEATS.items()
}
_ANNOTATIONS = {
    "results": "The agent's record of its node, as JSON.",
    "sweep-result": "The record of the last level 2, by a sweep or by the agent.",
    "quarantine-result": "The record of the last quarantine run: tests, findings and recommendation.",
    "reset-result": "The record of the last reset of GPUs: its GPUs, steps and result.",
    "reset-command": "Operands that the command of a reset has switched off, and its sign of life, until the node is "
    "returned.",
    "run": "Claim of a deep run on the node, with its owner and end; after the end, any deep run may remove it.",
    "release": "A person's release of findings, until the agent has applied it.",
    "device-cordon": "UUIDs of the GPUs that the agent cordoned in hami.io/device-cordon (DEVICE_TAINTS).",
    "cordoned-by": "The quarantine run that cordoned the node; no other cordon is ever lifted.",
}


def all_words() -> Iterator[IndexEntry]:
    for cause in CAUSES:
        message = f"{cause.meaning} {cause.action}"
        yield IndexEntry(cause.name, "reason why a check could not run", message, "docs/could-not-check.md")
    for found in DIAGNOSES:
        yield IndexEntry(
            found.name,
            "a cause that diagnose finds",
            f"{found.means} {found.remedy}",
            f"{_CAUSES}#{found.name.lower()}",
        )
    yield from _of("a recommendation", _RECOMMENDATIONS, "docs/quarantine.md#what-quarantine-recommends")
    steps = {severity.name: f"Action: {step}." for severity, step in STEPS.items()}
    steps[Severity.RESET.name] += f" For a switch or the driver: {RELOAD}."
    yield from _of("a severity", steps, _FINDINGS)
    yield from _of("a status", _STATUSES, "docs/record.md")
    yield from _of("a label of the node", _LABELS, "README.md")
    yield from _of("a taint of the node", _TAINTS, "docs/integrations.md")
    yield from _of("an annotation of the node", _ANNOTATIONS, "docs/record.md")
    yield IndexEntry(CONDITION, "a condition of the node", _CONDITION, "docs/integrations.md")
    yield from _of("a condition of the node", _REPAIR, "docs/integrations.md#node-repair-conditions")
    yield from _of("an Event on the node", _EVENTS, "docs/runbook.md")
    yield from _of("a term of NVIDIA's software", _NVIDIA, "docs/diagnose.md")
    yield from _of("a term of Kubernetes", _KUBERNETES, "docs/diagnose.md")
    yield from _alerts()
    yield from _of("a group of checks", _groups(), "docs/checks.md")
    yield from _of("a group of checks", _short_names(), "docs/commands.md#checks-by-name")
    yield from _checks()
    yield from _of(SETTING, dict(_settings()), "docs/settings.md")
    yield from _of("a metric of the agent", _metrics(), "docs/metrics.md")
    yield from (IndexEntry(word.name, word.kind, word.meaning, word.source) for word in hami_words())
    yield from _of("a setting of HAMi's", _hami_settings(), "HAMi's device-config.yaml, below nvidia:, or config.json")
    yield from _of(REASON, _REPEATED, f"{_FINDINGS}#xid")
    yield IndexEntry(
        UNTOLD,
        REASON,
        "The record of a deep run has a severity without a readable finding for it.",
        f"{_FINDINGS}#{UNTOLD.lower()}",
    )


def _of(kind: str, meanings: Mapping[str, str], more: str) -> Iterable[IndexEntry]:
    return (IndexEntry(name, kind, meaning, more) for name, meaning in meanings.items())


def _short_names() -> dict[str, str]:
    names = {check.name for check in (*CHECKS, *DEEP_CHECKS)}
    return {short: f"Short name of {name}." for short, name in SHORT_NAMES.items() if short not in names}


def _hami_settings() -> dict[str, str]:
    """Return HAMi's settings. A node's own keys differ only in case from those for all nodes, and are left out."""
    own = {name: text for name, text in NODE_KEYS.items() if text not in KEYS.values() and name != "name"}
    return {name: f"{text[:1].upper()}{text[1:]}." for name, text in {**KEYS, **own}.items()}


def _alerts() -> Iterator[IndexEntry]:
    """Yield each alert with its meaning and fix, by its heading in docs/alerts.md."""
    page = (_ROOT / _ALERTS).read_text(encoding="utf-8")
    for name, text in re.findall(r"(?ms)^### (\w+)\n\n(.*?)(?=^##|\Z)", page):
        meaning, _, rest = _plain(text).partition(" - Check: ")
        fix = rest.partition(" - Fix: ")[2]
        yield IndexEntry(name, "an alert", f"{meaning} {fix[:1].upper()}{fix[1:]}", f"{_ALERTS}#{name.lower()}")


def _plain(markdown: str) -> str:
    """Return Markdown as one line without links and emphasis."""
    return " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("**", "").split())


def _checks() -> Iterator[IndexEntry]:
    """Yield each check, explained by the summary of its module."""
    for check in (*CHECKS, *DEEP_CHECKS):
        what, _, _ = (sys.modules[check.judge.__module__].__doc__ or "").strip().partition("\n\n")
        reasons = ", ".join(reason.name for reason in check.reasons)
        message = f"{' '.join(what.split())} Group: {check.group}. Reasons: {reasons}."
        yield IndexEntry(check.name, "a check", message, "docs/checks.md")


def _metrics() -> dict[str, str]:
    return {
        metric.name: f"{metric.meaning} ({', by '.join((metric.kind, *metric.labels))})"
        for metric in Telemetry().metrics
    }


def _groups() -> dict[str, str]:
    """Return each group with its checks; a group without checks belongs to another program."""
    checks = {
        group: [check.name for check in (*CHECKS, *DEEP_CHECKS) if check.group == group] for group in GROUPS.values()
    }
    return {group: f"Its checks: {', '.join(names) or 'none yet'}." for group, names in checks.items()}


def all_reasons() -> Iterator[Declared]:
    """Yield every reason except Xids and SXids, which are found by number."""
    for check in (*CHECKS, *DEEP_CHECKS):
        by_error = check in (dcgm_diag.LEVEL_2, dcgm_diag.LEVEL_4)
        for reason in check.reasons:
            if reason.name.lower() != check.name:
                yield Declared(reason, check.name, check.group, by_error)


def defaults() -> dict[str, str]:
    return {key: written(value) for key, value in by_key(NodeSettings()).items()}


def _settings() -> Iterator[tuple[str, str]]:
    """Yield key and meaning of each key of the ConfigMap; the meaning ends with bounds and default."""
    for key, setting in settings_of(NodeSettings).items():
        details = [setting.allowed] if setting.bounds else []
        if setting.default != "":
            details.append(f"default {setting.written_default}")
        yield key, f"{setting.meaning} ({', '.join(details)})" if details else setting.meaning
    yield PROFILES_FILE, _PROFILES
