"""The real scheduler and the real admission refuse pods: their own texts, and the causes that are named for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

import pytest

from diagnosis.causes.diagnose import Diagnosis, diagnose
from diagnosis.facts.fit_error import ReasonSubject, parse
from diagnosis.snapshot import Builder
from healthcheck.node.state import UNHEALTHY
from sim.control_plane import ControlPlane
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
PODS: list[tuple[dict[str, Any], ReasonSubject, str, str]] = [
    (_pod("in-use", "full", _gpus(1)), ReasonSubject.SHORT, "GpusAllInUse", f"resource/{GPU}"),
    (_pod("fragments", "split", _gpus(4)), ReasonSubject.SHORT, "GpusFragmented", f"resource/{GPU}"),
    (_pod("too-many", "plain", _gpus(16)), ReasonSubject.SHORT, "MoreGpusThanAnyNodeHas", "pod/team/too-many"),
    (_pod("untolerated", "tainted", _gpus(1)), ReasonSubject.TAINT, "TaintNotTolerated", "pod/team/untolerated"),
    (_pod("withheld", "ours", _gpus(1)), ReasonSubject.TAINT, "NodeKeptFromWork", "node/ours"),
    (_pod("cordon", "cordoned", _gpus(1)), ReasonSubject.CORDON, "NodeCordoned", "node/cordoned"),
    (_pod("no-cpu", "cpu", _gpus(1) | {"cpu": "100"}), ReasonSubject.SHORT, "CpuOrMemoryUsedUp", "resource/cpu"),
    (
        _pod("much-cpu", "plain", _gpus(1) | {"cpu": "500"}),
        ReasonSubject.SHORT,
        "MoreCpuOrMemoryThanAnyGpuNodeHas",
        "pod/team/much-cpu",
    ),
    (
        _pod("product", "labelled", _gpus(1), nodeSelector={"nvidia.com/gpu.product": _A100}),
        ReasonSubject.SELECTOR,
        "NodeSelectorMatchesNoNode",
        "pod/team/product",
    ),
    (
        _pod("spelling", "plain", {"nvidia.com/gpus": "1"}),
        ReasonSubject.SHORT,
        "ResourceNameUnknown",
        "pod/team/spelling",
    ),
    (
        _pod("profile", "mig", {"nvidia.com/mig-1g.10gb": "1"}),
        ReasonSubject.SHORT,
        "MigProfileAbsent",
        "pod/team/profile",
    ),
    (_pod("held", "leaving", _gpus(8)), ReasonSubject.SHORT, "TerminatingPodHoldsGpus", "pod/team/goner"),
    (
        _pod("claimless", "plain", _gpus(1), **_volume("nowhere")),
        ReasonSubject.VOLUME_MISSING,
        "VolumeClaimMissing",
        "persistentvolumeclaim/team/nowhere",
    ),
    (
        _pod("unbound", "plain", _gpus(1), **_volume("data")),
        ReasonSubject.VOLUME_UNBOUND,
        "VolumeClaimNotBound",
        "persistentvolumeclaim/team/data",
    ),
    (
        _pod("apart", "plain", _gpus(1), **_anti("neighbour")),
        ReasonSubject.OTHER_PODS,
        "PodAffinityUnmet",
        "pod/team/apart",
    ),
    (
        _pod("far-off", "zoned", _gpus(1), **_volume("afar")),
        ReasonSubject.VOLUME_ELSEWHERE,
        "VolumeInAnotherZone",
        "pod/team/far-off",
    ),
    (_pod("listens", "zoned", {}, **_port("main", 9999)), ReasonSubject.PORTS, "HostPortTaken", "pod/team/listens"),
    (
        _pod("rackless", "zoned", _gpus(1), **_spread("rack")),
        ReasonSubject.SPREAD,
        "PodAffinityUnmet",
        "pod/team/rackless",
    ),
    (
        _pod("no-slices", "plain", {}, **_claims("one")),
        ReasonSubject.CLAIM,
        "NoDevicesPublished",
        "deviceclass/gpu.nvidia.com",
    ),
    (
        _pod("no-class", "plain", {}, **_claims("odd")),
        ReasonSubject.CLASS_MISSING,
        "DeviceClassMissing",
        "deviceclass/vgpu",
    ),
]
"""Of each pod what the scheduler's text is about, and the cause with its subject."""
GATED = _pod("gated", "plain", _gpus(1), schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
UNSEEN = _pod("unseen", "plain", _gpus(1), schedulerName="gpu-scheduler")
NO_CLAIM = _pod("no-claim", "plain", {}, **_claims("gpu-nowhere"))
UNLOOKED = [
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
    {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "afar", "namespace": "team"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "volumeName": "pv-afar",
            "resources": {"requests": _SIZE},
        },
    },
    {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "team"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "resources": {"requests": _SIZE},
        },
    },
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


