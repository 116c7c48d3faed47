"""Which Jobs the sweeper's token may make and delete on the real API server: a sweep's, and nothing that is more.

The template in the cluster has no part in that: without it, and after a second install, nobody is refused for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from sim.control_plane import MANIFESTS, ControlPlane, install, unbound_token
from sweeper.jobs import Order, job_for
from sweeper.select import Candidate
from tests.sweeper.world import make_sweep_namespace

pytestmark = pytest.mark.control_plane

P = "gpu-healthcheck.aws-samples.io"
Job = dict[str, Any]
Change = Callable[[Job], None]
SWEEPER = "gpu-healthcheck-sweeper"
COMPONENT = "app.kubernetes.io/component"


def jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


OURS = jobs("gpu-healthcheck")
DRY = "?dryRun=All"


def sweep_job(namespace: str = "gpu-healthcheck") -> Job:
    """As the sweeper makes it from the template that we ship."""
    documents = yaml.safe_load_all((MANIFESTS / "07-sweeper.yaml").read_text())
    (cron_job,) = (one for one in documents if one["metadata"]["name"] == "gpu-healthcheck-sweep-node")
    node = Candidate("n", "uid-1", "p5", {"nvidia.com/gpu": 8}, None, None, "", under_run=False, overdue=False)
    order = Order(namespace, "registry.example.com/x:1", 60)
    return job_for(cron_job["spec"]["jobTemplate"], node, order, datetime.now(UTC))


# --- what may be other about it; None takes a field out


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


def pod_security(**fields: Any) -> Change:
    return lambda job: put(job["spec"]["template"]["spec"].setdefault("securityContext", {}), fields)


def volume(**source: Any) -> Change:
    return lambda job: job["spec"]["template"]["spec"]["volumes"].append({"name": "another", **source})


def container(**fields: Any) -> Change:
    return lambda job: put(job["spec"]["template"]["spec"]["containers"][0], fields)


def security(**fields: Any) -> Change:
    return lambda job: put(job["spec"]["template"]["spec"]["containers"][0]["securityContext"], fields)


def env(**source: Any) -> Change:
    return container(env=[{"name": "WORD", "valueFrom": source}])


def env_from(**source: Any) -> Change:
    return container(envFrom=[source])


def held_to(*terms: dict[str, Any]) -> Change:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return pod(affinity={"nodeAffinity": required})


def both(first: Change, second: Change) -> Change:
    def change(job: Job) -> None:
        first(job)
        second(job)

    return change


def by_name(*names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]} for name in names]}


def owner(kind: str, version: str = "v1") -> dict[str, str]:
    return {"apiVersion": version, "kind": kind, "name": "n", "uid": "uid-1"}


LABELS = {"app.kubernetes.io/name": "gpu-healthcheck", COMPONENT: "sweep"}
AGENTS = {**LABELS, COMPONENT: "agent"}
REFERENCE = {"name": "x", "key": "x"}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
TOKEN = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
EXPRESSION = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
FAILURES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
GET = {"httpGet": {"host": "10.0.0.1", "port": 80}}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/sweep"

OF_THE_POD: dict[str, tuple[Change, Change, str]] = {
    "label": (metadata(labels={**LABELS, "team": "x"}), metadata(labels=AGENTS), f"{COMPONENT}=sweep"),
    "no label": (metadata(labels=LABELS), metadata(labels={"team": "x"}), f"{COMPONENT}=sweep"),
    "pod's label": (pod_metadata(labels=LABELS), pod_metadata(labels=AGENTS), f"{COMPONENT}=sweep"),
    "owner": (
        metadata(ownerReferences=[owner("Node")]),
        metadata(ownerReferences=[owner("CronJob", "batch/v1")]),
        "one owner, the Node",
    ),
    "no owner": (metadata(annotations={}), metadata(ownerReferences=None), "one owner, the Node"),
    "two owners": (
        metadata(finalizers=["example.com/x"]),
        metadata(ownerReferences=[owner("Node"), owner("ConfigMap")]),
        "one owner, the Node",
    ),
    "affinity": (held_to({**by_name("n"), **EXPRESSION}), held_to(by_name("m")), "held by its nodeAffinity"),
    "no affinity": (held_to(by_name("n")), pod(affinity=None), "held by its nodeAffinity"),
    "an alternative": (
        held_to(by_name("n"), by_name("n")),
        held_to(by_name("n"), EXPRESSION),
        "held by its nodeAffinity",
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
        "no manualSelector",
    ),
    "deadline": (of_job(activeDeadlineSeconds=7), of_job(activeDeadlineSeconds=None), "activeDeadlineSeconds"),
    "network": (pod(dnsPolicy="Default"), pod(hostNetwork=True), "pod may not set hostNetwork"),
    "processes": (pod(hostUsers=False), pod(hostPID=True), "pod may not set hostPID"),
    "shared memory": (pod(hostUsers=True), pod(hostIPC=True), "pod may not set hostIPC"),
    "the containers' processes": (
        pod(enableServiceLinks=False),
        pod(shareProcessNamespace=True),
        "pod may not set shareProcessNamespace",
    ),
    "node": (pod(nodeSelector={"a": "b"}, schedulerName="x"), pod(nodeName="n"), "pod may not set nodeName"),
    "devices": (
        pod(runtimeClassName="nvidia"),
        pod(resourceClaims=[{"name": "x", "resourceClaimName": "x"}]),
        "pod may not set resourceClaims",
    ),
    "image": (
        pod(imagePullSecrets=[{"name": "x"}], terminationGracePeriodSeconds=9),
        pod(readinessGates=[{"conditionType": "example.com/x"}]),
        "pod may not set readinessGates",
    ),
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
        pod(activeDeadlineSeconds=60),
        pod(priorityClassName=None),
        "priorityClassName gpu-healthcheck-sweep",
    ),
    "restart": (pod(restartPolicy="Never"), pod(restartPolicy="OnFailure"), "restartPolicy Never"),
    "our taint": (
        pod(tolerations=[{"key": "example.com/spot", "operator": "Exists"}]),
        pod(tolerations=[{"key": f"{P}/unhealthy", "operator": "Exists"}]),
        "tolerations each name a key",
    ),
    "every taint": (pod(tolerations=[]), pod(tolerations=[{"operator": "Exists"}]), "tolerations each name a key"),
    "host's files": (volume(emptyDir={}), volume(hostPath={"path": "/"}), "not so: another"),
    "secret": (volume(configMap={"name": "x"}), volume(secret={"secretName": "x"}), "not so: another"),
    "token": (
        volume(downwardAPI={"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}),
        volume(projected=TOKEN),
        "not so: another",
    ),
    "driver's volume": (volume(), volume(csi={"driver": "x.example.com"}), "not so: another"),
    "claim": (
        volume(emptyDir={"medium": "Memory"}),
        volume(persistentVolumeClaim={"claimName": "x"}),
        "not so: another",
    ),
    "claim of its own": (
        volume(emptyDir={"sizeLimit": "1Gi"}),
        volume(ephemeral={"volumeClaimTemplate": {"spec": CLAIM}}),
        "not so: another",
    ),
    "network's files": (pod(hostAliases=[]), volume(nfs={"server": "x", "path": "/"}), "not so: another"),
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
        "no Unconfined",
    ),
    "pod's AppArmor": (
        pod_security(appArmorProfile={"type": "RuntimeDefault"}),
        pod_security(appArmorProfile={"type": "Unconfined"}),
        "no Unconfined",
    ),
    "AppArmor as it was": (
        pod_metadata(annotations={"sidecar.istio.io/inject": "false"}),
        pod_metadata(annotations={APPARMOR: "unconfined"}),
        "not in an annotation",
    ),
}
OF_A_CONTAINER: dict[str, tuple[Change, Change, str]] = {
    "probe": (container(args=["x"]), container(startupProbe=GET), "containers may not set startupProbe"),
    "hook": (
        container(workingDir="/tmp", imagePullPolicy="Always"),
        container(lifecycle={"preStop": GET}),
        "containers may not set lifecycle",
    ),
    "terminal": (container(resources={"limits": {"cpu": "1"}}), container(tty=True), "containers may not set tty"),
    "privilege": (security(privileged=False), security(privileged=True, allowPrivilegeEscalation=None), "privileged"),
    "escalation": (
        security(readOnlyRootFilesystem=False),
        security(allowPrivilegeEscalation=True),
        "allowPrivilegeEscalation to false",
    ),
    "escalation by default": (
        security(allowPrivilegeEscalation=False),
        security(allowPrivilegeEscalation=None),
        "allowPrivilegeEscalation to false",
    ),
    "nothing said": (security(runAsUser=1), container(securityContext=None), "allowPrivilegeEscalation to false"),
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
        "containers may not set procMount",
    ),
    "SELinux": (
        security(runAsGroup=1),
        security(seLinuxOptions={"level": "s0"}),
        "containers may not set seLinuxOptions",
    ),
    "Windows": (
        security(runAsNonRoot=False),
        security(windowsOptions={"hostProcess": False}),
        "containers may not set windowsOptions",
    ),
    "seccomp": (
        security(seccompProfile={"type": "Localhost", "localhostProfile": "x.json"}),
        security(seccompProfile={"type": "Unconfined"}),
        "no Unconfined",
    ),
    "AppArmor": (
        security(appArmorProfile={"type": "Localhost", "localhostProfile": "x"}),
        security(appArmorProfile={"type": "Unconfined"}),
        "no Unconfined",
    ),
    "port": (
        container(ports=[{"containerPort": 80}]),
        container(ports=[{"containerPort": 80, "hostPort": 80}]),
        "no hostPort",
    ),
    "secret": (env(configMapKeyRef=REFERENCE), env(secretKeyRef=REFERENCE), "env or envFrom from a Secret"),
    "whole secret": (
        env_from(prefix="A_", configMapRef={"name": "x"}),
        env_from(secretRef={"name": "x"}),
        "env or envFrom from a Secret",
    ),
}
RULES = {**OF_THE_POD, **{f"container's {name}": rule for name, rule in OF_A_CONTAINER.items()}}


def said(plane: ControlPlane, job: Job, *, path: str = OURS, token: str | None = None) -> str:
    """'' where such a Job would be made, else what was said."""
    answer = plane.request("POST", path + DRY, job, token=token)
    return "" if answer.status == 201 else f"{answer.status} {answer.message}"


def changed(change: Change) -> Job:
    job = sweep_job()
    change(job)
    return job


@pytest.fixture
def token(installed: ControlPlane) -> str:
    return unbound_token(installed, SWEEPER)


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

    assert refusal.startswith("403 ")
    assert message in refusal
    # And it is nobody else's matter.
    assert said(installed, changed(refused)) == ""


def test_a_refusal_names_all_that_is_to_be_changed(installed: ControlPlane, token: str) -> None:
    refusal = said(installed, changed(pod(hostPID=True, hostNetwork=True)), token=token)

    assert set(refusal.partition("may not set ")[2].split(", ")) == {"hostPID", "hostNetwork"}


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize(("refused", "message"), [rule[1:] for rule in OF_A_CONTAINER.values()], ids=OF_A_CONTAINER)
def test_every_container_is_held_to_it(
    installed: ControlPlane, token: str, kind: str, refused: Change, message: str
) -> None:
    job = changed(refused)
    inside = job["spec"]["template"]["spec"]
    worse = inside["containers"][0] | {"name": "another"}
    if kind == "initContainers":
        worse["restartPolicy"] = "Always"  # one that stays: of the others the API takes no hook and no probe
    inside["containers"] = sweep_job()["spec"]["template"]["spec"]["containers"]
    inside[kind] = [*inside.get(kind, ()), worse]

    assert message in said(installed, job, token=token)


def test_the_sweeper_may_delete_no_job_of_another_component(installed: ControlPlane, token: str) -> None:
    job = changed(metadata(labels=AGENTS, ownerReferences=None))  # owned, it is cleared away: the Node is not there
    assert installed.request("POST", OURS, job).status == 201
    path = f"{OURS}/{job['metadata']['name']}?propagationPolicy=Background"

    refused = installed.request("DELETE", path, token=token)

    assert (refused.status, "deletes the Jobs of sweeps only" in refused.message) == (403, True)
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


def test_deleted_and_applied_again_the_manifests_refuse_nobody(controllers: ControlPlane) -> None:
    """A param of a built-in kind is not found in a second install, and is sought before it is asked who asks."""
    with ControlPlane(controllers=True) as own:
        install(own)
        own.kubectl("delete", "-f", str(MANIFESTS), "--timeout=90s")

        install(own)

        worse, token = changed(pod(hostPID=True)), unbound_token(own, SWEEPER)
        assert said(own, sweep_job(), token=token) == ""
        assert "may not set hostPID" in said(own, worse, token=token)
        own.kubectl("delete", "-f", str(MANIFESTS / "07-sweeper.yaml"))
        for namespace in ("gpu-healthcheck", "default", "kube-system"):
            worse["metadata"]["namespace"] = namespace
            assert said(own, worse, path=jobs(namespace)) == ""
