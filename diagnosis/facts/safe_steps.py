"""Steps that recreate pods and keep new ones off a faulty node, and that change nothing beside. Pure."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Iterator, Sequence

from gpu_healthcheck.diagnosis.facts.commands import command, in_namespace, kubectl, logs, pods_on
from gpu_healthcheck.diagnosis.facts.components import Role, components
from gpu_healthcheck.diagnosis.facts.quantity import counted
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import Meta
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, condition_in

_MOST_NAMES, _MOST_OBJECTS = 20, 4
BARE = "which no controller creates again"
_MAYBE_BARE = "or only delete what a controller creates again"
"""The same of a pod of which a text shows no object of the API, and perhaps not its owner."""
_FAILED = ("Failed", "FailureTarget")
"""Conditions of a Job, JobSet or Kubeflow job that creates no more pods."""
_UNBOUND = {"spec": {"nodeName": None}}
"""Patch of a saved pod: with its node's name, the scheduler would not choose one."""
_GENERATED = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")
_JOB = {"spec": {"selector": None, "template": {"metadata": {"labels": dict.fromkeys(_GENERATED)}}}}
"""Patch of a saved Job: the API server generates its selector and these labels, and refuses those of another Job."""


def keep_off(snapshot: Snapshot, node: str) -> Iterator[str]:
    """Yield the first step on a node whose GPU is lost, unless new pods are kept off already."""
    known = snapshot.by_node.get(node)
    if node and not (known is not None and (known.cordoned or known.withheld)):
        yield f"First keep new pods off the node: {command('kubectl', 'cordon', node)}"


def let_in(snapshot: Snapshot, node: str) -> Iterator[str]:
    """Yield the last step on a node that `keep_off` has cordoned."""
    if any(keep_off(snapshot, node)):
        yield f"When the node's GPUs are healthy, let pods start there again: {command('kubectl', 'uncordon', node)}"


def repair_gpu(snapshot: Snapshot, node: str, rejected: Sequence[Pod] = ()) -> Iterator[str]:
    """Yield the steps that end the loss of a GPU on a node, with our commands if our agent runs there.

    A drain would delete ended pods of others with their logs. The rejected pods are recreated before our reset, which
    drains the node.
    """
    yield from keep_off(snapshot, node)
    yield from recreate(snapshot, rejected)
    known = snapshot.by_node.get(node)
    if known is None or known.record is None:
        yield f"Let the pods that still work there end, or move them: {pods_on(node)}"
        yield "Then reset the GPU, or reboot the machine, which a GPU that is off its bus needs."
    elif known.faults:
        reset = command("gpu-healthcheck", "reset", node)
        yield f"Then reset its faulty GPUs, and with --reboot if that is not enough: {reset}"
    else:
        yield f"Then drain and reboot it: {command('gpu-healthcheck', 'reset', node, '--reboot')}"
    yield "A GPU that is lost again must be replaced."
    yield from let_in(snapshot, node)


def restart_plugin(snapshot: Snapshot, node: str, when: str = "Then") -> Iterator[str]:
    """Yield the steps that restart the device plugin's pod on a node, which its DaemonSet creates again."""
    pods = plugin_pods(snapshot, node)
    for pod in pods:
        yield f"Read the log of the node's device plugin: {logs(pod.meta, '--tail=50')}"
        yield f"{when} restart the device plugin: {kubectl('delete', pod.meta)}"
    if not pods:
        first = "Restart" if when == "Then" else f"{when} restart"
        yield f"{first} the device plugin: delete its pod on the node. Its name: {pods_on(node)}"


def plugin_pods(snapshot: Snapshot, node: str) -> list[Pod]:
    """Return the pods of device plugins for GPUs on the node."""
    roles = (Role.DEVICE_PLUGIN, Role.HAMI_PLUGIN)
    return [pod for each in components(snapshot) if each.role in roles and (pod := each.pod_on(node)) is not None]


