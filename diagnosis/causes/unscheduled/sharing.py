"""Find a ConfigMap that shares GPUs, and that the device plugin does not read while every GPU is in use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gpu_healthcheck.diagnosis.facts.commands import command, kubectl
from gpu_healthcheck.diagnosis.facts.components import Component, Role, components, is_for
from gpu_healthcheck.diagnosis.facts.gpu_nodes import copies
from gpu_healthcheck.diagnosis.facts.placement import offers
from gpu_healthcheck.diagnosis.facts.quantity import digits
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import ConfigMap
from gpu_healthcheck.diagnosis.snapshot.nodes import Node

_scheduled = Family(Link.SCHEDULED, severity=CauseSeverity.MEDIUM)
UNREAD = _scheduled(
    "SharingConfigNotRead",
    "A ConfigMap shares each GPU among several pods, and the device plugin does not read it.",
    "Name the ConfigMap to the device plugin: by `devicePlugin.config` of the ClusterPolicy, `config.name` of the "
    "plugin's chart, or CONFIG_FILE with a volume in its own DaemonSet.",
    source="https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html; "
    "https://github.com/NVIDIA/k8s-device-plugin: config.name, config.default, --config-file",
)
CAUSES = (UNREAD,)

_GPU, _LABEL = "nvidia.com/gpu", "nvidia.com/device-plugin.config"
_SHARES = re.compile(r"^[ \t]*(?:timeSlicing|mps)[ \t]*:", re.MULTILINE)
_MPS = re.compile(r"^[ \t]*mps[ \t]*:", re.MULTILINE)
_REPLICAS = re.compile(r"^[ \t-]*replicas[ \t]*:[ \t]*[\"']?(\d{1,5})\b", re.MULTILINE)
_POLICIES = "clusterpolicies.nvidia.com"
_KEPT = (
    "If Helm or another tool writes the ClusterPolicy, set `devicePlugin.config.name` and `.default` there, too: its "
    "next run undoes the patch."
)


class _Reason(Struct, frozen=True):
    """Reason why a plugin does not share GPUs."""

    state: str
    steps: tuple[str, ...]
    certainty: Certainty = Certainty.PROVEN


class _Config(Struct, frozen=True):
    """ConfigMap with the number of replicas by key, for those keys that share GPUs."""

    config_map: ConfigMap
    replicas: dict[str, int]

    @property
    def key(self) -> str:
        return next(iter(self.replicas))


def find_unread(snapshot: Snapshot, nodes: Sequence[Node], affected: tuple[str, ...]) -> Iterator[FoundCause]:
    """Yield each device plugin of these nodes that ignores a sharing configuration, once."""
    for plugin in components(snapshot):
        config = _config_of(snapshot, plugin) if plugin.role is Role.DEVICE_PLUGIN else None
        whole = [node for node in nodes if config is not None and not _is_shared(node, config)]
        served = (node for node in whole if plugin.pod_on(node.name) is not None or is_for(plugin.spec, node))
        reasons = (_unread(snapshot, plugin, config, node) for node in served if config is not None)
        reason = next(filter(None, reasons), None)
        if config is not None and reason is not None:
            shares = ", ".join(f"{key} ({number} replicas)" for key, number in config.replicas.items())
            evidence = (f"{config.config_map.subject} shares GPUs by its keys: {shares}", reason.state)
            yield FoundCause(UNREAD, plugin.subject, evidence, reason.steps, affected, reason.certainty)


def _config_of(snapshot: Snapshot, plugin: Component) -> _Config | None:
    """Return the ConfigMap that is meant for the plugin: the one that its policy names, else one in its namespace."""
    configs = [config for each in snapshot.config_maps if (config := _Config(each, _replicas(each))).replicas]
    policy = {each.plugin_config for each in snapshot.cluster_policies}

    def rank(config: _Config) -> tuple[bool, bool, str]:
        meta = config.config_map.meta
        return meta.name not in policy, meta.namespace != plugin.meta.namespace, meta.subject

    return min(configs, key=rank, default=None)


def _replicas(config_map: ConfigMap) -> dict[str, int]:
    shared = {}
    for key, document in config_map.data.items():
        numbers = [int(text) for text in _REPLICAS.findall(document)] if _SHARES.search(document) else []
        if max(numbers, default=0) > 1:
            shared[key] = max(numbers)
    return shared


def _is_shared(node: Node, config: _Config) -> bool:
    """Whether the node offers each GPU several times. Without feature discovery, the number of GPUs is unknown."""
    count = digits(node.meta.labels.get("nvidia.com/gpu.count", ""), 0)
    least = count + 1 if count else min(config.replicas.values())
    return copies(node) > 1 or offers(node, _GPU) >= least


def _unread(snapshot: Snapshot, plugin: Component, config: _Config, node: Node) -> _Reason | None:
    """Return why the plugin does not share the node's GPUs; None if it is not meant to, or that is not known."""
    containers, keys = plugin.spec.containers, config.config_map.data
    if not any("CONFIG_FILE" in each.env or "config-file" in each.flags for each in containers):
        return _Reason(f"{plugin.subject} has neither CONFIG_FILE nor --config-file", _named(snapshot, plugin, config))
    managed = [each.env["DEFAULT_CONFIG"] for each in containers if "DEFAULT_CONFIG" in each.env]
    label, default = node.meta.labels.get(_LABEL, ""), next(filter(None, managed), "")
    # Without both, the chart's manager falls back to the key `default`, or to the only key; the operator's to none.
    only = next(iter(keys)) if len(keys) == 1 else ""
    fallback = "" if _is_operators(snapshot, plugin) else "default" if "default" in keys else only
    chosen = label or default or fallback
    if not managed or (chosen in keys and chosen not in config.replicas):
        return None  # a file of unknown content, or a node that is not to be shared
    labelled = kubectl("label", node.meta, f"{_LABEL}={config.key}", "--overwrite")
    if chosen in keys:
        restart = command("kubectl", "-n", plugin.meta.namespace, "rollout", "restart", "daemonset", plugin.meta.name)
        steps = (f"Restart the plugin, which reads a ConfigMap when it starts: {restart}",)
        return _Reason(f"{node.subject} uses the key {chosen}, and offers each GPU once", steps, Certainty.LIKELY)
    if label:
        return _Reason(f"{node.subject}: label {_LABEL}={label} is no key of it", (f"Name a key: {labelled}",))
    state = f"default {default} is no key of it" if default else "neither a default nor a label names a key"
    return _Reason(f"{plugin.subject}: {state}", (*_named(snapshot, plugin, config), f"Or by node: {labelled}"))


