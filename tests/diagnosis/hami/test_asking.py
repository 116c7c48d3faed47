"""What a container asks of HAMi, before and after its webhook."""

from __future__ import annotations

import pytest

from diagnosis.hami.asking import Asked, admitted, asked_of
from diagnosis.hami.installation import installations
from diagnosis.hami.settings import Settings
from diagnosis.hami.versions import NEWEST, Version, image_version
from diagnosis.snapshot.pods import Container
from tests.diagnosis.hami.clusters import CORES, MEMORY, PERCENTAGE, scheduler
from tests.diagnosis.states import GPU, snapshot

OLD: Version = (2, 9)
ONE = {GPU: "1"}
WHOLE = Asked(1, 0, 100, 0)
ASKED: list[tuple[dict[str, str], Settings, Version, Asked | None]] = [
    ({}, Settings(), NEWEST, None),
    ({"cpu": "4"}, Settings(), NEWEST, None),
    ({GPU: "0"}, Settings(), NEWEST, None),
    ({GPU: "500m"}, Settings(), NEWEST, None),
    ({GPU: "-1"}, Settings(), NEWEST, None),
    ({GPU: "3G"}, Settings(), NEWEST, None),
    (ONE, Settings(), NEWEST, WHOLE),
    (ONE, Settings(default_memory=4000), NEWEST, Asked(1, 4000, None, 0)),
    (ONE, Settings(default_cores=30), NEWEST, Asked(1, 0, 100, 30)),
    ({GPU: "2", MEMORY: "4000"}, Settings(), NEWEST, Asked(2, 4000, None, 0)),
    ({GPU: "2", MEMORY: "4k"}, Settings(), NEWEST, Asked(2, 4000, None, 0)),
    (ONE | {MEMORY: "4"}, Settings(memory_factor=1024), NEWEST, Asked(1, 4096, None, 0)),
    (ONE | {MEMORY: "0"}, Settings(), NEWEST, WHOLE),
    (ONE | {PERCENTAGE: "50"}, Settings(), NEWEST, Asked(1, 0, 50, 0)),
    (ONE | {PERCENTAGE: "50", MEMORY: "1000"}, Settings(), NEWEST, Asked(1, 1000, 50, 0)),
    (ONE | {PERCENTAGE: "0"}, Settings(), NEWEST, WHOLE),
    (ONE | {PERCENTAGE: "0"}, Settings(), OLD, Asked(1, 0, 0, 0)),
    (ONE | {PERCENTAGE: "150"}, Settings(), NEWEST, WHOLE),
    (ONE | {PERCENTAGE: "150"}, Settings(), OLD, Asked(1, 0, 150, 0)),
    (ONE | {CORES: "30"}, Settings(default_cores=50), NEWEST, Asked(1, 0, 100, 30)),
    (ONE | {CORES: "250"}, Settings(), NEWEST, Asked(1, 0, 100, 100)),
    # 4Gi is a number of MiB like any other: more than any card has, and more than 32 bits hold.
    (ONE | {MEMORY: "4Gi"}, Settings(), NEWEST, None),
    (ONE | {MEMORY: "4Gi"}, Settings(), OLD, Asked(1, 0, None, 0)),
    ({"example.com/gpu": "3"}, Settings(count_name="example.com/gpu"), NEWEST, Asked(3, 0, 100, 0)),
]


@pytest.mark.parametrize(("limits", "settings", "version", "asked"), ASKED)
def test_what_a_container_asks_is_read_as_its_version_reads_it(
    limits: dict[str, str], settings: Settings, version: Version, asked: Asked | None
) -> None:
    assert asked_of(Container("main", limits=limits), settings, version) == asked
    if GPU in limits and asked is not None and asked.memory != 0:
        assert asked_of(Container("main", requests=limits), settings, version) == asked


ADMITTED: list[tuple[dict[str, str], Settings, Version, dict[str, str]]] = [
    ({"cpu": "4"}, Settings(), NEWEST, {}),
    (ONE, Settings(), NEWEST, {CORES: "100"}),
    (ONE, Settings(), (2, 6), {}),
    (ONE | {MEMORY: "4000"}, Settings(), NEWEST, {}),
    (ONE | {PERCENTAGE: "50"}, Settings(), NEWEST, {}),
    (ONE | {PERCENTAGE: "100"}, Settings(), NEWEST, {CORES: "100"}),
    (ONE | {CORES: "10"}, Settings(), NEWEST, {}),
    ({MEMORY: "4000"}, Settings(), NEWEST, ONE),
    ({MEMORY: "4000"}, Settings(default_cards=2), NEWEST, {GPU: "2"}),
    ({MEMORY: "4000"}, Settings(default_cards=0), NEWEST, {}),
    ({CORES: "30"}, Settings(), NEWEST, ONE),
    ({PERCENTAGE: "100"}, Settings(), NEWEST, ONE | {CORES: "100"}),
]


@pytest.mark.parametrize(("limits", "settings", "version", "added"), ADMITTED)
def test_the_webhook_adds_a_number_of_cards_and_makes_a_whole_one_exclusive(
    limits: dict[str, str], settings: Settings, version: Version, added: dict[str, str]
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


def test_the_extender_tells_the_version_and_not_the_scheduler_beside_it() -> None:
    (one,) = installations(snapshot(scheduler("v2.8.1")))
    assert one.version == (2, 8)
