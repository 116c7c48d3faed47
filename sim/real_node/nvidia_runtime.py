"""Stand-in for NVIDIA's container runtime: it adds mounts to a container that requests GPUs, then runs runc."""

from __future__ import annotations

import sys

from gpu_healthcheck.sim.node import DRIVER_LIBRARIES, LIBRARY_DIRECTORY

PROGRAM = "/usr/bin/nvidia-container-runtime"
"""Path of the runtime in the toolkit's packages."""
_LIBRARIES = [f"/{LIBRARY_DIRECTORY}/{name}" for name in DRIVER_LIBRARIES]


def script(hardware: str) -> str:
    """Return the script. `hardware`: path of the simulated node's directory on the node, without the first slash."""
    return f"""\
#!{sys.executable}
import json, os, sys

if "create" in sys.argv:
    file = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(file) as config:
        spec = json.load(config)
    if any(one.startswith("NVIDIA_VISIBLE_DEVICES=") for one in spec["process"].get("env", ())):
        for source, place in (
            ("/{hardware}", "/{hardware}"),
            ("/{hardware}/nvml", "/nvml"),
            *(("/{hardware}" + library, library) for library in {_LIBRARIES}),
        ):
            mount = {{"source": source, "destination": place, "type": "bind", "options": ["rbind", "ro"]}}
            spec["mounts"].append(mount)
        with open(file, "w") as config:
            json.dump(spec, config)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""
