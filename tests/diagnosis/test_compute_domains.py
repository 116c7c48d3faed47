"""ComputeDomains: pods that wait for an IMEX channel, lost peers, wrong indexes, and the sound states beside them."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.copied_logs import known_in
from gpu_healthcheck.diagnosis.causes.diagnose import Problem
from gpu_healthcheck.diagnosis.facts.components import DOMAIN_LABEL
from gpu_healthcheck.diagnosis.model import Certainty
from tests.diagnosis.component_states import daemon
from tests.diagnosis.states import Object, ago, condition, consequences, event, judged, node, obj, pod, results, waiting

UID = "d0-1"
DRIVER = "nvidia-dra-driver-gpu-kubelet-plugin"
DOMAIN = "computedomain/team/train"
LABELS = {"app.kubernetes.io/name": "nvidia-dra-driver-gpu"}
MINE = {DOMAIN_LABEL: UID}
CLAIMS = {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "channel"}]}
NOT_IN_DOMAIN = (
    "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for ResourceClaim t: "
    "error preparing devices for claim 'team/t': prepare devices failed: error applying config: error asserting "
    "ComputeDomain Ready: current node not ready in ComputeDomain"
)
NOT_REGISTERED = "Failed to prepare dynamic resources: DRA driver compute-domain.nvidia.com is not registered"
IN_USE = "[Nov 22 2026 11:50:01] [ERROR] [tid 39] Failed to allocate Imex session with error NV_ERR_IN_USE"


def entry(on: str, index: int | None, address: str, status: str = "Ready", clique: str = "c.1") -> Object:
    fields: Object = {"name": on, "ipAddress": address, "cliqueID": clique, "status": status}
    return fields if index is None else fields | {"index": index}


def domain(*nodes: Object, status: str = "Ready", wanted: int = 0, **metadata: Any) -> Object:
    spec: Object = {"numNodes": wanted, "channel": {"resourceClaimTemplate": {"name": "channel"}}}
    reported: Object = {"status": {"status": status, "nodes": list(nodes)}} if status else {}
    return obj("ComputeDomain", "train", "team", metadata={"uid": UID} | metadata, spec=spec, **reported)


def template() -> Object:
    request = {"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}
    return obj("ResourceClaimTemplate", "channel", "team", spec={"spec": {"devices": {"requests": [request]}}})


def worker(on: str, *, runs: bool = True, age: float = 60) -> Object:
    """A pod of the job that uses the domain."""
    changes: Any = {} if runs else {"phase": "Pending", "states": [waiting("ContainerCreating")]}
    return pod(f"w-{on}", 4, on=on, owner=("Job", "train"), spec=CLAIMS, age=age, **changes)


def imex(on: str, address: str, *, ready: bool = True, age: float = 60) -> Object:
    """The pod of the domain's IMEX daemon."""
    state = {"name": "compute-domain-daemon", "ready": ready, "restartCount": 0}
    status = {"podIP": address, "conditions": [condition("Ready", str(ready))]}
    return pod(
        f"train-{on}",
        0,
        on=on,
        namespace="dra",
        labels=MINE,
        age=age,
        owner=("DaemonSet", "train-x"),
        containers=[{"name": "compute-domain-daemon", "image": "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.1"}],
        states=[state | {"state": {"running": {"startedAt": ago(age)}}}],
        status=status,
    )


def deleted(entry: Object) -> Object:
    """The object while its deletion waits."""
    return entry | {"metadata": entry["metadata"] | {"deletionTimestamp": ago(0.5)}}


