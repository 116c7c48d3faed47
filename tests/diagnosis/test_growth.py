"""Work of a diagnosis for states that a tenant can make: it grows with their size, not with its square.

Executed lines are counted instead of seconds, so that the result is the same on every machine.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.unscheduled import find_unschedulable, sharing
from gpu_healthcheck.diagnosis.model import Certainty
from gpu_healthcheck.diagnosis.report import terminal
from gpu_healthcheck.diagnosis.report.content import report_of
from gpu_healthcheck.diagnosis.report.document import document
from gpu_healthcheck.diagnosis.report.pages import markdown_page
from gpu_healthcheck.diagnosis.sources import tables
from gpu_healthcheck.diagnosis.sources.pasted import read_pasted
from tests.diagnosis import states
from tests.diagnosis.states import (
    Object,
    ago,
    condition,
    container,
    event,
    node,
    obj,
    pod,
    snapshot,
    terminated,
    waiting,
)

_SIZE = 40
_SHORT = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def refused(name: str, message: str, gpus: int = 1, /, **changes: Any) -> Object:
    """A pod that a scheduler refused with this text."""
    return pod(name, gpus, conditions=[condition("PodScheduled", "False", "Unschedulable", message)], **changes)


def crashed(name: str, message: str, /, **changes: Any) -> Object:
    state = waiting("CrashLoopBackOff", lastState={"terminated": terminated(1, "Error", message)}) | {"restartCount": 9}
    return pod(name, 1, phase="Running", states=[state], **changes)


def of_kind(api: str, raw: Object) -> Object:
    return raw | {"apiVersion": api}


def texts_of_their_own(size: int) -> Iterator[Object]:
    for number in range(size):
        yield refused(f"p{number}", f"0/4 nodes are available: 4 reason {number}.")
        waits = pod(f"e{number}")
        yield from (waits, event(waits, "FailedScheduling", f"0/4 nodes are available: 4 event {number}."))


def selectors_and_resources(size: int) -> Iterator[Object]:
    for number in range(size):
        yield refused(f"s{number}", "0/4 nodes are available: 4 x.", spec={"nodeSelector": {"a": f"{number}"}})
        own = [container("main", 1, resources={f"rdma/x{number}": "1"})]
        yield refused(f"r{number}", f"0/4 nodes are available: 4 Insufficient rdma/x{number}.", containers=own)


def logs_and_ends(size: int) -> Iterator[Object]:
    yield obj("Job", "all", "team", spec={"parallelism": size}, status={})
    for number in range(size):
        yield crashed(f"p{number}", f"CUDA out of memory {number}", on=f"n{number % 4}")
        yield crashed(f"j{number}", f"NCCL WARN {number}", on="n0", owner=("Job", "all"))
        end = {"name": "main", "state": {"terminated": terminated(1, "Error", f"{number}")}}
        yield pod(f"f{number}", 1, on="n1", phase="Failed", owner=("Job", "all"), states=[end])
        yield pod(f"i{number}", 1, on="n2", phase="Pending", states=[waiting("ImagePullBackOff", f"none:{number}")])


def containers_of_one_pod(size: int) -> Iterator[Object]:
    many = [container(f"c{number}", 1) for number in range(size)]
    states = [waiting("CrashLoopBackOff", f"{each['name']} failed", each["name"]) for each in many]
    yield pod("p", 1, on="n0", phase="Running", containers=many, states=states)
    yield refused("q", _SHORT, containers=many, spec={"initContainers": many})


def events_of_one_pod(size: int) -> Iterator[Object]:
    waits = refused("q", _SHORT)
    stuck = pod("p", 1, on="n0", phase="Pending", states=[waiting("ContainerCreating")])
    yield from (waits, stuck)
    for number in range(size):
        yield event(stuck, "FailedMount", f"volume {number}")
        yield event(waits, "TriggeredScaleUp", f"pod triggered scale-up: [{{g{number} 1->2 (max: 9)}}]", warning=False)


def device_claims(size: int) -> Iterator[Object]:
    for number in range(size):
        ask = {"name": "r", "exactly": {"deviceClassName": f"class{number}"}}
        yield obj("ResourceClaim", f"c{number}", "team", spec={"devices": {"requests": [ask]}}, status={})
        for name in (f"c{number}", f"none{number}"):
            claims = [{"name": "gpu", "resourceClaimName": name}]
            message = "0/4 nodes are available: 4 cannot allocate all claims."
            yield refused(f"p-{name}", message, spec={"resourceClaims": claims})
            yield pod(f"u-{name}", 1, spec={"resourceClaims": claims})


def volume_claims(size: int) -> Iterator[Object]:
    messages = ("pod has unbound immediate PersistentVolumeClaims.", 'persistentvolumeclaim "x" not found.')
    for number in range(size):
        yield obj("PersistentVolumeClaim", f"c{number}", "team", spec={}, status={"phase": "Pending"})
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": f"c{number}"}}]
        text = f"0/4 nodes are available: {messages[number % 2]}"
        yield refused(f"p{number}", text, spec={"volumes": volumes})


def jobs_and_quotas(size: int) -> Iterator[Object]:
    full = {"requests.nvidia.com/gpu": "8"}
    refusal = (
        "requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
    )
    for number in range(size):
        template = {"spec": {"containers": [container("main", 1)]}}
        job = obj("Job", f"j{number}", "team", spec={"parallelism": 2, "template": template}, status={"active": 0})
        text = f'pods "x{number}" is forbidden: exceeded quota: q{number}, {refusal}'
        yield from (job, event(job, "FailedCreate", text), pod(f"r{number}", 1, on=f"n{number % 4}"))
        yield obj("ResourceQuota", f"q{number}", "team", spec={"hard": full}, status={"hard": full, "used": full})
        limits = {"hard": {"limits.nvidia.com/gpu": "8"}}
        yield obj("ResourceQuota", "all", f"space{number}", spec=limits, status=limits)


def training_jobs(size: int) -> Iterator[Object]:
    for number in range(size):
        job = obj("PyTorchJob", f"j{number}", "team", spec={}, status={})
        text = f'pods "x{number}" is forbidden: violates PodSecurity of {number}: nvidia.com/gpu'
        yield from (job, event(job, "FailedCreatePod", text))
        yield refused(f"w{number}", f"text {number}", owner=("PyTorchJob", f"j{number}"))


def queues_and_groups(size: int) -> Iterator[Object]:
    for number in range(size):
        yield obj("LocalQueue", f"q{number}", "team", spec={"clusterQueue": f"c{number}"})
        sets = [{"name": "m", "count": 1, "template": {"spec": {"containers": [container("main", 1)]}}}]
        held = [condition("QuotaReserved", "False", "Pending", f"text {number}")]
        work = obj("Workload", f"w{number}", "team", spec={"queueName": f"q{number}", "podSets": sets})
        yield of_kind("kueue.x-k8s.io/v1beta1", work | {"status": {"conditions": held}})
        group = obj("PodGroup", f"g{number}", "team", spec={"queue": f"q{number}"}, status={"phase": "Inqueue"})
        yield from (of_kind("scheduling.volcano.sh/v1beta1", group), event(group, "Unschedulable", f"text {number}"))
        for name in (f"g{number}", "all"):
            annotations = {"annotations": {"scheduling.volcano.sh/group-name": name}}
            yield refused(f"p-{name}-{number}", f"{_SHORT} {number}", metadata=annotations)
            yield pod(f"u-{name}-{number}", 1, metadata=annotations)


def native_groups(size: int) -> Iterator[Object]:
    for number in range(size):
        group = obj("PodGroup", f"g{number}", "team", spec={"schedulingPolicy": {"gang": {"minCount": 3}}})
        yield of_kind("scheduling.k8s.io/v1alpha2", group)
        yield pod(f"p{number}", 1, spec={"schedulingGroup": {"podGroupName": f"g{number}"}})
        yield pod(f"x{number}", 1, spec={"schedulingGroup": {"podGroupName": f"none{number}"}})


def unknown_schedulers(size: int) -> Iterator[Object]:
    for number in range(size):
        yield obj("Lease", f"s{number}", "team", spec={"renewTime": ago(50)})
        yield pod(f"l{number}", 1, spec={"schedulerName": f"s{number}"})
        yield pod(f"p{number}", 1, spec={"schedulerName": f"none{number}"})
        yield pod(f"o{number}", 1, spec={"schedulerName": "none"}, owner=("Job", f"j{number}"))


def pods_like_hami(size: int) -> Iterator[Object]:
    extender = {"name": "vgpu-scheduler-extender", "image": "projecthami/hami:v2.5"}
    for number in range(size):
        labels = {"app.kubernetes.io/component": "hami-scheduler"}
        yield pod(f"hami-scheduler-{number}", 0, on=f"n{number % 4}", labels=labels, containers=[extender])
        yield refused(f"p{number}", f"0/4 nodes are available: 4 CardInsufficientMemory {number}.")


def terminating_pods(size: int) -> Iterator[Object]:
    for number in range(size):
        yield pod(f"h{number}", 1, on=f"n{number % 4}", metadata={"deletionTimestamp": ago(60)})
        yield refused(f"p{number}", f"{_SHORT} {number}", 9)


def bound_to_missing_nodes(size: int) -> Iterator[Object]:
    """The remedy deletes pods, which a finding of an agent may make useless."""
    yield node("faulty", annotations=states.recorded("NvidiaRuntimeMissing"))
    for number in range(size):
        yield obj("Namespace", f"space{number}")
        yield pod(f"p{number}", 1, on=f"missing{number}", phase="Pending", namespace=f"space{number}")


def budgets_on_closed_nodes(size: int) -> Iterator[Object]:
    for number in range(size):
        yield node(f"c{number}", cordoned=True)
        selector = {"selector": {"matchLabels": {"a": f"{number}"}}}
        yield obj("PodDisruptionBudget", f"b{number}", "team", spec=selector, status={"disruptionsAllowed": 0})
        yield pod(f"p{number}", 1, on=f"c{number}", labels={"a": f"{number}"})


def stalled_jobs(size: int) -> Iterator[Object]:
    """One large job, and many small ones on two nodes."""
    yield obj("Job", "all", "team", spec={"parallelism": size + 1}, status={})
    for number in range(size):
        held = {
            f"GPU-{at}": {"state": "waiting", "since": ago(60), "pod": f"{at:08x}"} for at in range(number, number + 2)
        }
        yield node(f"w{number}", annotations=states.recorded(work=held))
        yield obj("Lease", f"w{number}", "gpu-healthcheck", spec={"renewTime": ago(50), "leaseDurationSeconds": number})
        for name, job, on in (("a", "all", number), ("b", f"j{number}", number % 2)):
            metadata = {"uid": f"{number:08x}-{name}"}
            yield pod(f"{name}{number}", 1, on=f"w{on}", owner=("Job", job), metadata=metadata)


@pytest.mark.parametrize(
    "shape",
    [
        *(texts_of_their_own, selectors_and_resources, logs_and_ends, containers_of_one_pod, events_of_one_pod),
        *(device_claims, volume_claims, jobs_and_quotas, training_jobs, queues_and_groups, native_groups),
        *(
            unknown_schedulers,
            pods_like_hami,
            terminating_pods,
            bound_to_missing_nodes,
            budgets_on_closed_nodes,
            stalled_jobs,
        ),
    ],
)
def test_work_grows_with_the_number_of_objects(shape: Callable[[int], Iterator[Object]]) -> None:
    _lines_for(shape, _SIZE)  # imports modules and compiles patterns
    first, second, third = (_lines_for(shape, size) for size in (_SIZE, 2 * _SIZE, 4 * _SIZE))

    # Twice as many further objects are twice as many further lines; with a quadratic step they would be four times.
    assert (third - second) / (second - first) < 2.5


def test_shapes_above_the_limit_are_explained_by_the_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [node(f"n{number}") for number in range(4)]
    pods = [refused(f"p{number}", _SHORT, 9 + number) for number in range(4)]
    all_compared = list(find_unschedulable(snapshot(*nodes, *pods)))
    monkeypatch.setattr("gpu_healthcheck.diagnosis.causes.unscheduled._MOST_PAIRS", 8)
    some_compared = list(find_unschedulable(snapshot(*nodes, *pods)))

    assert [found.certainty for found in all_compared] == [Certainty.PROVEN] * 4
    assert [found.cause.name for found in some_compared if found.certainty is Certainty.PROVEN]
    by_text = [found for found in some_compared if found.certainty is Certainty.LIKELY]
    assert {name for found in by_text for name in found.affected} < {f"pod/team/p{number}" for number in range(4)}


def test_large_numbers_of_a_tenant_cost_no_work() -> None:
    group = obj("PodGroup", "g", "team", spec={"schedulingPolicy": {"gang": {"minCount": 1 << 31}}})
    member = pod("p", 1, spec={"schedulingGroup": {"podGroupName": "g"}})
    env = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]
    greedy = pod("q", 1, on="n0", containers=[container("main", 1 << 60, env=env)])

    found = states.judged(node("n0"), of_kind("scheduling.k8s.io/v1alpha2", group), member, greedy)

    evidence = [line for problem in found.problems for line in problem.found.evidence]
    assert f"{(1 << 31) - 1} pods missing" in evidence


_DESCRIBED = "Name: p{}\nNamespace: team\nPriority: 0\nNode: a/10.0.0.1\nContainers:\n  main:\n    Image: x\n\n\n"
TEXTS: dict[str, Callable[[int], str]] = {
    "described pods": lambda size: "".join(_DESCRIBED.format(number) for number in range(size)),
    "blank lines in a description": lambda size: _DESCRIBED.format(0) + "\n" * size,
    "rows of events": lambda size: "".join(f"3m Warning Failed Pod/p{number} text\n" for number in range(size)),
    "rows of pods": lambda size: "".join(f"p{number} 0/1 Pending 0 3m\n" for number in range(size)),
    "manifests": lambda size: "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n---\n" * size,
}


@pytest.mark.parametrize("name", TEXTS)
def test_work_grows_with_the_length_of_a_pasted_text(name: str) -> None:
    once, twice = (_lines_of(partial(read_pasted, TEXTS[name](size).encode())) for size in (100, 200))

    assert twice < 2.2 * once


@pytest.mark.parametrize("pattern", [sharing._SHARES, sharing._MPS, sharing._REPLICAS, tables._WIDE])
def test_long_runs_of_blanks_cost_little(pattern: re.Pattern[str]) -> None:
    """With work that grew with the square, this would take minutes."""
    assert pattern.search("\n" * 200_000) is None
    assert pattern.match("kubelet  message" + " " * 200_000 + "x") is None


def _lines_for(shape: Callable[[int], Iterator[Object]], size: int) -> int:
    """Return how many lines a diagnosis of the state and its report execute."""
    state = snapshot(*(node(f"n{number}") for number in range(4)), *shape(size))

    def diagnose_and_print() -> None:
        report = report_of(state, None, "", None, overview=True)
        list(terminal.page(report, 100))
        markdown_page(report)
        json.dumps(document(report), default=str)

    return _lines_of(diagnose_and_print)


def _lines_of(work: Callable[[], object]) -> int:
    lines = 0

    def count(_frame: FrameType, event_name: str, _value: object) -> Any:
        nonlocal lines
        lines += event_name == "line"
        return count

    former = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(former)
    return lines
