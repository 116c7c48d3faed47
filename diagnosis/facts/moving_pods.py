"""Steps that move the pods of a workload off a node, by the effect on the workload. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.facts.safe_steps import recreate
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.operations.pod_removal import (
    MOST_RULES,
    WITH_RETRIES,
    Fate,
    OwnerRef,
    Removal,
    RemovalEffect,
    RemovedPod,
    Retries,
    removal_effect,
)

_CHECKPOINT = "If the job still makes progress, let it write a checkpoint. Then "
_MOST_WORKLOADS, _MOST_PODS = 4, 8
_JOB_UID = "batch.kubernetes.io/controller-uid"
_SUSPEND = {
    **dict.fromkeys(("job", "jobset", "trainjob"), '{"spec":{"suspend":true}}'),
    **dict.fromkeys(("pytorchjob", "mpijob"), '{"spec":{"runPolicy":{"suspend":true}}}'),
}
"""Patch that stops all pods of a workload without counting a failure, by kind."""


def steps_to_move(snapshot: Snapshot, pods: Sequence[Pod], where: str, *, works: bool = True) -> Iterator[str]:
    """Yield the steps that move pods of one node, so that their workloads continue on nodes `where`.

    `works`: whether the pods may still make progress.
    """
    by_owner = grouped((snapshot.line(pod.meta)[:2][-1], pod) for pod in pods)
    for some in list(by_owner.values())[:_MOST_WORKLOADS]:
        yield from _steps(snapshot, some, where, _CHECKPOINT if works else "")


def _steps(snapshot: Snapshot, pods: Sequence[Pod], where: str, checkpoint: str) -> Iterator[str]:
    first, owner = pods[0], pods[0].meta.owner
    names = [pod.meta.name for pod in pods[:_MOST_PODS]]
    delete = command("kubectl", "-n", first.meta.namespace, "delete", "pod", *names)
    deletion, eviction = (_effect(snapshot, pods, removal) for removal in (Removal.DELETION, Removal.EVICTION))
    if deletion.fate is Fate.GONE:
        yield from [f"{checkpoint.removesuffix(' Then ')}"] if checkpoint else []
        yield from recreate(snapshot, pods)
    elif owner is not None and owner.kind == "DaemonSet":
        yield f"Fix the node first: its DaemonSet {owner.name} creates {first.subject} there again."
    elif deletion.fate is Fate.CONTINUES:
        yield _sentence(f"{checkpoint}delete its pods there, so that it continues on {where}: {delete}")
    elif deletion.fate is Fate.UNKNOWN and eviction.fate is not Fate.CONTINUES:
        condition = f"if its retries allow it ({deletion.text})"
        yield _sentence(f"{checkpoint}delete its pods there, so that it continues on {where}, {condition}: {delete}")
    else:
        yield f"Do not delete its pods there: {deletion.text}."
        if eviction.fate is not Fate.CONTINUES:
            yield from _suspend(snapshot, first, where)
            checkpoint = "If its pods do not wait for each other, instead "
        if owner is not None and eviction.fate < deletion.fate and first.spec.node in snapshot.by_node:
            selector = f"--pod-selector={_JOB_UID}={owner.uid}"
            drain = command("kubectl", "drain", first.spec.node, selector, "--delete-emptydir-data")
            evict = f"{checkpoint}evict its pods there, which it does not count"
            yield _sentence(f"{evict}, so that it continues on {where}: {drain}")
            yield from _uncordon(snapshot, first)


def _uncordon(snapshot: Snapshot, pod: Pod) -> Iterator[str]:
    node = snapshot.by_node.get(pod.spec.node)
    if node is not None and node.withheld and not node.cordoned:
        uncordon = command("kubectl", "uncordon", node.name)
        yield f"Then remove the cordon that this sets, as a taint keeps new pods off: {uncordon}"


def _suspend(snapshot: Snapshot, pod: Pod, where: str) -> Iterator[str]:
    lines = (text.split("/") for text in reversed(snapshot.line(pod.meta)[1:]))
    kind, name = next(((parts[0], parts[-1]) for parts in lines if parts[0] in _SUSPEND), ("", ""))
    if not kind:
        return
    stop, start = (
        command("kubectl", "-n", pod.meta.namespace, "patch", kind, name, "--type=merge", "-p", patch)
        for patch in (_SUSPEND[kind], _SUSPEND[kind].replace("true", "false"))
    )
    yield f"Suspend it, after a checkpoint: that ends all its pods and counts no failure: {stop}"
    yield f"When its pods are gone, resume it, so that it continues on {where}: {start}"


def _effect(snapshot: Snapshot, pods: Sequence[Pod], removal: Removal) -> RemovalEffect:
    chain, unread = _chain(snapshot, pods[0])
    owner = pods[0].meta.owner
    removed = [RemovedPod(pod.meta.labels, pod.meta.annotations) for pod in pods]
    return removal_effect(removal, removed, OwnerRef(owner.kind, owner.name) if owner else None, chain, unread)


def _chain(snapshot: Snapshot, pod: Pod) -> tuple[list[Retries | None], str]:
    """Return the rules of the pod's controllers; None for one that was not read, with the reason."""
    chain: list[Retries | None] = []
    owner = pod.meta.owner
    while owner is not None and owner.kind in WITH_RETRIES and len(chain) < MOST_RULES:
        workload = snapshot.workload.get(subject(owner.kind, pod.meta.namespace, owner.name))
        # Another API may have a kind of this name, such as Volcano's Job.
        if workload is None or (owner.uid and workload.meta.uid not in ("", owner.uid)):
            return [*chain, None], snapshot.missing.get(owner.kind, "it was not found")
        chain.append(workload.retries)
        owner = workload.meta.owner
    return chain, ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
