"""The story on a real kubelet: both images, the documented commands, every kind of finding active."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.real_node import RealNode, images
from gpu_healthcheck.sim.real_node.agent_pod import MANIFESTS, NAMESPACE
from tests.node.stage import Stage, advertise
from tests.node.test_sweep import WELL, let_sweeps_find_the_hardware, sweep
from tests.probes.dcgm.documents import FAULTY, Story, dcgm_4
from tests.upgrade.past import changes, same, standing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.upgrade.versions import Version

ARCHIVE = "from sim.real_node import images; print(images.ours())"
"""Prints the archive of a version's image; up to 0.3.0 `sim` is not below `gpu_healthcheck`."""
KEEP = "kubectl.kubernetes.io/last-applied-configuration-"
"""docs/upgrading.md: without this annotation, `kubectl apply` keeps the settings that 0.3.0 has set."""
SET = {"severity-overrides": "MemlockLow = PASS", "CHECK_INTERVAL": "10"}
"""Pods can lock little memory here, and a check cycle finds faults without a log line."""


def tell(before: Version) -> None:
    """Raises AssertionError where something is lost on the way."""
    with (
        tempfile.TemporaryDirectory(prefix="gpu-healthcheck-upgrade-") as folder,
        SimulatedNode.create(Path(folder) / "gpu-node-1") as host,
        RealNode(host.root) as node,
    ):
        node.load(images.ours())
        node.load(image_of(before))  # its build removes the archive of ours
        older = older_manifests(before, node.folder / "older-manifests")
        stage = Stage(host, node)
        node.kubectl("apply", "-f", str(older))
        stage.pod.ready()
        stand_faults(stage, before)
        with nothing_changes(stage, Path(folder) / "up", "upgrade to this tree"):
            stage.kubectl("annotate", "configmap", "gpu-healthcheck-config", KEEP)
            roll(stage, node.manifests)
        with nothing_changes(stage, Path(folder) / "back", f"back to {before.name}"):
            roll(stage, str(older))


def image_of(version: Version) -> Path:
    """Build the image of a version, and return its archive."""
    command = [str(version.python), "-c", ARCHIVE]
    built = subprocess.run(command, cwd=version.root, stdout=subprocess.PIPE, text=True, check=True)
    return Path(built.stdout.split()[-1])


def older_manifests(version: Version, folder: Path) -> Path:
    """Copy a version's manifests, with our values in its ConfigMap, as docs/upgrading.md asks for before a return."""
    shutil.copytree(version.root / MANIFESTS, folder, ignore=shutil.ignore_patterns("[Kk]ustomization*"))
    config = folder / "03-config.yaml"
    text = config.read_text()
    for key, old in (("severity-overrides", '""'), ("CHECK_INTERVAL", '"300"')):
        assert f"  {key}: {old}\n" in text
        text = text.replace(f"  {key}: {old}\n", f"  {key}: {json.dumps(SET[key])}\n")
    config.write_text(text)
    return folder


def stand_faults(stage: Stage, version: Version) -> None:
    """A release, a finding of a sweep, events with and without a taint, and a level."""
    stage.wait(lambda node: node.status in WELL)
    stage.host.xid(5, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
    stage.wait_for_taint()
    # By this tree's command: another checkout does not exist on the node.
    stage.node.run(sys.executable, "-m", "cli", "release", stage.node.name, "--reason", "board swapped")
    stage.wait(lambda node: node.status in WELL and not node.tainted)

    let_sweeps_find_the_hardware(stage)
    advertise(stage, "8")
    stage.wait_for_heartbeat(since=datetime.now(UTC))
    document = dcgm_4(Story(8, errors={("memory", 1): [FAULTY]}))
    for entity, gpu in zip(document["entity_groups"][0]["entities"], stage.host.gpus, strict=True):
        entity["serial_num"] = gpu.serial
    stage.host.write_value("dcgm/answer", json.dumps(document))
    stage.host.write_value("dcgm/code", "205")
    sweep(stage, "sweep-of-a-test")
    stage.wait(lambda node: "DcgmDiagMemory" in node.findings)

    stage.host.xid(3, 79, "GPU has fallen off the bus.")
    stage.host.xid(2, 31, "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted")
    stage.host.write_value("nvml/gpu6/remap_pending", 1)
    active = {"DcgmDiagMemory", "Xid79", "Xid31", "RowRemapPending"}
    found = stage.wait(lambda node: active <= node.findings.keys() and node.tainted)
    settle(stage)
    print(f"under {version.name} are active {', '.join(sorted(found.findings))}; the node is tainted", flush=True)


def roll(stage: Stage, manifests: str) -> None:
    """Apply, and wait until the new agent has ended two check cycles."""
    old = stage.pod.ready()["metadata"]["uid"]
    stage.node.kubectl("apply", "-f", manifests)
    stage.wait_for_rollout()
    stage.pod.ready(other_than=old)
    stage.host.kernel_log.replay()  # as opening the real device does
    settle(stage)


def settle(stage: Stage) -> None:
    """Wait for two heartbeats: the second is of a check cycle that began after now."""
    for _ in range(2):
        stage.wait_for_heartbeat(since=datetime.now(UTC))


@contextmanager
def nothing_changes(stage: Stage, file: Path, what: str) -> Iterator[None]:
    """At no moment does a mark of the Node change; at the end neither the record nor a setting."""
    print(f"{what} … ", end="", flush=True)
    before = stage.view()
    with stage.watching(file) as watch:
        yield
        seen = changes([before, *watch.seen()])
    assert len(seen) == 1, "the Node flickered:\n" + "\n".join(map(str, seen))
    same("the record", standing(before), standing(stage.view()))
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpu-healthcheck-config"
    assert SET.items() <= stage.node.get(path)["data"].items()
    print("nothing changed", flush=True)
