"""A stand-in for NVIDIA's container runtime: it adds mounts to a container that asks for GPUs, then becomes runc."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sim.node import LIBRARY_DIRECTORY
from sim.real_node.agent_pod import DAEMONSET
from sim.real_node.arguments import CONTAINERD_CONFIGURATION
from sim.real_node.root import HARDWARE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.stage import Stage

_PROGRAM = "/run/nvidia-container-runtime"
_LIBRARY = f"/{LIBRARY_DIRECTORY}/libnvidia-ml.so.1"
_SCRIPT = f"""\
#!{sys.executable}
import json, os, sys

if "create" in sys.argv:
    file = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(file) as config:
        spec = json.load(config)
    if any(one.startswith("NVIDIA_VISIBLE_DEVICES=") for one in spec["process"].get("env", ())):
        for source, place in (
            ("/{HARDWARE}", "/{HARDWARE}"),
            ("/{HARDWARE}/nvml", "/nvml"),
            ("/{HARDWARE}{_LIBRARY}", "{_LIBRARY}"),
        ):
            mount = {{"source": source, "destination": place, "type": "bind", "options": ["rbind", "ro"]}}
            spec["mounts"].append(mount)
        with open(file, "w") as config:
            json.dump(spec, config)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""
_HANDLERS = f"""
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
      BinaryName = "{_PROGRAM}"
"""
_RUNTIME_CLASS = """\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: nvidia
handler: nvidia
"""


@contextmanager
def installed(stage: Stage) -> Iterator[None]:
    """The overlay runtime-class on a node that has such a runtime; the plain manifests afterwards."""
    _configure(stage, CONTAINERD_CONFIGURATION + _HANDLERS)
    stage.node.run("sh", "-ec", f"cat >{_PROGRAM}; chmod 755 {_PROGRAM}", input=_SCRIPT)
    stage.node.kubectl("apply", "--filename=-", input=_RUNTIME_CLASS)
    before = stage.pod.ready()["metadata"]["uid"]
    stage.node.kubectl("apply", "-k", "kubernetes/overlays/runtime-class")
    stage.pod.ready(other_than=before)
    yield
    stage.node.kubectl("apply", "-f", stage.node.manifests)
    stage.kubectl("rollout", "status", DAEMONSET, "--timeout=120s")
    stage.node.kubectl("delete", "runtimeclass", "nvidia")
    stage.on_node(f"rm {_PROGRAM}")
    _configure(stage, CONTAINERD_CONFIGURATION)


def _configure(stage: Stage, text: str) -> None:
    stage.node.run("sh", "-c", "cat >/etc/containerd/config.toml", input=text)
    stage.node.stop("containerd")
    stage.node.start_containerd()
    stage.node.wait_until(stage.node.is_ready, "the Node is Ready")
