"""Read HAMi's configuration, for all nodes and for single ones. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from msgspec import Struct

from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.annotation_text import word
from diagnosis.snapshot.cluster_objects import ConfigMap
from diagnosis.snapshot.hami_node import MigProfile
from diagnosis.snapshot.json_fields import Fields
from healthcheck.text.documents import MalformedError, yaml_object

DEVICE_CONFIG = "device-config.yaml"
NODE_CONFIG = "config.json"
_NVIDIA = "nvidia"
_VENDORS = frozenset(
    (
        *(_NVIDIA, "cambricon", "hygon", "metax", "enflame", "mthreads", "iluvatars", "kunlun", "awsneuron", "amd"),
        *("vastai", "biren", "vnpus", "iluvatar", "kunlunxin", "ascend", "ppu"),
    )
)
KEYS = {
    "resourceCountName": "the resource name for a number of cards",
    "resourceMemoryName": "the resource name for MiB of each card",
    "resourceMemoryPercentageName": "the resource name for percent of each card's memory",
    "resourceCoreName": "the resource name for percent of each card's cores",
    "resourcePriorityName": "the resource name for a task's priority: 0 is high, 1 is low",
    "overwriteEnv": "NVIDIA_VISIBLE_DEVICES=none for containers that request no card",
    "defaultMemory": "MiB for a container that requests none; 0 is the whole card",
    "defaultCores": "percent of cores for a container that requests none",
    "defaultGPUNum": "cards for a container that requests only memory or cores",
    "memoryFactor": "MiB for each requested unit of memory",
    "deviceSplitCount": "how many containers may share a card",
    "deviceMemoryScaling": "registered memory for each MiB of a card; above 1 it is overcommitted",
    "deviceCoreScaling": "registered cores for each percent of a card",
    "preConfiguredDeviceMemory": "MiB of each card, instead of NVML's value",
    "enableNumaTopology": "whether NUMA nodes are reported to the kubelet",
    "gpuCorePolicy": "default, force or disable: whether cores are limited to the request",
    "libCudaLogLevel": "log level of the library in containers: 0 (errors) to 4 (debug)",
    "runtimeClassName": "the RuntimeClass that the webhook sets in pods",
    "disableCoreLimit": "whether core limits are disabled",
    "migProfileAllowlist": "MIG profiles allowed on each card model (from 2.10)",
    "knownMigGeometries": "MIG layouts of each card model (up to 2.9)",
}
"""Keys under `nvidia:` in device-config.yaml, as spelled there."""
NODE_KEYS = {
    "name": "the node",
    "operatingmode": "hami-core or mig",
    "devicememoryscaling": KEYS["deviceMemoryScaling"],
    "devicesplitcount": KEYS["deviceSplitCount"],
    "devicecorescaling": KEYS["deviceCoreScaling"],
    "preconfigureddevicememory": KEYS["preConfiguredDeviceMemory"],
    "enablenumatopology": KEYS["enableNumaTopology"],
    "libcudaloglevel": KEYS["libCudaLogLevel"],
    "migstrategy": "none, single or mixed: of the device plugin, not of HAMi's own MIG mode",
    "filterdevices": "cards by uuid or index that are not registered",
    "enablegetpreferredallocation": "whether the kubelet requests a preferred set of cards",
}
"""Keys of one entry of `nodeconfig` in config.json. Go's JSON ignores case."""
_MOST_ODD, _MOST_KEYS, _MOST_NODES, _MOST_LAYOUTS = 32, 256, 1024, 32


class InvalidKey(Struct, frozen=True):
    """Key at a position where HAMi does not read it.

    `meant`: the position and name that were probably intended; '' if unknown.
    """

    path: str
    meant: str = ""


