"""Name of a GPU in a quarantine run: its address, as everywhere."""

from __future__ import annotations

import json

import pytest

from tests.probes.dcgm.documents import FAULTY, Story, dcgm_4
from tests.quarantine.world import World

pytestmark = pytest.mark.cluster


def found(world: World) -> list[tuple[str, str]]:
    """With level 4 failing on DCGM's GPU 1, which has the serial number of the driver's GPU 2."""
    document = dcgm_4(Story(8, errors={("memory", 1): [FAULTY]}))
    for entity, gpu in zip(document["entity_groups"][0]["entities"], counted_otherwise(world), strict=True):
        entity["serial_num"] = gpu
    world.dcgm(answer=json.dumps(document), code="205")
    assert world.run().code == 1
    return [(row["subject"], row["about"]["serial"]) for row in world.record["findings"]]


def counted_otherwise(world: World) -> list[str]:
    first, *others, last = (gpu.serial for gpu in world.host.gpus)
    return [first, *others[1:], last, others[0]]


def test_it_is_the_drivers_address_whatever_dcgm_counts(world: World) -> None:
    gpu = world.host.gpus[2]

    assert found(world) == [(f"gpu/{gpu.address}", gpu.serial)]


def test_where_nvml_does_not_answer_it_is_dcgms_number(world: World) -> None:
    world.host.crash()

    assert found(world) == [("gpu/1", world.host.gpus[2].serial)]
