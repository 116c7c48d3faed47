"""The real scheduler and admission refuse pods: their texts, and the causes that are found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, diagnose
from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject, parse
from gpu_healthcheck.diagnosis.snapshot import Builder
from gpu_healthcheck.healthcheck.node.state import UNHEALTHY
from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.diagnosis.states import GPU
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

_KINDS = (
    *("nodes", "pods", "events", "namespaces", "deployments", "replicasets", "statefulsets", "daemonsets", "jobs"),
    *("resourcequotas", "limitranges", "runtimeclasses", "persistentvolumeclaims", "persistentvolumes"),
    *("leases", "endpointslices"),
    *("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
)
_KINDS_OF_DRA = ("resourceslices", "resourceclaims", "deviceclasses", "resourceclaimtemplates")
_A100 = "NVIDIA-A100-SXM4-80GB"
_MIG = "nvidia.com/mig-3g.40gb"
_TOO_MUCH = "MoreCpuOrMemoryThanAnyGpuNodeHas"


def _spec(pool: str, amounts: dict[str, str], **more: Any) -> dict[str, Any]:
    resources = {"limits": amounts, "requests": amounts}
    main = {"name": "main", "image": "registry.example/train:1", "resources": resources}
    selector = {"nodeSelector": {"pool": pool} | more.pop("nodeSelector", {})}
    return {"containers": [main], "terminationGracePeriodSeconds": 0, **selector, **more}


def _pod(name: str, pool: str, amounts: dict[str, str], **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "labels": {"app": name}} | more.pop("metadata", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec(pool, amounts, **more)}


def _gpus(number: int) -> dict[str, str]:
    return {GPU: str(number)}


def _volume(claim: str) -> dict[str, Any]:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}


def _port(name: str, number: int) -> dict[str, Any]:
    resources = {"limits": _gpus(1), "requests": _gpus(1)}
    ports = [{"containerPort": number, "hostPort": number}]
    return {"containers": [{"name": name, "image": "registry.example/train:1", "resources": resources, "ports": ports}]}


def _spread(key: str) -> dict[str, Any]:
    entry = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    return {"topologySpreadConstraints": [entry]}


def _anti(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def _claim(name: str, device_class: str) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    spec = {"devices": {"requests": [request]}}
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def _claims(name: str) -> dict[str, Any]:
    return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}


NODES: dict[str, dict[str, Any]] = {
    "full": {"devices": _gpus(8)},
    "split-1": {"devices": _gpus(8), "pool": "split"},
    "split-2": {"devices": _gpus(8), "pool": "split"},
    "tainted": {"devices": _gpus(8), "taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]},
    "ours": {"devices": _gpus(8), "taints": [{"key": UNHEALTHY, "value": "true", "effect": "NoSchedule"}]},
    "cordoned": {"devices": _gpus(8)},
    "cpu": {"devices": _gpus(8)},
    "labelled": {"devices": _gpus(8), "labels": {"nvidia.com/gpu.product": f"{_A100}-SHARED"}},
    "leaving": {"devices": _gpus(8)},
    "plain": {"devices": _gpus(8)},
    "zoned": {"devices": _gpus(8), "labels": {"topology.kubernetes.io/zone": "here"}},
    "mig": {"devices": {_MIG: "2"}},
}
Row = tuple[dict[str, Any], ReasonSubject, str, str]


def _row(reason: ReasonSubject, cause: str, subject: str, waiting: dict[str, Any]) -> Row:
    """Return a pod with its cause; `subject`: '' for the pod itself."""
    return waiting, reason, cause, subject or f"pod/team/{waiting['metadata']['name']}"


PODS: list[Row] = [
    _row(ReasonSubject.SHORT, "GpusAllInUse", f"resource/{GPU}", _pod("in-use", "full", _gpus(1))),
    _row(ReasonSubject.SHORT, "GpusFragmented", f"resource/{GPU}", _pod("fragments", "split", _gpus(4))),
    _row(ReasonSubject.SHORT, "MoreGpusThanAnyNodeHas", "", _pod("too-many", "plain", _gpus(16))),
    _row(ReasonSubject.TAINT, "TaintNotTolerated", "", _pod("untolerated", "tainted", _gpus(1))),
    _row(ReasonSubject.TAINT, "NodeKeptFromWork", "node/ours", _pod("withheld", "ours", _gpus(1))),
    _row(ReasonSubject.CORDON, "NodeCordoned", "node/cordoned", _pod("cordon", "cordoned", _gpus(1))),
    _row(ReasonSubject.SHORT, "CpuOrMemoryUsedUp", "resource/cpu", _pod("no-cpu", "cpu", _gpus(1) | {"cpu": "100"})),
    _row(ReasonSubject.SHORT, _TOO_MUCH, "", _pod("much-cpu", "plain", _gpus(1) | {"cpu": "500"})),
    _row(
        *(ReasonSubject.SELECTOR, "NodeSelectorMatchesNoNode", ""),
        _pod("product", "labelled", _gpus(1), nodeSelector={"nvidia.com/gpu.product": _A100}),
    ),
    _row(ReasonSubject.SHORT, "ResourceNameUnknown", "", _pod("spelling", "plain", {"nvidia.com/gpus": "1"})),
    _row(ReasonSubject.SHORT, "MigProfileAbsent", "", _pod("profile", "mig", {"nvidia.com/mig-1g.10gb": "1"})),
    _row(ReasonSubject.SHORT, "TerminatingPodHoldsGpus", "pod/team/goner", _pod("held", "leaving", _gpus(8))),
    _row(
        *(ReasonSubject.VOLUME_MISSING, "VolumeClaimMissing", "persistentvolumeclaim/team/nowhere"),
        _pod("claimless", "plain", _gpus(1), **_volume("nowhere")),
    ),
    _row(
        *(ReasonSubject.VOLUME_UNBOUND, "VolumeClaimNotBound", "persistentvolumeclaim/team/data"),
        _pod("unbound", "plain", _gpus(1), **_volume("data")),
    ),
    _row(ReasonSubject.OTHER_PODS, "PodAffinityUnmet", "", _pod("apart", "plain", _gpus(1), **_anti("neighbour"))),
    _row(
        ReasonSubject.VOLUME_ELSEWHERE, "VolumeInAnotherZone", "", _pod("far-off", "zoned", _gpus(1), **_volume("afar"))
    ),
    _row(ReasonSubject.PORTS, "HostPortTaken", "", _pod("listens", "zoned", {}, **_port("main", 9999))),
    _row(ReasonSubject.SPREAD, "PodAffinityUnmet", "", _pod("rackless", "zoned", _gpus(1), **_spread("rack"))),
    _row(
        *(ReasonSubject.CLAIM, "NoDevicesPublished", "deviceclass/gpu.nvidia.com"),
        _pod("no-slices", "plain", {}, **_claims("one")),
    ),
    _row(
        *(ReasonSubject.CLASS_MISSING, "DeviceClassMissing", "deviceclass/vgpu"),
        _pod("no-class", "plain", {}, **_claims("odd")),
    ),
]
"""Pods, each with a reason in the scheduler's text, the cause and its subject."""
GATED = _pod("gated", "plain", _gpus(1), schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
UNSEEN = _pod("unseen", "plain", _gpus(1), schedulerName="gpu-scheduler")
NO_CLAIM = _pod("no-claim", "plain", {}, **_claims("gpu-nowhere"))
UNTRIED = [
    (NO_CLAIM, "ResourceClaimMissing", "resourceclaim/team/gpu-nowhere"),
    (GATED, "KueueHoldsPod", "pod/team/gated"),
    (UNSEEN, "SchedulerNotThere", "pod/team/unseen"),
]
HOLDERS = [
    _pod("busy", "full", _gpus(8), nodeName="full"),
    _pod("half-1", "split", _gpus(6), nodeName="split-1"),
    _pod("half-2", "split", _gpus(6), nodeName="split-2"),
    _pod("etl", "cpu", {"cpu": "100"}, nodeName="cpu"),
    _pod("goner", "leaving", _gpus(8), nodeName="leaving", metadata={"finalizers": ["example.com/keep"]}),
    _pod("neighbour", "plain", {}, nodeName="plain"),
    _pod("listener", "zoned", {}, nodeName="zoned", **_port("main", 9999)),
]
_ELSEWHERE = [{"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["there"]}]}]
_SIZE = {"storage": "1Gi"}


def _volume_claim(name: str, **more: str) -> dict[str, Any]:
    size = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": _SIZE}}
    return _in("team", "PersistentVolumeClaim", name, spec=size | more)


def _in(namespace: str, kind: str, name: str, version: str = "v1", **parts: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **parts}


OTHERS: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pv-afar"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": _SIZE,
            "nfs": {"server": "nfs.example", "path": "/"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": _ELSEWHERE}},
            "claimRef": {"namespace": "team", "name": "afar"},
        },
    },
    _volume_claim("afar", volumeName="pv-afar"),
    _volume_claim("data"),
]
DRA: list[dict[str, Any]] = [
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
    },
    _claim("one", "gpu.nvidia.com"),
    _claim("odd", "vgpu"),
]


