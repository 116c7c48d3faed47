"""Pods that run without their GPU, and those that look so and have it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.states import (
    GPU,
    Object,
    ago,
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
def test_variable_that_hides_gpus_is_reported(gpus: int, value: str) -> None:
    state = node("a"), runs(gpus, CUDA_VISIBLE_DEVICES=value)

    assert results(judged(*state)) == [("GpusHiddenByVariable", "pod/team/x")]


@pytest.mark.parametrize(("gpus", "value"), [(1, "0"), (2, "0,1"), (2, "1,0"), (8, "0,1,2,3,4,5,6,7"), (1, "")])
def test_variable_that_names_the_allocated_gpus_is_ignored(gpus: int, value: str) -> None:
    assert not results(judged(node("a"), runs(gpus, CUDA_VISIBLE_DEVICES=value)))


def test_variable_with_a_shared_gpu_or_cdi_is_ignored() -> None:
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


def test_log_that_ends_without_a_gpu_is_reported() -> None:
    assert results(judged(node("a"), runs(), logs=LOG)) == [("GpuNotInjected", "node/a")]
    assert results(judged(node("a"), NVIDIA, runs(), logs=LOG)) == [("RuntimeClassNotNamed", "pod/team/x")]


def test_log_that_continues_after_the_message_is_ignored() -> None:
    log = {("pod/team/x", "main"): f"{NO_CUDA}\n" + "step\n" * 20}

    assert not results(judged(node("a"), runs(), logs=log))


def test_program_that_runs_without_a_gpu_is_ignored() -> None:
    assert not results(judged(node("a"), runs(0), logs=LOG))


def test_gpu_of_another_container_is_not_requested() -> None:
    asks, wants = container("helper", 1), container("main", 0)
    mixed = pod("x", on="a", containers=[asks, wants])

    assert results(judged(node("a"), mixed, logs=LOG)) == [("GpuNotRequested", "pod/team/x")]


def test_lost_access_is_a_fault_of_the_node() -> None:
    pods = [pod(name, on="a") for name in ("x", "y")]
    logs = {(f"pod/team/{name}", "main"): "Failed to initialize NVML: Unknown Error" for name in ("x", "y")}

    diagnosis = judged(node("a"), *pods, logs=logs)

    assert results(diagnosis) == [("GpuAccessLostAtRuntime", "node/a")]
    assert len(diagnosis.problems[0].found.affected) == 2


def test_mig_instances_are_not_counted_as_gpus() -> None:
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
def test_default_runtime_without_gpu_support_is_the_cause(default: str, cdi: bool, cause: list[str]) -> None:
    seen = {"runtime": {"name": "containerd 1.7.28", "config": "/etc/c.toml", "default": default, "cdi": cdi}}
    looked = node("a", annotations=recorded(status="pass", severity="PASS", inventory=seen))

    assert [name for name, _ in results(judged(looked, NVIDIA, runs()))] == cause
    assert not results(judged(looked, NVIDIA, pod("x", on="a", spec={"runtimeClassName": "nvidia"})))


@pytest.mark.parametrize("reason", ["DeviceFileMissing", "DeviceFileWrong"])
def test_missing_device_file_of_the_node_is_the_cause(reason: str) -> None:
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


STALE = (
    "Failed to initialize NVML: Driver Not Loaded",
    "Failed to initialize NVML: Driver/library version mismatch",
    "cudaGetDeviceCount failed: system has unsupported display driver / cuda driver combination",
    "no CUDA-capable device is detected",
    "Failed to initialize NVML: GPU access blocked by the operating system",
    "No devices were found",
    "libnvidia-ptxjitcompiler.so.1: cannot open shared object file: No such file or directory",
)


def crash_beside(driver: Object, words: str, age: float = 600) -> list[Object]:
    """A crashed pod of a Deployment that names its class, beside the driver on its node."""
    last: Object = {"lastState": {"terminated": terminated(1, "Error", words)}, "restartCount": 14}
    states = [waiting("CrashLoopBackOff", "back-off", **last)]
    spec = {"runtimeClassName": "nvidia"}
    crashed = pod("x", on="a", age=age, states=states, spec=spec, owner=("ReplicaSet", "serve"))
    return [node("a", age=9000), NVIDIA, driver, crashed]


def driver_pod(age: float, **changes: Any) -> Object:
    return pod("nvidia-driver-x", 0, on="a", age=age, labels={"app": "nvidia-driver-daemonset"}, **changes)


@pytest.mark.parametrize("words", STALE)
def test_pod_older_than_the_driver_of_its_node_is_deleted(words: str) -> None:
    (problem,) = judged(*crash_beside(driver_pod(120), words)).problems
    found = problem.found

    assert (found.cause.name, found.subject, found.affected) == ("GpuNotInjected", "node/a", ("pod/team/x",))
    assert any("pod/team/nvidia-driver-x on its node at" in text for text in found.evidence)
    assert "older than pod/team/nvidia-driver-x" in found.remedy[0]
    assert "`kubectl -n team delete pod x`" in found.remedy[1]


def test_pod_that_was_created_again_has_its_gpu() -> None:
    _, *objects, _ = crash_beside(driver_pod(120), STALE[0])
    again = pod("y", on="a", age=5, spec={"runtimeClassName": "nvidia"}, owner=("ReplicaSet", "serve"))

    assert not results(judged(node("a", age=9000), *objects, again))


@pytest.mark.parametrize("words", STALE)
@pytest.mark.parametrize(
    "driver",
    [driver_pod(1200), driver_pod(120, states=[waiting("CrashLoopBackOff")])],
    ids=["pod is younger", "driver does not work"],
)
def test_pod_is_kept_unless_a_newer_driver_works(driver: Object, words: str) -> None:
    steps = [text for problem in judged(*crash_beside(driver, words)).problems for text in problem.found.remedy]

    assert not any("delete pod x" in text for text in steps)


def test_driver_that_was_restarted_in_its_pod_is_newer() -> None:
    again = [{"name": "main", "ready": True, "restartCount": 1, "state": {"running": {"startedAt": ago(30)}}}]

    (problem,) = judged(*crash_beside(driver_pod(1200, states=again), STALE[0])).problems

    assert problem.found.cause.name == "GpuNotInjected"


def test_pod_in_files_without_runtime_classes_may_lack_its_own() -> None:
    (problem,) = judged(node("a"), runs(), logs=LOG, missing={"RuntimeClass": "not in the saved files"}).problems
    named = judged(node("a"), pod("x", on="a", spec={"runtimeClassName": "nvidia"}), logs=LOG)

    assert "`runtimeClassName: nvidia` in pod/team/x" in problem.found.remedy[0]
    assert not any("runtimeClassName:" in text for text in named.problems[0].found.remedy)


def test_node_without_the_handler_is_configured() -> None:
    bare = node("a", handlers=("", "runc"))
    (problem,) = judged(bare, runs(), logs=LOG).problems
    (handled,) = judged(node("a"), runs(), logs=LOG).problems

    assert any("nvidia-ctk runtime configure" in text for text in problem.found.remedy)
    assert not any("nvidia-ctk runtime configure" in text for text in handled.found.remedy)
    assert any("`nvidia-smi -L` must list the GPU" in text for text in handled.found.remedy)


@pytest.mark.parametrize(
    "words",
    [
        'level=INFO source=gpu.go:392 msg="no compatible GPUs were discovered"',
        'msg="inference compute" id=cpu library=cpu compute="" name=cpu',
        "warning: no usable GPU found, --gpu-layers option will be ignored",
    ],
)
def test_program_that_found_no_gpu_at_its_start_runs_without_one(words: str) -> None:
    log = {("pod/team/x", "main"): f"{words}\n" + "[GIN] 200 GET\n" * 40}
    finds = {("pod/team/x", "main"): 'msg="inference compute" id=GPU-8a library=cuda\n' + "[GIN] 200 GET\n" * 40}

    assert results(judged(node("a"), NVIDIA, runs(), logs=log)) == [("RuntimeClassNotNamed", "pod/team/x")]
    assert not results(judged(node("a"), NVIDIA, runs(), logs=finds))
