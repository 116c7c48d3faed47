"""Where HAMi stands in a cluster: each installation with its parts, under whatever name and namespace. Pure.

Since 2.4 its charts label what they make by component. A Service is named as the scheduler, and the webhook names it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from diagnosis.components import Component, Role, components
from diagnosis.gpu_nodes import GPU, has_hami
from diagnosis.hami.versions import Version, version_of
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.pods import Pod
from diagnosis.snapshot.rules import Webhook

WEBHOOK = "vgpu.hami.io"
"""What the entry in a MutatingWebhookConfiguration is called, whatever the configuration's own name is."""
DEFAULT_SCHEDULER = "hami-scheduler"
IGNORE = ("hami.io/webhook", "ignore")
"""The label by which a namespace or a pod keeps HAMi's webhook away."""
_SUFFIXES = ("-scheduler", "-device-plugin")
_OF_PODS = "hami.io/"
_PROFILE = re.compile(
    r"^\s{0,16}(?:- )?schedulerName: ?[\"']?([A-Za-z0-9.-]{1,253})[\"']?\s{0,8}$", re.ASCII | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Installation:
    """One release of HAMi: what its chart calls everything after, and the parts that are visible."""

    namespace: str
    name: str
    scheduler: Component | None = None
    plugins: tuple[Component, ...] = ()
    webhooks: tuple[Webhook, ...] = ()
    scheduler_name: str = DEFAULT_SCHEDULER

    @property
    def service(self) -> str:
        """Namespace and name of the Service before its scheduler."""
        told = next((one.service for one in self.webhooks if one.service), "")
        return told or f"{self.namespace}/{self.name}-scheduler"

    @property
    def subject(self) -> str:
        """What has to be looked at where the whole of it is meant."""
        if self.scheduler is not None:
            return self.scheduler.subject
        return self.webhooks[0].configuration.subject if self.webhooks else self.plugins[0].subject

    @property
    def version(self) -> Version | None:
        """Of its scheduler; None where the image's tag tells none."""
        return version_of(self.scheduler.version) if self.scheduler is not None else None


def is_there(snapshot: Snapshot) -> bool:
    """Whether anything shows that the cluster has HAMi."""
    if any(hook.name == WEBHOOK for hook in snapshot.webhooks) or any(map(has_hami, snapshot.nodes)):
        return True
    return bool(installations(snapshot))


@lru_cache(maxsize=1)
def installations(snapshot: Snapshot) -> tuple[Installation, ...]:
    """Every one that something visible belongs to, by namespace and name."""
    found: defaultdict[tuple[str, str], list[Component]] = defaultdict(list)
    every = [one for one in components(snapshot) if one.role in (Role.HAMI_SCHEDULER, Role.HAMI_PLUGIN)]
    for one in every:
        found[one.meta.namespace, _release(one, every)].append(one)
    hooks: defaultdict[tuple[str, str], list[Webhook]] = defaultdict(list)
    for hook in snapshot.webhooks:
        if hook.name == WEBHOOK and hook.service:
            namespace, _, service = hook.service.partition("/")
            hooks[namespace, _stem(service)].append(hook)
    keys = sorted({*found, *hooks})
    return tuple(_named(snapshot, _installation(key, found.get(key, ()), hooks.get(key, ()))) for key in keys)


def config_maps(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """Namespace and name of what the charts configure scheduler, cards and nodes by."""
    suffixes = ("-scheduler", "-scheduler-device", "-device-plugin")
    return tuple((one.namespace, one.name + suffix) for one in installations(snapshot) for suffix in suffixes)


def schedulers(every: Iterable[Installation]) -> frozenset[str]:
    """The names by which pods ask for a scheduler of HAMi's."""
    return frozenset(one.scheduler_name for one in every)


def asked_by(pod: Pod, every: Sequence[Installation]) -> Installation:
    """The one whose scheduler the pod names, of at least one; the first where it names none of theirs."""
    return next((one for one in every if one.scheduler_name == pod.spec.scheduler), every[0])


def is_scheduled(pod: Pod, names: frozenset[str]) -> bool:
    """Whether HAMi's scheduler is the pod's: by its name, or by what that noted on the pod."""
    return pod.spec.scheduler in names or any(
        key.startswith(_OF_PODS) and key.endswith(("vgpu-node", "vgpu-time", "bind-phase"))
        for key in pod.meta.annotations
    )


def plugin_pods(every: Iterable[Installation]) -> Mapping[str, tuple[Pod, ...]]:
    """By node the pods of HAMi's device plugins there that have not ended."""
    there: defaultdict[str, list[Pod]] = defaultdict(list)
    for one in every:
        for plugin in one.plugins:
            for pod in plugin.pods:
                if pod.spec.node and not pod.over:
                    there[pod.spec.node].append(pod)
    return {node: tuple(pods) for node, pods in there.items()}


def offered(node: Node) -> str:
    """How many places on cards the kubelet gives out there, as the node says it; '' where it says none."""
    return node.allocatable.get(GPU, "")


def _installation(key: tuple[str, str], parts: Iterable[Component], hooks: Iterable[Webhook]) -> Installation:
    parts = list(parts)
    scheduler = next((one for one in parts if one.role is Role.HAMI_SCHEDULER), None)
    plugins = tuple(one for one in parts if one.role is Role.HAMI_PLUGIN)
    return Installation(*key, scheduler, plugins, tuple(hooks))


def _release(one: Component, every: Iterable[Component]) -> str:
    """What its chart calls all: the plugins of other vendors have a name of their own beside the only scheduler."""
    placed = [each for each in every if each.role is Role.HAMI_SCHEDULER and each.meta.namespace == one.meta.namespace]
    return _stem(placed[0].meta.name if len(placed) == 1 else one.meta.name)


def _named(snapshot: Snapshot, one: Installation) -> Installation:
    """With its scheduler's name, as its configuration has it."""
    maps = (each for each in snapshot.config_maps if each.meta.namespace == one.namespace)
    texts = (text for each in maps if each.meta.name == f"{one.name}-scheduler" for text in each.data.values())
    return replace(one, scheduler_name=next(_profiles(texts), DEFAULT_SCHEDULER))


def _profiles(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (found[1] for found in _PROFILE.finditer(text))


def _stem(name: str) -> str:
    return next((name.removesuffix(one) for one in _SUFFIXES if name.endswith(one)), name)
