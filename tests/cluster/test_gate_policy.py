"""The policy of overlays/gate on a real API server: which pods get the gate, and as which container."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import yaml
from kubernetes.utils import parse_quantity

from gpu_healthcheck.sim.control_plane import Answer, ControlPlane
from tests.overlays import OVERLAYS
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
P = "gpu-healthcheck.aws-samples.io"
GATED, OTHER = "gate-on", "gate-off"
ENFORCE = "pod-security.kubernetes.io/enforce"
RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a control plane with the policy, and pairs of namespaces of which one has our label."""
    with ControlPlane() as own:
        if not own.mutating_policies:
            pytest.skip("MutatingAdmissionPolicies")
        quota = {"hard": {"limits.cpu": "64", "limits.memory": "1Ti"}}
        for name, labels in ((GATED, {f"{P}/gate": "enabled"}), (OTHER, {})):
            create_namespace(own, name, {ENFORCE: "restricted", **labels}, ("resourcequotas", quota))
        for name, rules in RULES.items():
            labels = NAMESPACE_LABELS.get(name, {})
            create_namespace(own, f"{name}-on", {f"{P}/gate": "enabled", **labels}, *rules)
            create_namespace(own, f"{name}-off", labels, *rules)
        create_namespace(own, "gpu-healthcheck", {f"{P}/gate": "enabled"})
        objects = (OVERLAYS / "gate" / "policy.yaml").read_text() + CLUSTER_OBJECTS
        group = "apiVersion: admissionregistration.k8s.io"
        served = f"{group}/{own.mutating_policies}\nkind: Mutating"
        own.kubectl("apply", "-f", "-", input=objects.replace(f"{group}/v1\nkind: Mutating", served))
        eventually(lambda: inits(own, pod(limits={"nvidia.com/gpu": "1"})))
        eventually(lambda: post(own, "late-defaults-off", job()).status == 201)
        eventually(lambda: post(own, "users-off", job()).status == 422)
        yield own


def create_namespace(plane: ControlPlane, name: str, labels: Json, *objects: tuple[str, Json]) -> None:
    """Create a namespace with these objects, each given as its resource and its spec."""
    assert plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}}).status == 201
    account = {"metadata": {"name": "default"}}  # no controller creates it here
    assert plane.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account).status == 201
    for number, (resource, spec) in enumerate(objects):
        body = {"metadata": {"name": f"rule-{number}"}, "spec": spec}
        answer = plane.request("POST", f"/api/v1/namespaces/{name}/{resource}", body)
        assert answer.status == 201, answer.message
        if resource == "resourcequotas":  # as its controller, which does not run here
            status = {"status": {"hard": spec["hard"], "used": dict.fromkeys(spec["hard"], "0")}}
            path = f"/api/v1/namespaces/{name}/{resource}/rule-{number}/status"
            assert plane.request("PATCH", path, status).status == 200


def post(plane: ControlPlane, namespace: str, body: Json) -> Answer:
    """Return the answer to the creation of a pod that is not stored."""
    return plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", body)


def pod(limits: Json | None = None, **spec: Any) -> Json:
    limits = {"cpu": "1", "memory": "1Gi", **(limits or {})}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}, "securityContext": RESTRICTED}
    annotations = spec.pop("annotations", {})
    spec = {"containers": [container], "automountServiceAccountToken": False, **spec}
    return {"metadata": {"generateName": "pod-", "annotations": annotations}, "spec": spec}


def created(plane: ControlPlane, body: Json, namespace: str = GATED) -> Json:
    """Return the pod as the API server would store it."""
    answer = post(plane, namespace, body)
    assert answer.status == 201, answer.message
    return dict(answer.body)


def inits(plane: ControlPlane, body: Json, namespace: str = GATED) -> list[str]:
    found = created(plane, body, namespace)["spec"].get("initContainers", [])
    return [container["name"] for container in found]


