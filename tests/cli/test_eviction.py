"""Effects of evictions, read from the controllers of the pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.eviction import eviction_effects
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.sim.api_objects import JOBS
from gpu_healthcheck.sim.api_stand_in import ApiStandIn


def test_eviction_effects_end_for_controllers_in_a_circle(tmp_path: Path) -> None:
    def owned_by(job: dict[str, Any]) -> list[dict[str, Any]]:
        uid, name = job["metadata"]["uid"], job["metadata"]["name"]
        return [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}]

    with ApiStandIn() as api:
        spec = {"backoffLimit": 0}
        first = api.store.create(JOBS, "team", {"metadata": {"name": "first"}, "spec": spec})
        second = api.store.create(
            JOBS, "team", {"metadata": {"name": "second", "ownerReferences": owned_by(first)}, "spec": spec}
        )
        circle = {**first, "metadata": {**first["metadata"], "ownerReferences": owned_by(second)}}
        api.store.patch(JOBS, "team", "first", lambda _: circle)
        pod = {"metadata": {"name": "p", "namespace": "team", "uid": "u", "ownerReferences": owned_by(first)}}
        cluster = cluster_of(Access(str(api.kubeconfig(tmp_path / "config"))))

        (effect,) = eviction_effects(cluster, [pod]).values()

    assert effect.text.startswith("this fails Job second with its Job first")
