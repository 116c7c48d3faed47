"""Compute where a pod that is not created yet would fit, by node, and by card for HAMi."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.facts.gpu_nodes import gpu_nodes
from gpu_healthcheck.diagnosis.facts.gpu_requests import asks_for_gpus
from gpu_healthcheck.diagnosis.facts.placement import Obstacle, ObstacleKind, asked_by, held_on, refusals, shortages
from gpu_healthcheck.diagnosis.facts.wanted_pods import NoPodError
from gpu_healthcheck.diagnosis.hami.cards import CardUsage, Share, cards_of, total
from gpu_healthcheck.diagnosis.hami.fit import NodeVerdict, admitted, request_of, verdicts
from gpu_healthcheck.diagnosis.hami.installation import (
    Installation,
    asks_for,
    installation_of,
    installations,
    schedulers,
    settings_of,
    unregistered,
)
from gpu_healthcheck.diagnosis.hami.quota import quota_left
from gpu_healthcheck.diagnosis.hami.settings import HamiSettings
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Container, Pod, PodSpec, read_pod
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound, Refused

_DEFAULT = ("", "default-scheduler")
_NO_RIGHT = 'cannot create resource "pods"'
"""The API server's message for a user without permission; any other 403 is an admission decision about the pod."""
DryRun = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


class Admission(Struct, frozen=True):
    """Result of a pod's admission. `refused`: why the pod would never be created; '' if it would be.

    `asked`: whether the API server was asked. `why_not`: the reason if it was not; HAMi's rules are then applied
    instead.
    """

    pod: Pod
    asked: bool
    why_not: str = ""
    refused: str = ""
    passed_by: str = ""
    """Why HAMi's webhook ignores a pod that requests HAMi's resources."""


class NodeAnswer(Struct, frozen=True):
    """Answer for one node. `cards` and `verdict` are set if HAMi's scheduler decides.

    `unregistered`: why HAMi's scheduler knows no cards there.
    """

    node: str
    obstacles: tuple[Obstacle, ...] = ()
    verdict: NodeVerdict | None = None
    cards: tuple[CardUsage, ...] = ()
    unregistered: str = ""

    @property
    def fits(self) -> bool:
        return not self.obstacles and (self.verdict is None or self.verdict.fits)


class WouldFit(Struct, frozen=True):
    """Answer for one pod. `added`: the changes by admission, one entry each."""

    pod: str
    admission: Admission
    added: tuple[str, ...] = ()
    nodes: tuple[NodeAnswer, ...] = ()
    unread: tuple[str, ...] = ()
    """Containers whose request for HAMi's resources has a form that its scheduler ignores."""
    rules: str = ""
    """Note that the rules of another version of HAMi than the installed one judge the cards."""

    @property
    def fits(self) -> bool:
        return not self.admission.refused and not self.unread and any(node.fits for node in self.nodes)


def would_fit_each(snapshot: Snapshot, pods: Iterable[Mapping[str, Any]], dry_run: DryRun | None) -> Iterator[WouldFit]:
    """Yield the answer for each pod. With `dry_run` None, changes by admission are unknown. Raises NoPodError."""
    for raw in pods:
        try:
            pod = pod_of(raw)
        except ValueError as error:
            raise NoPodError(str(error)) from error
        admission = (
            by_rules(snapshot, pod, "this is a saved state") if dry_run is None else _ask(snapshot, pod, raw, dry_run)
        )
        yield would_fit(snapshot, pod, admission)


def _ask(snapshot: Snapshot, pod: Pod, raw: Mapping[str, Any], dry_run: DryRun) -> Admission:
    """Create the pod as a dry run of the API server: all admission runs, and nothing is stored."""
    metadata = {key: entry for key, entry in raw["metadata"].items() if key != "name"}
    metadata["generateName"] = f"{pod.meta.name}-"
    try:
        made = pod_of(dry_run(pod.meta.namespace, {**raw, "metadata": metadata}))
    except (Refused, Forbidden, NotFound) as error:
        if _NO_RIGHT in str(error):
            return by_rules(snapshot, pod, str(error))
        return Admission(pod, asked=True, refused=str(error))
    except (ClusterError, ValueError) as error:
        return by_rules(snapshot, pod, str(error))
    return Admission(made, asked=True)


def pod_of(raw: Mapping[str, Any]) -> Pod:
    return read_pod(raw)


def by_rules(snapshot: Snapshot, pod: Pod, why_not: str) -> Admission:
    """Predict the action of HAMi's webhook, if it can't be called."""
    plain = Admission(pod, asked=False, why_not=why_not)
    installation = installation_of(snapshot, pod)
    if installation is None or not asks_for(pod.spec, installation.settings):
        return plain
    if passed_by := _passed_by(snapshot, pod):
        return replace(plain, passed_by=passed_by)
    if refused := _refused(snapshot, pod, installation.settings):
        return replace(plain, refused=refused)
    containers = tuple(admitted(container, installation.settings) for container in pod.spec.containers)
    spec = replace(pod.spec, containers=containers, scheduler=installation.scheduler_name)
    return replace(plain, pod=replace(pod, spec=spec))


