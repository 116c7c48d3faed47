"""All that an installation can leave: objects, marks of the Node, files and containers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_healthcheck.sim.real_node import RealNode

_NAME = "gpu-healthcheck"
_PASSING = {"componentstatuses", "events", "events.events.k8s.io"}
"""Made up at each request, or gone by themselves after an hour."""
_REST_SECONDS = 10.0
_COLUMNS = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"


def traces(node: RealNode) -> set[str]:
    """One line for each. The image stays for the kubelet to throw away."""
    return {*_objects(node), *_marks(node), *_files(node), *_containers(node)}


def settled(node: RealNode) -> set[str]:
    """Return the traces when no more appear: the cluster's controllers create theirs with a delay."""
    before: set[str] = set()
    while (seen := traces(node)) != before:
        before = seen
        time.sleep(_REST_SECONDS)
    return seen


def _objects(node: RealNode) -> Iterator[str]:
    kinds = set(node.kubectl("api-resources", "--verbs=list", "--output=name").split()) - _PASSING
    listed = node.kubectl("get", ",".join(sorted(kinds)), "--all-namespaces", "--no-headers", f"--output={_COLUMNS}")
    return (" ".join(line.split()) for line in listed.splitlines())


def _marks(node: RealNode) -> Iterator[str]:
    seen = node.get(f"/api/v1/nodes/{node.name}")
    yield from (f"label {key}" for key in seen["metadata"]["labels"])
    yield from (f"annotation {key}" for key in seen["metadata"]["annotations"])
    yield from (f"taint {entry['key']}" for entry in seen["spec"].get("taints", []))
    yield from (f"condition {entry['type']}" for entry in seen["status"]["conditions"])
    yield from ("cordon" for _ in range(seen["spec"].get("unschedulable", False)))


def _files(node: RealNode) -> Iterator[str]:
    """A layer above this machine's root has the written files, with a device in place of each removed one."""
    layer = node.folder / "upper"
    written = {path.relative_to(layer) for path in layer.rglob(f"*{_NAME}*") if not path.is_char_device()}
    return (f"file /{path}" for path in written)


def _containers(node: RealNode) -> Iterator[str]:
    listed = node.run("ctr", "--namespace=k8s.io", "containers", "list", "--quiet").stdout
    return (f"container {name}" for name in listed.split())
