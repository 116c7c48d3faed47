"""Decision of the gate: which GPUs a pod has by the ids of its devices, and which tolerations match our taint."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding
from gpu_healthcheck.healthcheck.model import Finding, Severity
from gpu_healthcheck.healthcheck.probes.gpu_pods import gpus_of_pod
from gpu_healthcheck.healthcheck.probes.kubelet_pods import Toleration
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from gpu_healthcheck.healthcheck.probes.pod_resources import read_answer
from gpu_healthcheck.healthcheck.verdict.gate import (
    GateState,
    decide_gate,
    refusals_in,
    refused_message,
    tolerates_taint,
)
from tests.examples import active_finding

UUID = "GPU-01234567-89ab-cdef-0123-456789abcde"
MIG = "MIG-01234567-89ab-cdef-0123-456789abcde"
GPUS = [
    Gpu(
        index,
        address=f"0000:0{index}:00.0",
        uuid=f"{UUID}{index}",
        minor=index,
        mig_devices={f"{MIG}{index}": 5} if index == 3 else None,
    )
    for index in range(8)
]
THIRD, FIFTH = (GPUS[index].subject for index in (3, 5))
LOST_GPU = Finding("Xid79", Severity.REBOOT, THIRD, "GPU has fallen off the bus.")
OURS = "gpu-healthcheck.aws-samples.io/unhealthy"


def gpus_of(resource: str, *ids: str, driver: str = "") -> frozenset[str] | None:
    """Return the GPUs of a pod with these devices, of a device plugin or of a DRA driver."""
    devices = [{"resource_name": resource, "device_ids": list(ids)}]
    claimed = [{"driver_name": driver, "pool_name": "node", "device_name": name} for name in ids]
    claims = [{"claim_name": "c", "claim_namespace": "n", "claim_resources": claimed}]
    container = {"name": "main", "dynamic_resources": claims} if driver else {"name": "main", "devices": devices}
    (pod,) = read_answer({"pod_resources": [{"name": "p", "namespace": "n", "containers": [container]}]})
    return gpus_of_pod(pod, GPUS)


@pytest.mark.parametrize(
    ("resource", "ids", "driver", "expected"),
    [
        ("nvidia.com/gpu", [f"{UUID}3"], "", {THIRD}),
        ("nvidia.com/gpu", [f"{UUID}3", f"{UUID}5"], "", {THIRD, FIFTH}),
        ("nvidia.com/gpu.shared", [f"{UUID}3::7"], "", {THIRD}),
        ("nvidia.com/mig-1g.5gb", [f"MIG-{UUID}3/7/0"], "", {THIRD}),
        ("nvidia.com/mig-1g.5gb", [f"{MIG}3"], "", {f"{THIRD}/gi5"}),
        ("nvidia.com/mig-1g.5gb.shared", [f"{MIG}3::2"], "", {f"{THIRD}/gi5"}),
        ("nvidia.com/gpu", ["nvidia3"], "", {THIRD}),
        ("nvidia.com/gpu", ["nvidia3/gi7"], "", {THIRD}),
        ("nvidia.com/gpu", ["nvidia3/vgpu1"], "", {THIRD}),
        ("", ["gpu-3"], "gpu.nvidia.com", {THIRD}),
        ("", ["gpu-3-mig-1g.5gb-19-0"], "gpu.nvidia.com", {THIRD}),
    ],
)
def test_the_gpus_of_a_pod_by_its_devices(resource: str, ids: list[str], driver: str, expected: set[str]) -> None:
    assert gpus_of(resource, *ids, driver=driver) == frozenset(expected)


@pytest.mark.parametrize(
    "name",
    [
        *("", "GPU-", UUID, f"{UUID}9", f"{UUID}3::x", f"{UUID}3\n", f"x{UUID}3", f"MIG-{UUID}3/7/0/../../1"),
        *("nvidia8", "nvidia9999999", "nvidia٣", "../nvidia3", "\x1b[2J", "x" * 100_000),
    ],
)
def test_a_device_that_is_no_known_gpu_leaves_the_gpus_of_the_pod_unknown(name: str) -> None:
    assert gpus_of("nvidia.com/gpu", f"{UUID}5", name) is None
    assert gpus_of("", "gpu-5", name, driver="gpu.nvidia.com") is None


def test_a_pod_without_gpus_has_unknown_ones() -> None:
    assert gpus_of("vpc.amazonaws.com/efa", "0000:10:00.0") is None


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(), False),
        (Toleration(operator="Exists"), True),
        (Toleration(operator="Exists", effect="NoExecute"), False),
        (Toleration(OURS, "Exists"), True),
        (Toleration(OURS, "Exists", effect="NoSchedule"), True),
        (Toleration(OURS, "", "true"), True),
        (Toleration(OURS, "Equal", "false"), False),
        (Toleration("nvidia.com/gpu", "Exists"), False),
        (Toleration(OURS, "Nonsense", "true"), False),
    ],
)
def test_a_toleration_matches_our_taint_by_the_schedulers_rules(toleration: Toleration, expected: bool) -> None:
    assert tolerates_taint([toleration]) == expected


def test_refusals_are_counted_from_the_messages_that_report_them() -> None:
    messages = [refused_message(pods, reason, "x") for pods, reason in ((1, "Xid79"), (30, "Xid79"), (2, "EfaDown"))]
    hostile = ["", "the gate refused", "the gate refused 9999999 pods (Xid79): x", "the gate refused 1 pod (\x1b): x"]

    assert refusals_in([*messages, *hostile]) == {"Xid79": 31, "EfaDown": 2}


@pytest.mark.parametrize(
    ("is_tainted", "tolerates", "is_taint_delayed", "decision", "is_delayed"),
    [
        (True, False, False, "refuse", False),
        (False, False, True, "open", True),
        (False, False, False, "open", False),
        (False, True, True, "open", False),
        (False, None, True, "open", False),
        (True, True, False, "open", False),
    ],
)
def test_a_pod_waits_only_for_a_taint_that_will_refuse_it(
    is_tainted: bool, tolerates: bool | None, is_taint_delayed: bool, decision: str, is_delayed: bool
) -> None:
    state = GateState(
        "node",
        [active_finding(LOST_GPU)],
        Severity.RESET,
        1.0,
        is_tainted=is_tainted,
        tolerates=tolerates,
        is_taint_delayed=is_taint_delayed,
    )
    answer = decide_gate(state)

    assert (answer.decision, answer.taint_delayed) == (decision, is_delayed)


@pytest.mark.parametrize("standing", [[], [active_finding(LOST_GPU)]])
def test_a_kubelet_without_an_answer_is_named(standing: list[ActiveFinding]) -> None:
    state = GateState("node", standing, Severity.RESET, 1.0, tolerates=False)
    answers = [decide_gate(replace(state, kubelet_answered=answered)) for answered in (True, False)]

    assert [answer.kubelet_answered for answer in answers] == [True, False]
    assert ["the pod's GPUs could not be read from the kubelet in time" in answer.message for answer in answers] == [
        False,
        True,
    ]
