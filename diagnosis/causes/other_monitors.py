"""Find GPU nodes with a condition of another monitor: it reports a fault, or that it could not check the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import command, kubectl, logs, pods_on
from gpu_healthcheck.diagnosis.facts.components import Role, role_of
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_gpu
from gpu_healthcheck.diagnosis.facts.gpu_requests import asks_for_gpus
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Search, found_on
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, all_respond_since, recorded_gpus
from gpu_healthcheck.diagnosis.snapshot.pods import Condition, Pod
from gpu_healthcheck.healthcheck.node.state import CONDITION, OUR_WORD

_reported = Family(None)
REPORTED = _reported(
    "NodeReportsGpuFault",
    "Another monitor of the cluster reports faulty accelerators by a condition of the node.",
    "Follow that monitor's advice: its repair may be automatic.",
    follows=("NodeKeptFromWork",),
)
COULD_NOT_CHECK = _reported(
    "MonitorCannotCheck",
    "Another monitor sets a condition of the node because it could not check the GPUs, or misses a service beside "
    "them, not because it found a fault.",
    "Restart the monitor's pod on the node; stop an automatic repair until then: it would replace a healthy node.",
    severity=CauseSeverity.MEDIUM,
    source="aws/eks-node-monitoring-agent: DCGMError, issue 266; NVIDIA/NVSentinel: DCGM_CONNECTIVITY_ERROR",
)
_OF_GPUS = re.compile(r"gpu|nvidia|nvlink|accelerat|xid|dcgm|iblink|\Agcmsmi|hardwareissues", re.IGNORECASE)
_BAD = re.compile(
    r"(?:Errors?|Problem|Missing|Unhealthy|Fail(?:ed|ure)?|Lost|Down|Faulty?|FallenOff\w{0,9}|Inactive|Flapping|Watch"
    r"|Unresponsive|Reboot|Terminate|Suspected)\Z|\AUnhealthyNvidiaDCGM"
)
_GOOD = re.compile(r"(?:Ready|Healthy)\Z")
"""Types of conditions that report a fault with status True, or False: of EKS, AKS and HyperPod, of NVSentinel (such as
GpuMemWatch and SysLogsXIDError), and of common configurations of node problem detectors."""
_FAULT = re.compile(
    r"\bS?Xid|NvidiaXID|\bECC\b|\bDBE\b|double.?bit|NVLink|row.?remap|remapped row|fallen off|gpu (?:is )?lost"
    r"|retire|DCGM_FR_|DCGMHealthCode|error code \d|DCGMDiagnostic|fabric.?manager|NvidiaFabric|CountMismatch"
    r"|driver not loaded|device handle",
    re.IGNORECASE,
)
"""Words about hardware in a condition's reason or message: with one of them, it reports more than a failed check."""
_CHECK_FAILED = re.compile(
    r"DCGMError|DCGM_CONNECTIVITY|DCGM_PROBE_HANG|fail(?:ed|ure)? to (?:initiali[sz]e|init\b|connect|load|reach|start)"
    r"|unable to (?:initiali[sz]e|connect|load|reach)|could(?: not|n't) (?:initiali[sz]e|connect|load|reach|run|check)"
    r"|(?:cannot|can't) (?:connect|load|reach|run)|hostengine|host engine|not (?:been )?initiali[sz]ed|uninitiali[sz]ed"
    r"|connection (?:refused|reset|invalid)|timed? ?out|deadline exceeded|version mismatch|not found in \$PATH"
    r"|Systemd service\(s\)[^;\n]{0,80} not active|command not found|executable file not found|permission denied"
    r"|signal: killed"
    r"|(?:\.sock|\.so\b|nvidia-smi|dcgmi)[^;\n]{0,80}no such file",
    re.IGNORECASE,
)
"""Texts of EKS' agent, NVSentinel, node problem detectors, DCGM and NVML about a check that was not made."""
_HOST_ENGINES = ("dcgm-server", "nvidia-dcgm-")
_MOST_PODS = 3
_REPAIR = "Until it is clear, stop the automatic repair that acts on this condition: it would replace a healthy node"
_NO_ENGINE = (
    "No pod of DCGM's host engine (dcgm-server, nvidia-dcgm) is on the node: let its DaemonSet tolerate the node's "
    "taints, or give the monitor the address of the host engine that runs there"
)
_NO_ACTION = "Recommended Action=NONE"
_IMEX = re.compile(r"DCGM_FR_IMEX_UNHEALTHY|DCGMHealthCode122\b|error code 122\b", re.IGNORECASE)
"""DCGM's error 122, that no IMEX daemon is ready: normal where no pod uses IMEX, and in ComputeDomains, whose daemons
are not the host's. Source: NVIDIA/NVSentinel 1471, NVIDIA/DCGM 308, aws/eks-node-monitoring-agent 63.
"""
_WITHOUT_IMEX = (
    "It reports only that no IMEX daemon is ready on the host, which a node needs for multi-node NVLink alone, and not "
    "if its pods use ComputeDomains. Turn this report off: value suppressedErrorCodes [DCGM_FR_IMEX_UNHEALTHY] of "
    "gpu-health-monitor.dcgmHealthCheck in NVSentinel; in EKS' agent all GPU checks, by nodeAgent.monitors.nvidia."
    "enabled false. Only if jobs over several nodes fail, too, read the log of the ComputeDomain's daemon, or of "
    "nvidia-imex on the host"
)


