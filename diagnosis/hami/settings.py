"""Read HAMi's configuration, for all nodes and for single ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import ConfigMap
from gpu_healthcheck.diagnosis.snapshot.hami_pod import short
from gpu_healthcheck.healthcheck.text.boundary import At, items, listed, read, text, valid, whole
from gpu_healthcheck.healthcheck.text.documents import MalformedError, yaml_object

DEVICE_CONFIG = "device-config.yaml"
_NODE_CONFIG = "config.json"
_KEYS = frozenset(
    (
        *("resourceCountName", "resourceMemoryName", "resourceMemoryPercentageName", "resourceCoreName"),
        *("resourcePriorityName", "overwriteEnv", "defaultMemory", "defaultCores", "defaultGPUNum", "memoryFactor"),
        *("deviceSplitCount", "deviceMemoryScaling", "deviceCoreScaling", "preConfiguredDeviceMemory"),
        *("enableNumaTopology", "gpuCorePolicy", "libCudaLogLevel", "runtimeClassName", "disableCoreLimit"),
        *("migProfileAllowlist", "knownMigGeometries"),
    )
)
"""Keys under `nvidia:` in device-config.yaml, as spelled there."""
_MOST_KEYS, _MOST_NODES = 256, 1024


def _name(value: object) -> str | None:
    return text(value) or None


def _factor(value: object) -> int:
    return max(whole(value), 1)


def _misplaced(document: object) -> tuple[str, ...]:
    return tuple(key for key, _ in items(document) if key in _KEYS)


class HamiSettings(Struct, frozen=True):
    """Settings of NVIDIA's cards for all nodes. Without a configuration, they are the chart's defaults."""

    count_name: Annotated[str, At("nvidia.resourceCountName"), _name] = "nvidia.com/gpu"
    memory_name: Annotated[str, At("nvidia.resourceMemoryName"), _name] = "nvidia.com/gpumem"
    percentage_name: Annotated[str, At("nvidia.resourceMemoryPercentageName"), _name] = "nvidia.com/gpumem-percentage"
    cores_name: Annotated[str, At("nvidia.resourceCoreName"), _name] = "nvidia.com/gpucores"
    priority_name: Annotated[str, At("nvidia.resourcePriorityName"), _name] = "nvidia.com/priority"
    default_memory: Annotated[int, At("nvidia.defaultMemory")] = 0
    default_cores: Annotated[int, At("nvidia.defaultCores")] = 0
    default_cards: Annotated[int, At("nvidia.defaultGPUNum")] = 1
    memory_factor: Annotated[int, At("nvidia.memoryFactor"), _factor] = 1
    """MiB for each requested unit of memory."""
    memory_scaling: Annotated[float | None, At("nvidia.deviceMemoryScaling")] = None
    """Registered memory for each MiB of a card; above 1 it is overcommitted."""
    core_policy: Annotated[str, At("nvidia.gpuCorePolicy")] = ""
    """`default`, `force` or `disable`: whether cores are limited to the request."""
    misplaced: Annotated[tuple[str, ...], At(""), _misplaced] = ()
    """Keys for NVIDIA's cards outside of `nvidia:`, where HAMi does not read them."""
    unreadable: Annotated[str, At()] = ""

    @property
    def names(self) -> frozenset[str]:
        """Return the resource names that a container may request."""
        parts = (self.memory_name, self.percentage_name, self.cores_name, self.priority_name)
        return frozenset((self.count_name, *parts))


class _NodeConfig(Struct, frozen=True):
    name: str = ""
    memory_scaling: Annotated[float | None, At("devicememoryscaling")] = None


def read_settings(config_map: ConfigMap) -> HamiSettings:
    try:
        return read(HamiSettings, yaml_object(config_map.data.get(DEVICE_CONFIG, "").encode("utf-8", "replace")))
    except (MalformedError, ValueError) as error:
        return HamiSettings(unreadable=short(str(error)))


def node_memory_scaling(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """Yield node names with the memory scaling that a node configuration sets for them."""
    for config_map in snapshot.config_maps:
        if "nodeconfig" in config_map.data.get(_NODE_CONFIG, "").lower():
            for node in _node_configs(config_map.data[_NODE_CONFIG]):
                if node.memory_scaling is not None:
                    yield short(node.name), node.memory_scaling


def _node_configs(config: str) -> tuple[_NodeConfig, ...]:
    try:
        nodes = _with_lower_keys(yaml_object(config.encode("utf-8", "replace"))).get("nodeconfig")
        return valid(lambda node: read(_NodeConfig, _with_lower_keys(node)), listed(nodes)[:_MOST_NODES])
    except (MalformedError, ValueError):
        return ()


def _with_lower_keys(value: object) -> dict[str, object]:
    """Return the mapping with its keys in lower case, since Go's JSON ignores case."""
    pairs = islice(value.items(), _MOST_KEYS) if isinstance(value, dict) else ()
    return {str(key).lower(): entry for key, entry in pairs}
