"""Events of the real agent about the pods of a faulty GPU: in their namespace, once, and none for other pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.probes.pod_resources import SOCKETS
from gpu_healthcheck.sim.api_objects import EVENTS
from tests.agent.cycle.test_container_runtime import SOCKET as RUNTIME
from tests.agent.cycle.test_container_runtime import dockers_status
from tests.agent.world import StandIn, World
from tests.host.grpc_server import answers_to, serving
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ERROR = "GPU has fallen off the bus."
Json = dict[str, Any]


class Pods:
    """Pods of a node, as its kubelet and its container runtime list them. All are in the namespace `team`."""

    def __init__(self, world: World, undo: ExitStack) -> None:
        self.world = world
        self._undo = undo

    def run(self, held: Mapping[str, str], annotations: Mapping[str, Json] | None = None, **state: int) -> None:
        """Let these pods have these devices, from now on."""
        root = self.world.host.root
        entries = [
            {
                "metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}"},
                "state": state.get(name.replace("-", "_"), 0),
                "annotations": [{"key": key, "value": text} for key, text in (annotations or {}).get(name, {}).items()],
            }
            for name in held
        ]
        devices = [
            {
                "name": name,
                "namespace": "team",
                "containers": [{"name": "c", "devices": [{"resource_name": "nvidia.com/gpu", "device_ids": [device]}]}],
            }
            for name, device in held.items()
        ]
        for path in (RUNTIME, SOCKETS[0].lstrip("/")):
            (root / path).unlink(missing_ok=True)
        answers = {**dockers_status(ready=True), **answers_to("pod-sandboxes", {"items": entries})}
        self._undo.enter_context(serving(root / RUNTIME, answers))
        held_devices = answers_to("pod-resources", {"pod_resources": devices})
        self._undo.enter_context(serving(root / SOCKETS[0].lstrip("/"), held_devices))

    def uuid(self, index: int) -> str:
        return self.world.host.gpus[index].uuid

    def events(self) -> list[Json]:
        return self.world.stand_in.api.store.find_all(EVENTS, "team")[0]

    def wait_for(self, *names: str) -> list[Json]:
        """Wait for Events about exactly these pods, whichever their number."""

        def found() -> bool:
            return {entry["involvedObject"]["name"] for entry in self.events()} == set(names)

        eventually(found, lambda: (self.events(), self.world.agent.log.read_text()))
        return self.events()


@pytest.fixture
def pods(short_root: Path) -> Iterator[Pods]:
    """Yield the pods of a healthy node, whose agent has not started."""
    with ExitStack() as undo:
        world = undo.enter_context(World(short_root / "world", StandIn("node", "p5.48xlarge")))
        world.host.run_kubernetes("docker")
        yield Pods(world, undo)


def start(pods: Pods) -> None:
    pods.world.hurry()
    pods.world.start()
    pods.world.wait_for_status("pass")


def test_the_pods_of_a_faulty_gpu_get_one_event_and_the_others_none(pods: Pods) -> None:
    pods.run(
        {"gpu-3": pods.uuid(3), "share": f"{pods.uuid(3)}::2", "gpu-5": pods.uuid(5), "done": pods.uuid(3)}, done=1
    )
    start(pods)
    pods.world.host.xid(3, 79, ERROR)
    events = pods.wait_for("gpu-3", "share")
    pods.world.agent.wait_for_looks(2)

    assert [event for event in pods.events() if event["count"] != 1] == []
    assert len(pods.events()) == len(events) == 2
    event = next(entry for entry in events if entry["involvedObject"]["name"] == "gpu-3")
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "gpu-3", "uid": "uid-of-gpu-3"}
    assert (event["involvedObject"], event["type"], event["reason"]) == (about, "Warning", "GpuUnhealthy")
    assert event["message"].startswith(f"GPU 3 of the node ({pods.uuid(3)}), which this pod uses, is faulty since ")
    assert "Until then, no new pod starts on the node." in event["message"]

    # The same Events after a restart: they are not written twice.
    pods.world.restart()
    pods.world.agent.wait_for_looks(2)
    assert len(pods.events()) == 2


def test_a_finding_of_monitor_is_not_reported_to_pods(pods: Pods) -> None:
    pods.run({"gpu-3": pods.uuid(3)})
    start(pods)
    pods.world.host.xid(3, 31, "pid=1, name=a, Ch 1, MMU Fault")
    pods.world.wait_for_status("warn")
    pods.world.agent.wait_for_looks(2)

    assert pods.events() == []


def test_hamis_pods_are_found_by_its_annotation_and_mig_pods_by_their_instance(pods: Pods) -> None:
    def granted(index: int) -> Json:
        return {"hami.io/vgpu-devices-allocated": f"{pods.uuid(index)},NVIDIA,3000,30:;"}

    pods.world.host.divide_gpu(2, {0: 5, 1: 7})
    instances = {f"mig-{device}": pods.world.host.mig_uuid(2, device) for device in (0, 1)}
    # HAMi's device ids name another GPU than the one that its scheduler chose.
    shares = {"hami-3": f"{pods.uuid(5)}-1", "hami-5": f"{pods.uuid(3)}-1", "unknown": f"{pods.uuid(3)}-2"}
    pods.run(instances | shares, {"hami-3": granted(3), "hami-5": granted(5)})
    start(pods)
    pods.world.host.xid(3, 79, ERROR)
    pods.wait_for("hami-3")
    pods.world.host.kernel_log.write(
        f"NVRM: Xid (PCI:{pods.world.host.gpus[2].kernel_address} GPU-I:07): 95, Uncontained"
    )
    pods.wait_for("hami-3", "mig-1")


def test_a_gpu_that_no_longer_answers_is_known_to_an_agent_that_started_later(pods: Pods) -> None:
    pods.run({"gpu-3": pods.uuid(3), "gpu-5": pods.uuid(5)})
    start(pods)
    assert pods.world.agent.terminate() == 0
    pods.world.host.lose_gpu(3)
    pods.world.host.xid(3, 79, ERROR)
    pods.world.start()

    pods.wait_for("gpu-3")


def test_pod_that_starts_later_on_the_faulty_gpu_gets_an_event(pods: Pods) -> None:
    pods.run({"gpu-5": pods.uuid(5)})
    pods.world.configure(ENABLE_TAINT="false")
    start(pods)
    pods.world.host.xid(3, 79, ERROR)
    pods.world.wait_for_status("fail")
    pods.run({"gpu-5": pods.uuid(5), "gpu-3": pods.uuid(3)})
    (event,) = pods.wait_for("gpu-3")

    assert "no new pod" not in event["message"]


@pytest.mark.parametrize("status", [403, 404, 422])
def test_a_namespace_that_accepts_no_event_delays_no_other(pods: Pods, status: int) -> None:
    pods.run({"gpu-3": pods.uuid(3)})
    start(pods)
    pods.world.stand_in.api.fail_with(status, path_part="/namespaces/team/events")
    pods.world.host.xid(3, 79, ERROR)
    pods.world.wait_for_event("Xid79")
    pods.world.agent.wait_for_log("an Event about a pod is not accepted")
    pods.world.host.xid(4, 79, ERROR)

    eventually(lambda: len(pods.world.events("Xid79")) == 2)
    assert pods.world.agent.metrics()["forbidden{events}"] == 0
