"""Find GPU pods that HAMi's webhook did not change, and the reason: it was not called, or left them unchanged."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.causes.hami.control_plane import unreachable
from diagnosis.causes.hami.hami_causes import CHART, NODE_NAMED, PLUGIN_FILES, PRIVILEGED, WEBHOOK_FILE
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.components import is_ready
from diagnosis.facts.gpu_requests import SHARES, gpu_pods, gpus_of
from diagnosis.facts.symptoms import replaced, shortened
from diagnosis.hami.installation import (
    IGNORE,
    Installation,
    asks_for,
    installations,
    is_scheduled,
    is_there,
    schedulers,
)
from diagnosis.model import Cause, Certainty, Family, FoundCause, Link, Origin, Search, origins, rejecting
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.pods import Pod
from diagnosis.snapshot.policy_objects import Webhook
from healthcheck.text.moments import timestamp

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


_LEAVES_OTHERS = (2, 7)
"""First version that does not replace another scheduler's name."""
_HOOKS = "MutatingWebhookConfiguration"
_DEFAULT = ("", "default-scheduler")


def find_bypassed(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods that missed the webhook: rejected by the kubelet, or waiting for a share of a HAMi card."""
    every = installations(snapshot)
    for pod in gpu_pods(snapshot):
        if every and not is_scheduled(snapshot, pod) and _suffers(snapshot, pod):
            asked = tuple(installation for installation in every if asks_for(pod.spec, installation.settings))
            yield _bypassed(snapshot, asked or every, pod)


def above(snapshot: Snapshot, pod: Pod) -> tuple[Origin, ...]:
    """Return causes that may explain why HAMi did not process the pod, if they are found too."""
    written, namespace = snapshot.line(pod.meta)[-1], f"namespace/{pod.meta.namespace}"
    every = installations(snapshot)
    hooks = [hook.configuration.subject for installation in every for hook in installation.webhooks]
    return (
        *origins((IGNORED, OTHER_SCHEDULER, PRIVILEGED, NODE_NAMED, MISSED), written),
        *origins((IGNORED,), namespace, *hooks),
        *origins((WEBHOOK_MISSING,), *(installation.subject for installation in every)),
    )


def _suffers(snapshot: Snapshot, pod: Pod) -> bool:
    if pod.phase == "Failed":
        return NOT_SEEN.texts[0].search(pod.message) is not None and not replaced(snapshot, pod)
    condition = pod.condition("PodScheduled")
    waits = not pod.spec.node and not pod.over and pod.meta.deleted is None
    return (
        waits
        and condition is not None
        and condition.status == "False"
        and not pod.spec.gates
        and any(SHARES & {*container.limits, *container.requests} for container in pod.spec.containers)
    )


def _bypassed(snapshot: Snapshot, every: tuple[Installation, ...], pod: Pod) -> FoundCause:
    written = snapshot.line(pod.meta)[-1]
    shown = _shown(pod)
    known = _kept_away(snapshot, every, pod, written) or _left_alone(snapshot, every, pod, written)
    if known is not None:
        cause, where, message, remedy = known
        return FoundCause(cause, where, (message, shown), remedy, (pod.subject,))
    if snapshot.sees(_HOOKS) and not any(installation.webhooks for installation in every):
        message = f"no MutatingWebhookConfiguration has a webhook vgpu.hami.io for {every[0].subject}"
        return FoundCause(WEBHOOK_MISSING, every[0].subject, (message, shown), (), (pod.subject,))
    evidence = (shown, *(line for installation in every for line in _was_away(installation, pod)))
    gone = kubectl("delete", pod.meta)
    remedy = (f"When the webhook responds, delete the pod; it is created again: {gone}", *_for_the_next_time(every))
    because = tuple(pair for installation in every for pair in unreachable(installation))
    doubts = tuple(_doubts(snapshot, every))
    certainty = Certainty.LIKELY if doubts else Certainty.PROVEN
    return FoundCause(MISSED, written, (*evidence, *doubts), remedy, (pod.subject,), certainty, because)


def _doubts(snapshot: Snapshot, every: tuple[Installation, ...]) -> Iterator[str]:
    """Yield other possible reasons why the webhook was not called, which can't be checked."""
    if not snapshot.sees(_HOOKS):
        yield "the webhook's selector is not visible: it may also exclude the pod"
    for hook in (hook for installation in every for hook in installation.webhooks if hook.conditions):
        named = ", ".join(hook.conditions)
        yield f"{hook.configuration.subject}: its matchConditions ({named}) may also have excluded the pod"


_Known = tuple[Cause, str, str, tuple[str, ...]]
"""Cause, object to change, evidence and remedy."""


def _kept_away(snapshot: Snapshot, every: tuple[Installation, ...], pod: Pod, written: str) -> _Known | None:
    """Return the cause if labels keep the API server from calling the webhook; None if they do not."""
    key, value = IGNORE
    space = snapshot.namespace.get(pod.meta.namespace)
    if pod.meta.labels.get(key) == value:
        remedy = (f"Remove {key}={value} from the labels of the pod template of {written}.",)
        return IGNORED, written, f"{pod.subject} has the label {key}={value}", remedy
    if space is not None and space.labels.get(key) == value:
        remedy = (f"Remove the label: {command('kubectl', 'label', 'namespace', space.name, f'{key}-')}",)
        return IGNORED, space.subject, f"{space.subject} has the label {key}={value}", remedy
    hooks = [hook for installation in every for hook in installation.webhooks]
    refusing = [(hook, why) for hook in hooks if (why := _unselected(hook, space.labels if space else None, pod))]
    if hooks and len(refusing) == len(hooks):
        hook, why = refusing[0]
        remedy = (f"Change it: {kubectl('edit', hook.configuration)}",)
        return IGNORED, hook.configuration.subject, f"{hook.configuration.subject}: {why}", remedy
    return None


def _unselected(hook: Webhook, labels: object, pod: Pod) -> str:
    """Return why the API server does not call the webhook for the pod.

    '' if it does, or if the labels of the pod's namespace are not visible.
    """
    if isinstance(labels, dict) and not hook.namespaces.takes(labels):
        return f"its namespaceSelector does not match namespace/{pod.meta.namespace}"
    return "" if hook.objects.takes(pod.meta.labels) else f"its objectSelector does not match {pod.subject}"


def _left_alone(snapshot: Snapshot, every: tuple[Installation, ...], pod: Pod, written: str) -> _Known | None:
    """Return the cause if the webhook was called and left the pod unchanged; None if none is known."""
    ours = " or ".join(sorted(schedulers(snapshot)))
    new = any(installation.version is None or installation.version >= _LEAVES_OTHERS for installation in every)
    if pod.spec.scheduler not in _DEFAULT and new:
        message = f"{pod.subject} names the scheduler {pod.spec.scheduler}; HAMi's is {ours}"
        return (
            OTHER_SCHEDULER,
            written,
            message,
            (f"Remove schedulerName from the template of {written}, or set {ours}.",),
        )
    maker = snapshot.workload.get(written)
    if maker is not None and maker.spec is not None and maker.spec.node:
        return NODE_NAMED, written, f"{written} names nodeName {maker.spec.node}", ()
    asking = [container for container in pod.spec.containers if gpus_of(container)]
    if asking and all(container.privileged for container in asking):
        return PRIVILEGED, written, f"{pod.subject}: container {asking[0].name} is privileged", ()
    return None


def _shown(pod: Pod) -> str:
    message = pod.message
    if pod.phase != "Failed":
        condition = pod.condition("PodScheduled")
        message = condition.message if condition is not None else ""
    scheduler, heard = pod.spec.scheduler or _DEFAULT[1], shortened(message.partition(" preemption:")[0])
    return f"{pod.subject}: schedulerName {scheduler}, no HAMi annotation: {heard}"


def _was_away(installation: Installation, pod: Pod) -> Iterator[str]:
    for hook in installation.webhooks:
        if not hook.fails_closed:
            yield f"{hook.configuration.subject}: failurePolicy Ignore: without a response, pods pass unchanged"
    pods = [each for each in (installation.scheduler.pods if installation.scheduler else ()) if is_ready(each)]
    since = [state.started for each in pods for state in each.states if state.started is not None]
    made = pod.meta.created
    if since and made is not None and made < min(since):
        yield f"the pod was created {timestamp(made)}; {pods[0].subject} runs only since {timestamp(min(since))}"


def _for_the_next_time(every: tuple[Installation, ...]) -> Iterator[str]:
    if any(not hook.fails_closed for installation in every for hook in installation.webhooks):
        yield "To prevent this, run two replicas of the scheduler, or set the webhook's failurePolicy to Fail."


CAUSES = (IGNORED, OTHER_SCHEDULER, PRIVILEGED, NODE_NAMED, WEBHOOK_MISSING, MISSED)
SEARCHES = (Search(CAUSES, ("Pod",), find_bypassed, is_there),)