def _namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _deployment(namespace: str, **more: Any) -> dict[str, Any]:
    labels = {"app": "serve"}
    spec = _spec("plain", _gpus(1) | more.pop("amounts", {}), **more)
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve", "namespace": namespace},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


_HOOK = {
    "name": "gate.example.com",
    "clientConfig": {"service": {"namespace": "hooked", "name": "gate", "path": "/"}},
    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hooked"}},
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
}


def _hard(resource: str) -> dict[str, Any]:
    return {"hard": {f"{resource}.{GPU}": "0"}}


_MAX_CPU = {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}
_BASELINE = {"pod-security.kubernetes.io/enforce": "baseline"}
ADMISSION: list[tuple[str, str, list[dict[str, Any]]]] = [
    (
        *("ExceededQuota", "resourcequota/counted/gpus"),
        [_in("counted", "ResourceQuota", "gpus", spec=_hard("requests")), _deployment("counted")],
    ),
    (
        *("LimitRangeViolated", "limitrange/ranged/gpus"),
        [_in("ranged", "LimitRange", "gpus", spec=_MAX_CPU), _deployment("ranged", amounts={"cpu": "4"})],
    ),
    ("RuntimeClassMissing", "runtimeclass/nvidia", [_deployment("classless", runtimeClassName="nvidia")]),
    ("PodSecurityDenied", "deployment/secured/serve", [_deployment("secured", hostNetwork=True)]),
    (
        "ServiceAccountMissing",
        "serviceaccount/homeless/trainer",
        [_deployment("homeless", serviceAccountName="trainer")],
    ),
    ("WebhookUnreachable", "validatingwebhookconfiguration/gate", [_deployment("hooked")]),
    (
        *("QuotaNeverApplies", "resourcequota/unlimited/gpus"),
        [_in("unlimited", "ResourceQuota", "gpus", spec=_hard("limits"))],
    ),
]
"""Causes, each with its subject, and the objects of a namespace; only the last one refuses no pod."""
_SPACES = [objects[0]["metadata"]["namespace"] for *_, objects in ADMISSION]


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    if not control_plane.has_controllers:
        pytest.skip("NOT TESTED against a real scheduler: there is none")
    with ControlPlane(controllers=True, scheduler=True) as plane:
        _fill(plane)
        yield plane


