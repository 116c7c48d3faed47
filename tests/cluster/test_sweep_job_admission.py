"""Jobs that the sweeper's token may create and delete on the real API server: those of a sweep, and no others.

The template in the cluster is irrelevant: without it, and after a second install, no request is rejected for it
(test_reset_automation_admission.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane
from gpu_healthcheck.sweeper.select import Candidate, JobSettings, job_for
from tests.sweeper.world import make_sweep_namespace

pytestmark = pytest.mark.cluster

P = "gpu-healthcheck.aws-samples.io"
Job = dict[str, Any]
Change = Callable[[Job], None]
SWEEPER = "gpu-healthcheck-sweeper"
COMPONENT = "app.kubernetes.io/component"


def jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


OURS = jobs("gpu-healthcheck")
PODS = "/api/v1/namespaces/gpu-healthcheck/pods"
DRY = "?dryRun=All"


def sweep_job(namespace: str = "gpu-healthcheck") -> Job:
    """Return the Job that the sweeper creates from the template that we ship."""
    documents = yaml.safe_load_all((MANIFESTS / "07-sweeper.yaml").read_text())
    (cron_job,) = (document for document in documents if document["metadata"]["name"] == "gpu-healthcheck-sweep-node")
    node = Candidate("n", "uid-1", "p5", {"nvidia.com/gpu": 8}, None, None, "", False, False, timedelta(hours=6))
    return job_for(cron_job["spec"]["jobTemplate"], node, JobSettings(namespace, 60), datetime.now(UTC))


# --- allowed differences; None removes a field


OURS_OF_ALL = {"name": "gpus", "resourceClaimTemplateName": "gpu-healthcheck-sweep"}


def put(target: dict[str, Any], fields: dict[str, Any]) -> None:
    target.update(fields)
    for key in [key for key, value in fields.items() if value is None]:
        del target[key]


def metadata(**fields: Any) -> Change:
    return lambda job: put(job["metadata"], fields)


def of_job(**fields: Any) -> Change:
    return lambda job: put(job["spec"], fields)


def pod_metadata(**fields: Any) -> Change:
    return lambda job: put(job["spec"]["template"]["metadata"], fields)


def pod(**fields: Any) -> Change:
    return lambda job: put(job["spec"]["template"]["spec"], fields)


def claims(*every: dict[str, str]) -> Change:
    return pod(resourceClaims=list(every))


def pod_security(**fields: Any) -> Change:
    return lambda job: put(job["spec"]["template"]["spec"].setdefault("securityContext", {}), fields)


def volume(**source: Any) -> Change:
    return lambda job: job["spec"]["template"]["spec"]["volumes"].append({"name": "another", **source})


def container(**fields: Any) -> Change:
    return lambda job: put(job["spec"]["template"]["spec"]["containers"][0], fields)


def security(**fields: Any) -> Change:
    return lambda job: put(job["spec"]["template"]["spec"]["containers"][0]["securityContext"], fields)


def env(name: str, **value: Any) -> Change:
    return lambda job: job["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": name, **value})


def mount(path: str, **fields: Any) -> Change:
    """Mount the folder that our program writes to at another path."""
    mounts = [{"name": "tmp", "mountPath": path, **fields}]
    return lambda job: put(job["spec"]["template"]["spec"]["containers"][0], {"volumeMounts": mounts})


def job_change(kind: str, **fields: Any) -> Change:
    """Another container, as good as the first but for its name."""

    def change(job: Job) -> None:
        inside = job["spec"]["template"]["spec"]
        inside.setdefault(kind, []).append({**inside["containers"][0], "name": "another", **fields})

    return change


def same(job: Job) -> None:
    """Leave the Job as the sweeper creates it."""


def held_to(*terms: dict[str, Any]) -> Change:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return pod(affinity={"nodeAffinity": required})


def affinity(**fields: Any) -> Change:
    """In addition to the affinity to its node."""
    return lambda job: put(job["spec"]["template"]["spec"]["affinity"], fields)


def prefers(term: dict[str, Any]) -> Change:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [term]}
    return lambda job: put(job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"], preferred)


def both(first: Change, second: Change) -> Change:
    def change(job: Job) -> None:
        first(job)
        second(job)

    return change


def by_name(*names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]} for name in names]}


def owner(kind: str, version: str = "v1", **more: bool) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": "n", "uid": "uid-1", **more}


LABELS = {"app.kubernetes.io/name": "gpu-healthcheck", COMPONENT: "sweep"}
AGENTS = {**LABELS, COMPONENT: "agent"}
REFERENCE = {"name": "x", "key": "x"}
NAME = "gpu-sweep-{}-0123456789"
OF_PODS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
AGAINST_ALL = {"topologyKey": "kubernetes.io/os", "namespaceSelector": {}, "labelSelector": {}}
LIKES = {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
TOKEN = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
EXPRESSION = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
FAILURES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
GET = {"httpGet": {"host": "10.0.0.1", "port": 80}}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/sweep"

OF_THE_POD: dict[str, tuple[Change, Change, str]] = {
    "name": (metadata(name=NAME.format("x-y")), metadata(name="gpu-quarantine-x"), "Job must be gpu-sweep-<node>"),
    "name's end": (metadata(name=NAME.format("")), metadata(name="gpu-sweep-x"), "Job must be gpu-sweep-<node>"),
    "name's beginning": (
        metadata(name=NAME.format("a--b")),
        metadata(name=f"my-{NAME.format('x')}"),
        "Job must be gpu-sweep-<node>",
    ),
    "component": (metadata(labels=LABELS), metadata(labels=AGENTS), f"{COMPONENT}=sweep"),
    "no component": (metadata(labels=None), metadata(labels={"app.kubernetes.io/name": "x"}), f"{COMPONENT}=sweep"),
    "pod's component": (pod_metadata(labels=LABELS), pod_metadata(labels=AGENTS), f"{COMPONENT}=sweep"),
    "label": (
        metadata(labels={**LABELS, "app.kubernetes.io/part-of": "x"}),
        metadata(labels={**LABELS, f"{P}/target-node": "n"}),
        f"may not have the label {P}/target-node",
    ),
    "pod's label": (
        pod_metadata(labels={**LABELS, "app.kubernetes.io/instance": "x"}),
        pod_metadata(labels={**LABELS, "azure.workload.identity/use": "true"}),
        "may not have the label azure.workload.identity/use",
    ),
    "annotation": (
        same,
        metadata(annotations={f"{P}/node": "n", f"{P}/told": ""}),
        f"may not have this annotation or this value: {P}/told",
    ),
    "node's name": (
        metadata(annotations={f"{P}/node": "n"}),
        metadata(annotations={f"{P}/node": "m"}),
        "must name its owner Node",
    ),
    "no node's name": (same, metadata(annotations=None), "must name its owner Node"),
    "pod's annotation": (
        pod_metadata(annotations=OF_PODS),
        pod_metadata(annotations={"k8s.v1.cni.cncf.io/networks": "x"}),
        "or this value: k8s.v1.cni.cncf.io/networks",
    ),
    "pod's annotation's value": (
        pod_metadata(annotations=None),
        pod_metadata(annotations={"karpenter.sh/do-not-disrupt": "false"}),
        "or this value: karpenter.sh/do-not-disrupt",
    ),
    "finalizer": (metadata(finalizers=[]), metadata(finalizers=["example.com/x"]), "may not have finalizers"),
    "pod's finalizer": (same, pod_metadata(finalizers=["example.com/x"]), "metadata of a sweep's pod may not set fina"),
    "owner": (
        metadata(ownerReferences=[owner("Node")]),
        metadata(ownerReferences=[owner("CronJob", "batch/v1")]),
        "owner of a sweep's Job must be the Node",
    ),
    "no owner": (same, metadata(ownerReferences=None), "owner of a sweep's Job must be the Node"),
    "two owners": (
        same,
        metadata(ownerReferences=[owner("Node"), owner("ConfigMap")]),
        "owner of a sweep's Job must be the Node",
    ),
    "owner's deletion": (
        same,
        metadata(ownerReferences=[owner("Node", blockOwnerDeletion=True)]),
        "owner of a sweep's Job must be the Node",
    ),
    "controller": (
        same,
        metadata(ownerReferences=[owner("Node", controller=True)]),
        "owner of a sweep's Job must be the Node",
    ),
    "affinity": (
        held_to({**by_name("n"), **EXPRESSION}),
        held_to(by_name("m")),
        "nodeAffinity of a sweep's pod must select only the Node",
    ),
    "other pods": (
        prefers(LIKES),
        affinity(podAntiAffinity={"requiredDuringSchedulingIgnoredDuringExecution": [AGAINST_ALL]}),
        "may not have podAffinity or podAntiAffinity",
    ),
    "no affinity": (
        held_to(by_name("n")),
        pod(affinity=None),
        "nodeAffinity of a sweep's pod must select only the Node",
    ),
    "an alternative": (
        held_to(by_name("n"), by_name("n")),
        held_to(by_name("n"), EXPRESSION),
        "nodeAffinity of a sweep's pod must select only the Node",
    ),
    "second try": (of_job(backoffLimit=0), of_job(backoffLimit=1), "backoffLimit 0"),
    "kubernetes' own number of tries": (of_job(suspend=True), of_job(backoffLimit=None), "backoffLimit 0"),
    "after preemption": (
        of_job(podReplacementPolicy="Failed"),
        of_job(podFailurePolicy=FAILURES),
        "Job may not set podFailurePolicy",
    ),
    "pods beside each other": (of_job(parallelism=1), of_job(parallelism=2), "parallelism 1"),
    "pods after each other": (of_job(completions=1), of_job(completions=2), "completions 1"),
    "pods of others": (
        of_job(manualSelector=False),
        of_job(manualSelector=True, selector={"matchLabels": LABELS}),
        "may not set manualSelector",
    ),
    "deadline": (of_job(activeDeadlineSeconds=172800), of_job(activeDeadlineSeconds=172801), "two days (172800)"),
    "no deadline": (of_job(activeDeadlineSeconds=7), of_job(activeDeadlineSeconds=None), "activeDeadlineSeconds"),
    "the longest deadline": (same, of_job(activeDeadlineSeconds=2**31 - 1), "activeDeadlineSeconds"),
    "grace": (
        pod(terminationGracePeriodSeconds=60),
        pod(terminationGracePeriodSeconds=61),
        "terminationGracePeriodSeconds of at most 60",
    ),
    "the longest grace": (
        pod(terminationGracePeriodSeconds=None),
        pod(terminationGracePeriodSeconds=10**9),
        "terminationGracePeriodSeconds of at most 60",
    ),
    "end": (of_job(ttlSecondsAfterFinished=604800), of_job(ttlSecondsAfterFinished=604801), "ttlSecondsAfterFinished"),
    "no end": (of_job(ttlSecondsAfterFinished=0), of_job(ttlSecondsAfterFinished=None), "ttlSecondsAfterFinished"),
    "network": (same, pod(hostNetwork=True), "pod may not set hostNetwork"),
    "processes": (pod(hostUsers=False), pod(hostPID=True), "pod may not set hostPID"),
    "shared memory": (pod(hostUsers=True), pod(hostIPC=True), "pod may not set hostIPC"),
    "the containers' processes": (
        pod(enableServiceLinks=False),
        pod(shareProcessNamespace=True),
        "pod may not set shareProcessNamespace",
    ),
    "node": (pod(nodeSelector={"a": "b"}, schedulerName="x"), pod(nodeName="n"), "pod may not set nodeName"),
    "devices": (claims(OURS_OF_ALL), claims({"name": "x", "resourceClaimName": "x"}), "one resource claim"),
    "devices of others": (
        pod(runtimeClassName="nvidia"),
        claims({"name": "gpus", "resourceClaimTemplateName": "another"}),
        "one resource claim",
    ),
    "devices twice": (same, claims(OURS_OF_ALL, {**OURS_OF_ALL, "name": "more"}), "one resource claim"),
    "gates": (
        pod(imagePullSecrets=[{"name": "x"}], terminationGracePeriodSeconds=9),
        pod(readinessGates=[{"conditionType": "example.com/x"}]),
        "pod may not set readinessGates",
    ),
    "names": (
        pod(dnsPolicy="Default"),
        pod(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["nvidia-dcgm"]}]),
        "pod may not set hostAliases",
    ),
    "name servers": (
        same,
        pod(dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.1"]}),
        "pod may not set dnsConfig",
    ),
    "pod's deadline": (same, pod(activeDeadlineSeconds=60), "pod may not set activeDeadlineSeconds"),
    "container beside it": (same, job_change("containers"), "must have exactly one container"),
    "container before it": (same, job_change("initContainers"), "pod may not set initContainers"),
    "sidecar": (same, job_change("initContainers", restartPolicy="Always"), "pod may not set initContainers"),
    "account": (
        pod(automountServiceAccountToken=True),
        pod(serviceAccountName="gpu-healthcheck"),
        "serviceAccountName gpu-healthcheck-sweep",
    ),
    "no account": (
        pod(serviceAccountName="gpu-healthcheck-sweep"),
        pod(serviceAccountName=None),
        "serviceAccountName gpu-healthcheck-sweep",
    ),
    "priority": (
        pod(priorityClassName="gpu-healthcheck-sweep"),
        pod(priorityClassName="system-node-critical"),
        "priorityClassName gpu-healthcheck-sweep",
    ),
    "no priority": (
        same,
        pod(priorityClassName=None),
        "priorityClassName gpu-healthcheck-sweep",
    ),
    "restart": (pod(restartPolicy="Never"), pod(restartPolicy="OnFailure"), "restartPolicy Never"),
    "our taint": (
        pod(tolerations=[{"key": "example.com/spot", "operator": "Exists"}]),
        pod(tolerations=[{"key": f"{P}/unhealthy", "operator": "Exists"}]),
        "toleration of a sweep must name a key",
    ),
    "every taint": (
        pod(tolerations=[]),
        pod(tolerations=[{"operator": "Exists"}]),
        "toleration of a sweep must name a key",
    ),
    "host's files": (volume(emptyDir={}), volume(hostPath={"path": "/"}), "not: another"),
    "secret": (
        volume(configMap={"name": "gpu-healthcheck-config", "defaultMode": 0o444}),
        volume(secret={"secretName": "x"}),
        "not: another",
    ),
    "ConfigMap": (same, volume(configMap={"name": "x"}), "not: another"),
    "token": (same, volume(projected=TOKEN), "not: another"),
    "driver's volume": (volume(), volume(csi={"driver": "x.example.com"}), "not: another"),
    "claim": (
        volume(emptyDir={"medium": "Memory"}),
        volume(persistentVolumeClaim={"claimName": "x"}),
        "not: another",
    ),
    "claim of its own": (
        volume(emptyDir={"sizeLimit": "1Gi"}),
        volume(ephemeral={"volumeClaimTemplate": {"spec": CLAIM}}),
        "not: another",
    ),
    "network's files": (same, volume(nfs={"server": "x", "path": "/"}), "not: another"),
    "kernel": (
        pod_security(fsGroup=1, runAsUser=0),
        pod_security(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "1"}]),
        "pod may not set sysctls",
    ),
    "pod's SELinux": (
        pod_security(runAsNonRoot=False),
        pod_security(seLinuxOptions={"type": "spc_t"}),
        "pod may not set seLinuxOptions",
    ),
    "pod's Windows": (
        pod_security(supplementalGroups=[1]),
        pod_security(windowsOptions={"runAsUserName": "x"}),
        "pod may not set windowsOptions",
    ),
    "pod's seccomp": (
        pod_security(seccompProfile={"type": "RuntimeDefault"}),
        pod_security(seccompProfile={"type": "Unconfined"}),
        "not have an Unconfined",
    ),
    "pod's AppArmor": (
        pod_security(appArmorProfile={"type": "RuntimeDefault"}),
        pod_security(appArmorProfile={"type": "Unconfined"}),
        "not have an Unconfined",
    ),
    "AppArmor as it was": (
        same,
        pod_metadata(annotations={APPARMOR: "unconfined"}),
        f"or this value: {APPARMOR}",
    ),
}
OF_A_CONTAINER: dict[str, tuple[Change, Change, str]] = {
    "image": (
        container(imagePullPolicy="Always"),
        container(image="registry.example.com/x:1"),
        f"image must be gpu-healthcheck:{__version__} (in this policy), not registry.example.com/x:1",
    ),
    "tag": (same, container(image=f"gpu-healthcheck:{__version__}1"), f"image must be gpu-healthcheck:{__version__}"),
    "command": (
        container(command=["gpu-healthcheck", "sweep-run"]),
        container(command=["gpu-healthcheck", "agent"]),
        "command must be gpu-healthcheck sweep-run",
    ),
    "no command": (same, container(command=None), "command must be gpu-healthcheck sweep-run"),
    "arguments": (same, container(args=["--help"]), "container may not set args"),
    "folder": (same, container(workingDir="/tmp"), "container may not set workingDir"),
    "variable": (
        env("LOG_LEVEL", value="debug"),
        env("PYTHONPATH", value="/tmp"),
        "this variable or this value: PYTHONPATH",
    ),
    "variable's source": (
        same,
        env("LOG_LEVEL", valueFrom={"configMapKeyRef": REFERENCE}),
        "this variable or this value: LOG_LEVEL",
    ),
    "node": (
        env("NODE_NAME", valueFrom={"fieldRef": {"fieldPath": "spec.nodeName"}}),
        env("NODE_NAME", value="m"),
        "this variable or this value: NODE_NAME",
    ),
    "node by another field": (
        same,
        env("NODE_NAME", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "this variable or this value: NODE_NAME",
    ),
    "secret": (same, env("LOG_LEVEL", valueFrom={"secretKeyRef": REFERENCE}), "this variable or this value: LOG_LEVEL"),
    "whole secret": (same, container(envFrom=[{"secretRef": {"name": "x"}}]), "container may not set envFrom"),
    "whole ConfigMap": (same, container(envFrom=[{"configMapRef": {"name": "x"}}]), "container may not set envFrom"),
    "place": (mount("/tmp"), mount("/opt"), "may not mount /opt"),
    "part of a volume": (mount("/tmp", readOnly=True), mount("/tmp", subPath="x"), "may not mount /tmp"),
    "last words": (
        container(terminationMessagePolicy="FallbackToLogsOnError"),
        container(terminationMessagePath="/opt/gpu-healthcheck/bin/python"),
        "terminationMessagePath /dev/termination-log",
    ),
    "probe": (same, container(startupProbe=GET), "container may not set startupProbe"),
    "hook": (
        container(imagePullPolicy="Never"),
        container(lifecycle={"preStop": GET}),
        "container may not set lifecycle",
    ),
    "terminal": (container(resources={"limits": {"cpu": "1"}}), container(tty=True), "container may not set tty"),
    "privilege": (security(privileged=False), security(privileged=True, allowPrivilegeEscalation=None), "privileged"),
    "escalation": (
        security(readOnlyRootFilesystem=False),
        security(allowPrivilegeEscalation=True),
        "set allowPrivilegeEscalation to false",
    ),
    "escalation by default": (
        security(allowPrivilegeEscalation=False),
        security(allowPrivilegeEscalation=None),
        "set allowPrivilegeEscalation to false",
    ),
    "nothing said": (security(runAsUser=1), container(securityContext=None), "set allowPrivilegeEscalation to false"),
    "capability": (
        security(capabilities={"add": [], "drop": ["ALL"]}),
        security(capabilities={"add": ["NET_RAW"], "drop": ["ALL"]}),
        "drop ALL capabilities and add none",
    ),
    "capabilities by default": (
        security(capabilities={"drop": ["NET_RAW", "ALL"]}),
        security(capabilities={"drop": ["NET_RAW"]}),
        "drop ALL capabilities and add none",
    ),
    "/proc": (
        pod(hostUsers=False),
        both(pod(hostUsers=False), security(procMount="Unmasked")),
        "container may not set procMount",
    ),
    "SELinux": (
        security(runAsGroup=1),
        security(seLinuxOptions={"level": "s0"}),
        "container may not set seLinuxOptions",
    ),
    "Windows": (
        security(runAsNonRoot=False),
        security(windowsOptions={"hostProcess": False}),
        "container may not set windowsOptions",
    ),
    "seccomp": (
        security(seccompProfile={"type": "Localhost", "localhostProfile": "x.json"}),
        security(seccompProfile={"type": "Unconfined"}),
        "not have an Unconfined",
    ),
    "AppArmor": (
        security(appArmorProfile={"type": "Localhost", "localhostProfile": "x"}),
        security(appArmorProfile={"type": "Unconfined"}),
        "not have an Unconfined",
    ),
    "port": (same, container(ports=[{"containerPort": 80, "hostPort": 80}]), "container may not set ports"),
}
RULES = {**OF_THE_POD, **{f"container's {name}": rule for name, rule in OF_A_CONTAINER.items()}}


def said(plane: ControlPlane, job: Job, *, path: str = OURS, token: str | None = None) -> str:
    """Return '' if such a Job would be created, else the error."""
    answer = plane.request("POST", path + DRY, job, token=token)
    return "" if answer.status == 201 else f"{answer.status} {answer.message}"


def is_dropped(plane: ControlPlane, change: Change) -> bool:
    """Whether this Kubernetes drops the field before admission, as 1.33 and older do with resourceClaims."""
    plain, asked = (plane.request("POST", OURS + DRY, job).body["spec"] for job in (sweep_job(), changed(change)))
    for spec in (plain, asked):
        spec["template"]["metadata"], spec["selector"] = {}, {}  # another Job has another uid
    return bool(plain == asked)


def changed(change: Change) -> Job:
    job = sweep_job()
    change(job)
    return job


@pytest.fixture(scope="module")
def token(installed: ControlPlane) -> Iterator[str]:
    """Yield the token of the sweeper's pod, as an attacker in that pod would find it."""
    spec = {
        "nodeName": "of-the-sweeper",
        "serviceAccountName": SWEEPER,
        "containers": [{"name": "sweeper", "image": "x"}],
    }
    installed.create_node("of-the-sweeper")
    made = installed.request("POST", PODS, {"metadata": {"name": "sweeper"}, "spec": spec})
    assert made.status == 201, made.message
    yield installed.pod_token(made.body)
    installed.request("DELETE", f"{PODS}/sweeper?gracePeriodSeconds=0")
    installed.request("DELETE", "/api/v1/nodes/of-the-sweeper")


