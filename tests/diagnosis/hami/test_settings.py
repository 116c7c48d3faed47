"""HAMi's configuration as it is read, and keys of it that nothing reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from diagnosis.hami.installation import settings_of
from diagnosis.hami.settings import (
    HamiNodeSettings,
    HamiSettings,
    InvalidKey,
    node_configs,
    read_node_config,
    read_settings,
)
from diagnosis.snapshot.cluster_objects import ConfigMap
from diagnosis.snapshot.meta import Meta
from tests.diagnosis.hami.clusters import device_config
from tests.diagnosis.states import node, obj, snapshot
from tests.hostile import ANY_TEXT

PLAIN = """
nvidia:
  resourceCountName: example.com/gpu
  resourceMemoryName: example.com/gpumem
  resourceMemoryPercentageName: example.com/gpumem-percentage
  resourceCoreName: example.com/gpucores
  resourcePriorityName: example.com/priority
  overwriteEnv: true
  defaultMemory: 4000
  defaultCores: 10
  defaultGPUNum: 2
  memoryFactor: 1024
  deviceSplitCount: 20
  deviceMemoryScaling: 1.5
  deviceCoreScaling: 2
  gpuCorePolicy: force
  runtimeClassName: nvidia
  libCudaLogLevel: 3
  migProfileAllowlist: [{models: [A30], profiles: [1g.6gb]}]
cambricon: {resourceCountName: cambricon.com/vmlu}
vnpus: {hamiVnpuCore: false}
"""


def config(key: str, text: str) -> ConfigMap:
    return ConfigMap(Meta("ConfigMap", "kube-system", "x"), {key: text})


def read(text: str) -> HamiSettings:
    return read_settings(config("device-config.yaml", text))


def test_a_configuration_is_read_whole() -> None:
    settings = read(PLAIN)
    assert (settings.count_name, settings.memory_name, settings.cores_name) == (
        "example.com/gpu",
        "example.com/gpumem",
        "example.com/gpucores",
    )
    assert (settings.default_memory, settings.default_cores, settings.default_cards, settings.memory_factor) == (
        4000,
        10,
        2,
        1024,
    )
    assert (settings.slots, settings.memory_scaling) == (20, 1.5)
    assert (settings.core_policy, settings.runtime_class) == ("force", "nvidia")
    assert (settings.odd, settings.unreadable) == ((), "")


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("deviceMemoryScaling: 2", InvalidKey("deviceMemoryScaling", "nvidia.deviceMemoryScaling")),
        ("nvidia: {defaultMem: 1000}", InvalidKey("nvidia.defaultMem", "nvidia.defaultMemory")),
        ("nvidia: {devicesplitcount: 4}", InvalidKey("nvidia.devicesplitcount", "nvidia.deviceSplitCount")),
        ("nvidia: {colour: red}", InvalidKey("nvidia.colour")),
        ("nvida: {defaultMemory: 1}", InvalidKey("nvida", "nvidia")),
    ],
)
def test_a_key_that_nothing_reads_is_named_with_what_is_meant(text: str, odd: InvalidKey) -> None:
    assert read(text).odd == (odd,)


def test_a_nodes_own_configuration_is_read_in_any_mix_of_cases() -> None:
    entry = {
        "name": "a",
        "operatingmode": "mig",
        "deviceMemoryScaling": 1.8,
        "devicesplitcount": 4,
        "migstrategy": "none",
        "filterdevices": {"uuid": ["GPU-1"], "index": [0, 3]},
        "split": 3,
    }
    node_config = read_node_config(config("config.json", json.dumps({"nodeconfig": [entry], "nodes": []})))
    assert node_config.nodes == (HamiNodeSettings("a", "mig", 4, 1.8, (InvalidKey("nodeconfig[a].split"),)),)
    assert [key.path for key in node_config.odd] == ["nodes"]


def test_a_configuration_is_found_by_its_key_whatever_the_release_is_called() -> None:
    text = json.dumps({"nodeconfig": [{"name": "a"}]})
    seen = snapshot(
        node("a"),
        device_config("nvidia: {defaultMemory: 7}", "gpu"),
        obj("ConfigMap", "share-hami-device-plugin", "gpu", data={"config.json": text}),
        obj("ConfigMap", "hami-scheduler", "gpu", data={"config.json": "{}"}),
    )
    assert settings_of(seen).default_memory == 7
    assert [(config_map.meta.name, len(config.nodes)) for config_map, config in node_configs(seen)] == [
        ("share-hami-device-plugin", 1)
    ]
    assert settings_of(snapshot(node("a"))) == HamiSettings()


def test_a_file_of_any_editor_is_read() -> None:
    own = '{\r\n\t"nodeconfig": [\r\n\t\t{"name": "a", "devicesplitcount": 4}\r\n\t]\r\n}'
    seen = snapshot(node("a"), obj("ConfigMap", "hami-device-plugin", "gpu", data={"config.json": own}))
    ((_, config),) = node_configs(seen)
    assert config.nodes[0].slots == 4


def test_what_is_no_configuration_says_so() -> None:
    assert read("nvidia: [").unreadable
    assert read_node_config(config("config.json", "[]")).unreadable


def _geometries(many: int, times: int) -> str:
    bomb = f"a: &a {{name: x, count: 9}}\nb: &b [{', '.join(['*a'] * many)}]\n"
    layouts = f"nvidia:\n  knownMigGeometries: [{', '.join(['*g'] * times)}]\n"
    return bomb + f"g: &g {{models: [A], allowedGeometries: [{', '.join(['*b'] * times)}]}}\n" + layouts


def _nodes(many: int, times: int) -> str:
    nodes = f"n: &n {{name: x, filterdevices: *f}}\nnodeconfig: [{', '.join(['*n'] * times)}]\n"
    return f"f: &f {{uuid: [{', '.join(['x'] * many)}]}}\n{nodes}"


def test_lists_that_are_named_many_times_are_not_walked_as_often() -> None:
    assert len((read(_geometries(90, 18)).geometries or {})["A"]) <= 32
    assert 0 < len(read_node_config(config("config.json", _nodes(9, 9000))).nodes) <= 1024


def test_lists_that_are_named_too_many_times_are_not_read() -> None:
    assert read(_geometries(9000, 900)).unreadable
    assert read_node_config(config("config.json", _nodes(900, 9000))).unreadable


@given(text=ANY_TEXT)
def test_no_text_breaks_a_configurations_reader(text: str) -> None:
    for each in (text, f"nvidia: {{{text}}}", f"nvidia:\n  runtimeClassName: {text}"):
        assert len(repr(read(each))) < 20_000
        assert len(repr(read_node_config(config("config.json", each)))) < 20_000