class _Monitor(Struct, frozen=True):
    """Program that sets conditions: beginning of its pods' names, its repair, its way back, its access to the GPUs."""

    conditions: str
    """Pattern of a condition's type and reason."""
    pods: str
    repair: str = ""
    back: str = "It may keep the condition until it is restarted, also when it can check again"
    access: str = "its address of DCGM's host engine, its libraries, its rights"


_MONITORS = (
    _Monitor(
        r"\AUnhealthyNvidiaDCGM",
        "node-problem-detector",
        back="AKS runs DCGM as services of the host: `systemctl restart nvidia-dcgm nvidia-dcgm-exporter` there. If it "
        "keeps the condition",
    ),
    _Monitor(
        r"\AAcceleratedHardwareReady",
        "eks-node-monitoring-agent",
        " (node auto repair of the EKS node group, or Karpenter's NodeRepair, after 10 minutes)",
        access="values of EKS' agent: nodeAgent.dcgmAddress of the node's other host engine (the GPU operator's: "
        "nvidia-dcgm.gpu-operator.svc:5555, with nodeAgent.dnsPolicy ClusterFirstWithHostNet) and dcgmAgent.enabled "
        "false; or nodeAgent.monitors.nvidia.enabled false, if it is not to check GPUs",
    ),
    _Monitor(
        r"\AGpu\S+ \S+IsNotHealthy",
        "gpu-health-monitor",
        " (NVSentinel's, if its cordon is followed by a drain)",
        "It clears the condition itself when it can check again, and NVSentinel then lifts its cordon. If it does not",
    ),
    _Monitor(r"\ASysLogs", "syslog-health-monitor"),
    _Monitor("", "node-problem-detector"),
)
"""The chart's README of https://github.com/aws/eks-node-monitoring-agent; NVSentinel; node problem detectors."""


