"""Find each HAMi installation in a cluster with its parts, whatever its name and namespace. Pure.

Since 2.4 the charts label objects by component. The Service has the scheduler's name, and the webhook names the
Service.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache

from msgspec import Struct, field

from gpu_healthcheck.diagnosis.facts.components import Component, Role, components
from gpu_healthcheck.diagnosis.facts.placement import has, offers
from gpu_healthcheck.diagnosis.hami.settings import DEVICE_CONFIG, HamiSettings, read_settings
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import ConfigMap, Webhook
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.hami_node import RegistrationFormat
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import HAMI_EXTENDER, Container, Pod, PodSpec
from gpu_healthcheck.healthcheck.text.durations import duration

RULES_VERSION = (2, 10)
"""Version of HAMi whose rules judge a request."""
_JSON_SINCE = (2, 8)
_TAG = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:[.+-].{0,80})?\Z", re.ASCII)
WEBHOOK = "vgpu.hami.io"
"""Name of the entry in a MutatingWebhookConfiguration, independent of the configuration's name."""
DEFAULT_SCHEDULER = "hami-scheduler"
LOCK_EXPIRES = timedelta(minutes=5)
"""Expiry of a node's lock, unless the extender sets it (from 2.7)."""
_LOCK_VARIABLE = "HAMI_NODELOCK_EXPIRE"
IGNORE = ("hami.io/webhook", "ignore")
"""Label that excludes a namespace or a pod from HAMi's webhook."""
_SUFFIXES = ("-scheduler", "-device-plugin")
_DEVICES = "-scheduler-device"
"""Suffix of the ConfigMap with device settings, after the release name."""
_MOST = 32
"""Installations of a cluster: those with a webhook first, then those of workloads."""
_Key = tuple[str, str]
"""Namespace and base name of the chart's objects."""
_PROFILE = re.compile(
    r"^\s{0,16}(?:- )?schedulerName: ?[\"']?([A-Za-z0-9.-]{1,253})[\"']?\s{0,8}$", re.ASCII | re.MULTILINE
)


class CommandLine(Struct, frozen=True):
    """Options of the extender, from its command line and environment; the chart's defaults if none are visible.

    `node_labels`: only nodes with all of these labels are considered.
    """

    node_policy: str = "binpack"
    gpu_policy: str = "spread"
    scheduler_name: str = ""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    lock_expires: timedelta = LOCK_EXPIRES


class Installation(Struct, frozen=True):
    """One release of HAMi: the base name of all its chart's objects, and the parts that are visible."""

    namespace: str
    name: str
    scheduler: Component | None = None
    plugins: tuple[Component, ...] = ()
    webhooks: tuple[Webhook, ...] = ()
    scheduler_name: str = DEFAULT_SCHEDULER
    settings: HamiSettings = field(default_factory=HamiSettings)
    command_line: CommandLine = field(default_factory=CommandLine)
    nodes: frozenset[str] = frozenset()
    """Names of nodes with a pod of one of its device plugins."""

    @property
    def service(self) -> str:
        """Return namespace and name of the scheduler's Service."""
        named = next((webhook.service for webhook in self.webhooks if webhook.service), "")
        return named or f"{self.namespace}/{self.name}-scheduler"

    @property
    def subject(self) -> str:
        """Return the object that represents the whole installation."""
        if self.scheduler is not None:
            return self.scheduler.subject
        return self.webhooks[0].configuration.subject if self.webhooks else self.plugins[0].subject

    @property
    def scheduler_pods(self) -> tuple[Pod, ...]:
        return self.scheduler.pods if self.scheduler is not None else ()

    @property
    def version(self) -> tuple[int, int] | None:
        """Return the version of the scheduler; None if its image's tag has none."""
        return _version(self.scheduler.version) if self.scheduler is not None else None

    @property
    def uses_handshake(self) -> bool:
        """Whether scheduler and device plugins are of versions up to 2.7, which use the handshake."""
        versions = (self.version, *(_version(plugin.version) for plugin in self.plugins))
        return all(version is not None and version < _JSON_SINCE for version in versions)

    @property
    def reads(self) -> RegistrationFormat | None:
        """Return the format of registrations that the scheduler reads; None if its version is unknown."""
        if self.version is None:
            return None
        return RegistrationFormat.JSON if self.version >= _JSON_SINCE else RegistrationFormat.TEXT

    @property
    def rules(self) -> str:
        """Return a note that the rules of another version judge the cards; '' if they are those of this version."""
        if self.version == RULES_VERSION:
            return ""
        installed = f"{self.version[0]}.{self.version[1]}" if self.version is not None else "unknown"
        return (
            f"judged by the rules of HAMi {RULES_VERSION[0]}.{RULES_VERSION[1]}; the installed version is {installed}"
        )