def _named(snapshot: Snapshot, plugin: Component, config: _Config) -> tuple[str, ...]:
    """Return how the plugin gets the ConfigMap's name, by its installer."""
    meta, labels, namespace = config.config_map.meta, plugin.meta.labels, plugin.meta.namespace
    chart, release = labels.get("helm.sh/chart", ""), labels.get("app.kubernetes.io/instance", "")
    created = f"Create {meta.name} in {namespace}, too: the plugin mounts only ConfigMaps of its own namespace."
    first = () if meta.namespace == namespace else (created,)
    if _is_operators(snapshot, plugin):
        if any(
            (each.plugin_config, each.plugin_default) == (meta.name, config.key) for each in snapshot.cluster_policies
        ):
            log = command("kubectl", "-n", namespace, "logs", "deployment/gpu-operator", "--tail=100")
            return (*first, f"The ClusterPolicy names it. Read why the operator does not apply that: {log}")
        policy = next((each.meta.name for each in snapshot.cluster_policies), "cluster-policy")
        wanted = {"spec": {"devicePlugin": {"config": {"name": meta.name, "default": config.key}}}}
        patch = json.dumps(wanted, separators=(",", ":"))
        change = command("kubectl", "patch", _POLICIES, policy, "--type=merge", "-p", patch)
        return (*first, f"Name it in the ClusterPolicy: {change}", _KEPT)
    if release and chart.startswith("nvidia-device-plugin-"):
        at, version = f"--namespace={namespace}", f"--version={chart.removeprefix('nvidia-device-plugin-')}"
        values = f"--set=config.name={meta.name},config.default={config.key}"
        upgrade = command(
            "helm", "upgrade", release, "nvdp/nvidia-device-plugin", at, version, "--reuse-values", values
        )
        return (*first, f"Name it in the plugin's release: {upgrade}")
    if _MPS.search(config.config_map.data[config.key]):
        return (
            f"MPS needs a daemon, which the plugin's chart runs: install that chart, with `config.name={meta.name}`.",
        )
    container = next((each.name for each in plugin.spec.containers if not each.init), "")
    mounted = kubectl("patch", plugin.meta, "-p", _mounted(container, meta.name, config.key))
    return (*first, f"Mount it, and name its key: {mounted}")


def _mounted(container: str, name: str, key: str) -> str:
    """Return the patch that mounts the ConfigMap into the plugin's container, which names one key as its file."""
    changed = {
        "name": container,
        "env": [{"name": "CONFIG_FILE", "value": f"/config/{key}"}],
        "volumeMounts": [{"name": "sharing-config", "mountPath": "/config"}],
    }
    volume = {"name": "sharing-config", "configMap": {"name": name}}
    patch = {"spec": {"template": {"spec": {"containers": [changed], "volumes": [volume]}}}}
    return json.dumps(patch, separators=(",", ":"))


def _is_operators(snapshot: Snapshot, plugin: Component) -> bool:
    """Whether the GPU operator writes the plugin's DaemonSet, and would undo a change of it."""
    if plugin.meta.owner is not None and plugin.meta.owner.kind == "ClusterPolicy":
        return True
    operators = {each.meta.namespace for each in components(snapshot) if each.role is Role.OPERATOR}
    return plugin.meta.namespace in operators and "helm.sh/chart" not in plugin.meta.labels
