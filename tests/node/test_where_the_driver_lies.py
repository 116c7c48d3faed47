"""The driver's library where real hosts have it, found by the agent's container through the manifest's mounts.

The fake one is put there on the node; its own kind and every bad one are tried without a node in tests/image.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from gpu_healthcheck.sim import nvml_library
from gpu_healthcheck.sim.node import LIBRARY_DIRECTORY
from gpu_healthcheck.sim.real_node.root import HARDWARE
from tests.image.test_driver_places import ELSEWHERE, HERE, MACHINES
from tests.node import nvidia_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.node.stage import Stage

pytestmark = pytest.mark.real_node

SONAME = "libnvidia-ml.so.1"
HIDDEN = f"/{LIBRARY_DIRECTORY}/{SONAME}"
# Below the host's root.
PLACES = {
    "the host, Amazon Linux": "usr/lib64",
    "the host, Ubuntu on Graviton": "usr/lib/aarch64-linux-gnu",
    "the GPU operator's driver container": "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "GKE, Container-Optimized OS": "home/kubernetes/bin/nvidia/lib64",
    "GKE, Ubuntu": "opt/nvidia/lib64",
    "Bottlerocket": "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "Talos": "usr/local/glibc/usr/lib",
}


def look(stage: Stage) -> dict[str, Any]:
    """Return `check`'s output about the driver from inside the agent's container."""
    record = json.loads(stage.in_pod("gpu-healthcheck", "check", "--json", "driver", "gpu-count", check=False).stdout)
    (status,) = {entry["status"] for entry in record["checks"] if entry["check"] == "0-nvidia-smi"}
    return {"status": status, "unobserved": {entry["cause"] for entry in record["unobserved"]}, "record": record}


@pytest.fixture(scope="module")
def moving(agent: Stage) -> Iterator[Stage]:
    """The node's library is out of the way, and a library finds its simulated GPUs from anywhere below the root."""
    agent.on_node(
        f"mv {HIDDEN} {HIDDEN}.hidden; ln -s {HARDWARE}/nvml /nvml; mkdir /dev/kept; mv /dev/nvidia* /dev/kept;"
        f"for device in /{HARDWARE}/dev/nvidia*; do ln -s ../{HARDWARE}/dev/${{device##*/}} /dev; done"
    )
    yield agent
    agent.on_node(f"mv {HIDDEN}.hidden {HIDDEN}; rm /nvml /dev/nvidia*; mv /dev/kept/* /dev; rmdir /dev/kept")


@pytest.fixture
def put(moving: Stage) -> Iterator[Callable[[str, bytes], str]]:
    """Puts a library into a folder of the node for the length of one test."""
    folders: list[str] = []

    def into(place: str, library: bytes) -> str:
        source = moving.host.root / "library-of-this-test"
        source.write_bytes(library)
        moving.on_node(f"mkdir -p /{place}; cp /{HARDWARE}/{source.name} /{place}/{SONAME}")
        folders.append(place)
        return f"/host/{place}/{SONAME}"

    yield into
    for place in folders:
        moving.on_node(f"rm -f /{place}/{SONAME}")


def test_without_a_library_anywhere_it_says_where_it_looked(moving: Stage) -> None:
    seen = look(moving)

    assert (seen["status"], seen["unobserved"]) == ("unknown", {"NvmlLibraryNotFound"})
    assert f"{SONAME} was not found under /host" in json.dumps(seen["record"])


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_it_is_found_at(moving: Stage, put: Callable[[str, bytes], str], place: str) -> None:
    put(place, nvml_library.build().read_bytes())

    seen = look(moving)

    assert (seen["status"], seen["unobserved"]) == ("pass", set())


def test_a_driver_root_that_is_mounted_after_us_is_found(moving: Stage, put: Callable[[str, bytes], str]) -> None:
    moving.on_node("mkdir -p /run/nvidia/driver; mount -t tmpfs tmpfs /run/nvidia/driver")
    put("run/nvidia/driver/usr/lib64", nvml_library.build().read_bytes())

    seen = look(moving)
    moving.on_node("umount /run/nvidia/driver")

    assert (seen["status"], seen["unobserved"]) == ("pass", set())


def for_another_machine() -> bytes:
    library = bytearray(nvml_library.build().read_bytes())
    struct.pack_into("<H", library, 18, MACHINES[ELSEWHERE])
    return bytes(library)


def test_a_library_for_another_architecture_is_named_with_its_place(
    moving: Stage, put: Callable[[str, bytes], str]
) -> None:
    path = put("opt/nvidia/lib64", for_another_machine())

    seen = look(moving)

    assert seen["unobserved"] == {"NvmlLibraryNotFound"}
    assert f"{path}: built for {ELSEWHERE}, but this machine is {HERE}" in json.dumps(seen["record"])


def test_a_dangling_link_is_named_with_its_target(moving: Stage) -> None:
    moving.on_node(f"mkdir -p /opt/nvidia/lib64; ln -s /usr/lib/gone.so /opt/nvidia/lib64/{SONAME}")

    seen = look(moving)
    moving.on_node(f"rm /opt/nvidia/lib64/{SONAME}")

    assert seen["unobserved"] == {"NvmlLibraryNotFound"}
    message = f"/host/opt/nvidia/lib64/{SONAME} leads to /host/usr/lib/gone.so: cannot open shared object file"
    assert message in json.dumps(seen["record"])


def test_it_is_found_where_nvidias_runtime_injects_it(moving: Stage) -> None:
    with nvidia_runtime.asked_for(moving):
        seen = look(moving)

    assert (seen["status"], seen["unobserved"]) == ("pass", set())
