"""Labels of a Node, which select lines of `node-overrides`: those that a stolen kubelet's credential can change."""

from __future__ import annotations

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane, ControlPlaneError

pytestmark = pytest.mark.cluster

RESTRICTED = "node-restriction.kubernetes.io/team"


@pytest.mark.parametrize(
    ("label", "is_allowed"),
    [
        ("team", True),
        ("example.com/team", True),
        ("node.kubernetes.io/instance-type", True),
        ("topology.kubernetes.io/zone", True),
        ("kubernetes.io/team", False),
        (RESTRICTED, False),
    ],
)
def test_a_kubelet_changes_the_labels_of_its_node_but_no_restricted_ones(
    installed: ControlPlane, label: str, is_allowed: bool
) -> None:
    installed.create_node("labelled", labels={label: "research"})
    kubelet = ("--as=system:node:labelled", "--as-group=system:nodes")
    try:
        for change in (f"{label}=vision", f"{label}-"):
            words = ("label", "node", "labelled", "--overwrite", change)
            if is_allowed:
                installed.kubectl(*words, *kubelet)
            else:
                with pytest.raises(ControlPlaneError, match="is not allowed to modify labels"):
                    installed.kubectl(*words, *kubelet)
                installed.kubectl(*words)
    finally:
        installed.request("DELETE", "/api/v1/nodes/labelled")
