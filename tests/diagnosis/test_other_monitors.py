"""Conditions of other monitors: a fault that they found, and a check that they could not make."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.model import Certainty
from tests.diagnosis.component_states import gpu_node
from tests.diagnosis.states import Object, condition, judged, pod, recorded, results

EKS, FAULTY = ("AcceleratedHardwareReady", "False"), ("NodeReportsGpuFault", "node/a")
UNCHECKED = ("MonitorCannotCheck", "node/a")
CONNECTIVITY = "GpuDcgmConnectivityFailure"
COULD_NOT = [
    (*EKS, "DCGMError", "failed to initialize DCGM: error connecting to nv-hostengine: Host engine connection invalid"),
    (*EKS, "DCGMError", ""),
    (*EKS, "DCGMError", "Error getting supported devices: API version mismatch"),
    (*EKS, "", "failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND"),
    (
        CONNECTIVITY,
        "True",
        f"{CONNECTIVITY}IsNotHealthy",
        "ErrorCode:DCGM_CONNECTIVITY_ERROR Failed to connect to DCGM",
    ),
    ("GpuDcgmUnresponsive", "True", "GpuDcgmUnresponsiveIsNotHealthy", "ErrorCode:DCGM_PROBE_HANG has not returned"),
    ("GPUMissing", "True", "GPUCheck", "/opt/check_gpu.sh: line 7: nvidia-smi: command not found"),
    ("GpuUnhealthy", "True", "NvidiaSmi", 'Timeout when running plugin "/config/gpu.sh": context deadline exceeded'),
    ("NvidiaSmiFailed", "True", "Smi", "unable to run nvidia-smi: exec: executable file not found in $PATH"),
    ("GpuUnhealthy", "True", "NvidiaSmi", "dial tcp 127.0.0.1:5555: connect: connection refused"),
    ("UnhealthyNvidiaDCGMServices", "True", "Services", "Systemd service(s) nvidia-dcgm-exporter are not active"),
    (*EKS, "DCGMHealthCode122", "DCGM detected issues in health check system with error code 122"),
    (
        "GpuNvlinkWatch",
        "True",
        "GpuNvlinkWatchIsNotHealthy",
        "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:1 IMEX daemon status is -3 (not READY) Recommended Action=NONE",
    ),
]
FOUND = [
    (*EKS, "NvidiaXID79Error", "Xid 79 on GPU 3: fallen off the bus"),
    (*EKS, "DCGMHealthCode101", "DCGM detected issues in health check system with error code 101"),
    (*EKS, "DCGMError", "failed to initialize DCGM; DCGM detected issues in health check system with error code 4"),
    (*EKS, "NvidiaDoubleBitError", ""),
    (*EKS, "FabricManagerNotRunning", "fabric manager failed to start"),
    ("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", "ErrorCode:DCGM_FR_XID_ERROR GPU:4 Detected XID 48 for GPU 4"),
    ("GpuInforomWatch", "True", "GpuInforomWatchIsNotHealthy", "ErrorCode:DCGM_FR_CORRUPT_INFOROM GPU:0"),
    ("SysLogsGPUFallenOff", "True", "SysLogsGPUFallenOffIsNotHealthy", "GPU has fallen off the bus"),
    ("XIDErrors", "True", "XIDErrors", "timeout after Xid 109"),
    ("GpuUnhealthy", "True", "NvidiaSmi", "Unable to determine the device handle for GPU0: timed out"),
    ("GPUMissing", "True", "GPUCheck", "expected 8 GPUs, found 7"),
    ("NvidiaGPUProblem", "True", "RowRemap", "row remapping failure"),
    ("HardwareIssuesSuspected", "True", "GPUHealthCheckFailed (Soperator)", "gpu health check failed"),
    ("GcmSmiEccProblem", "True", "Ecc", "2 uncorrected errors"),
    (
        "GpuNvlinkWatch",
        "True",
        "GpuNvlinkWatchIsNotHealthy",
        "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:1 not READY;ErrorCode:DCGM_FR_NVLINK_DOWN GPU:1",
    ),
    ("NvidiaDriverReady", "False", "NotLoaded", "driver not loaded"),
]
WELL = [
    ("AcceleratedHardwareReady", "True", "NvidiaAcceleratedHardwareIsReady", "DCGM connection refused before"),
    (CONNECTIVITY, "False", f"{CONNECTIVITY}IsHealthy", "No Health Failures"),
    ("GpuVendorCheck", "True", "Ready", "connection refused"),
    ("GpuPresent", "True", "GpuPresent", "8 GPUs"),
    ("NvidiaDriverReady", "True", "Ready", "nvidia-smi works"),
    ("NVLinkDown", "False", "NVLinkIsUp", "all links are up"),
    ("GpuHealthy", "False", "Xid79", "of this program's agent, whose taint is reported"),
    ("XIDErrors", "Unknown", "Timeout", "plugin timed out"),
    ("NTPProblem", "True", "Drift", "timed out"),
    ("HardwareIssuesSuspected", "False", "NodeHealthy", "Node is healthy"),
    ("GpuNvlinkWatch", "False", "GpuNvlinkWatchIsHealthy", "No Health Failures"),
]
MADE = {"namespace": "kube-system", "owner": ("DaemonSet", "eks-node-monitoring-agent")}
AGENT = pod("eks-node-monitoring-agent-x7", 0, on="a", **MADE)
ENGINE = pod("dcgm-server-k2", 0, on="a", namespace="kube-system", owner=("DaemonSet", "dcgm-server"))
ELSEWHERE = pod("eks-node-monitoring-agent-b9", 0, on="b", namespace="kube-system")


def reporting(entry: tuple[str, str, str, str], **changes: Any) -> Object:
    return gpu_node("a", conditions=[condition(*entry)], **changes)


@pytest.mark.parametrize("entry", COULD_NOT, ids=lambda entry: f"{entry[0]} {entry[2]} {entry[3]}"[:60])
def test_check_that_another_monitor_could_not_make_is_no_fault(entry: tuple[str, str, str, str]) -> None:
    diagnosis = judged(reporting(entry))

    assert results(diagnosis) == [UNCHECKED]
    assert diagnosis.problems[0].found.certainty is Certainty.LIKELY


@pytest.mark.parametrize("entry", FOUND, ids=lambda entry: f"{entry[0]} {entry[2]} {entry[3]}"[:60])
def test_fault_that_another_monitor_found_stays_one(entry: tuple[str, str, str, str]) -> None:
    assert results(judged(reporting(entry))) == [FAULTY]


@pytest.mark.parametrize("entry", WELL, ids=lambda entry: "-".join(entry[:2]))
def test_condition_without_a_fault_is_no_cause(entry: tuple[str, str, str, str]) -> None:
    assert not results(judged(reporting(entry)))


def test_monitor_that_could_not_check_is_restarted_by_its_name_on_that_node() -> None:
    found = judged(reporting(COULD_NOT[0]), AGENT, ENGINE, ELSEWHERE).problems[0].found

    steps = " ".join(found.steps)
    assert "replace" in found.steps[0]
    assert "`kubectl -n kube-system delete pod eks-node-monitoring-agent-x7`" in steps
    assert "`kubectl -n kube-system logs dcgm-server-k2 --tail=50`" in steps
    assert "-b9" not in steps
    assert "No pod of DCGM's host engine" in " ".join(
        judged(reporting(COULD_NOT[0]), AGENT, ELSEWHERE).problems[0].found.steps
    )


def test_pod_with_the_name_of_a_monitor_and_no_daemonset_is_not_deleted() -> None:
    named_alike = pod("eks-node-monitoring-agent-x7", 0, on="a")
    steps = " ".join(judged(reporting(COULD_NOT[0]), named_alike).problems[0].found.steps)

    assert "delete" not in steps
    assert "find its pod (eks-node-monitoring-agent" in steps


def test_pods_that_run_on_the_gpus_speak_against_a_fault() -> None:
    found = judged(reporting(COULD_NOT[0]), AGENT, pod("train-0", 8, on="a")).problems[0].found

    assert found.certainty is Certainty.PROVEN
    assert any("pod/team/train-0" in line for line in found.evidence)
    assert "`kubectl -n team exec train-0 -- nvidia-smi`" in " ".join(found.steps)


def test_agents_record_speaks_against_a_fault() -> None:
    inventory = {"pci": 8, "nvml": 8}
    record = recorded(status="pass", severity="PASS", inventory=inventory)
    assert judged(reporting(COULD_NOT[0], annotations=record)).problems[0].found.certainty is Certainty.PROVEN


@pytest.mark.parametrize("cordoned", [True, False])
def test_report_that_asks_for_no_repair_ends_with_the_cordon(cordoned: bool) -> None:
    text = "ErrorCode:DCGM_FR_XID_ERROR GPU:4 Detected XID 31 for GPU 4 Recommended Action=NONE;"
    entry = reporting(("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", text), cordoned=cordoned)
    (problem,) = judged(entry).problems

    assert problem.found.cause.name == "NodeReportsGpuFault"
    assert ("`kubectl uncordon a`" in problem.found.steps[-1]) is cordoned


def test_monitor_of_nvsentinel_clears_its_condition_itself() -> None:
    own, eks = (judged(reporting(COULD_NOT[at])).problems[0].found.steps for at in (4, 0))
    assert ("NVSentinel then lifts its cordon" in own[1], "EKS" in own[0]) == (True, False)
    assert ("keep the condition until it is restarted" in eks[1], "EKS" in eks[0]) == (True, True)


def test_absent_imex_daemon_is_suppressed_in_the_monitor() -> None:
    found = judged(reporting(COULD_NOT[-1])).problems[0].found

    assert "suppressedErrorCodes [DCGM_FR_IMEX_UNHEALTHY]" in " ".join(found.steps)
    assert "nvidia-smi" not in " ".join(found.steps)


def test_dcgm_services_of_aks_are_restarted_on_the_host() -> None:
    found = judged(reporting(COULD_NOT[-3])).problems[0].found

    assert "`systemctl restart nvidia-dcgm nvidia-dcgm-exporter`" in " ".join(found.steps)