def test_the_sweeper_may_make_a_job_from_the_template_as_we_ship_it(installed: ControlPlane, token: str) -> None:
    assert said(installed, sweep_job(), token=token) == ""


def test_the_sweeper_may_delete_a_job_of_a_sweep(installed: ControlPlane, token: str) -> None:
    job = changed(metadata(ownerReferences=None))  # owned, it is cleared away: the Node is not there
    assert installed.request("POST", OURS, job).status == 201

    gone = installed.request("DELETE", f"{OURS}/{job['metadata']['name']}?propagationPolicy=Background", token=token)

    assert gone.status == 200, gone.message


@pytest.mark.parametrize(("allowed", "refused", "message"), RULES.values(), ids=RULES)
def test_the_sweeper_may_make_the_one_and_not_the_other(
    installed: ControlPlane, token: str, allowed: Change, refused: Change, message: str
) -> None:
    assert said(installed, changed(allowed), token=token) == ""

    refusal = said(installed, changed(refused), token=token)

    assert (refusal.startswith("403 ") and message in refusal) or is_dropped(installed, refused)
    # And other objects are not affected.
    assert said(installed, changed(refused)) == ""


@pytest.mark.parametrize("namespace", ["default", "kube-system", "gpu-healthcheck-budget"])
def test_sweeper_creates_jobs_only_with_a_role(installed: ControlPlane, token: str, namespace: str) -> None:
    refusal = said(installed, sweep_job(namespace), path=jobs(namespace), token=token)

    assert refusal.startswith("403 ")
    assert 'cannot create resource "jobs"' in refusal


