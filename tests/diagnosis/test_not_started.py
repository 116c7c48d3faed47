"""Pods with containers that do not start, by each message, and the same pods after progress."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.states import (
    Object,
    ago,
    container,
    event,
    judged,
    node,
    obj,
    pod,
    recorded,
    results,
    terminated,
    waiting,
)

OCI = "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
HOOK = (
    OCI + "runc create failed: unable to start container process: error during container init: error running prestart "
    "hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\\nnvidia-container-cli: {}: unknown"
)
CGROUPS = (
    'runc create failed: expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups, got '
    '"/kubepods/burstable/podx" instead: unknown'
)
SANDBOX = "Failed to create pod sandbox: rpc error: code = Unknown desc = {}"
STARTS = [
    (HOOK.format("initialization error: nvml error: driver not loaded"), "DriverNotLoaded", "node/a"),
    (
        HOOK.format(
            "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such "
            "file or directory"
        ),
        "DriverLibraryMissing",
        "node/a",
    ),
    (
        HOOK.format("ldcache error: process /sbin/ldconfig.real terminated with signal 9"),
        "ContainerStartKilled",
        "job/team/train",
    ),
    (HOOK.format("ldcache error: process /sbin/ldconfig failed with error code: 1"), "ToolkitFails", "node/a"),
    (
        HOOK.format("ldcache error: open failed: /sbin/ldconfig.real: no such file or directory"),
        "DriverLibraryMissing",
        "node/a",
    ),
    (
        OCI + "runc create failed: container init was OOM-killed (memory limit too low?)",
        "ContainerStartKilled",
        "job/team/train",
    ),
    (HOOK.format("initialization error: driver rpc error: timed out"), "DriverDoesNotAnswer", "node/a"),
    (
        HOOK.format(
            "requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or "
            "use an earlier cuda container"
        ),
        "ImageNeedsNewerDriver",
        "job/team/train",
    ),
    (HOOK.format("device error: GPU-1f2e: unknown device"), "GpuUnknownToRuntime", "node/a"),
    (HOOK.format("detection error: nvml error: unknown error"), "ToolkitFails", "node/a"),
    (HOOK.format("detection error: nvml error: gpu is lost"), "GpuHardwareFault", "node/a"),
    (
        'error gathering device information while adding custom device "/dev/nvidiactl": no such file or directory',
        "DriverDeviceFilesMissing",
        "node/a",
    ),
    (
        OCI + 'error mounting "/run/nvidia/mps/shm" to rootfs at "/dev/shm": no such file or directory',
        "MpsDaemonNotReady",
        "node/a",
    ),
    (
        OCI
        + 'error mounting "/usr/lib64/libnvidia-ml.so.550.54" to rootfs at "/usr/lib64/x": no such file or directory',
        "CdiSpecificationStale",
        "node/a",
    ),
    (
        OCI + 'error mounting "/var/lib/kubelet/pods/1/volume-subpaths/nvidia/main/0" to rootfs at "/x": no such file',
        "ContainerNotCreated",
        "job/team/train",
    ),
    (OCI + CGROUPS, "CgroupDriverMismatched", "node/a"),
    (
        OCI + 'error running hook #0: exec: "nvidia-container-runtime-hook": executable file not found in $PATH',
        "ToolkitProgramMissing",
        "node/a",
    ),
    (
        OCI + "unable to retrieve OCI runtime error (open /run/containerd/io.containerd.runtime.v2.task/k8s.io/1/"
        "log.json: no such file or directory): fork/exec /usr/bin/nvidia-container-runtime: no such file or directory",
        "ToolkitProgramMissing",
        "node/a",
    ),
    (
        OCI + "could not apply required modification to OCI specification: error modifying OCI spec: failed to inject "
        "CDI devices: unresolvable CDI devices management.nvidia.com/gpu=GPU-e78e68c0: unknown",
        "CdiDeviceUnresolved",
        "node/a",
    ),
    (
        (
            "failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
            "k8s.gpu.nvidia.com/device=gpu-1"
        ),
        "CdiDeviceUnresolved",
        "node/a",
    ),
    (
        (
            'failed to create containerd container: CDI device injection failed: failed to stat CDI host device "/dev/'
            'nvidia7": no such file or directory'
        ),
        "CdiSpecificationStale",
        "node/a",
    ),
    (
        OCI + 'runc create failed: unable to start container process: exec: "trian.py": executable file not found in '
        "$PATH: unknown",
        "ContainerCommandMissing",
        "job/team/train",
    ),
    ("failed to reserve container name x: name x is reserved", "ContainerNotCreated", "job/team/train"),
]
IMAGES = [
    (
        (
            'failed to pull and unpack image "registry.example/train:1": failed to resolve reference '
            '"registry.example/train:1": registry.example/train:1: not found'
        ),
        "ImageNotFound",
        "job/team/train",
    ),
    (
        (
            'failed to pull and unpack image "nvcr.io/x/y:1": failed to resolve reference "nvcr.io/x/y:1": failed to '
            "authorize: failed to fetch oauth token: unexpected status: 401 Unauthorized"
        ),
        "ImagePullUnauthorized",
        "job/team/train",
    ),
    (
        (
            'failed to pull and unpack image "r/x:1": failed to extract layer sha256:1: write /var/lib/containerd/x: '
            "no space left on device"
        ),
        "ImageDiskFull",
        "node/a",
    ),
    (
        (
            'failed to pull and unpack image "r/x:1": failed to do request: Head "https://r/v2/x/manifests/1": dial '
            "tcp: lookup r on 10.0.0.10:53: no such host"
        ),
        "ImagePullFails",
        "job/team/train",
    ),
    (
        "rpc error: code = NotFound desc = no match for platform in manifest: not found",
        "ImageOfAnotherArchitecture",
        "job/team/train",
    ),
    (
        "no matching manifest for linux/arm64/v8 in the manifest list entries",
        "ImageOfAnotherArchitecture",
        "job/team/train",
    ),
    (
        'choosing image instance: no image found in image index for architecture arm64, variant "v8", OS linux',
        "ImageOfAnotherArchitecture",
        "job/team/train",
    ),
]
EVENTS = [
    (
        "FailedMount",
        'MountVolume.SetUp failed for volume "conf" : configmap "train-config" not found',
        "ConfigReferenceMissing",
        "configmap/team/train-config",
    ),
    (
        "FailedAttachVolume",
        'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node',
        "VolumeHeldByAnotherNode",
        "persistentvolumeclaim/team/data",
    ),
    (
        "FailedMount",
        "Unable to attach or mount volumes: unmounted volumes=[data]: timed out waiting for the condition",
        "VolumeNotMounted",
        "persistentvolumeclaim/team/data",
    ),
    (
        "FailedCreatePodSandBox",
        SANDBOX.format('failed to setup network for sandbox "1": plugin type="calico" failed (add): no IPs left'),
        "PodNetworkFails",
        "node/a",
    ),
    (
        "FailedCreatePodSandBox",
        (
            'Failed to create pod sandbox: rpc error: code = Unavailable desc = connection error: desc = "transport: '
            'Error while dialing dial unix /run/containerd/containerd.sock: connect: connection refused"'
        ),
        "ContainerRuntimeUnreachable",
        "node/a",
    ),
    ("FailedCreatePodSandBox", SANDBOX.format(OCI + CGROUPS), "CgroupDriverMismatched", "node/a"),
    ("FailedCreatePodSandBox", SANDBOX.format("cgroups: cgroup deleted"), "SandboxNotCreated", "node/a"),
    (
        "FailedCreatePodSandBox",
        SANDBOX.format("create container failed validation: container.Runtime.Name must be set: invalid argument"),
        "RuntimeTypeMissing",
        "node/a",
    ),
    (
        "FailedPrepareDynamicResources",
        "Failed to prepare dynamic resources: NodePrepareResources failed for claim team/x: rpc error: timed out",
        "ClaimNotPrepared",
        "node/a",
    ),
]
JOB = obj("Job", "train", "team", spec={"template": {"spec": {"containers": [container("main", 1)]}}})


def held(*states: Object, **changes: Any) -> Object:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    return pod(
        "train-x",
        on="a",
        phase=changes.pop("phase", "Pending"),
        owner=("Job", "train"),
        states=list(states),
        spec={"volumes": volumes},
        **changes,
    )


@pytest.mark.parametrize(("text", "cause", "subject"), STARTS)
def test_what_the_runtime_says_of_a_container(text: str, cause: str, subject: str) -> None:
    by_state = held(waiting("CreateContainerError", text))
    again = waiting("CrashLoopBackOff", "back-off", lastState={"terminated": terminated(128, "StartError", text)})
    for_good = held({"name": "main", "state": {"terminated": terminated(128, "StartError", text)}}, phase="Failed")

    assert results(judged(node("a"), JOB, by_state)) == [(cause, subject)]
    assert results(judged(node("a"), JOB, held(again))) == [(cause, subject)]
    assert results(judged(node("a"), JOB, for_good)) == [(cause, subject)]


@pytest.mark.parametrize(("text", "cause", "subject"), STARTS)
def test_what_runs_by_now_says_nothing_of_it(text: str, cause: str, subject: str) -> None:
    last = {"lastState": {"terminated": terminated(128, "StartError", text)}}
    works = {"name": "main", "ready": True, "restartCount": 2, "state": {"running": {"startedAt": ago(5)}}, **last}

    assert not results(judged(node("a"), JOB, held(works, phase="Running")))


@pytest.mark.parametrize(("text", "cause", "subject"), IMAGES)
def test_images(text: str, cause: str, subject: str) -> None:
    now = held(waiting("ErrImagePull", text))
    later = held(waiting("ImagePullBackOff", 'Back-off pulling image "registry.example/train:1"'))
    fields = event(later, "Failed", f'Failed to pull image "registry.example/train:1": {text}', minutes=3)

    assert results(judged(node("a"), JOB, now)) == [(cause, subject)]
    assert results(judged(node("a"), JOB, later, fields)) == [(cause, subject)]


@pytest.mark.parametrize(("reason", "text", "cause", "subject"), EVENTS)
def test_what_comes_before_any_container(reason: str, text: str, cause: str, subject: str) -> None:
    stuck = held(waiting("ContainerCreating"))
    fields = event(stuck, reason, text, count=9)

    assert results(judged(node("a"), JOB, stuck, fields)) == [(cause, subject)]
    went_on = event(stuck, "Pulling", 'Pulling image "registry.example/train:1"', minutes=0.5, warning=False)
    assert not results(judged(node("a"), JOB, stuck, fields, went_on))
    young = held(waiting("ContainerCreating"), age=1)
    assert not results(judged(node("a"), JOB, young, event(young, reason, text)))


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ('secret "hf-token" not found', "secret/team/hf-token"),
        ('configmap "train" not found', "configmap/team/train"),
        ("couldn't find key token in Secret team/hf-token", "secret/team/hf-token"),
        ("couldn't find key lr in ConfigMap team/train", "configmap/team/train"),
    ],
)
def test_configuration_that_is_not_there(text: str, subject: str) -> None:
    stuck = held(waiting("CreateContainerConfigError", text))

    assert results(judged(node("a"), JOB, stuck)) == [("ConfigReferenceMissing", subject)]


def test_an_init_container_that_fails() -> None:
    init = waiting("CrashLoopBackOff", "back-off", "fetch", lastState={"terminated": terminated(1)})
    main = waiting("PodInitializing")
    stuck = held(main, status={"initContainerStatuses": [init], "containerStatuses": [main]})

    assert results(judged(node("a"), JOB, stuck)) == [("InitContainerFails", "job/team/train")]
    words = terminated(1, "Error", "RuntimeError: No CUDA GPUs are available")
    looks = waiting("CrashLoopBackOff", "back-off", "fetch", lastState={"terminated": words})
    asks = held(main, status={"initContainerStatuses": [looks], "containerStatuses": [main]})
    assert results(judged(node("a"), JOB, asks)) == [("GpuNotRequested", "job/team/train")]
    runs = {"name": "fetch", "ready": False, "restartCount": 0, "state": {"running": {"startedAt": ago(8)}}}
    busy = held(main, status={"initContainerStatuses": [runs], "containerStatuses": [main]})
    assert not results(judged(node("a"), JOB, busy))


def test_a_long_pull_of_a_large_image_is_no_fault() -> None:
    pulls = held(waiting("ContainerCreating"), age=25)
    fields = event(pulls, "Pulling", 'Pulling image "nvcr.io/nvidia/pytorch:26.01-py3"', minutes=24, warning=False)

    assert not results(judged(node("a"), JOB, pulls, fields))


def test_pods_without_a_gpu_are_nobodys_business() -> None:
    plain = pod("web", 0, on="a", phase="Pending", states=[waiting("ImagePullBackOff", "not found")])

    assert not results(judged(node("a"), plain))


def test_many_pods_on_one_node_are_one_find() -> None:
    pods = [
        pod(f"x-{number}", on="a", phase="Pending", states=[waiting("RunContainerError", STARTS[0][0])])
        for number in range(40)
    ]

    (problem,) = judged(node("a"), *pods).problems

    assert (problem.found.cause.name, problem.found.subject) == ("DriverNotLoaded", "node/a")
    assert len(problem.found.affected) == 40


def test_of_a_long_text_the_part_that_tells_is_shown() -> None:
    text = OCI + "error running prestart hook #0: " * 12 + "nvml error: driver not loaded"
    fails = pod("x", 1, on="a", phase="Pending", states=[waiting("RunContainerError", text)])

    assert "driver not loaded" in judged(node("a"), fails).problems[0].found.evidence[0]


CLAIM = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}


@pytest.mark.parametrize("going", [{}, {"deletionTimestamp": ago(20)}])
def test_a_volume_used_by_another_pod_is_reported_at_once(going: dict[str, str]) -> None:
    waits = pod("x", on="a", phase="Pending", age=3, states=[waiting("ContainerCreating")], spec=CLAIM)
    fields = event(
        waits, "FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) y'
    )
    keeps = pod("y", 0, on="b", spec=CLAIM, metadata=going)

    assert results(judged(node("a"), node("b"), waits, fields, keeps)) == [
        ("VolumeHeldByAnotherNode", "persistentvolumeclaim/team/data")
    ]


@pytest.mark.parametrize(
    ("missing", "cause"),
    [
        ("no /dev/nvidia-uvm or /run/nvidia/driver/dev/nvidia-uvm", "DriverDeviceFilesMissing"),
        ("no /dev/nvidiactl; no /dev/nvidia-uvm", "DriverDeviceFilesMissing"),
        ("no /dev/nvidia-uvm-tools", "CdiSpecificationStale"),
        ("no /dev/nvidia1", "CdiSpecificationStale"),
    ],
)
def test_a_specification_is_not_stale_where_the_node_lacks_what_it_names(missing: str, cause: str) -> None:
    message = 'CDI device injection failed: failed to stat CDI host device "/dev/nvidia-uvm": no such file or directory'
    stuck = pod("x", on="a", states=[waiting("CreateContainerError", message)])

    assert results(judged(node("a", annotations=recorded("DeviceFileMissing", detail=missing)), stuck)) == [
        (cause, "node/a")
    ]
