"""Pods of the GPUs at the snapshots of the driver's history."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.gpu_pods import (
    GPU_PODS,
    GpuPods,
    GpuPodsReader,
    is_busy,
    may_differ,
    pods_by_gpu,
)
from gpu_healthcheck.healthcheck.probes.nvml.gpus import (
    DriverReading,
    Gpu,
    Gpus,
    Load,
    Samples,
    Snapshot,
    ThrottledTime,
)
from gpu_healthcheck.healthcheck.probes.pod_resources import ContainerDevices, PodDevices, ResourceDevices
from gpu_healthcheck.sim.pod_resources import serving_pod_resources
from tests.captures.saving import saved_and_read

IDS = tuple(f"GPU-{UUID(int=index)}" for index in range(8))


def gpu(index: int, percent: int = 100, count: int = 120, mhz: int = 1980, braked: float = 0.0) -> Gpu:
    load = Load(
        memory_mhz=2619, utilisation=Samples(count, 20_000_000, percent * count), sm_clock=Samples(9, 1, 9 * mhz)
    )
    throttled = ThrottledTime(power_brake=int(braked * 1e9))
    return Gpu(index, address=f"0000:{index:02x}:00.0", uuid=IDS[index], load=load, throttled=throttled)


EQUAL = tuple(gpu(index) for index in range(8))
BUSY = (*EQUAL[:7], gpu(7, mhz=1410))
HELD = {f"gpu/0000:{index:02x}:00.0": "ml/train" for index in range(8)}


def reading(at: float, *history: float, gpus: tuple[Gpu, ...] = BUSY) -> DriverReading:
    return DriverReading(Gpus("580", "lib", gpus), read_at=at, history=tuple(Snapshot(time, gpus) for time in history))


def pod(name: str, *ids: str) -> PodDevices:
    return PodDevices("ml", name, (ContainerDevices("main", (ResourceDevices("nvidia.com/gpu", ids),)),))


@pytest.mark.parametrize(
    ("one", "busy"),
    [(gpu(0), True), (gpu(0, 90), True), (gpu(0, 89), False), (gpu(0, 100, 9), False), (Gpu(0), False)],
)
def test_busy_gpu_is_known_by_its_samples(one: Gpu, busy: bool) -> None:
    assert is_busy(one) is busy


def counting() -> tuple[GpuPodsReader, list[Host]]:
    """A reader, and the questions that it asked."""
    asked: list[Host] = []

    def ask(host: Host) -> tuple[PodDevices, ...]:
        asked.append(host)
        return (pod("train", *IDS),)

    return GpuPodsReader(Path("/"), ask), asked


def test_the_kubelet_is_asked_once_in_each_window_of_work() -> None:
    reader, asked = counting()
    idle = tuple(gpu(index, 0 if index > 2 else 100) for index in range(8))

    assert reader.read(reading(1000)) == (GpuPods(1000, HELD),)
    assert reader.read(reading(1010, 1000)) == (GpuPods(1000, HELD),)
    assert reader.read(reading(1300, 1000)) == (GpuPods(1000, HELD), GpuPods(1300, HELD))
    assert reader.read(reading(1600, 1300, gpus=idle)) == (GpuPods(1300, HELD),)
    assert reader.read(reading(1900)) == (GpuPods(1900, HELD),)
    assert len(asked) == 3


def test_the_kubelet_is_asked_from_a_difference_on_for_an_hour() -> None:
    reader, asked = counting()
    times = {at: bool(reader.read(reading(at, gpus=BUSY if at == 1300 else EQUAL))) for at in range(1000, 6000, 300)}

    assert [at for at, is_asked in times.items() if is_asked] == list(range(1300, 4900, 300))
    assert len(asked) == 12


def test_time_in_hardware_slowdown_is_a_difference() -> None:
    for braked, expected in ((29.0, 0), (31.0, 1)):
        reader, asked = counting()
        later = (*EQUAL[:7], gpu(7, braked=braked))
        reader.read(replace(reading(1300, gpus=later), history=(Snapshot(1000, EQUAL),)))
        assert len(asked) == expected


@pytest.mark.parametrize(("mhz", "differ"), [(1980, False), (1782, False), (1781, True)])
def test_a_clock_differs_from_a_tenth_on(mhz: int, differ: bool) -> None:
    assert may_differ(reading(1000), (*EQUAL[:7], gpu(7, mhz=mhz))) is differ


def test_a_failure_is_an_entry_and_no_error_of_the_cycle() -> None:
    def fails(_: Host) -> tuple[PodDevices, ...]:
        raise ProbeError("kubelet.sock: refused")

    assert GpuPodsReader(Path("/"), fails).read(reading(1000)) == (GpuPods(1000, error="kubelet.sock: refused"),)


def test_shared_gpus_and_unknown_devices_have_no_pod() -> None:
    pods = (
        pod("train", *IDS[:3]),
        pod("other", f"{IDS[2]}::1"),
        pod("third", f"{IDS[2]}::2"),
        pod("hami", f"{IDS[4]}", "vgpu-7"),
    )

    assert pods_by_gpu(pods, list(BUSY)) == {"gpu/0000:00:00.0": "ml/train", "gpu/0000:01:00.0": "ml/train"}


def test_the_kubelets_socket_is_read(short_root: Path) -> None:
    reader = GpuPodsReader(short_root)
    with serving_pod_resources(short_root, lambda: [("ml", "train", IDS[:4])]):
        (entry,) = reader.read(reading(1000))

    assert (entry.error, set(entry.pods.values()), len(entry.pods)) == ("", {"ml/train"}, 4)


def test_facts_are_saved_and_read_again() -> None:
    facts = (GpuPods(1000.0, {"gpu/0000:00:00.0": "ml/train"}), GpuPods(1300.0, error="refused"))

    assert saved_and_read(facts, GPU_PODS.facts) == facts


def test_single_cycle_reads_no_pods() -> None:
    assert GPU_PODS.read(Host(Path("/"))) == ()
    assert GPU_PODS.read(replace(Host(Path("/")), ask_gpu_pods=lambda: (GpuPods(1.0),))) == (GpuPods(1.0),)