class Geometry(Struct, frozen=True):
    """MIG layout up to 2.9: `instances` in order, repeated as often as they occur."""

    instances: tuple[MigProfile, ...]


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
    slots: int | None = None
    memory_scaling: float | None = None
    core_policy: str = ""
    runtime_class: str = ""
    geometries: Mapping[str, tuple[Geometry, ...]] | None = None
    """MIG layouts by a part of the card's type, up to 2.9."""
    odd: tuple[InvalidKey, ...] = ()
    unreadable: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Return the resource names that a container may request."""
        parts = (self.memory_name, self.percentage_name, self.cores_name, self.priority_name)
        return frozenset((self.count_name, *parts))


class HamiNodeSettings(Struct, frozen=True):
    """Settings of one node, in addition to those for all nodes. None if not set."""

    name: str
    mode: str = ""
    slots: int | None = None
    memory_scaling: float | None = None
    odd: tuple[InvalidKey, ...] = ()


class NodeConfig(Struct, frozen=True):
    """Content of one config.json."""

    nodes: tuple[HamiNodeSettings, ...] = ()
    odd: tuple[InvalidKey, ...] = ()
    unreadable: str = ""


def node_configs(snapshot: Snapshot) -> tuple[tuple[ConfigMap, NodeConfig], ...]:
    """Return each ConfigMap that has a node configuration, with that configuration."""
    return tuple(
        (config_map, read_node_config(config_map))
        for config_map in snapshot.config_maps
        if "nodeconfig" in config_map.data.get(NODE_CONFIG, "").lower()
    )


def read_settings(config_map: ConfigMap) -> HamiSettings:
    try:
        document = yaml_object(config_map.data.get(DEVICE_CONFIG, "").encode("utf-8", "replace"))
    except MalformedError as error:
        return HamiSettings(unreadable=word(error.message))
    raw, plain = Fields(document).at(_NVIDIA), HamiSettings()
    return HamiSettings(
        raw.text("resourceCountName") or plain.count_name,
        raw.text("resourceMemoryName") or plain.memory_name,
        raw.text("resourceMemoryPercentageName") or plain.percentage_name,
        raw.text("resourceCoreName") or plain.cores_name,
        raw.text("resourcePriorityName") or plain.priority_name,
        raw.number("defaultMemory") or 0,
        raw.number("defaultCores") or 0,
        1 if (cards := raw.number("defaultGPUNum")) is None else cards,
        raw.number("memoryFactor") or 1,
        raw.number("deviceSplitCount"),
        raw.ratio("deviceMemoryScaling"),
        raw.text("gpuCorePolicy"),
        raw.text("runtimeClassName"),
        dict(_geometries(raw)),
        tuple(islice(_odd_settings(document), _MOST_ODD)),
    )


def read_node_config(config_map: ConfigMap) -> NodeConfig:
    try:
        document = yaml_object(config_map.data.get(NODE_CONFIG, "").encode("utf-8", "replace"))
    except MalformedError as error:
        return NodeConfig(unreadable=word(error.message))
    whole = _folded(document)
    listed = whole.get("nodeconfig")
    nodes = islice(listed, _MOST_NODES) if isinstance(listed, list) else ()
    odd = islice(_odd({"nodeconfig": ""}, Fields(whole).names(), ""), _MOST_ODD)
    return NodeConfig(tuple(_node(_folded(node)) for node in nodes), tuple(odd))


def _node(folded: Mapping[str, object]) -> HamiNodeSettings:
    raw = Fields(folded)
    name = word(raw.text("name"))
    return HamiNodeSettings(
        name,
        word(raw.text("operatingmode")),
        raw.number("devicesplitcount"),
        raw.ratio("devicememoryscaling"),
        tuple(islice(_odd(NODE_KEYS, raw.names(), f"nodeconfig[{name}]."), _MOST_ODD)),
    )


def _folded(value: object) -> dict[str, object]:
    """Return the mapping with its keys in lower case, since Go's JSON ignores case."""
    pairs = islice(value.items(), _MOST_KEYS) if isinstance(value, dict) else ()
    return {str(key).lower(): entry for key, entry in pairs}


def _geometries(raw: Fields) -> Iterator[tuple[str, tuple[Geometry, ...]]]:
    # YAML can reference one list many times, so only a few entries of each are read.
    for fields in islice(raw.each("knownMigGeometries"), _MOST_LAYOUTS):
        listed = islice(fields.lists("allowedGeometries"), _MOST_LAYOUTS)
        layouts = tuple(Geometry(tuple(islice(_instances(each), _MOST_LAYOUTS))) for each in listed)
        yield from ((model, layouts) for model in fields.texts("models"))


def _instances(layout: Iterable[Fields]) -> Iterator[MigProfile]:
    for fields in layout:
        instance = MigProfile(fields.text("name"), fields.number("memory") or 0, fields.number("core") or 0, 0)
        yield from (instance for _ in range(min(max(fields.number("count") or 0, 0), 16)))


def _odd_settings(document: Mapping[str, object]) -> Iterator[InvalidKey]:
    """Yield unknown keys, and keys of `nvidia:` outside of it, where they are not read."""
    for key in Fields(document).names():
        if key in _VENDORS:
            continue
        near = _near(KEYS, key)
        yield InvalidKey(word(key), f"{_NVIDIA}.{near}" if near else next(iter(_close(_VENDORS, key)), ""))
    yield from _odd(KEYS, Fields(document).names(_NVIDIA), f"{_NVIDIA}.")


def _odd(known: Mapping[str, str], keys: Iterable[str], path: str) -> Iterator[InvalidKey]:
    for key in keys:
        if key not in known:
            near = _near(known, key)
            yield InvalidKey(f"{path}{word(key)}", f"{path}{near}" if near else "")


def _near(known: Mapping[str, str], key: str) -> str:
    folded = {text.lower(): text for text in known}
    return folded.get(key.lower()) or next((folded[text] for text in _close(folded, key.lower())), "")


def _close(known: Iterable[str], key: str) -> list[str]:
    return difflib.get_close_matches(key[:80], list(known), 1, 0.7)