def recreate(snapshot: Snapshot, pods: Sequence[Pod], *, changed: bool = False) -> Iterator[str]:
    """Yield the steps after which workloads of pods that ended, or never started, have fresh ones.

    `changed`: whether a pod that is created as it was would fail again. `moving_pods` has the steps for pods that still
    work.
    """
    failed = {pod.subject: job for pod in pods if (job := _failed_job(snapshot, pod)) is not None}
    live = [pod for pod in pods if pod.subject not in failed]
    for (namespace, node), some in grouped(((pod.meta.namespace, pod.spec.node), pod) for pod in live).items():
        bare = [pod.meta.name for pod in some if pod.meta.owner is None]
        owned = [pod for pod in some if pod.meta.owner is not None]
        if owned:
            yield _delete(snapshot, namespace, node, owned)
        if bare:
            why = BARE if all(pod.meta.uid for pod in some) else _MAYBE_BARE
            yield from save_and_recreate(namespace, "pod", bare, why, _UNBOUND, changed)
    for job in list({each.subject: each for each in failed.values()}.values())[:_MOST_OBJECTS]:
        kind, why = job.kind.lower(), "which has failed, and creates no more pods"
        yield from save_and_recreate(job.namespace, kind, [job.name], why, _JOB if kind == "job" else None, changed)


def _failed_job(snapshot: Snapshot, pod: Pod) -> Meta | None:
    """Return the object that a person, or a CronJob, wrote for this pod if it has failed for good; else None."""
    above = [subject for subject in snapshot.line(pod.meta)[1:] if not subject.startswith("cronjob/")]
    job = snapshot.workload.get(above[-1]) if above else None
    return job.meta if job and any(condition_in(job.conditions, kind, "True") for kind in _FAILED) else None


def _delete(snapshot: Snapshot, namespace: str, node: str, pods: Sequence[Pod]) -> str:
    """Return the step that deletes pods of controllers: by name, or many by a selector that takes no other pod."""
    names = [pod.meta.name for pod in pods]
    owners = {f"{pod.meta.owner.kind} {pod.meta.owner.name} creates" for pod in pods if pod.meta.owner is not None}
    makers = owners.pop() if len(owners) == 1 else "their controllers create"
    which = counted(len(names), "Failed pod" if all(map(_is_failed, pods)) else "pod")
    selector = _selector(snapshot, namespace, node, pods) if len(names) > _MOST_NAMES else ()
    by_name = command("kubectl", *in_namespace(namespace), "delete", "pod", *names[:_MOST_NAMES])
    delete = command("kubectl", *in_namespace(namespace), "delete", "pods", *selector) if selector else by_name
    return f"Delete {which}, for which {makers} others{'' if selector else _rest(names)}: {delete}"


def _selector(snapshot: Snapshot, namespace: str, node: str, pods: Sequence[Pod]) -> tuple[str, ...]:
    """Return options that select exactly these Failed pods among the visible ones; () if there are none.

    Without a label, they would also take a pod of others that fails until the command runs.
    """
    listed = {pod.subject for pod in pods}
    there = [pod for pod in snapshot.pods_on.get(node, ()) if pod.meta.namespace == namespace and _is_failed(pod)]
    fields = f"--field-selector=spec.nodeName={node},status.phase=Failed"
    common = sorted(set.intersection(*(set(pod.meta.labels.items()) for pod in pods)))
    for key, value in common if node and snapshot.sees("Pod") else ():
        if {pod.subject for pod in there if pod.meta.labels.get(key) == value} == listed:
            return fields, f"--selector={key}={value}"
    return ()


def _rest(names: Sequence[str]) -> str:
    return f"; diagnose then names the other {len(names) - _MOST_NAMES}" if len(names) > _MOST_NAMES else ""


def _is_failed(pod: Pod) -> bool:
    return pod.phase == "Failed"


def save_and_recreate(
    namespace: str, kind: str, names: Sequence[str], why: str, patch: object, changed: bool = False
) -> Iterator[str]:
    """Yield the steps that save the manifests of objects, delete the objects, and create them anew."""
    some = [*names[:_MOST_NAMES]]
    file = shlex.quote(f"{posixpath.basename(some[0])}.yaml")
    of_them = f"{kind} {some[0]}" if len(some) == 1 else f"{len(some)} pods"
    save = shlex.join(("kubectl", *in_namespace(namespace), "get", kind, *some, "-o", "yaml"))
    delete = shlex.join(("kubectl", *in_namespace(namespace), "delete", kind, *some))
    patched = shlex.join(("kubectl", "patch", "--local", "--type=merge", "-o", "json", "-p", json.dumps(patch)))
    create = f"{patched} -f {file} | kubectl create -f -" if patch is not None else f"kubectl create -f {file}"
    yield f"Save the manifest of {of_them}, {why}: `{save} > {file}`"
    change = "correct the file, " if changed else ""
    what = "delete" if kind == "pod" else "delete it with its pods and their logs,"
    yield f"Then {change}{what} and create from the file{_rest(names)}: `{delete} && {create}`"