GPU = {"nvidia.com/gpu": "8"}
FIRST = {"name": "first", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
CLAIM = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (pod(GPU), ["gpu-gate"]),
        (pod({"nvidia.com/mig-1g.10gb": "1"}), ["gpu-gate"]),
        (pod({"volcano.sh/vgpu-number": "1"}), ["gpu-gate"]),
        (pod(resourceClaims=CLAIM), ["gpu-gate"]),
        (pod(GPU, initContainers=[FIRST | {"securityContext": RESTRICTED}]), ["first", "gpu-gate"]),
        (pod(GPU, annotations={f"{P}/gate": "off"}), []),
        (pod(GPU, annotations={f"{P}/gate": "on"}), ["gpu-gate"]),
        (pod({"example.com/gpu": "1"}), []),
        (pod(), []),
        (pod(GPU, initContainers=[FIRST | {"name": "gpu-gate", "securityContext": RESTRICTED}]), ["gpu-gate"]),
    ],
    ids=["gpu", "mig", "volcano", "claim", "first", "opted out", "annotated", "other vendor", "no gpu", "by hand"],
)
def test_pods_with_gpus_get_the_gate_as_their_last_init_container(
    plane: ControlPlane, body: Json, expected: list[str]
) -> None:
    assert inits(plane, body) == expected


def test_a_namespace_without_the_label_gets_none(plane: ControlPlane) -> None:
    assert inits(plane, pod(GPU), OTHER) == []


def test_pods_of_our_own_namespace_get_none(plane: ControlPlane) -> None:
    """Our tests run on faulty GPUs."""
    assert inits(plane, pod(GPU), "gpu-healthcheck") == []


OURS = f"{P}/unhealthy"


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ([], "false"),
        ([{"operator": "Exists"}], "true"),
        ([{"operator": "Exists", "effect": "NoExecute"}], "false"),
        ([{"key": OURS, "operator": "Exists"}], "true"),
        ([{"key": OURS, "operator": "Exists", "effect": "NoSchedule"}], "true"),
        ([{"key": OURS, "value": "true"}], "true"),
        ([{"key": OURS, "operator": "Equal", "value": "false"}], "false"),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], "false"),
    ],
)
def test_the_gate_has_a_variable_for_the_pods_toleration_of_our_taint(
    plane: ControlPlane, tolerations: list[Json], expected: str
) -> None:
    (gate,) = created(plane, pod(GPU, tolerations=tolerations))["spec"]["initContainers"]
    variables = {
        entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in gate["env"]
    }

    assert variables == {"NODE_IP": "status.hostIP", "POD_UID": "metadata.uid", "GATE_TOLERATES": expected}


def test_the_gate_has_a_read_only_root_limits_and_no_privileges(plane: ControlPlane) -> None:
    (gate,) = created(plane, pod(GPU))["spec"]["initContainers"]

    assert gate["command"] == ["gpu-healthcheck", "gate", "--port", "10633"]
    assert gate["securityContext"]["readOnlyRootFilesystem"] is True
    assert {*gate["resources"]["requests"], *gate["resources"]["limits"]} == {"cpu", "memory"}


def test_a_policy_that_cannot_be_evaluated_lets_the_pod_be_created_without_the_gate(plane: ControlPlane) -> None:
    path = (
        f"/apis/admissionregistration.k8s.io/{plane.mutating_policies}/mutatingadmissionpolicies/gpu-healthcheck-gate"
    )
    spec = plane.request("GET", path).body["spec"]
    broken = [{**spec["variables"][0], "expression": 'object.metadata.annotations["missing"]'}, *spec["variables"][1:]]
    assert plane.request("PATCH", path, {"spec": {"variables": broken}}).status == 200

    assert eventually(lambda: inits(plane, pod(GPU)) == [])
    assert plane.request("PATCH", path, {"spec": {"variables": spec["variables"]}}).status == 200
    assert eventually(lambda: inits(plane, pod(GPU)) == ["gpu-gate"])


# --- No pod is refused or scheduled otherwise because of the gate.


def containers(**item: Json) -> tuple[str, Json]:
    return "limitranges", {"limits": [{"type": "Container", **item}]}


def pods(**item: Json) -> tuple[str, Json]:
    return "limitranges", {"limits": [{"type": "Pod", **item}]}


def quota(hard: Json, *scopes: str) -> tuple[str, Json]:
    return "resourcequotas", {"hard": hard, "scopes": list(scopes)}


def limits_and_requests(**amounts: str) -> Json:
    return {
        f"{kind}.{name.replace('_', '-')}": value for kind in ("limits", "requests") for name, value in amounts.items()
    }