def driver(*nodes: str) -> list[Object]:
    """NVIDIA's DRA driver: its controller, its kubelet plugin on the nodes, and the DaemonSet of the domain."""
    plugins = [
        pod(f"plugin-{on}", 0, on=on, namespace="dra", labels=LABELS, owner=("DaemonSet", DRIVER)) for on in nodes
    ]
    labels = LABELS | {"nvidia-dra-driver-gpu-component": "controller"}
    spec = {"replicas": 1, "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}}
    controller = obj("Deployment", "ctl", "dra", metadata={"labels": labels}, spec=spec, status={"readyReplicas": 1})
    its_pod = pod("ctl-5d-x", 0, on=nodes[0], namespace="dra", labels=labels, owner=("ReplicaSet", "ctl-5d"))
    return [
        daemon(DRIVER, wanted=len(nodes), namespace="dra", labels=LABELS, selector={}),
        *plugins,
        controller,
        its_pod,
    ]


def of_domain(wanted: int) -> Object:
    """The DaemonSet that the controller makes for the domain."""
    image = "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.1"
    return daemon("train-x", wanted=wanted, namespace="dra", labels=MINE, selector=MINE, image=image)


def state(*changed: Object, without: tuple[str, ...] = ()) -> list[Object]:
    """A domain on two nodes that works, with these objects instead of those of the same kind and name, or without."""
    parts = [
        node("a", labels=MINE),
        node("b", labels=MINE),
        domain(entry("a", 0, "10.0.0.1"), entry("b", 1, "10.0.0.2"), wanted=2),
        template(),
        *driver("a", "b"),
        of_domain(2),
        imex("a", "10.0.0.1"),
        imex("b", "10.0.0.2"),
        worker("a"),
        worker("b"),
    ]
    named = {(one["kind"], one["metadata"]["name"]): one for one in (*parts, *changed)}
    return [one for (_, name), one in named.items() if name not in without]


def held(on: str = "b") -> tuple[Object, Object]:
    waits = worker(on, runs=False)
    return waits, event(waits, "FailedPrepareDynamicResources", NOT_IN_DOMAIN, count=30)


def not_ready(*nodes: Object, wanted: int = 2) -> Object:
    return domain(*nodes, status="NotReady", wanted=wanted)


READY_A, WAITS_B = entry("a", 0, "10.0.0.1"), entry("b", 1, "10.0.0.2", "NotReady")
HEALTHY: dict[str, list[Object]] = {
    "works": state(),
    "waits for no number": state(domain(READY_A, entry("b", 1, "10.0.0.2"))),
    "is young": state(not_ready(READY_A), worker("b", runs=False, age=4), imex("b", "10.0.0.2", ready=False, age=4)),
    "has no status and no workload yet": state(domain(status=""), without=("w-a", "w-b", "train-a", "train-b")),
    "has no workload yet": state(domain(status="NotReady", wanted=2), without=("w-a", "w-b", "train-a", "train-b")),
    "waits for no channel, with too few nodes": state(not_ready(READY_A, entry("b", 1, "10.0.0.2"), wanted=4)),
    "has nodes without a fabric": state(
        domain(entry("a", -1, "10.0.0.1", clique=""), entry("b", -1, "10.0.0.2", clique=""))
    ),
    "has two cliques with the same indexes": state(domain(READY_A, entry("b", 0, "10.0.0.2", clique="c.2"))),
    "is of a version without indexes": state(domain(entry("a", None, "10.0.0.1"), entry("b", None, "10.0.0.2"))),
    "uses the host's service": state(
        domain(status="Ready"), node("a"), node("b"), without=("train-x", "train-a", "train-b")
    ),
    "has a daemon that has just moved": state(imex("b", "10.0.0.9", age=1)),
    "waits for an image": state(
        not_ready(READY_A, WAITS_B, wanted=4),
        pod("w-b", 4, on="b", spec=CLAIMS, phase="Pending", states=[waiting("ImagePullBackOff", "Back-off pulling")]),
    ),
    "waits for a volume": state(
        not_ready(READY_A, WAITS_B, wanted=4), held()[0], event(held()[0], "FailedMount", "timed out", count=9)
    ),
    "waits for the kubelet to know the driver": state(
        not_ready(READY_A),
        held()[0],
        event(held()[0], "FailedPrepareDynamicResources", NOT_REGISTERED, count=9),
        node("b"),
        without=("train-b",),
    ),
    "has left a node that is under maintenance": state(
        node("b", labels=MINE, ready="False", cordoned=True), without=("w-b",)
    ),
    "has lost a node since its job ended": state(
        pod("w-a", 4, on="a", spec=CLAIMS, phase="Succeeded"), without=("b", "w-b", "train-b", "plugin-b")
    ),
    "has a daemon that is being replaced": state(deleted(imex("b", "10.0.0.2"))),
    "is being deleted": state(not_ready(), *held(), domain(status="NotReady", deletionTimestamp=ago(1))),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_domain_that_works_or_is_about_to_has_no_cause(name: str) -> None:
    found = [cause for cause, _ in results(judged(*HEALTHY[name]))]

    assert [cause for cause in found if cause.startswith(("ComputeDomain", "Imex"))] == []


def domain_problem(*objects: Object, cause: str = "", **more: Any) -> Problem:
    """The problem of the domain, or that of this cause, wherever it is in the diagnosis."""
    pending = list(judged(*objects, **more).problems)
    while pending:
        one = pending.pop()
        if one.found.subject == DOMAIN and cause in ("", one.found.cause.name):
            return one
        pending += one.consequences
    raise AssertionError("no cause of the domain")


REASONS: dict[str, tuple[list[Object], str, str]] = {
    "a node with the label of another domain": (
        state(node("b", labels={DOMAIN_LABEL: "gone"}), not_ready(READY_A), *held(), without=("train-b",)),
        "node/b has no daemon: it has the label of a domain that is gone, gone",
        f"`kubectl label node b {DOMAIN_LABEL}-`",
    ),
    "a node in another domain": (
        state(
            node("b", labels={DOMAIN_LABEL: "d0-2"}),
            obj("ComputeDomain", "other", "team", metadata={"uid": "d0-2"}, status={"status": "Ready"}),
            not_ready(READY_A),
            *held(),
            without=("train-b",),
        ),
        "node/b has no daemon: it is in computedomain/team/other, and can be in one domain only",
        "Wait until the pods of computedomain/team/other on b have ended",
    ),
    "a node without the label": (
        state(node("b"), not_ready(READY_A), *held(), without=("train-b",)),
        f"node/b has no daemon: it lacks the label {DOMAIN_LABEL}={UID}, which pod/dra/plugin-b sets",
        "`kubectl -n dra delete pod plugin-b`",
    ),
    "no kubelet plugin of the driver": (
        state(node("b"), not_ready(READY_A), *held(), without=("train-b", "plugin-b")),
        "node/b has no daemon: no plugin of the DRA driver works there",
        f"`kubectl -n dra describe daemonset {DRIVER}`",
    ),
    "a DaemonSet without a pod on the node": (
        state(not_ready(READY_A), *held(), without=("train-b",)),
        "node/b has no daemon, and has the domain's label",
        "`kubectl -n dra describe daemonset train-x`",
    ),
    "no DaemonSet": (
        state(not_ready(READY_A), *held(), without=("train-b", "train-x")),
        "node/b has no daemon, and has the domain's label",
        "`kubectl -n dra logs ctl-5d-x --tail=100`",
    ),
    "a daemon that the status does not know": (
        state(not_ready(READY_A), *held()),
        "pod/dra/train-b is ready, and node/b is not in the domain's status",
        "`kubectl -n dra delete pod train-b`",
    ),
    "a daemon that the status has as not ready": (
        state(not_ready(READY_A, WAITS_B), *held()),
        "pod/dra/train-b is ready, and node/b is NotReady in the domain's status",
        "`kubectl -n dra delete pod train-b`",
    ),
    "fewer nodes than numNodes": (
        state(not_ready(READY_A, entry("b", 1, "10.0.0.2"), wanted=4), *held()),
        "it waits for 4 nodes (numNodes), and its pods run on 2",
        "create domain and job again with numNodes 0",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_domain_that_holds_pods_back_names_the_reason(name: str) -> None:
    objects, reason, step = REASONS[name]

    found = domain_problem(*objects, cause="ComputeDomainNotReady").found

    assert reason in found.evidence
    assert step in " ".join(found.steps)
    assert found.affected == ("pod/team/w-b",)
    assert "delete computedomain" not in " ".join(found.steps).lower()


def test_domain_whose_other_pods_have_no_node_waits_for_these() -> None:
    unplaced = pod("w-c", 4, spec=CLAIMS, owner=("Job", "train"))

    found = domain_problem(*REASONS["fewer nodes than numNodes"][0], unplaced, cause="ComputeDomainNotReady").found

    assert "without a node yet: pod/team/w-c" in found.evidence
    assert "numNodes 0" not in " ".join(found.steps)


def test_pod_that_waits_for_the_domain_is_its_consequence() -> None:
    objects = state(node("b"), not_ready(READY_A), *held(), without=("train-b",))

    (problem,) = judged(*objects).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ComputeDomainNotReady", DOMAIN)
    assert consequences(problem) == [("ClaimNotPrepared", "node/b")]


def test_daemon_that_does_not_become_ready_explains_its_domain() -> None:
    objects = state(not_ready(READY_A, WAITS_B), *held(), imex("b", "10.0.0.2", ready=False))

    (problem,) = judged(*objects).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ComputeDomainDaemonNotReady", "node/b")
    found = domain_problem(*objects).found
    assert "pod/dra/train-b on node/b: container compute-domain-daemon: running, but not ready" in found.evidence
    assert "`kubectl -n dra logs train-b --tail=100`" in found.steps[0]


def test_version_skew_that_keeps_the_daemon_from_starting_is_the_one_problem() -> None:
    daemon = imex("b", "", ready=False)
    daemon["status"] |= {"phase": "Pending", "containerStatuses": [waiting("ContainerCreating", name="c")]}
    skew = (
        "failed to fetch ResourceClaim c1 referenced by pod train-b: the server could not find the requested resource"
    )
    failed = event(daemon, "FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {skew}", count=30)

    (problem,) = judged(*state(not_ready(READY_A), *held(), daemon), failed).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ClaimApiVersionMismatched", "node/b")
    assert consequences(problem) == [("ComputeDomainDaemonNotReady", "node/b")]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "Error: CDI container edits did not apply -- is CDI enabled in your container runtime?",
            "`enable_cdi = true`",
        ),
        (
            "[ERROR] No matching network interface found for any IP addresses in the node configuration",
            "delete its pod",
        ),
        ("error getting next available index: cannot add more nodes, already at maximum (18)", "one per NVLink clique"),
        ("Waiting", "`kubectl -n dra logs train-b -c compute-domain-daemon --tail=50`"),
    ],
)
def test_daemon_that_does_not_become_ready_has_the_fix_of_its_log(line: str, step: str) -> None:
    log = {("pod/dra/train-b", "compute-domain-daemon"): line}
    objects = state(not_ready(READY_A, WAITS_B), *held(), imex("b", "10.0.0.2", ready=False))

    (problem,) = judged(*objects, logs=log).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ComputeDomainDaemonNotReady", "node/b")
    assert step in problem.found.steps[0]


def test_imex_service_of_the_host_is_turned_off() -> None:
    log = {("pod/dra/train-b", "compute-domain-daemon"): f"Start: nvidia-imex -c /imexd/imexd.cfg\n{IN_USE}\n"}
    objects = state(not_ready(READY_A, WAITS_B), *held(), imex("b", "10.0.0.2", ready=False))

    (problem,) = judged(*objects, logs=log).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ImexHeldByHost", "node/b")
    assert "On b, stop the host's service: `systemctl disable --now nvidia-imex`" in problem.found.steps[0]
    assert "`systemctl mask nvidia-imex`" in problem.found.steps[0]
    assert "`kubectl -n dra delete pod train-b`" in problem.found.steps[1]
    below = domain_problem(*objects, logs=log)
    assert below.found.cause.name == "ComputeDomainNotReady"
    # The service is off, the daemon is ready: nothing is left of the old log.
    assert results(judged(*state(), logs=log)) == []


def test_pasted_log_of_a_daemon_names_the_hosts_service() -> None:
    known = known_in(f"[INFO] IMEX version 570.00 is running\n{IN_USE}")

    assert known is not None
    assert known.cause.name == "ImexHeldByHost"


def test_imex_session_of_another_domain_is_not_the_hosts() -> None:
    log = {("pod/dra/train-b", "compute-domain-daemon"): IN_USE}
    other = imex("b", "10.0.0.5")
    other["metadata"] |= {"name": "old-b", "uid": "old-b", "labels": {DOMAIN_LABEL: "d0-0"}}
    objects = state(not_ready(READY_A, WAITS_B), *held(), imex("b", "10.0.0.2", ready=False), other)

    (problem,) = judged(*objects, logs=log).problems

    assert problem.found.cause.name == "ComputeDomainDaemonNotReady"
    assert "or another ComputeDomain's" in problem.found.steps[0]


@pytest.mark.parametrize(
    ("line", "is_held"),
    [
        ("NV_ERR_IN_USE Failed to allocate Imex session", True),
        ("Failed to allocate Imex session", True),
        ("Failed to allocate Imex session with error NV_ERR_INSUFFICIENT_PERMISSIONS", False),
        ("Failed to open a socket: NV_ERR_IN_USE", False),
    ],
)
def test_texts_of_an_imex_session_in_use(line: str, is_held: bool) -> None:
    log = {("pod/dra/imex-b", "main"): line}
    image = "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.1"
    unready = {"name": "main", "ready": False, "restartCount": 0, "state": {"running": {"startedAt": ago(30)}}}
    daemon_b = pod(
        "imex-b",
        0,
        on="b",
        namespace="dra",
        owner=("DaemonSet", "imex"),
        containers=[{"name": "main", "image": image}],
        states=[unready],
    )

    found = [cause for cause, _ in results(judged(node("b"), daemon_b, logs=log))]

    assert ("ImexHeldByHost" in found) is is_held


def test_imex_session_in_use_is_recognised_in_an_event_of_the_probe() -> None:
    pod_b = imex("b", "10.0.0.2", ready=False)
    text = "Startup probe failed: nvidia-imex-ctl failed, stdout/err: imex: NV_ERR_IN_USE"
    objects = state(not_ready(READY_A, WAITS_B), *held(), pod_b, event(pod_b, "Unhealthy", text, count=400))

    (problem,) = judged(*objects).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ImexHeldByHost", "node/b")


def test_node_that_is_not_ready_explains_its_domain() -> None:
    objects = state(node("b", labels=MINE, ready="Unknown"), not_ready(READY_A), *held())

    roots = results(judged(*objects))

    assert roots == [("NodeNotReady", "node/b")]
    assert "node/b of the domain is not ready" in domain_problem(*objects).found.evidence


def test_domain_without_a_visible_reason_is_likely() -> None:
    objects = state(not_ready(READY_A, entry("b", 1, "10.0.0.2")), *held())

    found = domain_problem(*objects).found

    assert (found.cause.name, found.certainty) == ("ComputeDomainNotReady", Certainty.LIKELY)
    assert "`kubectl -n dra logs ctl-5d-x --tail=100`" in found.steps[0]


PEERS: dict[str, tuple[list[Object], str]] = {
    "an entry that was lost": (
        state(domain(READY_A, wanted=2)),
        "pod/dra/train-b runs with 10.0.0.2, and the domain's status lacks node/b",
    ),
    "an old address": (
        state(domain(READY_A, entry("b", 1, "10.0.0.7"))),
        "pod/dra/train-b runs with 10.0.0.2, and the domain's status has 10.0.0.7 for it",
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_daemon_with_a_wrong_entry_is_a_lost_peer(name: str) -> None:
    objects, evidence = PEERS[name]

    (problem,) = judged(*objects).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ComputeDomainPeerLost", DOMAIN)
    assert problem.found.evidence == (evidence,)
    assert "`kubectl -n dra delete pod train-b`" in problem.found.steps[0]
    assert "Keep the ComputeDomain itself" in problem.found.steps[1]


def test_daemon_that_is_gone_while_its_pods_run_is_a_lost_peer() -> None:
    (problem,) = judged(*state(node("b"), without=("train-b",))).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ComputeDomainPeerLost", DOMAIN)
    assert "node/b has no daemon: it lacks the label" in problem.found.evidence[0]


def test_node_that_has_just_become_not_ready_is_no_lost_peer_yet() -> None:
    fresh = node("b", labels=MINE)
    fresh["status"]["conditions"] = [condition("Ready", "Unknown", minutes=2)]

    assert not results(judged(*state(fresh)))


def test_node_that_left_the_cluster_is_a_lost_peer() -> None:
    (gone,) = judged(*state(without=("b", "w-b", "train-b", "plugin-b"))).problems
    silent = state(node("b", labels=MINE, ready="Unknown"))

    assert (gone.found.cause.name, gone.found.subject) == ("ComputeDomainPeerLost", DOMAIN)
    assert gone.found.evidence == ("node/b is in the domain, and does not exist",)
    assert results(judged(*silent)) == [("NodeNotReady", "node/b")]
    assert domain_problem(*silent).found.cause.name == "ComputeDomainPeerLost"


def test_two_daemons_of_a_clique_with_one_index_are_a_conflict() -> None:
    (problem,) = judged(*state(domain(READY_A, entry("b", 0, "10.0.0.2")))).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ComputeDomainIndexConflict", DOMAIN)
    assert problem.found.evidence == ("node/a and node/b both have index 0 in clique c.1",)
    assert "`kubectl -n dra delete pod train-b`" in problem.found.steps[0]


def test_daemon_that_runs_with_another_index_is_a_conflict() -> None:
    name = "Treating node config entry 'compute-domain-daemon-7555db58d7-0000' as a host name.\n"
    first, last = (f"{name}[INFO] [tid 39] Identified this node as ID {number}, using bind IP" for number in (1, 0))
    swapped = {("pod/dra/train-b", "compute-domain-daemon"): f"{first}\n{last}\n"}
    agrees = {("pod/dra/train-b", "compute-domain-daemon"): f"{last}\n{first}\n"}

    (problem,) = judged(*state(), logs=swapped).problems

    assert (problem.found.cause.name, problem.found.subject) == ("ComputeDomainIndexConflict", DOMAIN)
    assert problem.found.evidence == ("pod/dra/train-b runs as ID 0, and the status has index 1 for node/b",)
    assert problem.found.certainty is Certainty.PROVEN
    assert not results(judged(*state(), logs=agrees))
    of_addresses = {key: text.replace("compute-domain-daemon-", "") for key, text in swapped.items()}
    assert judged(*state(), logs=of_addresses).problems[0].found.certainty is Certainty.LIKELY


def test_domains_that_may_not_be_listed_are_named_only_where_pods_use_one() -> None:
    used = judged(*state(without=("train",)), missing=["ComputeDomain"])
    unused = judged(node("a"), pod("t", 1, on="a"), missing=["ComputeDomain"])

    assert "ComputeDomain" in {one.kind for one in used.unseen}
    assert "ComputeDomain" not in {one.kind for one in unused.unseen}
