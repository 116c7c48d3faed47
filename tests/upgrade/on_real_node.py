"""The same on a real kubelet: our DaemonSet is rolled from one version's image to the other's and back."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from healthcheck import __version__
from sim.node import SimulatedNode
from sim.real_node import RealNode, images
from sim.real_node.agent_pod import DAEMONSET
from tests.agent.walks import BACK_TO_NONE
from tests.node.stage import Stage, Watch
from tests.upgrade.past import changes, remembered, same, standing
from tests.upgrade.versions import HERE, CouldNotTryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.world import NodeView
    from tests.upgrade.versions import Version

_MEMORY = "/var/lib/gpu-healthcheck/memory.json"
_NAMED = re.compile(r"gpu-healthcheck:\d+\.\d+\.\d+")
_NOW, _BEFORE = f"gpu-healthcheck:{__version__}", "gpu-healthcheck:before"
_LIBRARY = "docker.io/library/"
_ROLLED = "04-daemonset-agent.yaml"


def tell(before: Version) -> None:
    """Raises AssertionError where something is lost on the way."""
    with tempfile.TemporaryDirectory(prefix="gpu-healthcheck-upgrade-") as name:
        folder = Path(name)
        archive = _image_of(before, folder)
        with SimulatedNode.create(folder / "gpu-node-1") as host, RealNode(host.root) as node:
            node.load(archive)
            was = f"{_LIBRARY}{_named_image(before)}"
            node.run("ctr", "--namespace=k8s.io", "images", "tag", was, f"{_LIBRARY}{_BEFORE}")
            node.load(images.ours())
            stage = Stage(host, node)
            old = _manifests(before.manifests, node.folder / "manifests-of-before", _BEFORE)
            new = _manifests(HERE.manifests, node.folder / "manifests-of-this-tree", _NOW)
            _roll(stage, old)
            with stage.watching(folder / "watch.json") as watch:
                _stand_faults(stage)
                _tell(stage, watch, old, new)


def _tell(stage: Stage, watch: Watch, old: Path, new: Path) -> None:
    with _nothing_changes(stage, watch, "policies and roles first"):
        for file in sorted(new.glob("*.yaml")):
            if file.name != _ROLLED:
                stage.node.kubectl("apply", "-f", str(file))
        stage.wait_for_heartbeat(datetime.now(UTC))
    with _nothing_changes(stage, watch, "the DaemonSet is rolled to this tree"):
        _roll(stage, new)
    with _nothing_changes(stage, watch, "kubectl rollout undo"):
        stage.kubectl("rollout", "undo", DAEMONSET)
        _rolled(stage)
    with _nothing_changes(stage, watch, "all manifests of before"):
        _roll(stage, old)
    with _nothing_changes(stage, watch, "and this tree again, in the middle of it the pod is killed"):
        stage.node.kubectl("apply", "-f", str(new))
        stage.kubectl("delete", "pods", "--selector=app.kubernetes.io/component=agent", "--force", "--grace-period=0")
        _rolled(stage)
    stage.host.xid(5, 79, "GPU has fallen off the bus.")
    stage.wait(lambda node: len([entry for entry in node.record["findings"] if entry["reason"] == "Xid79"]) > 1)
    print("and a new fault is seen", flush=True)


def _stand_faults(stage: Stage) -> None:
    """An acknowledgement, a reset that counts, an Xid with its taint, and a level."""
    stage.wait_for_status("pass")
    stage.host.xid(5, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
    stage.wait_for_taint()
    stage.kubectl("label", "node", stage.node.name, "gpu-healthcheck.aws-samples.io/status=pass", "--overwrite")
    stage.wait(lambda node: node.status == "pass" and not node.tainted)
    stage.host.xid(0, 95, "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No")
    stage.wait_for_taint()
    stage.host.xid(0, 154, BACK_TO_NONE)
    stage.wait_for_status("pass")
    stage.host.write_value("nvml/gpu6/remap_pending", 1)
    stage.host.xid(3, 79, "GPU has fallen off the bus.")
    node = stage.wait(lambda node: {"Xid79", "RowRemapPending"} <= node.findings.keys() and node.tainted)
    stage.wait_for_heartbeat(datetime.now(UTC))
    print(f"stand {', '.join(sorted(node.findings))}, tainted", flush=True)


@contextmanager
def _nothing_changes(stage: Stage, watch: Watch, what: str) -> Iterator[None]:
    print(f"{what} … ", end="", flush=True)
    before, memory = watch.seen(), _memory(stage)
    last: NodeView = before[-1]
    yield
    now = watch.seen()
    seen = changes([last, *now[len(before) :]])
    assert len(seen) == 1, "the Node flickered:\n" + "\n".join(map(str, seen))
    same("the record", standing(last), standing(now[-1]))
    same("the memory", memory, _memory(stage))
    print(f"nothing changed in {len(now) - len(before)} versions of the Node", flush=True)


def _memory(stage: Stage) -> object:
    return remembered(stage.node.run("cat", _MEMORY).stdout.encode())


def _roll(stage: Stage, manifests: Path) -> None:
    stage.node.kubectl("apply", "-f", str(manifests))
    _rolled(stage)


def _rolled(stage: Stage) -> None:
    """The pods are ready, and one of them has looked since."""
    stage.wait_for_rollout()
    stage.wait_for_heartbeat(datetime.now(UTC))


def _manifests(source: Path, target: Path, image: str) -> Path:
    """With this image, and looks that come often."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("kustomization*", "quarantine"))
    for file in target.glob("*.yaml"):
        text = _NAMED.sub(image, file.read_text()).replace('CHECK_INTERVAL: "300"', 'CHECK_INTERVAL: "10"')
        # As sim/real_node has it: where no limit can be raised, pods may lock little memory.
        text = text.replace('severity-overrides: ""', 'severity-overrides: "MemlockLow = PASS"')  # up to 0.3.0
        ours = 'data: {CHECK_INTERVAL: "10", severity-overrides: "MemlockLow = PASS"}'
        file.write_text(text.replace("data: {}", ours))
    return target


def _named_image(version: Version) -> str:
    """As its own manifests name it. Both versions may bear one number until a release."""
    named = _NAMED.search((version.manifests / _ROLLED).read_text())
    assert named, f"no image of ours in {_ROLLED} of {version.name}"
    return named.group()


def _image_of(version: Version, folder: Path) -> Path:
    """Built by that version itself; its own place keeps one archive only."""
    program = "from sim.real_node import images; print(images.ours())"
    words = [str(version.python), "-c", program]
    done = subprocess.run(words, cwd=version.root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CouldNotTryError(f"the image of {version.name}: {done.stderr.strip()[-2000:]}")
    return Path(shutil.copy(done.stdout.strip(), folder / "before.tar"))
