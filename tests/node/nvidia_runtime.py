"""Pods that ask for NVIDIA's container runtime by its RuntimeClass."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.overlays import over_the_manifests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.stage import Stage

_RUNTIME_CLASS = """\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: nvidia
handler: nvidia
"""


@contextmanager
def asked_for(stage: Stage) -> Iterator[None]:
    """The component runtime-class; the plain manifests afterwards."""
    stage.node.kubectl("apply", "--filename=-", input=_RUNTIME_CLASS)
    before = stage.pod.ready()["metadata"]["uid"]
    stage.node.kubectl("apply", "-k", over_the_manifests("runtime-class", stage.node.folder / "runtime-class"))
    stage.pod.ready(other_than=before)
    yield
    stage.node.kubectl("apply", "-f", stage.node.manifests)
    stage.wait_for_rollout()
    stage.node.kubectl("delete", "runtimeclass", "nvidia")