def find_reported(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield GPU nodes that another monitor of the cluster reports as faulty, or could not check."""
    for node in snapshot.nodes:
        if not has_gpu(node) or node.meta.deleted is not None:
            continue
        for condition in node.conditions:
            if _reports_fault(condition):
                judge = _unchecked if is_failed_check(condition) else _fault
                yield judge(snapshot, node, condition)


def is_failed_check(condition: Condition) -> bool:
    """Whether the condition's reason and message report that a check could not be made, and no fault."""
    text = f"{condition.reason}: {condition.message}"
    if _IMEX.search(text):
        return _FAULT.search(_IMEX.sub("", text).removeprefix("GpuNvlinkWatchIsNotHealthy")) is None
    return _CHECK_FAILED.search(text) is not None and _FAULT.search(text) is None


def _reports_fault(condition: Condition) -> bool:
    if condition.type == CONDITION or condition.message.startswith(OUR_WORD):  # ours: the taint is reported
        return False
    kinds = {"True": _BAD, "False": _GOOD}.get(condition.status)
    return kinds is not None and bool(kinds.search(condition.type) and _OF_GPUS.search(condition.type))


def _fault(_: Snapshot, node: Node, condition: Condition) -> FoundCause:
    evidence, read = f"{node.subject}: condition {condition}", kubectl("describe", node.meta)
    read = f"Read its report and when it began: {read}"
    if _NO_ACTION in condition.message:
        why = "The report asks for no repair, as with an error of a program, and NVSentinel does not return such a node"
        back = (f"{why}: {command('kubectl', 'uncordon', node.name)}",) if node.cordoned else (REPORTED.remedy,)
        return found_on(node.subject, REPORTED, (evidence,), (read, *back))
    if not all_respond_since(node, condition.since):
        return found_on(node.subject, REPORTED, (evidence,), (read, REPORTED.remedy))
    doubt = f"{recorded_gpus(node)}, and it has no fault"
    test = f"The two disagree, so test the node under load: {command('gpu-healthcheck', 'quarantine', node.name)}"
    return found_on(node.subject, REPORTED, (evidence, doubt), (read, test), certainty=Certainty.LIKELY)


def _unchecked(snapshot: Snapshot, node: Node, condition: Condition) -> FoundCause:
    pods = snapshot.pods_on.get(node.name, ())
    working = [pod for pod in pods if asks_for_gpus(pod.spec) and pod.states and all(one.ready for one in pod.states)]
    evidence = [f"{node.subject}: condition {condition}"]
    evidence += [f"{pod.subject} runs on the node's GPUs: no sign of a fault" for pod in working[:_MOST_PODS]]
    if all_respond_since(node, condition.since):
        evidence.append(f"{recorded_gpus(node)}, and it has no fault")
    certainty = Certainty.PROVEN if len(evidence) > 1 else Certainty.LIKELY
    of = f"{condition.type} {condition.reason}"
    monitor = next(each for each in _MONITORS if re.search(each.conditions, of))
    steps = (*_restart(monitor, condition, node, pods), *_compare(monitor, node, working))
    if _IMEX.search(f"{condition.reason} {condition.message}"):
        steps = (_WITHOUT_IMEX,)
    remedy = (f"{_REPAIR}{monitor.repair}", *steps)
    return found_on(node.subject, COULD_NOT_CHECK, evidence, remedy, certainty=certainty)


def _restart(monitor: _Monitor, condition: Condition, node: Node, pods: Sequence[Pod]) -> Iterator[str]:
    """Yield the steps that let the monitor check again: its host engine first, then the monitor itself."""
    owned = (pod for pod in pods if pod.meta.owner is not None and pod.meta.owner.kind == "DaemonSet")
    own = next((pod for pod in owned if pod.meta.name.startswith(monitor.pods)), None)
    if "dcgm" in f"{condition.reason} {condition.message}".lower():
        engines = [pod for pod in pods if _is_engine(pod)]
        yield from (f"Check DCGM's host engine on the node: {logs(pod.meta, '--tail=50')}" for pod in engines[:2])
        if own is not None and not engines:
            yield _NO_ENGINE
    if own is not None:
        yield f"{monitor.back}; its DaemonSet creates the pod again: {kubectl('delete', own.meta)}"
    else:
        its = f"find its pod ({monitor.pods}, or a service of the host) and restart that"
        yield f"{monitor.back}: {its}: {pods_on(node.name)}"


def _is_engine(pod: Pod) -> bool:
    named = pod.meta.name.startswith(_HOST_ENGINES) and "exporter" not in pod.meta.name
    return named or role_of(pod.meta, {}, pod.spec) is Role.DCGM


def _compare(monitor: _Monitor, node: Node, working: list[Pod]) -> Iterator[str]:
    """Yield how to find out whether the GPUs respond, if the condition returns."""
    again = "If the condition comes back, see whether the GPUs respond"
    for pod in working[:1]:
        see = command("kubectl", "-n", pod.meta.namespace, "exec", pod.meta.name, "--", "nvidia-smi")
        yield f"{again}, in a pod that has them: {see}"
    if not working:
        yield f"{again}: run `nvidia-smi` on {node.name}"
    yield f"If they do, fix the monitor's own access: {monitor.access}"


SEARCHES = (Search((REPORTED, COULD_NOT_CHECK), ("Node",), find_reported),)
