"""HAMi's configuration: device-config.yaml for all nodes, config.json for single ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from gpu_healthcheck.diagnosis.hami.installation import settings_of
from gpu_healthcheck.diagnosis.hami.settings import HamiSettings, node_memory_scaling, read_settings
from gpu_healthcheck.diagnosis.snapshot.cluster_objects import ConfigMap
from gpu_healthcheck.diagnosis.snapshot.meta import Meta
from tests.diagnosis.hami.clusters import device_config
from tests.diagnosis.hami.hami_states import hami, hami_node
from tests.diagnosis.states import judged, node, obj, results, snapshot
from tests.hostile import ANY_TEXT

MAP = "configmap/kube-system/hami-scheduler-device"
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
  gpuCorePolicy: force
  migProfileAllowlist: [{models: [A30], profiles: [1g.6gb]}]
cambricon: {resourceCountName: cambricon.com/vmlu}
"""


def read(text: str) -> HamiSettings:
    return read_settings(ConfigMap(Meta("ConfigMap", "kube-system", "x"), {"device-config.yaml": text}))


def node_scaling(text: str) -> dict[str, float]:
    config = obj("ConfigMap", "share-hami-device-plugin", "gpu", data={"config.json": text})
    return dict(node_memory_scaling(snapshot(node("a"), config)))


def test_device_configuration_is_read() -> None:
    assert read(PLAIN) == HamiSettings(
        "example.com/gpu",
        "example.com/gpumem",
        "example.com/gpumem-percentage",
        "example.com/gpucores",
        "example.com/priority",
        default_memory=4000,
        default_cores=10,
        default_cards=2,
        memory_factor=1024,
        memory_scaling=1.5,
        core_policy="force",
    )


def test_device_configuration_is_found_by_its_key() -> None:
    assert settings_of(snapshot(node("a"), device_config("nvidia: {defaultMemory: 7}", "gpu"))).default_memory == 7
    assert settings_of(snapshot(node("a"))) == HamiSettings()


@pytest.mark.parametrize(
    ("text", "scaling"),
    [
        ('{"nodeconfig": [{"name": "a", "deviceMemoryScaling": 1.8, "split": 3}, {"name": "b"}]}', {"a": 1.8}),
        ('{\r\n\t"nodeconfig": [\r\n\t\t{"name": "a", "devicememoryscaling": 2}\r\n\t]\r\n}', {"a": 2.0}),
        ('{"nodeconfig": 3}', {}),
        ('["nodeconfig"]', {}),
    ],
    ids=["mixed case", "line ends of an editor", "no list", "no object"],
)
def test_node_configuration_has_memory_scaling(text: str, scaling: dict[str, float]) -> None:
    assert node_scaling(text) == scaling


def test_repeated_yaml_lists_are_bounded() -> None:
    def nodes(many: int, times: int) -> str:
        listed = f"n: &n {{name: x, devicememoryscaling: 2, f: *f}}\nnodeconfig: [{', '.join(['*n'] * times)}]\n"
        return f"f: &f {{uuid: [{', '.join(['x'] * many)}]}}\n{listed}"

    assert node_scaling(nodes(9, 9000)) == {"x": 2.0}
    assert node_scaling(nodes(900, 9000)) == {}


@given(text=ANY_TEXT)
def test_any_text_is_read(text: str) -> None:
    for each in (text, f"nvidia: {{{text}}}", f"nvidia:\n  gpuCorePolicy: {text}"):
        assert len(repr(read(each))) < 20_000
    assert len(node_scaling(json.dumps({"nodeconfig": [{"name": text, "devicememoryscaling": 1}]}))) == 1


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ("nvidia: [", [("HamiConfigurationUnreadable", MAP)]),
        ("- nvidia", [("HamiConfigurationUnreadable", MAP)]),
        ("nvidia: {defaultMemory: 0}\ndeviceMemoryScaling: 2", [("HamiSettingMisplaced", MAP)]),
        ("", []),
        ("nvidia: {deviceMemoryScaling: 2, deviceSplitCount: 4, aKeyOfALaterVersion: 1}", []),
        ("nvidia:\r\n  defaultMemory: 0\t\r\n  deviceSplitCount: 10\r\n", []),
        ("nvidia: {}\nanotherVendor: {resourceCountName: x}\nvnpus: {configs: []}", []),
    ],
)
def test_invalid_configuration_is_a_cause(text: str, causes: list[tuple[str, str]]) -> None:
    assert results(judged(*hami(hami_node("a")), device_config(text))) == causes


def test_configuration_without_hami_is_no_cause() -> None:
    assert results(judged(node("a", 8), device_config("nvidia: ["))) == []
