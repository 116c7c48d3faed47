"""Find multi-node jobs whose ranks talk over TCP although their nodes have EFA, or whose node has RDMA ports down."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache

from gpu_healthcheck.diagnosis.causes.crashing_table import POD_IDENTITY
from gpu_healthcheck.diagnosis.causes.efa_devices import COUNTS_MLX5, LEAVES_OUT, NO_EFA, efa_plugins
from gpu_healthcheck.diagnosis.causes.faulty_gpus import is_gang
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import group_subject
from gpu_healthcheck.diagnosis.facts.commands import command, explain, kubectl, logs
from gpu_healthcheck.diagnosis.facts.components import role_of
from gpu_healthcheck.diagnosis.facts.efa import (
    EFA_CLASS,
    PORT_DOWN,
    claim_of,
    claimable_nodes,
    claims_efa,
    is_multi_node_type,
    is_privileged,
    is_rank,
    mlx5_on,
    offered_efa,
    profile_of,
    requests_efa,
    type_of,
    uses_efa,
)
from gpu_healthcheck.diagnosis.facts.gpu_nodes import EFA, GPU, GPU_DRIVERS, WHOLE, pool_kind
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods, is_deep_test
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.facts.placement import ZERO, asked_by, offers
from gpu_healthcheck.diagnosis.facts.symptoms import shortened, since_and_detail
from gpu_healthcheck.diagnosis.model import (
    Cause,
    CauseSeverity,
    Certainty,
    Family,
    FoundCause,
    Link,
    Origin,
    Search,
    failing,
    origins,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Node, RecordFinding
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.naming import named

_running = Family(Link.RUNNING, severity=CauseSeverity.MEDIUM)
NOT_REQUESTED = _running(
    "EfaNotRequested",
    "The pods of a multi-node job have all GPUs of nodes with EFA and request no EFA device: NCCL uses TCP between the "
    "nodes, at a fraction of the speed.",
    "Request the node's EFA devices beside its GPUs, by vpc.amazonaws.com/efa or by a claim of the class "
    "efa.networking.k8s.aws.",
    source="https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html",
)
HIDDEN = _running(
    "HostInfinibandHidesEfa",
    "A pod with EFA mounts the host's /dev/infiniband, which also has the node's mlx5 devices. libfabric has to open "
    "every device there and is refused those: it finds no EFA, and NCCL uses TCP.",
    "Remove the hostPath volume: the device plugin or DRANET adds exactly the allocated devices.",
    source="https://github.com/aws-samples/aws-do-eks/pull/63: `fi_info -p efa` ends with -61",
)
FALLS_BACK = _running(
    "NcclFallsBackToTcp",
    "A job has EFA devices, and its log shows that NCCL does not use them: aws-ofi-nccl is missing in the image, or "
    "libfabric finds no EFA device.",
    "Use an image with libfabric's EFA provider and aws-ofi-nccl on LD_LIBRARY_PATH. `fi_info -p efa` in the container "
    "lists the devices; the nodes' security group has to allow all traffic from and to itself.",
    failing(
        r"NET/Plugin: No plugin found \(libnccl-net\.so\)|NET/OFI (?:No eligible providers were found"
        r"|aws-ofi-nccl initialization failed|Could(?:n't| not) find any optimal provider"
        r"|OFI fi_getinfo\(\) call failed)|fi_getinfo: -61\b"
        r"|Initialized NET plugin Socket|Using network Socket"
        r"|Selected provider is (?:tcp|sockets|udp|verbs)\b",
        "NCCL, aws-ofi-nccl",
    ),
    source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html; logged with NCCL_DEBUG=INFO",
    follows=("HostInfinibandHidesEfa",),
)
UNDER_JOB = _running(
    "RdmaPortsDownUnderJob",
    "A multi-node job runs on a node with several RDMA ports down: NCCL hangs, fails, or sends all data through the "
    "ports that are left.",
    "Move the job to other nodes, then repair the ports: cables, optics, switch.",
    source="A finding RdmaPortDown of the agent, of each port that was active before",
)
_SEVERAL, _LONGEST = 2, 160
_HOST_DEVICES = frozenset(("/dev", "/dev/infiniband"))
_BY_EFA = re.compile(r"Selected provider is efa\b", re.IGNORECASE)
_BY_LIBFABRIC = re.compile(r"Using network (?:AWS )?Libfabric|Initialized NET plugin (?:AWS )?Libfabric", re.IGNORECASE)
_OTHER_PROVIDER = re.compile(r"Selected provider is", re.IGNORECASE)
_RUNS = re.compile(r"Init COMPLETE", re.IGNORECASE)
_LWS, _LWS_GROUP = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"
_MOST = 8


@lru_cache(maxsize=1)
def jobs(snapshot: Snapshot) -> Mapping[tuple[str, str], Sequence[Pod]]:
    """Return the running GPU pods by job: the object that a person wrote, and the replica of a LeaderWorkerSet."""
    return grouped((job_of(snapshot, pod), pod) for pod in gpu_pods(snapshot) if _is_at_work(snapshot, pod))


def find_not_requested(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield multi-node jobs without EFA whose pods each have all GPUs of a node with EFA."""
    for (job, _), pods in jobs(snapshot).items():
        nodes = {pod.spec.node: snapshot.by_node[pod.spec.node] for pod in pods}
        if len(nodes) < 2 or not (is_gang(job) or any(is_rank(pod) for pod in pods)):
            continue
        by_claims = claimable_nodes(snapshot)
        if any(
            not offered_efa(node) and name not in by_claims and not is_multi_node_type(node)
            for name, node in nodes.items()
        ):
            continue
        if any(uses_efa(snapshot, pod) or not _has_all_gpus(snapshot, pod) for pod in pods):
            continue
        yield _not_requested(snapshot, job, pods, list(nodes.values()))


