"""Find GPU pods that HAMi's webhook did not change, and the reason: it was not called, or left them unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpu_healthcheck.diagnosis.causes.hami.control_plane import unreachable
from gpu_healthcheck.diagnosis.causes.hami.denials import CHART, NODE_NAMED, PLUGIN_FILES, PRIVILEGED, WEBHOOK_FILE
from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.facts.components import is_ready
from gpu_healthcheck.diagnosis.facts.gpu_requests import SHARES, gpu_pods, gpus_of
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.facts.safe_steps import recreate
from gpu_healthcheck.diagnosis.facts.symptoms import replaced, shortened
from gpu_healthcheck.diagnosis.hami.installation import (
    IGNORE,
    Installation,
    asks_for,
    installations,
    is_scheduled,
    is_there,
    schedulers,
)
from gpu_healthcheck.diagnosis.model import (
    Cause,
    Certainty,
    Family,
    FoundCause,
    Link,
    Origin,
    Search,
    origins,
    rejecting,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import Webhook
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.moments import timestamp

_fault = Family(None)
_admitted = Family(Link.ADMITTED)
_accepted = Family(Link.ACCEPTED)
WEBHOOK_MISSING = _fault(
    "HamiWebhookMissing",
    "HAMi's scheduler has no webhook that assigns pods to it: Kubernetes' scheduler gets all pods and knows no shares.",
    "Reinstall HAMi's chart with its admission webhook.",
    source=f"{CHART}/webhook.yaml: the webhook vgpu.hami.io",
)
IGNORED = _admitted(
    "HamiWebhookIgnored",
    "GPU pods do not reach HAMi's webhook, because of a label or its selector: Kubernetes' scheduler schedules them.",
    "Remove the label, or change the webhook's selector; then create the pods again.",
    source="the label hami.io/webhook=ignore; namespaceSelector and objectSelector of the webhook",
)
OTHER_SCHEDULER = _admitted(
    "HamiOtherScheduler",
    "A workload names another scheduler, and HAMi's webhook does not replace it: its pods get no card.",
    "Remove schedulerName from the pod template, or set HAMi's scheduler there.",
    source=f"{WEBHOOK_FILE}: `pod already has different scheduler assigned`, since 2.7",
)
MISSED = _admitted(
    "HamiWebhookMissed",
    "GPU pods were created while HAMi's webhook did not respond; failurePolicy Ignore let them pass unchanged.",
    "When the webhook responds again, delete the pods: their controller creates new ones, which pass the webhook.",
    source="failurePolicy: Ignore of the webhook vgpu.hami.io, the chart's default",
)
NOT_SEEN = _accepted(
    "HamiNoBindingPod",
    "HAMi's device plugin got a card request for a pod that HAMi's scheduler has not bound.",
    "Find out why the pod did not reach HAMi's webhook, then create the pod again.",
    rejecting(r"no binding pod found on node|no node lock naming a pending pod", PLUGIN_FILES),
    source="HAMi, GetPendingPod: `no binding pod found on node`",
)


_RESPONDS = "Check that the webhook responds now; otherwise the new pod misses it, too."
_HOOKS = "MutatingWebhookConfiguration"
_DEFAULT = ("", "default-scheduler")
_Reason = tuple[Cause, str, str, tuple[str, ...]]
"""Cause, object to change, evidence and remedy."""


def find_bypassed(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that missed the webhook: rejected by the kubelet, or waiting for a share of a HAMi card."""
    every = installations(snapshot)
    for pod in gpu_pods(snapshot):
        if every and not is_scheduled(snapshot, pod) and _lacks_hami(snapshot, pod):
            asked = tuple(installation for installation in every if asks_for(pod.spec, installation.settings))
            yield _bypassed(snapshot, asked or every, pod)


def above(snapshot: Snapshot, pod: Pod) -> tuple[Origin, ...]:
    """Return causes that may explain why HAMi did not process the pod, if they are found too."""
    workload, namespace = snapshot.line(pod.meta)[-1], f"namespace/{pod.meta.namespace}"
    every = installations(snapshot)
    hooks = [hook.configuration.subject for installation in every for hook in installation.webhooks]
    return (
        *origins((IGNORED, OTHER_SCHEDULER, PRIVILEGED, NODE_NAMED, MISSED), workload),
        *origins((IGNORED,), namespace, *hooks),
        *origins((WEBHOOK_MISSING,), *(installation.subject for installation in every)),
    )


