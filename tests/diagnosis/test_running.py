"""Pods that run without their GPU, and those that look so and have it."""

from __future__ import annotations

import pytest

from tests.diagnosis.states import (
    GPU,
    Object,
    container,
    judged,
    node,
    obj,
    pod,
    recorded,
    results,
    terminated,
    waiting,
)

NO_CUDA = "RuntimeError: No CUDA GPUs are available"
LOG = {("pod/team/x", "main"): f"loading\n{NO_CUDA}\n"}
NVIDIA = obj("RuntimeClass", "nvidia", handler="nvidia")


def runs(gpus: int = 1, **env: str) -> Object:
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return pod("x", on="a", containers=[container("main", gpus, env=variables)])


@pytest.mark.parametrize(
    ("gpus", "value"), [(1, "-1"), (2, "0"), (2, "2,3"), (1, "0,1"), (1, "GPU-8dbf1c52-1111"), (1, "none")]
)
def test_a_variable_that_is_not_what_the_container_gets(gpus: int, value: str) -> None:
    state = node("a"), runs(gpus, CUDA_VISIBLE_DEVICES=value)

    assert results(judged(*state)) == [("GpusHiddenByVariable", "pod/team/x")]


@pytest.mark.parametrize(("gpus", "value"), [(1, "0"), (2, "0,1"), (2, "1,0"), (8, "0,1,2,3,4,5,6,7"), (1, "")])
def test_a_variable_that_says_the_same_hides_nothing(gpus: int, value: str) -> None:
    assert not results(judged(node("a"), runs(gpus, CUDA_VISIBLE_DEVICES=value)))


def test_what_a_shared_gpu_or_cdi_makes_of_a_variable_is_no_fault() -> None:
    sharing = {"sharing-strategy": "time-slicing", "replicas": "4", "count": "8"}
    shared = node("a", 32, labels={f"nvidia.com/gpu.{key}": value for key, value in sharing.items()})
    by_cdi = obj("ClusterPolicy", "policy", spec={"cdi": {"enabled": True}})

    assert not results(judged(shared, runs(2, CUDA_VISIBLE_DEVICES="0")))
    assert not results(judged(node("a"), by_cdi, runs(1, NVIDIA_VISIBLE_DEVICES="void")))
    assert results(judged(node("a"), runs(1, NVIDIA_VISIBLE_DEVICES="void"))) == [
        ("GpusHiddenByVariable", "pod/team/x")
    ]
    assert not results(judged(node("a"), runs(0, NVIDIA_VISIBLE_DEVICES="none")))
    assert not results(judged(node("a"), runs(1, NVIDIA_VISIBLE_DEVICES="all")))
    assert results(judged(node("a"), runs(1, NVIDIA_VISIBLE_DEVICES="0"))) == [("GpusHiddenByVariable", "pod/team/x")]


def test_a_log_that_ends_with_no_gpu() -> None:
    assert results(judged(node("a"), runs(), logs=LOG)) == [("GpuNotInjected", "node/a")]
    assert results(judged(node("a"), NVIDIA, runs(), logs=LOG)) == [("RuntimeClassNotNamed", "pod/team/x")]


def test_a_log_that_went_on_says_nothing() -> None:
    log = {("pod/team/x", "main"): f"{NO_CUDA}\n" + "step\n" * 20}

    assert not results(judged(node("a"), runs(), logs=log))


def test_a_program_that_does_without_is_no_fault() -> None:
    assert not results(judged(node("a"), runs(0), logs=LOG))


def test_another_containers_gpu_is_not_its_own() -> None:
    asks, wants = container("helper", 1), container("main", 0)
    mixed = pod("x", on="a", containers=[asks, wants])

    assert results(judged(node("a"), mixed, logs=LOG)) == [("GpuNotRequested", "pod/team/x")]


def test_access_that_was_lost_is_the_nodes() -> None:
    pods = [pod(name, on="a") for name in ("x", "y")]
    logs = {(f"pod/team/{name}", "main"): "Failed to initialize NVML: Unknown Error" for name in ("x", "y")}

    diagnosis = judged(node("a"), *pods, logs=logs)

    assert results(diagnosis) == [("GpuAccessLostAtRuntime", "node/a")]
    assert len(diagnosis.problems[0].found.affected) == 2


def test_mig_slices_are_not_counted_as_cards() -> None:
    mig = {"nvidia.com/mig-1g.10gb": "2"}
    variables = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]
    sliced = node("a", allocatable={GPU: "0", **mig}, capacity={GPU: "0", **mig})

    assert "GpusHiddenByVariable" not in [
        name
        for name, _ in results(judged(sliced, pod("x", on="a", containers=[container(resources=mig, env=variables)])))
    ]


@pytest.mark.parametrize(
    ("default", "cdi", "cause"), [("runc", False, ["RuntimeClassNotNamed"]), ("runc", True, []), ("nvidia", False, [])]
)
def test_a_default_runtime_that_knows_of_no_gpu(default: str, cdi: bool, cause: list[str]) -> None:
    seen = {"runtime": {"name": "containerd 1.7.28", "config": "/etc/c.toml", "default": default, "cdi": cdi}}
    looked = node("a", annotations=recorded(status="pass", severity="PASS", inventory=seen))

    assert [name for name, _ in results(judged(looked, NVIDIA, runs()))] == cause
    assert not results(judged(looked, NVIDIA, pod("x", on="a", spec={"runtimeClassName": "nvidia"})))


@pytest.mark.parametrize("reason", ["DeviceFileMissing", "DeviceFileWrong"])
def test_a_device_file_that_the_node_lacks_explains_it(reason: str) -> None:
    lacks = node("a", annotations=recorded(reason, detail="no /dev/nvidia-uvm"))

    diagnosis = judged(lacks, runs(), logs=LOG)
    assert results(diagnosis) == [("DriverDeviceFilesMissing", "node/a")]
    assert f"node/a: {reason}: no /dev/nvidia-uvm" in diagnosis.problems[0].found.evidence

    unknown = {("pod/team/x", "main"): "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up"}
    ended: Object = {"lastState": {"terminated": terminated(1)}, "restartCount": 5}
    ends = pod("x", on="a", states=[waiting("CrashLoopBackOff", "back-off", **ended)])
    assert results(judged(lacks, ends, logs=unknown)) == [("DriverDeviceFilesMissing", "node/a")]
    assert results(judged(node("a"), ends, logs=unknown)) == [("CudaCannotInitialize", "node/a")]

    # On its own it prevents no work.
    assert not results(judged(lacks, runs()))