def is_there(snapshot: Snapshot) -> bool:
    """Whether anything shows that the cluster has HAMi."""
    if any(hook.name == WEBHOOK for hook in snapshot.webhooks) or any(node.hami.shared for node in snapshot.nodes):
        return True
    return bool(installations(snapshot))


@lru_cache(maxsize=1)
def installations(snapshot: Snapshot) -> tuple[Installation, ...]:
    """Return each installation with a visible part, by namespace and name."""
    parts = [part for part in components(snapshot) if part.role in (Role.HAMI_SCHEDULER, Role.HAMI_PLUGIN)]
    schedulers = grouped((part.meta.namespace, part.meta.name) for part in parts if part.role is Role.HAMI_SCHEDULER)

    def release(part: Component) -> _Key:
        # Plugins of other vendors have names of their own, so the name comes from the namespace's only scheduler.
        names = schedulers.get(part.meta.namespace, [])
        return part.meta.namespace, _stem(names[0] if len(names) == 1 else part.meta.name)

    def served(hook: Webhook) -> _Key:
        namespace, _, service = hook.service.partition("/")
        return namespace, _stem(service)

    parts_by_key = grouped((release(part), part) for part in parts)
    hooks_by_key = grouped((served(hook), hook) for hook in snapshot.webhooks if hook.name == WEBHOOK and hook.service)

    def doubt(key: _Key) -> tuple[bool, bool, _Key]:
        # A tenant can create any number of pods that look like one.
        return key not in hooks_by_key, all(part.meta.kind == "Pod" for part in parts_by_key.get(key, ())), key

    likely = sorted({*parts_by_key, *hooks_by_key}, key=doubt)
    keys = sorted(likely[:_MOST])
    return tuple(
        _installation(snapshot, key, parts_by_key.get(key, ()), hooks_by_key.get(key, ()), keys) for key in keys
    )