def _in(namespace: str, kind: str, name: str, version: str = "v1", **parts: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **parts}


_HOOK = {
    "name": "gate.example.com",
    "clientConfig": {"service": {"namespace": "hooked", "name": "gate", "path": "/"}},
    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hooked"}},
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
}
ADMISSION: list[tuple[list[dict[str, Any]], str, str]] = [
    (
        [
            _namespace("counted"),
            _in("counted", "ResourceQuota", "gpus", spec={"hard": {f"requests.{GPU}": "0"}}),
            _deployment("counted"),
        ],
        "ExceededQuota",
        "resourcequota/counted/gpus",
    ),
    (
        [
            _namespace("ranged"),
            _in("ranged", "LimitRange", "gpus", spec={"limits": [{"type": "Container", "max": {"cpu": "1"}}]}),
            _deployment("ranged", amounts={"cpu": "4"}),
        ],
        "LimitRangeViolated",
        "limitrange/ranged/gpus",
    ),
    (
        [_namespace("classless"), _deployment("classless", runtimeClassName="nvidia")],
        "RuntimeClassMissing",
        "runtimeclass/nvidia",
    ),
    (
        [
            _namespace("secured", **{"pod-security.kubernetes.io/enforce": "baseline"}),
            _deployment("secured", hostNetwork=True),
        ],
        "PodSecurityDenied",
        "deployment/secured/serve",
    ),
    (
        [_namespace("homeless"), _deployment("homeless", serviceAccountName="trainer")],
        "ServiceAccountMissing",
        "serviceaccount/homeless/trainer",
    ),
    (
        [_namespace("hooked"), _deployment("hooked")],
        "WebhookUnreachable",
        "validatingwebhookconfiguration/gate",
    ),
    (
        [_namespace("unlimited"), _in("unlimited", "ResourceQuota", "gpus", spec={"hard": {f"limits.{GPU}": "0"}})],
        "QuotaNeverApplies",
        "resourcequota/unlimited/gpus",
    ),
]


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    if not control_plane.has_controllers:
        pytest.skip("NOT TESTED against a real scheduler: there is none")
    with ControlPlane(controllers=True, scheduler=True) as plane:
        _people(plane)
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


def _people(plane: ControlPlane) -> None:
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
    plane.kubectl(
        "wait",
        "pvc/afar",
        "--namespace=team",
        "--for=jsonpath={.status.phase}=Bound",
        f"--timeout={GIVE_UP_SECONDS:g}s",
    )
    plane.kubectl("delete", "pod", "goner", "--namespace=team", "--wait=false", "--grace-period=0", "--force")
    pods = (*(pair[0] for pair in PODS), *(pair[0] for pair in UNLOOKED))
    _apply(plane, *(pod for pod in pods if _can_be(pod, plane)))
    _apply(plane, *(entry for objects, *_ in ADMISSION for entry in objects))
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
    refused = {objects[0]["metadata"]["name"] for objects, *_ in ADMISSION[:-1]}
    eventually(lambda: refused <= _heard(plane), lambda: refused - _heard(plane))


def _heard(plane: ControlPlane) -> set[str]:
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
def test_its_text_is_taken_apart(cluster: ControlPlane, pod: dict[str, Any], subject: ReasonSubject) -> None:
    if not _can_be(pod, cluster):
        pytest.skip("NOT TESTED with DRA: this Kubernetes does not serve resource.k8s.io/v1")
    message = _message(cluster, pod["metadata"]["name"])
    read = parse(message)
    assert read is not None, message
    assert read.of(subject), message
    assert not read.of(ReasonSubject.OTHER), message


def test_every_pod_has_exactly_its_cause(cluster: ControlPlane, diagnosis: Diagnosis) -> None:
    waiting = [(pod, cause, subject) for pod, _, cause, subject in PODS] + UNLOOKED
    wanted = {(cause, subject) for pod, cause, subject in waiting if _can_be(pod, cluster)}
    wanted |= {(cause, subject) for _, cause, subject in ADMISSION}
    assert {(problem.found.cause.name, problem.found.subject) for problem in diagnosis.problems} == wanted


def test_each_waiting_pod_is_affected_by_its_own_cause_alone(cluster: ControlPlane, diagnosis: Diagnosis) -> None:
    by_pod: dict[str, list[str]] = {}
    for problem in diagnosis.problems:
        for name in problem.found.affected:
            by_pod.setdefault(name, []).append(problem.found.cause.name)
    waiting = [(pair[0], pair[2]) for pair in PODS] + [(pair[0], pair[1]) for pair in UNLOOKED]
    assert {name: causes for name, causes in by_pod.items() if name.startswith("pod/")} == {
        f"pod/team/{pod['metadata']['name']}": [cause] for pod, cause in waiting if _can_be(pod, cluster)
    }
