"""From the binding to the program: cards that are given and do not come, and limits that do not hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.hami.hami_states import asking, hami, hami_node, vgpu_pod
from tests.diagnosis.states import NOW, Object, ago, consequences, judged, recorded, results, terminated, waiting

A = hami_node("a")
OPEN = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
RUNS = {"name": "main", "ready": False, "restartCount": 0, "state": {"running": {"startedAt": ago(1)}}}
PRELOAD = "ERROR: ld.so: object '/usr/local/vgpu/libvgpu.so' from /etc/ld.so.preload cannot be preloaded: ignored."
OOM = "[HAMI-core ERROR (pid:1 thread=1 allocator.c:54)]: Device 0 OOM 2147483648 / 1073741824"


def bound(phase: str, minutes: float, **changes: Any) -> Object:
    """On its node, and nothing has begun there."""
    seconds = str(int(NOW.timestamp() - 60 * minutes))
    annotations = {"hami.io/bind-phase": phase, "hami.io/bind-time": seconds}
    return vgpu_pod("x", on="a", phase="Pending", annotations=annotations, **({"age": minutes} | changes))


def crashing(message: str) -> Object:
    state = waiting(
        "CrashLoopBackOff", "back-off", restartCount=9, lastState={"terminated": terminated(1, "Error", message)}
    )
    return vgpu_pod("x", on="a", states=[state])


def test_hanging_allocation_explains_the_idle_kubelet() -> None:
    [problem] = judged(*hami(A), bound("allocating", 20)).problems
    assert (problem.found.cause.name, problem.found.subject) == ("HamiAllocationHangs", "node/a")
    assert consequences(problem) == [("KubeletDoesNotAct", "node/a")]
    assert "allocated 1024 MiB of GPU-a-0" in problem.found.evidence[0]


FAULTS: dict[str, tuple[list[Object], tuple[str, str]]] = {
    "not allocated, and reported by the kubelet": (
        [*hami(A), bound("allocating", 20, status={"containerStatuses": [waiting("ContainerCreating")]})],
        ("HamiAllocationHangs", "node/a"),
    ),
    "refused by the plugin": ([*hami(A), bound("failed", 3)], ("HamiAllocationFailed", "node/a")),
    "without limits beside another": (
        [*hami(A), vgpu_pod("x", asking(1, 1000, env=OPEN), on="a"), vgpu_pod("y", on="a")],
        ("HamiLimitsSwitchedOff", "pod/team/x"),
    ),
    "without its library": ([*hami(A), crashing(PRELOAD)], ("HamiLibraryMissing", "pod/team/x")),
    "beyond its share of memory": ([*hami(A), crashing(OOM)], ("GpuMemoryExhausted", "pod/team/x")),
}


@pytest.mark.parametrize(("state", "cause"), FAULTS.values(), ids=FAULTS)
def test_fault_after_the_binding_has_a_cause(state: list[Object], cause: tuple[str, str]) -> None:
    assert results(judged(*state)) == [cause]


def with_finding(reason: str, detail: str) -> Object:
    """The node with our agent's record of it."""
    return hami_node("a", annotations=recorded(reason, detail=detail))


AGENT_FINDINGS = [
    ("HamiLibraryNotInstalled", "no /usr/local/vgpu/libvgpu.so.v2.9.0", crashing(PRELOAD)),
    ("HamiPreloadWrong", "no /usr/local/vgpu/ld.so.preload", crashing(PRELOAD)),
    ("HamiPluginNotServing", "nothing in its pod listens on nvidia-*.sock", bound("allocating", 20)),
]


@pytest.mark.parametrize(("reason", "detail", "pod"), AGENT_FINDINGS, ids=[pair[0] for pair in AGENT_FINDINGS])
def test_finding_of_the_agent_is_evidence_for_its_pods(reason: str, detail: str, pod: Object) -> None:
    [with_agent] = judged(*hami(with_finding(reason, detail)), pod).problems
    [without] = judged(*hami(A), pod).problems

    assert (with_agent.found.cause, with_agent.found.subject) == (without.found.cause, without.found.subject)
    assert {*with_agent.found.evidence} - {*without.found.evidence} == {f"agent on the node: {reason}: {detail}"}


def test_exhausted_share_is_reported_with_its_limit() -> None:
    [problem] = judged(*hami(A), crashing(OOM)).problems
    assert "HAMi's limit: 1024 MiB of card GPU-a-0" in problem.found.evidence


def with_pods(*pods: Object) -> list[Object]:
    return [*hami(A), *pods]


UNLIMITED = vgpu_pod("x", asking(1, 1000, env=OPEN), on="a")
LIMITED = vgpu_pod("x", asking(1, 1000, env=[{"name": "CUDA_DISABLE_CONTROL", "value": "false"}]), on="a")
HEALTHY: dict[str, list[Object]] = {
    "just bound": with_pods(bound("allocating", 1)),
    "starting": with_pods(bound("allocating", 3, status={"containerStatuses": [waiting("ContainerCreating")]})),
    "started": with_pods(bound("allocating", 20, status={"containerStatuses": [RUNS]})),
    "alone on its card, without limits": with_pods(UNLIMITED),
    "beside one that has ended": with_pods(UNLIMITED, vgpu_pod("y", on="a", phase="Succeeded")),
    "with its limits": with_pods(LIMITED, vgpu_pod("y", on="a")),
    "succeeded, with all annotations": with_pods(vgpu_pod("x", on="a", phase="Succeeded")),
}


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
def test_correctly_used_share_has_no_cause(state: list[Object]) -> None:
    assert results(judged(*state)) == []
