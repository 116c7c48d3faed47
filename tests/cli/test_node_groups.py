"""Groups of nodes by their labels, and the group in which faults concentrate."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_healthcheck.cli.node_groups import GROUPINGS, concentration, dividing, groups_of

ZONE = "topology.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        ({}, {}),
        ({ZONE: "", "node.kubernetes.io/instance-type": "p5"}, {"instance type": "p5"}),
        ({ZONE: "a", "karpenter.sh/nodepool": "gpu"}, {"zone": "a", "pool": "gpu"}),
        (
            {f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}" for layer in (1, 2, 3)},
            {"network core": "nn-1", "network block": "nn-2", "rack": "nn-3"},
        ),
        (
            {"cloud.google.com/gce-topology-block": "b", "cloud.google.com/gce-topology-subblock": "s"},
            {"network block": "b", "rack": "s"},
        ),
        ({"nvidia.com/gpu.clique": "0123.1", "agentpool": "x"}, {"NVLink domain": "0123.1", "pool": "x"}),
        ({"cloud.provider.com/topology-rack": "r1"}, {"rack": "r1"}),
        ({"rack": "r2", "example.com/tracking": "no", "example.com/rack-unit": "no"}, {"rack": "r2"}),
    ],
)
def test_groups_of_reads_the_nodes_labels(labels: Mapping[str, str], groups: Mapping[str, str]) -> None:
    assert groups_of(labels) == groups


def nodes(number: int, per_rack: int) -> list[Mapping[str, str]]:
    return [
        {"zone": "abc"[place // per_rack % 3], "rack": f"r{place // per_rack}", "instance type": "p5"}
        for place in range(number)
    ]


@pytest.mark.parametrize(
    ("number", "per_rack", "faulty", "where"),
    [
        (200, 16, [*range(32, 39), 150], ("rack", "r2", 7, 8, 16)),
        (200, 16, [*range(16, 22), 64, 66, 112, 114, 160], ("zone", "b", 11, 11, 64)),
        (200, 16, [0, 40, 90, 130, 170, 199], None),
        (200, 16, [0, 1], None),
        (200, 16, [], None),
        (200, 16, range(200), None),
        (16, 16, [0, 1, 2], None),
        (3, 1, [0, 1, 2], None),
        (5000, 16, [*range(16)], ("rack", "r0", 16, 16, 16)),
    ],
)
def test_concentration_is_unlikely_by_chance(
    number: int, per_rack: int, faulty: list[int], where: tuple[str, str, int, int, int] | None
) -> None:
    fleet = nodes(number, per_rack)

    found = concentration(fleet, dividing(fleet), faulty)

    assert (found and (found.grouping, found.group, found.inside, found.among, found.size)) == where


def test_dividing_omits_groupings_of_one_or_single_nodes() -> None:
    assert dividing([{"zone": "a", "rack": f"r{place}", "pool": "x"} for place in range(4)]) == []
    assert dividing([{"zone": "a"}, {"zone": "a"}, {}]) == ["zone"]
    assert [*GROUPINGS][-1] == "instance type"