EXACT = {"cpu": "2", "memory": "4Gi"}
RULES: dict[str, list[tuple[str, Json]]] = {
    "free": [],
    "restricted": [],
    "users": [],
    "minimum": [containers(min={"cpu": "100m", "memory": "128Mi"})],
    "maximum": [containers(max={"cpu": "3", "memory": "6Gi"})],
    "exact": [
        containers(min=EXACT, max=EXACT),
        pods(min=EXACT, max=EXACT, maxLimitRequestRatio={"cpu": "1"}),
        quota(limits_and_requests(cpu="2", memory="4Gi") | {"requests.nvidia.com/gpu": "8", "pods": "1"}),
    ],
    "default": [containers(default={"cpu": "1", "memory": "1Gi"}, defaultRequest={"cpu": "200m", "memory": "256Mi"})],
    "small-default": [containers(default={"cpu": "20m", "memory": "16Mi"})],
    "late-defaults": [quota(limits_and_requests(cpu="2", memory="4Gi"))],
    "ratio": [containers(maxLimitRequestRatio={"cpu": "2", "memory": "1"})],
    "storage": [
        containers(min={"ephemeral-storage": "1Gi"}, maxLimitRequestRatio={"ephemeral-storage": "1"}),
        quota(limits_and_requests(ephemeral_storage="2Gi")),
    ],
    "most-gpus": [containers(max={"nvidia.com/gpu": "16"}), quota({"requests.nvidia.com/gpu": "8"})],
    "least-gpus": [containers(min={"nvidia.com/gpu": "1"})],
    "no-gpu-by-default": [containers(default={"nvidia.com/gpu": "0"})],
    "only-best-effort": [quota({"pods": "0"}, "NotBestEffort")],
    "no-best-effort": [quota({"pods": "0"}, "BestEffort")],
}
"""LimitRanges and quotas of a pair of namespaces."""
NAMESPACE_LABELS = {
    "restricted": {ENFORCE: "restricted"},
    "users": {"users": "own"},
    "late-defaults": {"defaults": "late"},
}
CLUSTER_OBJECTS = """---
# Gives resources to a pod, before or after our policy.
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: late-defaults}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["pods"]}]
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          [JSONPatch{op: "add", path: "/spec/containers/0/resources", value: Object.spec.containers.resources{
            requests: {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "8"},
            limits: {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "8"}}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: late-defaults}
spec:
  policyName: late-defaults
  matchResources: {namespaceSelector: {matchLabels: {defaults: late}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: users}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["pods"]}]
  validations:
    - expression: >-
        (object.spec.containers + object.spec.?initContainers.orValue([])).all(one, one.?securityContext.?runAsUser
          .orValue(object.spec.?securityContext.?runAsUser.orValue(0)) == 2000)
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: users}
spec:
  policyName: users
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {users: own}}}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: vm}
handler: vm
overhead: {podFixed: {cpu: 250m, memory: 160Mi}}
scheduling: {nodeSelector: {vm: "true"}}
"""


def named(name: str, resources: Json | None = None, **fields: Any) -> Json:
    return {"name": name, "image": "x", "resources": resources or {}, **fields}


def both(amounts: Json) -> Json:
    return {"requests": amounts, "limits": amounts}


def job(own: Json | None = None, /, *others: Json, annotations: Json | None = None, **spec: Any) -> Json:
    """Return a pod whose first container has these resources and 8 GPUs, by its `fields` if there are some."""
    own = own or {}
    main = named("main", {**own, "limits": GPU | own.get("limits", {})}, **spec.pop("fields", {}))
    spec = {"containers": [main, *others], "automountServiceAccountToken": False, **spec}
    return {"metadata": {"generateName": "pod-", "annotations": annotations or {}}, "spec": spec}