def find_hidden(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield workloads whose pods see the host's RDMA devices instead of those allocated to them."""
    hidden = []
    for pod in snapshot.pods:
        path = next((path for path in pod.spec.host_paths if (path.rstrip("/") or path) in _HOST_DEVICES), "")
        node = snapshot.by_node.get(pod.spec.node)
        if not path or node is None or pod.over or pod.meta.deleted is not None or is_privileged(pod):
            continue
        mlx5 = mlx5_on(node)
        if mlx5 and (any(map(requests_efa, pod.spec.containers)) or claims_efa(snapshot, pod)):
            hidden.append((snapshot.line(pod.meta)[-1], (pod, path, mlx5)))
    for workload, some in grouped(hidden).items():
        pod, path, mlx5 = some[0]
        evidence = [f"{pod.subject} has EFA, is not privileged, and mounts hostPath {path}"]
        evidence.append(f"node/{pod.spec.node} has mlx5 devices beside EFA: {mlx5}")
        certainty = Certainty.LIKELY if "p6-b300" in mlx5 else Certainty.PROVEN
        volume = next(name for name, each in pod.spec.host_volumes.items() if each == path)
        remedy = (
            f"Remove the volume {volume} (hostPath {path}) and its volumeMounts from {workload}.",
            f"Then check in a new pod that `fi_info -p efa` lists the devices; now: {kubectl('describe', pod.meta)}",
        )
        yield FoundCause(HIDDEN, workload, tuple(evidence), remedy, tuple(pod.subject for pod, _, _ in some), certainty)


def find_in_logs(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield jobs whose log shows that NCCL uses TCP, or the wrong address, between nodes."""
    for (job, _), pods in jobs(snapshot).items():
        peers = {pod.subject: pod for pod in (*pods, *snapshot.pods_under.get(job, ()))}
        texts = [(pod, name, text) for pod in peers.values() for name, text in _texts(snapshot, pod)]
        nodes = tuple(dict.fromkeys(pod.spec.node for pod in pods))
        alone = len(nodes) < 2 and pods[0].meta.owner is not None
        if not alone and any(uses_efa(snapshot, pod) for pod in pods):
            found = ((pod, name, quote) for pod, name, text in texts if (quote := _fallback(text)))
            if (first := next(found, None)) is not None:
                subjects = tuple(f"node/{name}" for name in nodes)
                because = (*origins((HIDDEN,), job), *_not_offered(snapshot, subjects))
                yield _in_log(FALLS_BACK, job, pods, *first, because)
        for pod, name, text in texts:
            if quote := _wrong_address(text):
                yield _in_log(POD_IDENTITY, job, pods, pod, name, quote)
                break


def job_of(snapshot: Snapshot, pod: Pod) -> tuple[str, str]:
    """Return the object that a person wrote, and the replica if it is a LeaderWorkerSet, else ''.

    The owner of a LeaderWorkerSet's workers is their leader pod.
    """
    group = group_subject(pod) if pod.meta.owner is None else ""
    if group:
        return group, ""
    labels = pod.meta.labels
    name = labels.get(_LWS, "")
    job = subject("LeaderWorkerSet", pod.meta.namespace, name) if name else snapshot.line(pod.meta)[-1]
    return job, labels.get(_LWS_GROUP, "")


def _is_at_work(snapshot: Snapshot, pod: Pod) -> bool:
    if pod.spec.node not in snapshot.by_node or pod.over or pod.meta.deleted is not None:
        return False
    return not is_deep_test(pod) and role_of(pod.meta, {}, pod.spec) is None


def _has_all_gpus(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod has all GPUs of its node, by name or by claims."""
    node = snapshot.by_node[pod.spec.node]
    if node.hami.shared or pool_kind(node, GPU) != WHOLE:
        return False
    claims = (claim_of(snapshot, pod, name) for name in pod.spec.claims)
    claimed = (device for claim in claims if claim for device in claim.devices)
    owned = asked_by(pod.spec).get(GPU, ZERO) + sum(device.partition("/")[0] in GPU_DRIVERS for device in claimed)
    profile = profile_of(node)
    slices = (each for pool in snapshot.pools.values() for each in pool if each.node == node.name)
    published = sum(len(each.devices) for each in slices if each.driver in GPU_DRIVERS)
    total = offers(node, GPU) or Decimal(published or (profile.gpus if profile else 0))
    return owned >= total > 0


def _not_requested(snapshot: Snapshot, job: str, pods: Sequence[Pod], nodes: Sequence[Node]) -> FoundCause:
    names = [node.subject for node in nodes]
    evidence = [
        f"{len(pods)} pods on {len(nodes)} nodes, each with all GPUs of its node: {named(names, _MOST)}",
        f"none requests {EFA} or has a claim for EFA, and none is privileged",
    ]
    node, plugins = nodes[0], [plugin.subject for plugin in efa_plugins(snapshot)]
    profile = profile_of(node)
    number = offered_efa(node) or (profile.efa if profile is not None else 0)
    if offered_efa(node):
        evidence.append(f"{node.subject} offers {number} {EFA}")
        step = f"Set `{EFA}: {number}` in the limits of the container with the GPUs"
    elif node.name in claimable_nodes(snapshot):
        evidence.append(f"a DRA driver publishes the EFA devices of {node.subject}")
        step = f"Add a ResourceClaimTemplate of the class {EFA_CLASS} to the pod's resourceClaims"
    else:
        evidence.append(f"{node.subject}: type {type_of(node)} has {number} EFA interfaces; the node offers none")
        step = f"Install the EFA device plugin, or DRANET, on these nodes. Then set `{EFA}: {number}` in the limits"
    remedy = (
        f"{step}; the image needs libfabric's EFA provider and aws-ofi-nccl.",
        f"See what {pods[0].subject} requests: {kubectl('get', pods[0].meta, '-o', 'yaml')}",
    )
    because = (*_not_offered(snapshot, names), *origins((LEAVES_OUT,), *plugins))
    affected = tuple(pod.subject for pod in pods)
    return FoundCause(NOT_REQUESTED, job, tuple(evidence), remedy, affected, Certainty.LIKELY, because)


def _not_offered(snapshot: Snapshot, nodes: Sequence[str]) -> tuple[Origin, ...]:
    """Return the causes for which these nodes offer no EFA, or devices that are not EFA."""
    plugins = (plugin.subject for plugin in efa_plugins(snapshot))
    return (*origins((NO_EFA,), *nodes), *origins((COUNTS_MLX5,), *plugins, *nodes))


def _texts(snapshot: Snapshot, pod: Pod) -> Iterator[tuple[str, str]]:
    """Yield the log of each container, and the message of one that has ended."""
    for state in pod.states:
        log = snapshot.logs.get((pod.subject, state.name), "")
        ended = state.ended or (None if state.running else state.last_ended)
        yield state.name, "\n".join(filter(None, (log, ended.message.replace("\\n", "\n") if ended else "")))


def _fallback(text: str) -> str:
    """Return the line that shows that NCCL does not use EFA; '' if another line shows that it does."""
    if _BY_EFA.search(text) or (_BY_LIBFABRIC.search(text) and not _OTHER_PROVIDER.search(text)):
        return ""
    found = FALLS_BACK.texts[0].search(text)
    return _line(found) if found else ""


def _wrong_address(text: str) -> str:
    """Return the line with the agent's address; '' if NCCL was initialized later."""
    found = POD_IDENTITY.texts[0].search(text)
    return _line(found) if found and not _RUNS.search(text, found.end()) else ""


def _line(found: re.Match[str]) -> str:
    begin, end = found.string.rfind("\n", 0, found.start()) + 1, found.string.find("\n", found.end())
    return shortened(found.string[begin : end if end >= 0 else None])


def _in_log(
    cause: Cause, job: str, pods: Sequence[Pod], pod: Pod, container: str, quote: str, because: tuple[Origin, ...] = ()
) -> FoundCause:
    """Return the result that a line in the log of a pod of the job shows."""
    evidence = (f"{pod.subject}: log of {container}: {quote}",)
    remedy = (cause.remedy, f"Read its log: {logs(pod.meta, '-c', container)}")
    return FoundCause(cause, job, evidence, remedy, tuple(each.subject for each in pods), Certainty.LIKELY, because)


def find_under_jobs(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield nodes with several ports down and pods of multi-node jobs."""
    found: list[tuple[str, tuple[str, Pod]]] = []
    for (job, _), pods in jobs(snapshot).items():
        gang = is_gang(job) or any(map(is_rank, pods))
        if gang and len({pod.spec.node for pod in pods}) > 1:
            found += ((pod.spec.node, (job, pod)) for pod in pods)
    for name, some in grouped(found).items():
        node = snapshot.by_node[name]
        down = [finding for finding in node.findings if finding.reason == PORT_DOWN]
        if len(down) >= _SEVERAL:
            yield _under_job(snapshot, node, down, some)


def _under_job(
    snapshot: Snapshot, node: Node, down: Sequence[RecordFinding], some: Sequence[tuple[str, Pod]]
) -> FoundCause:
    names = tuple(dict.fromkeys(job for job, _ in some))
    evidence = [
        f"{node.subject}: {len(down)} RDMA ports are down",
        *(f"{port.subject}{since_and_detail(port)}" for port in down[:_MOST]),
    ]
    evidence += [
        f"{job} runs there: {named((pod.subject for of, pod in some if of == job), _MOST)}" for job in names[:_MOST]
    ]
    remedy = [f"See the action for {PORT_DOWN}: {explain(PORT_DOWN)}"]
    if not node.cordoned:
        remedy.append(f"Keep new pods off the node: {command('kubectl', 'cordon', node.name)}")
    remedy += steps_to_move(snapshot, [pod for _, pod in some], "other nodes")
    affected = (*(pod.subject for _, pod in some), *names)
    return FoundCause(UNDER_JOB, node.subject, tuple(evidence), tuple(remedy), affected)


SEARCHES = (
    Search((NOT_REQUESTED,), ("Node", "Pod"), find_not_requested),
    Search((HIDDEN,), ("Node", "Pod"), find_hidden),
    Search((FALLS_BACK, POD_IDENTITY), ("Node", "Pod"), find_in_logs),
    Search((UNDER_JOB,), ("Node", "Pod"), find_under_jobs),
)