def would_fit(snapshot: Snapshot, written: Pod, admission: Admission) -> WouldFit:
    """Return the answer for a pod. `written` is the pod as in the file."""
    if admission.refused:
        return WouldFit(written.subject, admission)
    pod = admission.pod
    installation = installation_of(snapshot, pod) or Installation("", "", settings=settings_of(snapshot))
    by_hami = pod.spec.scheduler in schedulers(snapshot) or _moved(written, pod)
    names = installation.settings.names if by_hami else frozenset()
    held, asked = held_on(snapshot.pods), asked_by(pod.spec)
    asked = {name: amount for name, amount in asked.items() if name not in names}
    by_node = {node.name: verdict for node, verdict in verdicts(snapshot, installation, pod)} if by_hami else {}
    nodes = tuple(
        _with_hami(snapshot, installation, node, by_node.get(node.name), _on(node, pod.spec, asked, held))
        for node in sorted(gpu_nodes(snapshot), key=lambda node: node.name)
    )
    unread = tuple(
        container.name for container in pod.spec.containers if by_hami and _is_unread(container, installation.settings)
    )
    rules = installation.rules if by_hami else ""
    return WouldFit(written.subject, admission, tuple(_added(written.spec, pod.spec)), nodes, unread, rules)


def _is_unread(container: Container, settings: HamiSettings) -> bool:
    asks = (settings.names - {settings.priority_name}) & {*container.limits, *container.requests}
    return bool(asks) and request_of(container, settings) is None


def _on(
    node: Node, spec: PodSpec, asked: Mapping[str, Decimal], held: Mapping[str, Mapping[str, Decimal]]
) -> NodeAnswer:
    obstacles = (*refusals(spec, node), *shortages(asked, node, held.get(node.name, {})))
    if not obstacles and (node.withheld or node.accepts_work_on_faults) and asks_for_gpus(spec):
        obstacles = (Obstacle(ObstacleKind.FAULTY),)
    return NodeAnswer(node.name, obstacles)


def _with_hami(
    snapshot: Snapshot, installation: Installation, node: Node, verdict: NodeVerdict | None, answer: NodeAnswer
) -> NodeAnswer:
    if verdict is None:
        return answer
    cards, unknown = cards_of(snapshot).get(node.name, ()), unregistered(snapshot, installation, node)
    return replace(answer, verdict=verdict, cards=cards, unregistered=unknown)


def _passed_by(snapshot: Snapshot, pod: Pod) -> str:
    if pod.spec.scheduler not in {*_DEFAULT, *schedulers(snapshot)}:
        return f"the pod names the scheduler {pod.spec.scheduler}"
    hooks = [hook for installation in installations(snapshot) for hook in installation.webhooks]
    labels = next((namespace.labels for namespace in snapshot.namespaces if namespace.name == pod.meta.namespace), None)
    if not hooks:
        return "HAMi's webhook does not exist" if snapshot.sees("MutatingWebhookConfiguration") else ""
    if labels is not None and not any(hook.namespaces.takes(labels) for hook in hooks):
        return f"the webhook does not select the namespace {pod.meta.namespace}"
    return "" if any(hook.objects.takes(pod.meta.labels) for hook in hooks) else "the labels are not selected"


def _refused(snapshot: Snapshot, pod: Pod, settings: HamiSettings) -> str:
    """Return the refusal in the wording of HAMi's webhook; '' if it would not refuse the pod."""
    privileged = next((container.name for container in pod.spec.containers if container.privileged), "")
    if privileged:
        return f"container {privileged} is privileged"
    if pod.spec.node:
        return "pod has node assigned"
    requests = (request_of(admitted(container, settings), settings) for container in pod.spec.containers)
    wanted = total(
        Share(0, request.memory * request.cards, request.cores * request.cards)
        for request in requests
        if request is not None
    )
    fits = wanted == Share() or quota_left(snapshot, pod.meta.namespace, settings).takes(wanted)
    return "" if fits else "exceeding resource quota"


def _moved(written: Pod, pod: Pod) -> bool:
    """Whether admission assigned another scheduler, as HAMi's webhook does."""
    return written.spec.scheduler in _DEFAULT and pod.spec.scheduler not in _DEFAULT


def _added(written: PodSpec, made: PodSpec) -> Iterator[str]:
    if made.scheduler not in (written.scheduler, *_DEFAULT):
        yield f"scheduler {made.scheduler}"
    if made.runtime_class != written.runtime_class:
        yield f"RuntimeClass {made.runtime_class}"
    before = {container.name: container for container in written.containers}
    for container in made.containers:
        limits = before[container.name].limits if container.name in before else {}
        for name, value in container.limits.items():
            if limits.get(name) != value:
                yield f"container {container.name}: {name} {value}"
