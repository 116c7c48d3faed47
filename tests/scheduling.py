"""Another control plane, with a scheduler, for tests with scheduled pods: it ends with the last test of each folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane, install
from tests import tiers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SWEEPER = "/apis/batch/v1/namespaces/gpu-healthcheck/cronjobs/gpu-healthcheck-sweeper"


@pytest.fixture(scope="package")
def scheduled(programs: Path) -> Iterator[ControlPlane]:
    """The manifests are applied. The conftest of each room that needs it imports it, and so it is that room's own."""
    if not (programs / "kube-scheduler").is_file():
        tiers.cannot_run("NOT TESTED: KUBEBUILDER_ASSETS has no kube-scheduler; unset it to use our build")
    with ControlPlane(controllers=True, scheduler=True) as plane:
        install(plane)
        # Or it would sweep a test's Nodes at 12:10, 12:20, …
        plane.request("PATCH", _SWEEPER, {"spec": {"suspend": True}})
        yield plane
