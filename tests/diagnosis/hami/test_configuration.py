"""HAMi configurations that prevent the intended behaviour."""

from __future__ import annotations

import pytest

from tests.diagnosis.hami.clusters import device_config
from tests.diagnosis.hami.hami_states import hami, hami_node
from tests.diagnosis.states import judged, node, results

MAP = "configmap/kube-system/hami-scheduler-device"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("nvidia: [", "HamiConfigurationUnreadable"),
        ("- nvidia", "HamiConfigurationUnreadable"),
        ("nvidia: {defaultMemory: 0}\ndeviceMemoryScaling: 2", "HamiSettingMisplaced"),
    ],
)
def test_a_configuration_that_does_not_do_what_it_says_is_named(text: str, cause: str) -> None:
    assert results(judged(*hami(hami_node("a")), device_config(text))) == [(cause, MAP)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nvidia: {deviceMemoryScaling: 2, deviceSplitCount: 4, aKeyOfALaterVersion: 1}",
        "nvidia:\r\n  defaultMemory: 0\t\r\n  deviceSplitCount: 10\r\n",
        "nvidia: {}\nanotherVendor: {resourceCountName: x}\nvnpus: {configs: []}",
    ],
)
def test_a_configuration_of_another_version_is_left_in_peace(text: str) -> None:
    assert results(judged(*hami(hami_node("a")), device_config(text))) == []


def test_without_hami_its_old_configuration_is_nobodys_business() -> None:
    assert results(judged(node("a", 8), device_config("nvidia: ["))) == []
