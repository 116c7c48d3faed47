"""Read HAMi's configuration, for all nodes and for single ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.cluster_objects import ConfigMap
from diagnosis.snapshot.hami_pod import short
from diagnosis.snapshot.json_fields import Fields
from healthcheck.text.documents import MalformedError, yaml_object

DEVICE_CONFIG = "device-config.yaml"
_NODE_CONFIG = "config.json"
_NVIDIA = "nvidia"
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


class HamiSettings(Struct, frozen=True):
    """Settings of NVIDIA's cards for all nodes. Without a configuration, they are the chart's defaults."""

    count_name: str = "nvidia.com/gpu"
    memory_name: str = "nvidia.com/gpumem"
    percentage_name: str = "nvidia.com/gpumem-percentage"
    cores_name: str = "nvidia.com/gpucores"
    priority_name: str = "nvidia.com/priority"
    default_memory: int = 0
    default_cores: int = 0
    default_cards: int = 1
    memory_factor: int = 1
    """MiB for each requested unit of memory."""
    memory_scaling: float | None = None
    """Registered memory for each MiB of a card; above 1 it is overcommitted."""
    core_policy: str = ""
    """`default`, `force` or `disable`: whether cores are limited to the request."""
    misplaced: tuple[str, ...] = ()
    """Keys for NVIDIA's cards outside of `nvidia:`, where HAMi does not read them."""
    unreadable: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Return the resource names that a container may request."""
        parts = (self.memory_name, self.percentage_name, self.cores_name, self.priority_name)
        return frozenset((self.count_name, *parts))


def read_settings(config_map: ConfigMap) -> HamiSettings:
    try:
        document = yaml_object(config_map.data.get(DEVICE_CONFIG, "").encode("utf-8", "replace"))
    except MalformedError as error:
        return HamiSettings(unreadable=short(error.message))
    nvidia, defaults = Fields(document).at(_NVIDIA), HamiSettings()
    cards = nvidia.number("defaultGPUNum")
    return HamiSettings(
        count_name=nvidia.text("resourceCountName") or defaults.count_name,
        memory_name=nvidia.text("resourceMemoryName") or defaults.memory_name,
        percentage_name=nvidia.text("resourceMemoryPercentageName") or defaults.percentage_name,
        cores_name=nvidia.text("resourceCoreName") or defaults.cores_name,
        priority_name=nvidia.text("resourcePriorityName") or defaults.priority_name,
        default_memory=nvidia.number("defaultMemory") or 0,
        default_cores=nvidia.number("defaultCores") or 0,
        default_cards=defaults.default_cards if cards is None else cards,
        memory_factor=max(nvidia.number("memoryFactor") or 1, 1),
        memory_scaling=nvidia.ratio("deviceMemoryScaling"),
        core_policy=nvidia.text("gpuCorePolicy"),
        misplaced=tuple(key for key in Fields(document).names() if key in _KEYS),
    )


def node_memory_scaling(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """Yield node names with the memory scaling that a node configuration sets for them."""
    for config_map in snapshot.config_maps:
        if "nodeconfig" in config_map.data.get(_NODE_CONFIG, "").lower():
            for node in _node_configs(config_map.data[_NODE_CONFIG]):
                scaling = node.ratio("devicememoryscaling")
                if scaling is not None:
                    yield short(node.text("name")), scaling


def _node_configs(text: str) -> Iterator[Fields]:
    try:
        document = _with_lower_keys(yaml_object(text.encode("utf-8", "replace")))
    except MalformedError:
        return
    nodes = document.get("nodeconfig")
    for node in islice(nodes, _MOST_NODES) if isinstance(nodes, list) else ():
        yield Fields(_with_lower_keys(node))


def _with_lower_keys(value: object) -> dict[str, object]:
    """Return the mapping with its keys in lower case, since Go's JSON ignores case."""
    pairs = islice(value.items(), _MOST_KEYS) if isinstance(value, dict) else ()
    return {str(key).lower(): entry for key, entry in pairs}