@pytest.fixture(scope="module")
def diagnosis(cluster: ControlPlane) -> Diagnosis:
    builder = Builder()
    for kind in (*_KINDS, *(_KINDS_OF_DRA if cluster.has_dra else ())):
        listed = json.loads(cluster.kubectl("get", kind, "--all-namespaces", "-o", "json"))
        for entry in listed["items"]:
            builder.add(entry["kind"], entry)
        builder.listed(listed["items"][0]["kind"] if listed["items"] else kind)
    # Some minutes later: a recent start is no fault yet.
    return diagnose(builder.build(datetime.now(UTC) + timedelta(minutes=6)))


def _fill(plane: ControlPlane) -> None:
    for name, how in NODES.items():
        labels = {"pool": how.get("pool", name), "nvidia.com/gpu.present": "true"} | how.get("labels", {})
        plane.create_node(name, labels=labels, taints=how.get("taints", ()), devices=how["devices"])
    plane.kubectl("cordon", "cordoned")
    hook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "gate"},
        "webhooks": [_HOOK],
    }
    _apply(plane, _namespace("team"), hook)
    account = "/api/v1/namespaces/team/serviceaccounts/default"
    eventually(lambda: plane.request("GET", account).status == HTTPStatus.OK)
    _apply(plane, *HOLDERS, *OTHERS, *(DRA if plane.has_dra else ()))
    bound = "--for=jsonpath={.status.phase}=Bound"
    plane.kubectl("wait", "pvc/afar", "--namespace=team", bound, f"--timeout={GIVE_UP_SECONDS:g}s")
    plane.kubectl("delete", "pod", "goner", "--namespace=team", "--wait=false", "--grace-period=0", "--force")
    pods = (*(pair[0] for pair in PODS), *(pair[0] for pair in UNTRIED))
    _apply(plane, *(pod for pod in pods if _can_be(pod, plane)))
    _apply(plane, *(_namespace(name, **(_BASELINE if name == "secured" else {})) for name in _SPACES))
    _apply(plane, *(entry for *_, objects in ADMISSION for entry in objects))
    _wait(plane)