def _lacks_hami(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod was rejected, or waits, because HAMi's scheduler does not handle it."""
    if pod.phase == "Failed":
        return NOT_SEEN.texts[0].search(pod.message) is not None and not replaced(snapshot, pod)
    condition = pod.condition("PodScheduled")
    waits = not pod.spec.node and not pod.over and pod.meta.deleted is None and not pod.spec.gates
    return (
        waits
        and condition is not None
        and condition.status == "False"
        and any(SHARES & {*container.limits, *container.requests} for container in pod.spec.containers)
    )


def _bypassed(snapshot: Snapshot, every: tuple[Installation, ...], pod: Pod) -> FoundCause:
    workload, quote = snapshot.line(pod.meta)[-1], _quote(pod)
    reason = _not_called(snapshot, every, pod, workload) or _left_unchanged(snapshot, pod, workload)
    if reason is not None:
        cause, to_change, evidence, fix = reason
        return FoundCause(cause, to_change, (evidence, quote), fix, (pod.subject,))
    hooks = [hook for installation in every for hook in installation.webhooks]
    if snapshot.sees(_HOOKS) and not hooks:
        evidence = f"no MutatingWebhookConfiguration has a webhook vgpu.hami.io for {every[0].subject}"
        return FoundCause(WEBHOOK_MISSING, every[0].subject, (evidence, quote), (), (pod.subject,))
    again = recreate if pod.over else partial(steps_to_move, where="a node that HAMi chooses", works=False)
    remedy = [_RESPONDS, *again(snapshot, [pod])]
    if any(not hook.fails_closed for hook in hooks):
        remedy.append("To prevent this, run two replicas of the scheduler, or set the webhook's failurePolicy to Fail.")
    because = tuple(origin for installation in every for origin in unreachable(installation))
    doubts = tuple(_doubts(snapshot, hooks))
    certainty = Certainty.LIKELY if doubts else Certainty.PROVEN
    outage = (line for installation in every for line in _outage(installation, pod))
    return FoundCause(MISSED, workload, (quote, *outage, *doubts), tuple(remedy), (pod.subject,), certainty, because)


def _doubts(snapshot: Snapshot, hooks: list[Webhook]) -> Iterator[str]:
    """Yield other possible reasons why the webhook was not called, which can't be checked."""
    if not snapshot.sees(_HOOKS):
        yield "the webhook's selector is not visible: it may also exclude the pod"
    for hook in (hook for hook in hooks if hook.conditions):
        conditions = ", ".join(hook.conditions)
        yield f"{hook.configuration.subject}: its matchConditions ({conditions}) may also have excluded the pod"


def _not_called(snapshot: Snapshot, every: tuple[Installation, ...], pod: Pod, workload: str) -> _Reason | None:
    """Return the reason if labels keep the API server from calling the webhook; None if they do not."""
    key, value = IGNORE
    namespace = snapshot.namespace.get(pod.meta.namespace)
    if pod.meta.labels.get(key) == value:
        remedy = (f"Remove {key}={value} from the labels of the pod template of {workload}.",)
        return IGNORED, workload, f"{pod.subject} has the label {key}={value}", remedy
    if namespace is not None and namespace.labels.get(key) == value:
        remedy = (f"Remove the label: {command('kubectl', 'label', 'namespace', namespace.name, f'{key}-')}",)
        return IGNORED, namespace.subject, f"{namespace.subject} has the label {key}={value}", remedy
    hooks = [hook for installation in every for hook in installation.webhooks]
    for hook in hooks if not any(_selects(hook, snapshot, pod) for hook in hooks) else ():
        by_pod = f"its objectSelector does not match {pod.subject}"
        by_namespace = f"its namespaceSelector does not match namespace/{pod.meta.namespace}"
        why = by_namespace if hook.objects.takes(pod.meta.labels) else by_pod
        remedy = (f"Change it: {kubectl('edit', hook.configuration)}",)
        return IGNORED, hook.configuration.subject, f"{hook.configuration.subject}: {why}", remedy
    return None


def _selects(hook: Webhook, snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the API server calls the webhook for the pod, or the labels of the pod's namespace are not visible."""
    namespace = snapshot.namespace.get(pod.meta.namespace)
    return (namespace is None or hook.namespaces.takes(namespace.labels)) and hook.objects.takes(pod.meta.labels)


def _left_unchanged(snapshot: Snapshot, pod: Pod, workload: str) -> _Reason | None:
    """Return the reason if the webhook was called and left the pod unchanged; None if none is known."""
    ours = " or ".join(sorted(schedulers(snapshot)))
    if pod.spec.scheduler not in _DEFAULT:
        evidence = f"{pod.subject} names the scheduler {pod.spec.scheduler}; HAMi's is {ours}"
        remedy = (f"Remove schedulerName from the template of {workload}, or set {ours}.",)
        return OTHER_SCHEDULER, workload, evidence, remedy
    maker = snapshot.workload.get(workload)
    if maker is not None and maker.spec is not None and maker.spec.node:
        return NODE_NAMED, workload, f"{workload} names nodeName {maker.spec.node}", ()
    asking = [container for container in pod.spec.containers if gpus_of(container)]
    if asking and all(container.privileged for container in asking):
        return PRIVILEGED, workload, f"{pod.subject}: container {asking[0].name} is privileged", ()
    return None


def _quote(pod: Pod) -> str:
    condition = pod.condition("PodScheduled")
    message = pod.message if pod.phase == "Failed" else condition.message if condition is not None else ""
    scheduler, quote = pod.spec.scheduler or _DEFAULT[1], shortened(message.partition(" preemption:")[0])
    return f"{pod.subject}: schedulerName {scheduler}, no HAMi annotation: {quote}"


def _outage(installation: Installation, pod: Pod) -> Iterator[str]:
    """Yield the facts that show that the webhook did not respond when the pod was created."""
    for hook in installation.webhooks:
        if not hook.fails_closed:
            yield f"{hook.configuration.subject}: failurePolicy Ignore: without a response, pods pass unchanged"
    ready = [each for each in installation.scheduler_pods if is_ready(each)]
    started = [state.started for each in ready for state in each.states if state.started is not None]
    created = pod.meta.created
    if started and created is not None and created < min(started):
        since = timestamp(min(started))
        yield f"the pod was created {timestamp(created)}; {ready[0].subject} runs only since {since}"


CAUSES = (IGNORED, OTHER_SCHEDULER, PRIVILEGED, NODE_NAMED, WEBHOOK_MISSING, MISSED)
SEARCHES = (Search(CAUSES, ("Pod",), find_bypassed, is_there),)
