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
    messages,
    node,
    obj,
    pod,
    recorded,
    results,
    terminated,
    waiting,
)

ROWS = messages("start")
STARTS = [row[1:] for row in ROWS if row[0] == "CreateContainerError"]
IMAGES = [row[1:] for row in ROWS if row[0] == "ErrImagePull"]
EVENTS = [row for row in ROWS if row[0].startswith("Failed")]
OCI = "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
OLD_HOOK = "exit status 3, stdout: , stderr: No help topic for 'disable-device-node-modification'"
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


@pytest.mark.parametrize(("cause", "subject", "text"), STARTS)
def test_message_of_a_container_that_does_not_start_names_its_cause(cause: str, subject: str, text: str) -> None:
    by_state = held(waiting("CreateContainerError", text))
    again = waiting("CrashLoopBackOff", "back-off", lastState={"terminated": terminated(128, "StartError", text)})
    for_good = held({"name": "main", "state": {"terminated": terminated(128, "StartError", text)}}, phase="Failed")

    assert results(judged(node("a"), JOB, by_state)) == [(cause, subject)]
    assert results(judged(node("a"), JOB, held(again))) == [(cause, subject)]
    assert results(judged(node("a"), JOB, for_good)) == [(cause, subject)]


@pytest.mark.parametrize("text", [row[2] for row in STARTS])
def test_message_of_a_container_that_runs_by_now_is_ignored(text: str) -> None:
    last = {"lastState": {"terminated": terminated(128, "StartError", text)}}
    works = {"name": "main", "ready": True, "restartCount": 2, "state": {"running": {"startedAt": ago(5)}}, **last}

    assert not results(judged(node("a"), JOB, held(works, phase="Running")))


@pytest.mark.parametrize(("cause", "subject", "text"), IMAGES)
def test_message_of_an_image_that_is_not_pulled_names_its_cause(cause: str, subject: str, text: str) -> None:
    now = held(waiting("ErrImagePull", text))
    later = held(waiting("ImagePullBackOff", 'Back-off pulling image "registry.example/train:1"'))
    fields = event(later, "Failed", f'Failed to pull image "registry.example/train:1": {text}', minutes=3)

    assert results(judged(node("a"), JOB, now)) == [(cause, subject)]
    assert results(judged(node("a"), JOB, later, fields)) == [(cause, subject)]


@pytest.mark.parametrize(("reason", "cause", "subject", "text"), EVENTS)
def test_event_before_any_container_names_its_cause(reason: str, cause: str, subject: str, text: str) -> None:
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
def test_missing_config_reference_is_the_object_to_change(text: str, subject: str) -> None:
    stuck = held(waiting("CreateContainerConfigError", text))

    assert results(judged(node("a"), JOB, stuck)) == [("ConfigReferenceMissing", subject)]


def test_failing_init_container_is_reported_and_a_running_one_is_not() -> None:
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


def test_long_pull_of_a_large_image_is_no_fault() -> None:
    pulls = held(waiting("ContainerCreating"), age=25)
    fields = event(pulls, "Pulling", 'Pulling image "nvcr.io/nvidia/pytorch:26.01-py3"', minutes=24, warning=False)

    assert not results(judged(node("a"), JOB, pulls, fields))


def test_pod_without_a_gpu_is_ignored() -> None:
    plain = pod("web", 0, on="a", phase="Pending", states=[waiting("ImagePullBackOff", "not found")])

    assert not results(judged(node("a"), plain))


@pytest.mark.parametrize(
    ("reason", "text", "cause"),
    [
        ("FailedCreatePodSandBox", f"{OCI}fork/exec /usr/bin/nvidia-container-runtime: no such file", "Toolkit"),
        ("Failed", f"Error: {OCI}unresolvable CDI devices management.nvidia.com/gpu=0: unknown", "CdiDevice"),
        (
            "Failed",
            f"Error: {OCI}nvidia-container-cli: device error: no-gpu-has-128MiB-to-run: unknown device",
            "Toolkit",
        ),
        ("Failed", f"Error: {OCI}createContainer hook #5: {OLD_HOOK}", "Toolkit"),
        ("Failed", f'Error: {OCI}exec: "nvidia-smi": executable file not found', ""),
        ("Failed", f"Error: {OCI}exec: /opt/nvidia/nvidia_entrypoint.sh: no such file", ""),
        ("Failed", 'Failed to pull image "nvcr.io/nvidia/nvidia-container-test:1": not found', ""),
    ],
)
def test_pod_without_a_gpu_counts_if_nvidias_toolkit_fails_for_it(reason: str, text: str, cause: str) -> None:
    state = waiting("RunContainerError" if reason == "Failed" else "ContainerCreating")
    plain = pod("web", 0, on="a", phase="Pending", age=60, states=[state])

    found = [name for name, _ in results(judged(node("a"), plain, event(plain, reason, text, count=20)))]

    assert [name.startswith(cause) for name in found] == ([True] if cause else [])


