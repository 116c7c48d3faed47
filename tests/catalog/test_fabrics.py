"""Interconnects of the GPUs of an instance type."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.catalog.hardware import fabric_of, fabrics
from gpu_healthcheck.healthcheck.settings.reading import packaged_profiles

# Links and their version (nvmlNvlinkVersion_t), NVSwitches on PCI, fabric manager, IMEX.
JOINED = {
    "p3dn.24xlarge": (6, 2, 0, False, False),
    "p4d.24xlarge": (12, 4, 6, True, False),
    "p4de.24xlarge": (12, 4, 6, True, False),
    "p5.48xlarge": (18, 6, 4, True, False),
    "p5e.48xlarge": (18, 6, 4, True, False),
    "p5en.48xlarge": (18, 6, 4, True, False),
    "p6-b200.48xlarge": (18, 7, None, True, False),
    "p6-b300.48xlarge": (18, 7, None, True, False),
    "p6e-gb200.36xlarge": (18, 7, 0, False, True),
    "p6e-gb300r.36xlarge": (18, 7, 0, False, True),
    "p6e-gb300.36xlarge": (18, 7, 0, False, True),
}


@pytest.mark.parametrize("instance_type", packaged_profiles())
def test_every_type_of_the_profiles_says_how_its_gpus_are_joined(instance_type: str) -> None:
    row = fabric_of(instance_type)

    assert row is not None
    switches = None if instance_type == "p5.4xlarge" else 0
    expected = JOINED.get(instance_type, (0, 0, switches, False, False))
    assert (row.links_per_gpu, row.nvlink_version, row.nvswitches, row.fabric_manager, row.imex) == expected
    assert packaged_profiles()[instance_type].nvlink == bool(row.links_per_gpu)


@pytest.mark.parametrize(
    ("instance_type", "row"),
    [
        ("p5.48xlarge", "p5.48xlarge"),
        ("ml.p5.48xlarge", "p5.48xlarge"),
        ("p5.4xlarge", "p5.4xlarge"),
        ("g6.xlarge", "g6"),
        ("g6e.xlarge", "g6e"),
        ("ml.g5.48xlarge", "g5"),
        ("g6.a-size-to-come", "g6"),
        ("p5.a-size-to-come", None),
        ("p6e-gb300r.36xlarge", "p6e-gb300r.36xlarge"),
        ("p6e-a-type-to-come.36xlarge", None),
        ("m7i.large", None),
        ("", None),
        ("ml.", None),
    ],
)
def test_a_type_has_its_own_row_or_that_of_its_family(instance_type: str, row: str | None) -> None:
    found = fabric_of(instance_type)

    assert (found.instance_type if found else None) == row


def test_no_row_is_for_nobody() -> None:
    used = {row.instance_type for kind in packaged_profiles() if (row := fabric_of(kind))}

    assert set(fabrics()) == used
