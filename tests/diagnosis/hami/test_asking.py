"""A container's request to HAMi, before and after its webhook."""

from __future__ import annotations

import pytest

from diagnosis.hami.card_requests import CardRequest, admitted, asked_of
from diagnosis.hami.installation import installations
from diagnosis.hami.settings import HamiSettings
from diagnosis.hami.versions import NEWEST, Version, image_version
from diagnosis.snapshot.pods import Container
from tests.diagnosis.hami.clusters import CORES, MEMORY, PERCENTAGE, scheduler
from tests.diagnosis.states import GPU, snapshot

OLD: Version = (2, 9)
ONE = {GPU: "1"}
WHOLE = CardRequest(1, 0, 100, 0)
ASKED: list[tuple[dict[str, str], HamiSettings, Version, CardRequest | None]] = [
    ({}, HamiSettings(), NEWEST, None),
    ({"cpu": "4"}, HamiSettings(), NEWEST, None),
    ({GPU: "0"}, HamiSettings(), NEWEST, None),
    ({GPU: "500m"}, HamiSettings(), NEWEST, None),
    ({GPU: "-1"}, HamiSettings(), NEWEST, None),
    ({GPU: "3G"}, HamiSettings(), NEWEST, None),
    (ONE, HamiSettings(), NEWEST, WHOLE),
    (ONE, HamiSettings(default_memory=4000), NEWEST, CardRequest(1, 4000, None, 0)),
    (ONE, HamiSettings(default_cores=30), NEWEST, CardRequest(1, 0, 100, 30)),
    ({GPU: "2", MEMORY: "4000"}, HamiSettings(), NEWEST, CardRequest(2, 4000, None, 0)),
    ({GPU: "2", MEMORY: "4k"}, HamiSettings(), NEWEST, CardRequest(2, 4000, None, 0)),
    (ONE | {MEMORY: "4"}, HamiSettings(memory_factor=1024), NEWEST, CardRequest(1, 4096, None, 0)),
    (ONE | {MEMORY: "0"}, HamiSettings(), NEWEST, WHOLE),
    (ONE | {PERCENTAGE: "50"}, HamiSettings(), NEWEST, CardRequest(1, 0, 50, 0)),
    (ONE | {PERCENTAGE: "50", MEMORY: "1000"}, HamiSettings(), NEWEST, CardRequest(1, 1000, 50, 0)),
    (ONE | {PERCENTAGE: "0"}, HamiSettings(), NEWEST, WHOLE),
    (ONE | {PERCENTAGE: "0"}, HamiSettings(), OLD, CardRequest(1, 0, 0, 0)),
    (ONE | {PERCENTAGE: "150"}, HamiSettings(), NEWEST, WHOLE),
    (ONE | {PERCENTAGE: "150"}, HamiSettings(), OLD, CardRequest(1, 0, 150, 0)),
    (ONE | {CORES: "30"}, HamiSettings(default_cores=50), NEWEST, CardRequest(1, 0, 100, 30)),
    (ONE | {CORES: "250"}, HamiSettings(), NEWEST, CardRequest(1, 0, 100, 100)),
    # 4Gi is a number of MiB like any other: more than any card has, and more than 32 bits hold.
    (ONE | {MEMORY: "4Gi"}, HamiSettings(), NEWEST, None),
    (ONE | {MEMORY: "4Gi"}, HamiSettings(), OLD, CardRequest(1, 0, None, 0)),
    ({"example.com/gpu": "3"}, HamiSettings(count_name="example.com/gpu"), NEWEST, CardRequest(3, 0, 100, 0)),
]


@pytest.mark.parametrize(("limits", "settings", "version", "asked"), ASKED)
def test_what_a_container_asks_is_read_as_its_version_reads_it(
    limits: dict[str, str], settings: HamiSettings, version: Version, asked: CardRequest | None
) -> None:
    assert asked_of(Container("main", limits=limits), settings, version) == asked
    if GPU in limits and asked is not None and asked.memory != 0:
        assert asked_of(Container("main", requests=limits), settings, version) == asked


ADMITTED: list[tuple[dict[str, str], HamiSettings, Version, dict[str, str]]] = [
    ({"cpu": "4"}, HamiSettings(), NEWEST, {}),
    (ONE, HamiSettings(), NEWEST, {CORES: "100"}),
    (ONE, HamiSettings(), (2, 6), {}),
    (ONE | {MEMORY: "4000"}, HamiSettings(), NEWEST, {}),
    (ONE | {PERCENTAGE: "50"}, HamiSettings(), NEWEST, {}),
    (ONE | {PERCENTAGE: "100"}, HamiSettings(), NEWEST, {CORES: "100"}),
    (ONE | {CORES: "10"}, HamiSettings(), NEWEST, {}),
    ({MEMORY: "4000"}, HamiSettings(), NEWEST, ONE),
    ({MEMORY: "4000"}, HamiSettings(default_cards=2), NEWEST, {GPU: "2"}),
    ({MEMORY: "4000"}, HamiSettings(default_cards=0), NEWEST, {}),
    ({CORES: "30"}, HamiSettings(), NEWEST, ONE),
    ({PERCENTAGE: "100"}, HamiSettings(), NEWEST, ONE | {CORES: "100"}),
]


@pytest.mark.parametrize(("limits", "settings", "version", "added"), ADMITTED)
def test_the_webhook_adds_a_number_of_cards_and_makes_a_whole_one_exclusive(
    limits: dict[str, str], settings: HamiSettings, version: Version, added: dict[str, str]
) -> None:
    assert admitted(Container("main", limits=limits), settings, version).limits == limits | added


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("projecthami/hami:v2.7.1", (2, 7)),
        ("registry.example:5000/hami:2.10.0-amd64@sha256:12", (2, 10)),
        ("projecthami/hami:latest", None),
        ("projecthami/hami", None),
    ],
)
def test_an_images_tag_tells_the_version(image: str, version: Version | None) -> None:
    assert image_version(image) == version


def test_the_version_comes_from_the_extender_and_not_the_scheduler() -> None:
    (installation,) = installations(snapshot(scheduler("v2.8.1")))
    assert installation.version == (2, 8)