def config_maps(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """Return namespace and name of the ConfigMaps for scheduler, cards and nodes in HAMi's charts."""
    suffixes = ("-scheduler", _DEVICES, "-device-plugin")
    return tuple(
        (installation.namespace, installation.name + suffix)
        for installation in installations(snapshot)
        for suffix in suffixes
    )


def settings_of(snapshot: Snapshot, key: _Key = ("", ""), others: Collection[_Key] = ()) -> HamiSettings:
    """Return the settings from the installation's ConfigMap, else from the likeliest ConfigMap without an owner."""

    def owner(config_map: ConfigMap) -> _Key:
        return config_map.meta.namespace, config_map.meta.name.removesuffix(_DEVICES)

    candidates = [
        config_map
        for config_map in snapshot.config_maps
        if DEVICE_CONFIG in config_map.data
        and owner(config_map) not in others
        and (config_map.meta.namespace == key[0] or not others)
    ]
    ranked = sorted(candidates, key=lambda each: (owner(each) != key, each.meta.namespace != key[0], each.meta.subject))
    return read_settings(ranked[0]) if ranked else HamiSettings()


def schedulers(snapshot: Snapshot) -> frozenset[str]:
    """Return the scheduler names of all HAMi installations."""
    return frozenset(installation.scheduler_name for installation in installations(snapshot))


def installation_of(snapshot: Snapshot, pod: Pod) -> Installation | None:
    """Return the installation for a pod; None if there is none.

    It is chosen by the pod's scheduler, then its node, then its requested resources.
    """
    resources = {name for container in pod.spec.containers for name in (*container.limits, *container.requests)}

    def rank(installation: Installation) -> tuple[bool, bool, bool, bool]:
        settings = installation.settings
        return (
            pod.spec.scheduler == installation.scheduler_name,
            pod.spec.node in installation.nodes,
            settings.count_name in resources,
            not settings.names.isdisjoint(resources),
        )

    return max(installations(snapshot), key=rank, default=None)


def serving(snapshot: Snapshot, node: Node) -> Installation | None:
    """Return the installation whose device plugin is on the node.

    If no plugin is visible there, return the only installation, or None if there are several.
    """
    every = installations(snapshot)
    own = next((installation for installation in every if node.name in installation.nodes), None)
    return own or (every[0] if len(every) == 1 else None)


def settings_on(snapshot: Snapshot, node: Node) -> HamiSettings:
    """Return the settings of the installation whose device plugin is on the node."""
    own = serving(snapshot, node)
    return own.settings if own is not None else settings_of(snapshot)


def unregistered(snapshot: Snapshot, installation: Installation, node: Node) -> str:
    """Return why this HAMi scheduler knows no cards of the node; '' if it does."""
    registration, count_name = node.hami.registration, installation.settings.count_name
    labels, owner = installation.command_line.node_labels, other_owner(snapshot, installation, node)
    if registration is None:
        return "no device plugin of HAMi has registered cards there"
    if missing := [f"{key}={label}" for key, label in labels.items() if node.meta.labels.get(key) != label]:
        return f"the scheduler uses only nodes with {', '.join(missing)}"
    if owner is not None and not has(node, count_name):
        return f"its cards belong to {owner.subject}, and it has no {count_name}"
    if why := registration.unreadable or ("" if registration.cards else "it lists no card"):
        return f"its registration can't be read: {why}"
    if installation.reads not in (None, registration.form):
        return f"its registration is {registration.form.value}, and the scheduler has another version"
    gone = has(node, count_name) and not offers(node, count_name)
    return f"it no longer offers {count_name}: the device plugin is gone" if gone else ""


def other_owner(snapshot: Snapshot, installation: Installation, node: Node) -> Installation | None:
    """Return another installation whose device plugin serves the node; None if this one may serve it."""
    if node.name in installation.nodes:
        return None
    return next((other for other in installations(snapshot) if node.name in other.nodes), None)


def asks_for(spec: PodSpec, settings: HamiSettings) -> bool:
    """Whether any container requests these resources."""
    return _asks(spec, settings.names)


def newest_asking(snapshot: Snapshot, installation: Installation) -> Pod | None:
    """Return the newest pod that only HAMi's scheduler can serve: it requests memory, cores or priority."""
    names = installation.settings.names - {installation.settings.count_name}
    asking = (pod for pod in snapshot.pods if _asks(pod.spec, names))
    return max(asking, key=lambda pod: (str(pod.meta.created), pod.subject), default=None)


def is_scheduled(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether HAMi's scheduler handles the pod, by its name, or by its annotations on the pod."""
    return pod.grant is not None or pod.spec.scheduler in schedulers(snapshot)


def plugin_pods(every: Iterable[Installation]) -> Mapping[str, Sequence[Pod]]:
    """Return, by node, the pods of HAMi's device plugins that have not ended."""
    pods = (pod for installation in every for plugin in installation.plugins for pod in plugin.pods)
    return grouped((pod.spec.node, pod) for pod in pods if pod.spec.node and not pod.over)


def _version(tag: str) -> tuple[int, int] | None:
    """Parse an image's tag, as `v2.7.1` or `2.9.0-amd64`."""
    match = _TAG.match(tag)
    return (int(match[1]), int(match[2])) if match else None


def _installation(
    snapshot: Snapshot, key: _Key, parts: Sequence[Component], webhooks: Iterable[Webhook], keys: Iterable[_Key]
) -> Installation:
    """Return the installation with scheduler name and settings from its own ConfigMaps and command line."""
    scheduler = next((part for part in parts if part.role is Role.HAMI_SCHEDULER), None)
    plugins = tuple(part for part in parts if part.role is Role.HAMI_PLUGIN)
    line = _command_line(scheduler.spec) if scheduler is not None else CommandLine()
    return Installation(
        *key,
        scheduler=scheduler,
        plugins=plugins,
        webhooks=tuple(webhooks),
        scheduler_name=_profile(snapshot, key) or line.scheduler_name or DEFAULT_SCHEDULER,
        settings=settings_of(snapshot, key, {other for other in keys if other != key}),
        command_line=line,
        nodes=frozenset(pod.spec.node for part in plugins for pod in part.pods if pod.spec.node and not pod.over),
    )


def _profile(snapshot: Snapshot, key: _Key) -> str:
    """Return the scheduler's name in the KubeSchedulerConfiguration; '' if none is visible."""
    namespace, name = key
    documents = (
        document
        for config_map in snapshot.config_maps
        if (config_map.meta.namespace, config_map.meta.name) == (namespace, f"{name}-scheduler")
        for document in config_map.data.values()
    )
    return next((match[1] for document in documents for match in _PROFILE.finditer(document)), "")


def _command_line(spec: PodSpec) -> CommandLine:
    """Parse the options of the scheduler's pods."""
    extender = next((container for container in spec.containers if container.name == HAMI_EXTENDER), Container(""))
    flags, default = extender.flags, CommandLine()
    labels = (label.partition("=") for label in flags.get("node-label-selector", "").split(",") if "=" in label)
    return CommandLine(
        flags.get("node-scheduler-policy") or default.node_policy,
        flags.get("gpu-scheduler-policy") or default.gpu_policy,
        flags.get("scheduler-name", ""),
        {key.strip(): label.strip() for key, _, label in labels},
        duration(flags.get("node-lock-timeout") or extender.env.get(_LOCK_VARIABLE, "")) or default.lock_expires,
    )


def _asks(spec: PodSpec, names: Collection[str]) -> bool:
    return any(name in names for container in spec.containers for name in (*container.limits, *container.requests))


def _stem(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)