def test_pods_with_the_same_fault_on_a_node_are_one_result() -> None:
    pods = [
        pod(f"x-{number}", on="a", phase="Pending", states=[waiting("RunContainerError", STARTS[0][2])])
        for number in range(40)
    ]

    (problem,) = judged(node("a"), *pods).problems

    assert (problem.found.cause.name, problem.found.subject) == ("DriverNotLoaded", "node/a")
    assert len(problem.found.affected) == 40


def test_long_message_is_shortened_around_the_match() -> None:
    text = OCI + "error running prestart hook #0: " * 12 + "nvml error: driver not loaded"
    fails = pod("x", 1, on="a", phase="Pending", states=[waiting("RunContainerError", text)])

    assert "driver not loaded" in judged(node("a"), fails).problems[0].found.evidence[0]


CLAIM = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}


@pytest.mark.parametrize("going", [{}, {"deletionTimestamp": ago(20)}])
def test_volume_used_by_another_pod_is_reported_at_once(going: dict[str, str]) -> None:
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
def test_stale_specification_is_a_missing_device_file_if_the_agent_misses_it(missing: str, cause: str) -> None:
    message = 'CDI device injection failed: failed to stat CDI host device "/dev/nvidia-uvm": no such file or directory'
    stuck = pod("x", on="a", states=[waiting("CreateContainerError", message)])

    assert results(judged(node("a", annotations=recorded("DeviceFileMissing", detail=missing)), stuck)) == [
        (cause, "node/a")
    ]


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("nvidia-container-cli: container error: cgroup subsystem devices not found: unknown", "cgroup v2"),
        (
            "nvidia-container-cli: ldcache error: process /sbin/ldconfig.real failed with error code: 1",
            "@/sbin/ldconfig",
        ),
        ("nvidia-container-cli: ldcache error: open failed: /sbin/ldconfig.real: no such file", "@/sbin/ldconfig"),
        (
            "nvidia-container-cli: ldcache error: open failed: /run/nvidia/driver/sbin/ldconfig.real: no such file",
            "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
        ),
        ("nvidia-container-cli: initialization error: nvml error: insufficient permissions", "0660"),
        ("nvidia-container-cli: device error: GPU-1f2e: unknown device", "Restart the device plugin"),
        ("nvidia-container-cli: device error: unknown device id: GPU-1f2e\\n: unknown", "Restart the device plugin"),
        ("nvidia-container-cli: device error: unknown device id: no-gpu-has-8129MiB-to-run", "scheduler extender"),
        ("nvidia-container-cli.real: requirement error: invalid expression: unknown", "NVIDIA_DISABLE_REQUIRE"),
    ],
)
def test_fix_of_a_failed_injection_depends_on_its_error(words: str, step: str) -> None:
    stuck = pod("x", on="a", states=[waiting("RunContainerError", f"failed to create containerd task: {words}")])

    (problem,) = judged(node("a"), stuck).problems

    assert any(step in text for text in problem.found.remedy)