def test_a_refusal_names_all_that_is_to_be_changed(installed: ControlPlane, token: str) -> None:
    refusal = said(installed, changed(pod(hostPID=True, hostNetwork=True)), token=token)

    assert set(refusal.partition("may not set ")[2].split(", ")) == {"hostPID", "hostNetwork"}


def test_the_sweeper_may_delete_no_job_of_another_component(installed: ControlPlane, token: str) -> None:
    job = changed(metadata(labels=AGENTS, ownerReferences=None))  # owned, it is cleared away: the Node is not there
    assert installed.request("POST", OURS, job).status == 201
    path = f"{OURS}/{job['metadata']['name']}?propagationPolicy=Background"

    refused = installed.request("DELETE", path, token=token)

    assert (refused.status, "delete only Jobs of sweeps" in refused.message) == (403, True)
    assert installed.request("DELETE", path).status == 200


@pytest.fixture(scope="module")
def another(installed: ControlPlane) -> Iterator[str]:
    name = "sweeps"
    make_sweep_namespace(installed, name)
    yield name
    installed.kubectl("delete", f"clusterrolebinding/{name}")
    installed.request("DELETE", f"/api/v1/namespaces/{name}")


def test_the_sweeper_is_held_to_the_same_in_another_namespace(
    installed: ControlPlane, token: str, another: str
) -> None:
    job = sweep_job(another)
    assert said(installed, job, path=jobs(another), token=token) == ""

    pod(hostNetwork=True)(job)

    assert "may not set hostNetwork" in said(installed, job, path=jobs(another), token=token)


def test_a_jobs_pod_in_another_namespace_may_write_its_record_on_its_own_node_only(
    installed: ControlPlane, another: str
) -> None:
    for name in ("own", "other"):
        installed.create_node(f"sweeps-{name}")
    spec = sweep_job(another)["spec"]["template"]["spec"] | {"nodeName": "sweeps-own"}
    body = {"metadata": {"name": "x", "namespace": another}, "spec": spec}
    made = installed.request("POST", f"/api/v1/namespaces/{another}/pods", body)
    assert made.status == 201, made.message
    token = installed.pod_token(made.body)
    record = {"metadata": {"annotations": {f"{P}/sweep-result": "{}"}}}

    own, other = (
        installed.request("PATCH", f"/api/v1/nodes/sweeps-{name}", record, token=token) for name in ("own", "other")
    )

    assert (own.status, other.status) == (200, 403)
    assert "its own Node only" in other.message
    for name in ("own", "other"):
        installed.request("DELETE", f"/api/v1/nodes/sweeps-{name}")
