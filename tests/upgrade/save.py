"""State that a version writes in several situations, as files for tests/formats: a memory, a Node, and its Leases."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.agent.world import BUDGET
from tests.sweeper.pod import Pod
from tests.upgrade.processes import QUARANTINE, SWEEP, ends, stand_faults
from tests.upgrade.stage import NODE, Stage, settled, stage
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.upgrade.versions import Version

_HEARTBEATS = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"


def save(version: Version, folder: Path) -> None:
    """One file for each situation."""
    folder.mkdir(parents=True, exist_ok=True)
    with stage() as upgraded:
        upgraded.apply(version)
        upgraded.start(version)
        upgraded.world.wait_for_status("pass")
        settled(upgraded.world.agent)
        upgraded.stop()
        _write(upgraded, folder / "healthy.json")
        upgraded.world.host.kernel_log.clear()
        stand_faults(upgraded, version)
        for process in ((7, "python"), (8, "trainer")):
            upgraded.world.host.xid(2, 31, "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted", process=process)
        upgraded.world.wait(lambda node: node.findings.get("Xid31", {}).get("count") == 2)
        settled(upgraded.world.agent)
        upgraded.stop()
        _write(upgraded, folder / "faults.json")
        _save_what_waits(upgraded, version, folder)


def _save_what_waits(stage: Stage, version: Version, folder: Path) -> None:
    """For an absent agent: deep records that were not adopted, a person's release, and a running run."""
    ends(stage.deep_run(version, *SWEEP, failing_gpu=4))
    stage.release(version, "--no-wait")
    pod = Pod(stage.world)
    run = stage.deep_run(version, *QUARANTINE, failing_gpu=None, holds=True)
    eventually(lambda: "4" in pod.asked)
    _write(stage, folder / "run-in-flight.json")
    pod.let_go()
    ends(run)
    pod.well()
    _write(stage, folder / "passed-run.json")
    ends(stage.deep_run(version, *QUARANTINE, failing_gpu=2))
    _write(stage, folder / "failed-run.json")


def _write(stage: Stage, file: Path) -> None:
    node = stage.world.node().object
    del node["metadata"]["managedFields"]
    listed = [stage.plane.request("GET", path).body["items"] for path in (_HEARTBEATS, BUDGET)]
    leases: list[dict[str, Any]] = [
        entry for some in listed for entry in some if entry["spec"]["holderIdentity"] == NODE
    ]
    for lease in leases:
        lease["metadata"].pop("managedFields", None)
    memory = stage.world.memory_file.read_text()
    file.write_text(json.dumps({"memory": memory, "node": node, "leases": leases}, indent=1) + "\n")
    print(file, flush=True)