def _apply(plane: ControlPlane, *objects: dict[str, Any]) -> None:
    plane.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def _can_be(pod: dict[str, Any], plane: ControlPlane) -> bool:
    """Where devices are not served, the API server drops a pod's claims."""
    return plane.has_dra or "resourceClaims" not in pod["spec"]


def _wait(plane: ControlPlane) -> None:
    """Until the scheduler has judged every pod, and the API server refused the others."""
    for pod, *_ in (pair for pair in PODS if _can_be(pair[0], plane)):
        eventually(partial(_message, plane, pod["metadata"]["name"]), partial(str, pod))
    refused = set(_SPACES[:-1])
    eventually(lambda: refused <= _refusing_namespaces(plane), lambda: refused - _refusing_namespaces(plane))


def _refusing_namespaces(plane: ControlPlane) -> set[str]:
    """The namespaces in which a pod was refused."""
    events = json.loads(plane.kubectl("get", "events", "-A", "--field-selector=reason=FailedCreate", "-o", "json"))
    return {event["metadata"]["namespace"] for event in events["items"]}


def _message(plane: ControlPlane, name: str) -> str:
    pod = json.loads(plane.kubectl("get", "pod", name, "--namespace=team", "-o", "json"))
    conditions = pod["status"].get("conditions", ())
    return next((condition.get("message", "") for condition in conditions if condition["type"] == "PodScheduled"), "")


@pytest.mark.parametrize(
    ("pod", "subject"), [(pair[0], pair[1]) for pair in PODS], ids=[pair[0]["metadata"]["name"] for pair in PODS]
)
def test_message_of_the_scheduler_is_parsed(cluster: ControlPlane, pod: dict[str, Any], subject: ReasonSubject) -> None:
    if not _can_be(pod, cluster):
        pytest.skip("NOT TESTED with DRA: this Kubernetes does not serve resource.k8s.io/v1")
    message = _message(cluster, pod["metadata"]["name"])
    read = parse(message)
    assert read is not None, message
    assert read.of(subject), message
    assert not read.of(ReasonSubject.OTHER), message


def test_every_cause_is_found_and_no_other(cluster: ControlPlane, diagnosis: Diagnosis) -> None:
    waiting = [(pod, cause, subject) for pod, _, cause, subject in PODS] + UNTRIED
    wanted = {(cause, subject) for pod, cause, subject in waiting if _can_be(pod, cluster)}
    wanted |= {(cause, subject) for cause, subject, _ in ADMISSION}
    assert {(problem.found.cause.name, problem.found.subject) for problem in diagnosis.problems} == wanted


def test_waiting_pod_is_affected_by_one_cause(cluster: ControlPlane, diagnosis: Diagnosis) -> None:
    by_pod: dict[str, list[str]] = {}
    for problem in diagnosis.problems:
        for name in problem.found.affected:
            by_pod.setdefault(name, []).append(problem.found.cause.name)
    waiting = [(pair[0], pair[2]) for pair in PODS] + [(pair[0], pair[1]) for pair in UNTRIED]
    assert {name: causes for name, causes in by_pod.items() if name.startswith("pod/")} == {
        f"pod/team/{pod['metadata']['name']}": [cause] for pod, cause in waiting if _can_be(pod, cluster)
    }