SOME = {"cpu": "2", "memory": "4Gi"}
LARGE = {"cpu": "4", "memory": "8Gi"}
SIDECAR = named("sidecar", both({"cpu": "3", "memory": "1Gi"}), restartPolicy="Always")
HOST_PROCESS = {"windowsOptions": {"hostProcess": True, "runAsUserName": "NT AUTHORITY\\SYSTEM"}}
NOTHING: Json = {}
WITH_GPUS: Json = {"requests": {**SOME, "nvidia.com/gpu": "0"}, "limits": {**SOME, "nvidia.com/gpu": "0"}}
ALWAYS_2000 = {"runAsUser": 2000}
SHAPES: dict[str, tuple[str, Json, Json | None]] = {
    # shape: namespace, pod, resources of the gate; None: no gate
    "guaranteed": ("free", job(both(SOME)), both(SOME)),
    "burstable": ("free", job({"requests": SOME, "limits": LARGE}), {"requests": SOME, "limits": LARGE}),
    "requests only": ("free", job({"requests": SOME}), {"requests": SOME}),
    "limits only": ("free", job({"limits": SOME}), both(SOME)),
    "best effort": ("free", job(), NOTHING),
    "one of two": ("free", job({"limits": {"memory": "1Gi"}}), both({"memory": "1Gi"})),
    "written otherwise": (
        "free",
        job(both({"cpu": "0.5", "memory": "1e9"})),
        both({"cpu": "500m", "memory": "1e9"}),
    ),
    "two containers": ("free", job(both(SOME), named("b", both(LARGE))), both(SOME)),
    "guaranteed and best effort": ("free", job(both(SOME), named("b")), both(SOME)),
    "best effort and guaranteed": ("free", job(None, named("b", both(SOME))), NOTHING),
    "gpus in the second": ("free", job(both(SOME), named("b", {"limits": GPU})), both(SOME)),
    "only best effort allowed": ("only-best-effort", job(), NOTHING),
    "best effort forbidden": ("no-best-effort", job({"requests": {"cpu": "1"}}), {"requests": {"cpu": "1"}}),
    # LimitRanges and quotas
    "minimum": ("minimum", job(both({"cpu": "100m", "memory": "128Mi"})), both({"cpu": "100m", "memory": "128Mi"})),
    "minimum requests by default": ("minimum", job(), {"requests": {"cpu": "100m", "memory": "128Mi"}}),
    "maximum": ("maximum", job(both({"cpu": "3", "memory": "6Gi"})), both({"cpu": "3", "memory": "6Gi"})),
    "maximum by default": (
        "maximum",
        job({"requests": SOME}),
        {"requests": SOME, "limits": {"cpu": "3", "memory": "6Gi"}},
    ),
    "exactly the quota": ("exact", job(both(EXACT)), both(EXACT)),
    "default": (
        "default",
        job(),
        {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    ),
    "late default": ("late-defaults", job(), both(SOME)),
    "small default": ("small-default", job(both(SOME)), both(SOME)),
    "only a small default": ("small-default", job(), None),
    "ratio": (
        "ratio",
        job({"requests": SOME, "limits": {"cpu": "4", "memory": "4Gi"}}),
        {"requests": SOME, "limits": {"cpu": "4", "memory": "4Gi"}},
    ),
    "ephemeral storage": (
        "storage",
        job(both(SOME | {"ephemeral-storage": "2Gi"})),
        both(SOME | {"ephemeral-storage": "2Gi"}),
    ),
    "most gpus": ("most-gpus", job(both(SOME)), None),
    "least gpus": ("least-gpus", job(both(SOME)), None),
    "most gpus, with an init container": (
        "most-gpus",
        job(both(SOME), initContainers=[named("a", {"limits": {"nvidia.com/gpu": "1"}})]),
        None,
    ),
    "by hand, with gpus": (
        "least-gpus",
        job(both(SOME), initContainers=[named("gpu-gate", both({"nvidia.com/gpu": "1"}))]),
        both({"nvidia.com/gpu": "1"}),
    ),
    "no gpu by default": ("no-gpu-by-default", job(both(SOME)), WITH_GPUS),
    "hugepages": (
        "free",
        job(both(SOME | {"hugepages-2Mi": "4Mi"})),
        both(SOME | {"hugepages-2Mi": "4Mi"}),
    ),
    "other devices": ("free", job(both(SOME | {"vpc.amazonaws.com/efa": "32"})), both(SOME)),
    # too small for the gate
    "16 MiB": ("free", job(both({"cpu": "1", "memory": "16Mi"})), None),
    "a thousandth of a CPU": ("free", job(both({"cpu": "1m", "memory": "1Gi"})), None),
    "a byte of storage": ("free", job(both(SOME | {"ephemeral-storage": "1"})), None),
    "just enough": ("free", job(both({"cpu": "50m", "memory": "32Mi"})), both({"cpu": "50m", "memory": "32Mi"})),
    "a small request": (
        "free",
        job({"requests": {"cpu": "1m", "memory": "1Mi"}}),
        {"requests": {"cpu": "1m", "memory": "1Mi"}},
    ),
    "a small first container": (
        "free",
        job(both({"cpu": "10m", "memory": "16Mi"}), named("b", both(SOME))),
        both(SOME),
    ),
    # resources of the pod
    "pod level": ("free", job(both(SOME), resources=both(SOME)), both(SOME)),
    "pod level only": ("free", job(resources=both(SOME)), NOTHING),
    "pod level requests": ("free", job(resources={"requests": SOME}), NOTHING),
    "pod level limits": ("free", job({"requests": SOME}, resources={"limits": SOME}), {"requests": SOME}),
    "pod level, two containers": (
        "free",
        job(both(SOME), named("b", {"requests": SOME}), resources={"requests": LARGE, "limits": LARGE}),
        both(SOME),
    ),
    "pod level, sidecar": (
        "free",
        job(both(SOME), initContainers=[SIDECAR], resources=both({"cpu": "5", "memory": "5Gi"})),
        both(SOME),
    ),
    "16 MiB of the pod": ("free", job(resources=both({"cpu": "1", "memory": "16Mi"})), None),
    "pod level, default": (
        "default",
        job(resources={"limits": SOME}),
        {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    ),
    # other init containers
    "larger init container": ("free", job(both(SOME), initContainers=[named("a", both(LARGE))]), both(SOME)),
    "sidecar": ("free", job(both(SOME), initContainers=[SIDECAR]), both(SOME)),
    "sidecar and init container": (
        "free",
        job(both(SOME), initContainers=[SIDECAR, named("a", both(LARGE))]),
        both(SOME),
    ),
    "300 containers": ("free", job(both(SOME), *(named(f"c{n}", both(SOME)) for n in range(300))), both(SOME)),
    # names
    "a container of its name": ("free", job(both(SOME), named("gpu-gate")), None),
    "a sidecar of its name": (
        "free",
        job(both(SOME), initContainers=[SIDECAR | {"name": "gpu-gate"}]),
        both({"cpu": "3", "memory": "1Gi"}),
    ),
    # users and security
    "restricted": ("restricted", job(both(SOME), fields={"securityContext": RESTRICTED}), both(SOME)),
    "own user": ("users", job(both(SOME), securityContext=ALWAYS_2000), both(SOME)),
    "own user of the container": ("users", job(both(SOME), fields={"securityContext": ALWAYS_2000}), both(SOME)),
    "root": ("free", job(both(SOME), securityContext={"runAsUser": 0}), both(SOME)),
    "privileged": (
        "free",
        job(both(SOME), fields={"securityContext": {"privileged": True, "runAsUser": 0}}),
        both(SOME),
    ),
    "security of the pod": (
        "free",
        job(
            both(SOME),
            securityContext={
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "supplementalGroups": [2000],
                "supplementalGroupsPolicy": "Strict",
                "seLinuxOptions": {"level": "s0:c1,c2"},
                "seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"},
                "appArmorProfile": {"type": "Localhost", "localhostProfile": "a"},
                "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}],
            },
        ),
        both(SOME),
    ),
    "user namespace": ("free", job(both(SOME), hostUsers=False), both(SOME)),
    "host": ("free", job(both(SOME), hostNetwork=True, hostPID=True, hostIPC=True), both(SOME)),
    "one process namespace": ("free", job(both(SOME), shareProcessNamespace=True), both(SOME)),
    "token": ("free", job(both(SOME), automountServiceAccountToken=True), both(SOME)),
    # Windows
    "windows": ("free", job(both(SOME), os={"name": "windows"}), None),
    "windows nodes": ("free", job(both(SOME), nodeSelector={"kubernetes.io/os": "windows"}), None),
    "windows options": ("free", job(both(SOME), securityContext=HOST_PROCESS, hostNetwork=True), None),
    "windows options of a container": (
        "free",
        job(both(SOME), fields={"securityContext": HOST_PROCESS}, hostNetwork=True),
        None,
    ),
    "linux": ("free", job(both(SOME), os={"name": "linux"}, nodeSelector={"kubernetes.io/os": "linux"}), both(SOME)),
    # scheduling and other fields
    "scheduling gate": ("free", job(both(SOME), schedulingGates=[{"name": "a.com/b"}]), both(SOME)),
    "deadline": ("free", job(both(SOME), activeDeadlineSeconds=1, terminationGracePeriodSeconds=0), both(SOME)),
    "runtime class": ("free", job(both(SOME), runtimeClassName="vm"), both(SOME)),
    "bound": ("free", job(both(SOME), nodeName="a"), both(SOME)),
    "pod group": ("free", job(both(SOME), schedulerName="volcano"), both(SOME)),
    "claims": (
        "free",
        job(
            {**both(SOME), "claims": [{"name": "gpu"}]},
            resourceClaims=CLAIM,
        ),
        both(SOME),
    ),
    "a mirror pod": (
        "free",
        job(both(SOME), annotations={"kubernetes.io/config.mirror": "a"}, nodeName="a"),
        None,
    ),
}


def amounts(spec: Json) -> dict[tuple[str, str], Decimal]:
    """Return requests and limits of the pod as scheduler and quota count them, without those of 0."""
    counted: dict[tuple[str, str], Decimal] = {}
    for kind in ("requests", "limits"):
        running, starting, sidecars = Counter[str](), Counter[str](), Counter[str]()
        for container in spec.get("initContainers", ()):
            own = Counter({name: parse_quantity(value) for name, value in container["resources"].get(kind, {}).items()})
            starting |= sidecars + own
            sidecars += own if container.get("restartPolicy") == "Always" else Counter()
        for container in spec["containers"]:
            running += Counter(
                {name: parse_quantity(value) for name, value in container["resources"].get(kind, {}).items()}
            )
        counted |= {(kind, name): Decimal(value) for name, value in ((running + sidecars) | starting).items()}
    return counted


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pod_is_neither_refused_nor_scheduled_otherwise_because_of_the_gate(plane: ControlPlane, shape: str) -> None:
    namespace, body, expected = SHAPES[shape]
    without, gated = (post(plane, f"{namespace}-{state}", body) for state in ("off", "on"))
    assert without.status == 201, without.message  # else the shape is no example
    assert gated.status == 201, gated.message
    gate = next((one for one in gated.body["spec"].get("initContainers", ()) if one["name"] == "gpu-gate"), None)

    assert gated.body["status"]["qosClass"] == without.body["status"]["qosClass"]
    assert amounts(gated.body["spec"]) == amounts(without.body["spec"])
    assert (gate and {kind: value for kind, value in gate["resources"].items() if value}) == expected


@pytest.mark.parametrize(
    ("namespace", "body"),
    [
        ("storage", job(both(SOME | {"ephemeral-storage": "3Gi"}))),
        ("most-gpus", job(both(SOME), named("b", {"limits": GPU}))),
        ("only-best-effort", job(both(SOME))),
        ("no-best-effort", job()),
    ],
)
def test_the_quotas_of_these_namespaces_are_enforced(plane: ControlPlane, namespace: str, body: Json) -> None:
    answer = post(plane, f"{namespace}-off", body)

    assert (answer.status, "exceeded quota" in answer.message) == (403, True)


JOB_PATH = "/apis/batch/v1/namespaces/default/jobs?dryRun=All&fieldValidation=Strict"


def documented_job() -> Json:
    page = (OVERLAYS.parents[1] / "docs" / "gate.md").read_text()
    (block,) = re.findall(r"^```yaml job\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return dict(yaml.safe_load(block))


def test_the_job_of_the_page_is_accepted_as_it_is(plane: ControlPlane) -> None:
    answer = plane.request("POST", JOB_PATH, documented_job())

    assert answer.status == 201, answer.message


@pytest.mark.parametrize(("is_named", "status"), [(True, 422), (False, 201)])
def test_a_rule_names_only_a_container_of_its_own_template(plane: ControlPlane, is_named: bool, status: int) -> None:
    """So it names none where the policy adds the container."""
    job = documented_job()
    del job["spec"]["template"]["spec"]["initContainers"]
    if not is_named:
        del job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"]

    assert plane.request("POST", JOB_PATH, job).status == status