HOOK = f"{OCI}error running hook #0: exit status 1, stdout: , stderr: Auto-detected mode\nnvidia-container-cli: "
NO_FILE = f"{OCI}fork/exec /usr/bin/nvidia-container-runtime: no such file or directory: unknown"
DEBIAN = "ErrImagePull: failed to resolve image: nvcr.io/nvidia/driver:580.105.08-debian13: not found"
NO_NAME = 'Failed to apply default image tag "/:570.172.08-rhel9.6": invalid reference format'
NO_HOOK = "fork/exec /usr/bin/nvidia-ctk: no such file or directory"
NO_MPS_FILE = (
    'error mounting "/bin/nvidia-cuda-mps-control" to rootfs at "/usr/bin/nvidia-cuda-mps-control": '
    "open /bin/nvidia-cuda-mps-control: no such file or directory"
)
FIXES = [
    (
        "StartError",
        "",
        f"{HOOK}mount error: failed to add device rules: unable to load program",
        "update it there",
    ),
    ("StartError", "", f"{HOOK}container error: cgroup subsystem devices not found: unknown", "update it there"),
    ("StartError", "", f"{HOOK}initialization error: cuda error: unknown error: unknown", "`nvidia-modprobe -u -c=0`"),
    (
        "StartError",
        "",
        f"{HOOK}mount error: file creation failed: /x/libcuda.so: file exists",
        "build it without",
    ),
    ("StartError", "", f"{HOOK}ldcache error: process /sbin/ldconfig terminated with signal 9", "mode=cdi"),
    ("StartError", "", "context deadline exceeded: unknown", "`timeout 20 nvidia-smi`"),
    ("StartError", "Amazon Linux 2023.8", NO_FILE, "AL2023_x86_64_NVIDIA"),
    ("StartError", "Ubuntu 24.04", NO_FILE, "Reinstall the toolkit"),
    (
        *("CreateContainerError", "", 'path "/run/nvidia" is mounted on "/run" but it is not a shared mount'),
        "`mount --make-rshared /`",
    ),
    (
        *(
            "CreateContainerError",
            "",
            "error executing hook `/usr/local/nvidia/nvidia-cdi-hook` (exit code: 1)",
        ),
        "4.18.24",
    ),
    ("StartError", "", f"{OCI}error running createContainer hook #0: {NO_HOOK}", "NVIDIA_CDI_HOOK_PATH"),
    ("StartError", "", f"{HOOK}mount error: stat failed: /dev/nvidia-modeset: no such file", "compute,utility"),
    ("StartError", "", f"{HOOK}requirement error: invalid expression", "NVIDIA_DISABLE_REQUIRE=1"),
    ("StartError", "", f"{OCI}createContainer hook #5: {OLD_HOOK}", "update nvidia-container-toolkit"),
    ("StartError", "", f"{HOOK}device error: no-gpu-has-1GiB-to-run: unknown device", "scheduler extender"),
    ("StartError", "", f"{HOOK}initialization error: driver rpc error: failed to process request", "persistence mode"),
    ("StartError", "Talos (v1.13.0)", f"{OCI}{NO_MPS_FILE}", "nvidiaDriverRoot"),
    ("CreateContainerConfigError", "", "container has runAsNonRoot and image will run as root", "runAsUser"),
    ("CreateContainerError", "", "mkdir /usr/local/nvidia: read-only file system", "toolkit.installDir"),
    ("ImagePullBackOff", "", DEBIAN, "driver.enabled=false"),
    ("InvalidImageName", "", NO_NAME, "driver.repository"),
    ("ImagePullBackOff", "", "registry.example/train:1: not found", "Correct the image's name"),
]


@pytest.mark.parametrize(("reason", "system", "text", "fix"), FIXES, ids=[row[2][-50:] for row in FIXES])
def test_message_of_a_container_gives_its_fix(reason: str, system: str, text: str, fix: str) -> None:
    (problem,) = judged(node("a", system=system), JOB, held(waiting(reason, text))).problems
    assert fix in problem.found.steps[0]


def test_memory_limit_is_raised_only_where_it_is_set() -> None:
    killed = waiting("RunContainerError", f"{HOOK}ldcache error: process /sbin/ldconfig terminated with signal 9")
    small = container("main", 1, resources={"memory": "20Mi"})
    (problem,) = judged(node("a"), JOB, held(killed, containers=[small])).problems

    assert "Raise the container's memory limit" in problem.found.steps[0]


UNRESOLVED = f"{OCI}could not apply required modification to OCI specification: unresolvable CDI devices "


@pytest.mark.parametrize(
    ("device", "runtime_class", "words"),
    [
        ("management.nvidia.com/gpu=GPU-e7", "nvidia-cdi", "Take the line runtimeClassName out"),
        ("management.nvidia.com/gpu=0", "", "--vendor=management.nvidia.com"),
        ("k8s.device-plugin.nvidia.com/gpu=GPU-e7", "", "Restart the device plugin"),
        ("nvidia.com/gpu=0", "", "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"),
        ("runtime.nvidia.com/gpu=all", "", 'mode = "legacy"'),
        ("nvidia.com/pgpu=vfio1", "", "restart the device plugin, the toolkit's pod"),
        ("example.com/gpu=0", "", "restart the device plugin, the toolkit's pod"),
    ],
)
def test_unresolved_device_is_fixed_by_the_program_that_describes_it(
    device: str, runtime_class: str, words: str
) -> None:
    stuck = held(waiting("RunContainerError", f"{UNRESOLVED}{device}: unknown"))
    stuck["spec"]["runtimeClassName"] = runtime_class
    (problem,) = judged(node("a"), JOB, stuck).problems
    steps = " ".join(problem.found.steps)

    assert words in steps
    assert ("runtimeClassName" in steps) is bool(runtime_class)
