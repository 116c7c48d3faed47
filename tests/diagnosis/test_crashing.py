"""How containers of GPU pods end, by their last words, and the same words of those that work now."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.states import (
    Object,
    ago,
    condition,
    consequences,
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

WORDS = [
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "GpuHardwareFault", "node/a"),
    ("CUDA failure 802: system not yet initialized", "FabricNotReady", "node/a"),
    ("Failed to initialize NVML: Driver/library version mismatch", "DriverLibraryMismatched", "node/a"),
    ("CUDA driver version is insufficient for CUDA runtime version", "CudaNewerThanDriver", "job/team/train"),
    ("forward compatibility was attempted on non supported HW", "CudaNewerThanDriver", "job/team/train"),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "ImageLacksGpuArchitecture",
        "job/team/train",
    ),
    ("Failed to initialize NVML: Unknown Error", "GpuAccessLostAtRuntime", "node/a"),
    ("RuntimeError: No CUDA GPUs are available", "GpuNotInjected", "node/a"),
    ("cudaGetDeviceCount failed: no CUDA-capable device is detected", "GpuNotInjected", "node/a"),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
        "GpuMemoryExhausted",
        "job/team/train",
    ),
    ("[HAMI-core ERROR (pid:1 thread=1 allocator.c:54)]: Device 0 OOM 8 / 4", "GpuMemoryExhausted", "job/team/train"),
    (
        (
            "RuntimeError: DataLoader worker (pid 41) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory."
        ),
        "SharedMemoryTooSmall",
        "job/team/train",
    ),
    ("CUDA error: an illegal memory access was encountered", "ProgramFaultOnGpu", "job/team/train"),
    ("CUDA error: device-side assert triggered", "ProgramFaultOnGpu", "job/team/train"),
    ("RuntimeError: CUDA error: invalid device ordinal", "ProgramFaultOnGpu", "job/team/train"),
    ("CUDA error: NVLink error detected during execution", "GpuHardwareFault", "node/a"),
    ("CUDA error: all CUDA-capable devices are busy or unavailable", "CudaCannotInitialize", "node/a"),
    ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "CudaCannotInitialize", "node/a"),
    (
        "alloc_buffer: allocating 40000.00 MiB on device 0: cudaMalloc failed: out of memory",
        "GpuMemoryExhausted",
        "job/team/train",
    ),
    (
        "[TRT] [E] [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (Requested size was 8)",
        "GpuMemoryExhausted",
        "job/team/train",
    ),
    ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "GpuNotInjected", "node/a"),
    ("CUDA initialization: CUDA unknown error", "CudaCannotInitialize", "node/a"),
    ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", "CollectiveFails", "job/team/train"),
    ("ValueError: learning rate must be positive", "ContainerCrashes", "job/team/train"),
    ("", "ContainerCrashes", "job/team/train"),
]
PRINTED = [(words, cause, subject) for _, cause, subject, words in messages("crash")]
"""Names, numbers and texts of the errors of libraries, as programs print them, and words that resemble them."""
JOB = obj("Job", "train", "team", spec={"template": {"spec": {"containers": [container("main", 1)]}}})


def crashing(name: str = "train-x", end: Object | None = None, restarts: int = 5, **changes: Any) -> Object:
    last: Object = {"lastState": {"terminated": end or terminated(1)}, "restartCount": restarts}
    states = [waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container", **last)]
    return pod(name, on=changes.pop("on", "a"), states=states, owner=("Job", "train"), **changes)


def working(end: Object) -> Object:
    state = {"running": {"startedAt": ago(60)}}
    states = [{"name": "main", "ready": True, "restartCount": 7, "state": state, "lastState": {"terminated": end}}]
    return pod("train-x", on="a", states=states, owner=("Job", "train"))


@pytest.mark.parametrize(("words", "cause", "subject"), WORDS + PRINTED)
def test_message_or_log_of_a_failed_container_names_its_cause(words: str, cause: str, subject: str) -> None:
    by_message = crashing(end=terminated(1, "Error", f"Traceback:\n{words}\n"))
    log = {("pod/team/train-x", "main"): f"epoch 1\nepoch 2\n{words}\n"}
    for_good = pod(
        "train-x",
        on="a",
        phase="Failed",
        owner=("Job", "train"),
        states=[{"name": "main", "state": {"terminated": terminated(1, "Error", words)}}],
    )

    assert results(judged(node("a"), JOB, by_message)) == [(cause, subject)]
    assert results(judged(node("a"), JOB, crashing(), logs=log)) == [(cause, subject)]
    ended = [] if cause == "ContainerCrashes" else [(cause, subject)]
    assert results(judged(node("a"), JOB, for_good)) == ended


@pytest.mark.parametrize("words", [row[0] for row in WORDS + PRINTED])
def test_message_of_a_container_that_recovered_is_ignored(words: str) -> None:
    log = {("pod/team/train-x", "main"): f"{words}\n" + "step\n" * 20}

    assert not results(judged(node("a"), JOB, working(terminated(1, "Error", words)), logs=log))
    done = pod("train-x", on="a", phase="Succeeded", owner=("Job", "train"))
    assert not results(judged(node("a"), JOB, done, logs=log))


def test_failed_pod_that_the_job_replaced_is_ignored() -> None:
    failed = pod(
        "train-x",
        on="a",
        phase="Failed",
        owner=("Job", "train"),
        states=[{"name": "main", "state": {"terminated": terminated(1, "Error", WORDS[9][0], minutes=30)}}],
    )
    later = pod("train-y", on="a", age=20, owner=("Job", "train"))

    assert results(judged(node("a"), JOB, failed)) == [("GpuMemoryExhausted", "job/team/train")]
    assert not results(judged(node("a"), JOB, failed, later))


def test_oom_kill_concerns_the_memory_of_the_node() -> None:
    log = {("pod/team/train-x", "main"): "torch.OutOfMemoryError: CUDA out of memory"}

    diagnosis = judged(node("a"), JOB, crashing(end=terminated(137, "OOMKilled")), logs=log)

    assert results(diagnosis) == [("ContainerMemoryLimitExceeded", "job/team/train")]


@pytest.mark.parametrize(("code", "cause"), [(139, "ContainerKilledBySignal"), (134, "ContainerKilledBySignal")])
def test_exit_code_of_a_signal_names_its_cause(code: int, cause: str) -> None:
    assert results(judged(node("a"), JOB, crashing(end=terminated(code)))) == [(cause, "job/team/train")]


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("CUDA error: invalid device ordinal", "Ask for as many GPUs"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "`nvidia-smi -q -d COMPUTE,PIDS`"),
        ("CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA initialization: CUDA unknown error", "`modprobe nvidia_uvm`"),
        ("RuntimeError: CUDA error: initialization error", "by `spawn`"),
        ("CUDA error: system has unsupported display driver / cuda driver combination", "reboot it"),
        ("Error 804: forward compatibility was attempted on non supported HW", "/usr/local/cuda/compat"),
        ("pynvml.NVMLError_FunctionNotFound: Function Not Found", "nvidia-ml-py"),
        ("NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "IPC_LOCK"),
        ("NCCL WARN Call to ibv_reg_mr failed with error Bad address", "`modprobe nvidia-peermem`"),
        ("NCCL WARN Cuda failure 'peer access is not supported between these two devices'", "NCCL_P2P_DISABLE=1"),
        ("NCCL WARN NET/OFI aws-ofi-nccl initialization failed", "vpc.amazonaws.com/efa"),
        ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000", "LOCAL_RANK"),
        ("Failed to initialize NVML: Insufficient Permissions", "supplementalGroups"),
        ("CUDA failure 304: OS call failed or operation not supported on this OS", "seccompProfile"),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "/dev/nvidia-uvm"),
        ("CUDA error: the hardware resources required to create MPS client have been exhausted", "48 clients"),
        ("uncorrectable ECC error encountered", "`kubectl cordon a`"),
        ("RuntimeError: CUDA error: operation not supported", "expandable_segments:False"),
        ("NCCL WARN Cuda failure 800 'operation not permitted'", "ComputeDomain"),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0", "`--dtype=half`"),
        ("The engine plan file is generated on an incompatible device", "Build the TensorRT engine again"),
        ("ERR_NVGPUCTRPERM", "SYS_ADMIN"),
        ("NCCL WARN Bootstrap : no socket interface found", "`NCCL_SOCKET_IFNAME=eth0`"),
        ("NCCL WARN socketStartConnect: Connect to 10.0.0.1<49152> failed : Connection refused", "NetworkPolicy"),
        ("NCCL WARN NET/IB : Got completion from peer with error 12, transport retry counter exceeded", "GID_INDEX"),
        (
            "max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache",
            "max-model-len",
        ),
        ("ValueError: No available memory for the cache blocks.", "`--gpu-memory-utilization`"),
        (
            "Free memory on device (3.1/23.5 GiB) on startup is less than desired GPU memory utilization",
            "Other processes",
        ),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess", "VLLM_WORKER_MULTIPROC_METHOD=spawn"),
        ("AssertionError: World size (4) is larger than the number of available GPUs (1)", "tensor-parallel-size"),
        ("ValueError: type fp8e4nv not supported in this architecture", "compute capability 8.9"),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            "headless Service",
        ),
        ("DistNetworkError: The server socket has failed to listen: port: 29500, EADDRINUSE", "MASTER_PORT"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "`nvidia-smi -q | grep -i license`"),
        ("AssertionError: Torch not compiled with CUDA enabled", "processors only"),
        ("CUDA driver version is insufficient for CUDA runtime version", "older CUDA"),
        ("socketPollConnect: connect to fe80::a8b2%eth0<4> returned Connection refused", "NCCL_SOCKET_FAMILY=AF_INET"),
        ("Cannot load libnvidia-encode.so.1", "`NVIDIA_DRIVER_CAPABILITIES: all`"),
        ("Failed to initialize NVML: Unknown Error", "`no-cgroups = false`"),
        ("CUDA error: operation not permitted when stream is capturing", "`--enforce-eager`"),
        ("AssertionError: Invalid device id", "Ask for as many GPUs"),
        ("ValueError: Cannot provide a placement group within 1800 seconds. See `ray status`", "`ray status`"),
        ("Runtime compute cap 75 is not compatible with compile time compute cap 80", "turing- for 7.5"),
        (
            "fatal: We were configured to autodetect nvml functionality, but we weren't able to find that lib when",
            "gres.conf",
        ),
        ("nixl_cu12._bindings.nixlBackendError: NIXL_ERR_BACKEND", "UCX_TLS=cuda_copy,cuda_ipc,tcp"),
    ],
)
def test_remedy_depends_on_the_error_of_a_cause(words: str, step: str) -> None:
    (problem,) = judged(node("a"), JOB, crashing(end=terminated(1, "Error", words))).problems
    assert step in problem.found.remedy[0]


def test_gpu_of_windows_is_fixed_in_windows() -> None:
    crash = crashing(
        end=terminated(255, "Error", "Failed to initialize NVML: GPU access blocked by the operating system")
    )
    wsl = node("a")
    wsl["status"]["nodeInfo"]["kernelVersion"] = "6.6.87.2-microsoft-standard-WSL2"

    (problem,) = judged(wsl, JOB, crash).problems

    assert problem.found.cause.name == "GpuAccessDenied"
    assert "`wsl --shutdown`" in problem.found.remedy[0]


LOADS = container("main", 1, startupProbe={"failureThreshold": 30, "periodSeconds": 10, "httpGet": {"port": 8000}})
KILLING = "Container main failed {} probe, will be restarted"
UNHEALTHY = "{} probe failed: HTTP probe failed with statuscode: 503"


@pytest.mark.parametrize(
    ("code", "message", "kills"),
    [
        *((code, UNHEALTHY.format("Liveness"), True) for code in (137, 143)),
        *((code, UNHEALTHY.format("Startup"), True) for code in (137, 143)),
        (137, "Startup probe errored: rpc error: code = DeadlineExceeded", True),
        *((code, KILLING.format("startup"), True) for code in (0, 1, 137, 143)),
        (
            1,
            "Killing container with id docker://main:Container failed liveness probe.. Container will be killed.",
            True,
        ),
        (1, UNHEALTHY.format("Startup"), False),
        (137, UNHEALTHY.format("Readiness"), False),
        (1, "Container sidecar failed startup probe, will be restarted", False),
    ],
)
def test_kill_by_a_failing_probe_is_recognised(code: int, message: str, kills: bool) -> None:
    crash = crashing(end=terminated(code), containers=[LOADS])
    reason = "Killing" if "Container" in message else "Unhealthy"

    found = results(judged(node("a"), JOB, crash, event(crash, reason, message, warning=reason != "Killing")))

    assert (found == [("LivenessProbeKills", "job/team/train")]) == kills


def test_program_that_ends_on_the_signal_of_the_kubelet_was_killed() -> None:
    crash = crashing(end=terminated(1, "Error", "KeyboardInterrupt: terminated"))
    fields = event(crash, "Unhealthy", UNHEALTHY.format("Startup"))

    assert results(judged(node("a"), JOB, crash, fields)) == [("LivenessProbeKills", "job/team/train")]


def test_startup_probe_that_is_too_short_is_shown_with_its_time() -> None:
    crash = crashing(end=terminated(137), containers=[LOADS])
    (problem,) = judged(node("a"), JOB, crash, event(crash, "Killing", KILLING.format("startup"))).problems

    assert (
        "failureThreshold of the startupProbe of container main in the template of job/team/train"
        in (problem.found.remedy[0])
    )
    assert "It has now failureThreshold 30 x periodSeconds 10 = 300 s." in problem.found.remedy[0]


@pytest.mark.parametrize(
    ("message", "step"),
    [
        ("Liveness probe failed: HTTP probe failed with statuscode: 404", "with 404: correct the probe's path"),
        ("Startup probe failed: HTTP probe failed with statuscode: 401", "with 401: correct the probe's path"),
        (
            'Liveness probe failed: Get "http://10.0.0.5:8000/": context deadline exceeded',
            "raise the probe's timeoutSeconds",
        ),
        (UNHEALTHY.format("Liveness"), "Add a startupProbe"),
    ],
)
def test_remedy_of_a_probe_depends_on_its_answer(message: str, step: str) -> None:
    crash = crashing(end=terminated(137))
    (problem,) = judged(node("a"), JOB, crash, event(crash, "Unhealthy", message)).problems

    assert step in problem.found.remedy[0]
    assert ("timeoutSeconds" in problem.found.remedy[0]) == ("deadline" in message)


def test_banner_of_two_lines_is_recognised() -> None:
    words = "ERROR: This container was built for NVIDIA Driver Release 545.23 or later, but\n   version 470.1 was"
    end = terminated(1, "Error", f"{words} detected and compatibility mode is UNAVAILABLE.")

    assert results(judged(node("a"), JOB, crashing(end=end))) == [("CudaNewerThanDriver", "job/team/train")]


def test_lost_gpu_may_be_lost_to_the_container_alone() -> None:
    words = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error"
    (problem,) = judged(node("a"), JOB, crashing(end=terminated(1, "Error", words))).problems

    assert any("only the container has lost it" in text for text in problem.found.remedy)


@pytest.mark.parametrize(("ready", "kills"), [(False, True), (True, False)])
def test_container_that_its_startup_probe_killed_may_load_again(*, ready: bool, kills: bool) -> None:
    state = {"running": {"startedAt": ago(8)}}
    last = {"lastState": {"terminated": terminated(137, minutes=9)}, "restartCount": 1}
    loads = pod("train-x", on="a", states=[{"name": "main", "ready": ready, "state": state, **last}])
    killing = event(loads, "Killing", KILLING.format("startup"), minutes=9, warning=False)

    assert results(judged(node("a"), loads, killing)) == ([("LivenessProbeKills", "pod/team/train-x")] if kills else [])


def test_probe_that_ended_a_container_days_ago_is_no_crash() -> None:
    state = {"running": {"startedAt": ago(4000)}}
    last = {"lastState": {"terminated": terminated(137, minutes=4001)}, "restartCount": 1}
    busy = pod("train-x", on="a", age=9000, states=[{"name": "main", "ready": False, "state": state, **last}])

    assert not results(judged(node("a", age=9000), busy, event(busy, "Unhealthy", UNHEALTHY.format("Liveness"))))


def test_memory_limit_outranks_a_probe() -> None:
    crash = crashing(end=terminated(137, "OOMKilled"))
    fields = event(crash, "Unhealthy", UNHEALTHY.format("Startup"))

    assert results(judged(node("a"), JOB, crash, fields)) == [("ContainerMemoryLimitExceeded", "job/team/train")]


DRIVER = {"app": "nvidia-driver-daemonset"}
MISSES = ("Failed to initialize NVML: Driver Not Loaded", "Error 802: system not yet initialized")


@pytest.mark.parametrize("words", MISSES)
def test_driver_in_a_container_is_the_place_to_look(words: str) -> None:
    own: dict[str, Any] = {"namespace": "gpu-operator", "labels": DRIVER, "owner": ("DaemonSet", "nvidia-driver")}
    driver = pod("nvidia-driver-x", 0, on="a", age=900, **own)
    crash = crashing(end=terminated(1, "Error", words), age=60)
    log = "`kubectl -n gpu-operator logs nvidia-driver-x "

    (with_pod,) = judged(node("a"), JOB, crash, driver).problems
    (on_host,) = judged(node("a"), JOB, crash).problems

    assert any(log in text for text in with_pod.found.remedy)
    assert any("`systemctl enable" in text or "`modprobe nvidia`" in text for text in on_host.found.remedy)


def test_driver_of_a_component_is_named_where_nodes_are_not_visible() -> None:
    own: dict[str, Any] = {"namespace": "gpu-operator", "labels": {"app": "nvidia-operator-validator"}}
    validator = crashing("validator", end=terminated(1, "Error", MISSES[1]), age=60, **own)

    assert ("FabricNotReady", "node/a") in results(judged(validator, missing=["Node"]))


def test_fault_of_the_node_outranks_a_program_error() -> None:
    finding = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:18:00.0", "detail": "fell off the bus"}
    sick = node(
        "a",
        annotations=recorded(finding, status="fail", severity="REBOOT"),
        taints=[{"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}],
        conditions=[condition("GpuHealthy", "False", "Xid79", "fell off the bus")],
    )
    faults = crashing(end=terminated(1, "Error", "CUDA error: an illegal memory access was encountered"))

    diagnosis = judged(sick, JOB, faults)

    assert results(diagnosis) == [("NodeKeptFromWork", "node/a")]
    assert ("GpuHardwareFault", "node/a") in consequences(diagnosis.problems[0])


def test_lost_contact_follows_from_the_failure_of_another_rank() -> None:
    dies = crashing("train-0", end=terminated(1, "Error", "uncorrectable ECC error encountered", minutes=5))
    misses = [
        crashing(f"train-{rank}", end=terminated(1, "Error", "ncclRemoteError: peer gone"), on="b") for rank in (1, 2)
    ]

    diagnosis = judged(node("a"), node("b"), JOB, dies, *misses)

    assert results(diagnosis) == [("GpuHardwareFault", "node/a")]
    assert consequences(diagnosis.problems[0]) == [("CollectiveFails", "job/team/train")]


@pytest.mark.parametrize(
    "excuse",
    [
        {"metadata": {"deletionTimestamp": ago(0.1)}},
        {"conditions": [condition("DisruptionTarget", "True", "PreemptionByScheduler")]},
    ],
)
def test_requested_end_is_no_crash(excuse: dict[str, Any]) -> None:
    assert not results(judged(node("a"), JOB, crashing(end=terminated(143), **excuse)))


def test_container_created_again_after_a_reboot_is_no_crash() -> None:
    state = waiting("ContainerCreating", lastState={"terminated": terminated(255, "Unknown")}, restartCount=1)

    assert not results(judged(node("a"), JOB, pod("train-x", on="a", states=[state], owner=("Job", "train"))))


def test_crash_without_a_requested_gpu_is_a_missing_request() -> None:
    plain = crashing(end=terminated(1, "Error", "RuntimeError: No CUDA GPUs are available"), containers=[container()])

    assert results(judged(node("a"), JOB, plain)) == [("GpuNotRequested", "job/team/train")]


def test_crash_of_a_pod_without_gpus_is_ignored() -> None:
    assert not results(judged(node("a"), JOB, crashing(containers=[container()])))


def test_crash_loop_without_a_recorded_end_is_judged_by_its_log() -> None:
    bare = pod("train-x", on="a", states=[waiting("CrashLoopBackOff", "back-off 5m0s")], owner=("Job", "train"))
    log = {("pod/team/train-x", "main"): "torch.OutOfMemoryError: CUDA out of memory."}

    assert results(judged(node("a"), JOB, bare)) == [("ContainerCrashes", "job/team/train")]
    assert results(judged(node("a"), JOB, bare, logs=log)) == [("GpuMemoryExhausted", "job/team/train")]


def test_crash_of_a_component_follows_from_the_fault_of_its_node() -> None:
    name, words = "nvidia-device-plugin-daemonset", "Failed to initialize NVML: Driver/library version mismatch"
    last: Object = {"lastState": {"terminated": terminated(1, "Error", words)}, "restartCount": 9}
    plugin = pod("p", 0, on="a", labels={"app": name}, states=[waiting("CrashLoopBackOff", **last)])

    diagnosis = judged(node("a"), plugin)

    assert results(diagnosis) == [("DriverLibraryMismatched", "node/a")]
    assert consequences(diagnosis.problems[0]) == [("DevicePluginNotReady", "node/a")]


def test_probe_of_the_driver_shows_why_it_is_not_ready() -> None:
    state = {"running": {"startedAt": ago(8)}}
    last = {"lastState": {"terminated": terminated(137, minutes=9)}, "restartCount": 3}
    states = [{"name": "main", "ready": False, "state": state, **last}]
    driver = pod("d", 0, on="a", labels=DRIVER, states=states, age=300)
    fails, ready = (
        event(driver, "Unhealthy", f"Startup probe failed: {words}") for words in ("No devices were found", "")
    )

    assert results(judged(node("a"), driver, fails)) == [("DriverFindsNoGpu", "node/a")]
    assert results(judged(node("a"), driver, ready)) == [("DriverNotReady", "node/a")]


NO_TOOL = (
    "failed to create containerd task: OCI runtime create failed: runc create failed: unable to start container "
    'process: error during container init: exec: "nvidia-smi": executable file not found in $PATH: unknown'
)
WITHOUT_TOOL = [
    waiting(
        "CrashLoopBackOff", "back-off", restartCount=6, lastState={"terminated": terminated(128, "StartError", NO_TOOL)}
    ),
    waiting("RunContainerError", NO_TOOL.replace('"', r"\"")),
]


@pytest.mark.parametrize("state", WITHOUT_TOOL, ids=["again and again", "at its start"])
def test_missing_nvidia_smi_shows_a_gpu_that_was_not_injected(state: Object) -> None:
    k3s = node("a", 1, handlers=("", "runc", "nvidia"))
    runtime_class = obj("RuntimeClass", "nvidia", handler="nvidia")
    waits = pod("x", 1, on="a", phase="Running", states=[state])

    assert results(judged(k3s, runtime_class, waits)) == [("RuntimeClassNotNamed", "pod/team/x")]


def test_missing_nvidia_smi_is_ignored_after_a_restart() -> None:
    ended = {"terminated": terminated(128, "StartError", NO_TOOL)}
    running = {"name": "main", "ready": True, "restartCount": 2, "state": {"running": {"startedAt": ago(9)}}}

    assert results(judged(node("a", 1), pod("x", 1, on="a", states=[running | {"lastState": ended}]))) == []


REFUSED = (
    "a: Xid79 (REBOOT) on GPU 3 (gpu/0000:97:00.0) since 2026-01-01T00:00:00Z; the pod ends, so that its job starts it "
    "elsewhere; unless its restartPolicy is Never, delete the pod: it restarts on this node\n"
)


def gated(name: str, words: str, code: int = 75, **changes: Any) -> Object:
    """A pod whose init container has ended again and again."""
    last: Object = {"lastState": {"terminated": terminated(code, "Error", words)}, "restartCount": 5}
    inits = [waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container", name=name, **last)]
    states = [waiting("PodInitializing")]
    spec = {"initContainers": [{"name": name, "image": "x"}], **changes.pop("spec", {})}
    status = {"initContainerStatuses": inits, **changes.pop("status", {})}
    return pod(
        "train-x", on="a", phase="Pending", owner=("Job", "train"), states=states, spec=spec, status=status, **changes
    )


@pytest.mark.parametrize(
    ("name", "words", "code", "cause"),
    [
        ("gpu-gate", REFUSED, 75, "GateRestartsOnFaultyNode"),
        ("gpu-gate", "", 75, "GateRestartsOnFaultyNode"),
        ("ours", REFUSED, 75, "GateRestartsOnFaultyNode"),
        ("ours", "", 75, "InitContainerFails"),
        ("gpu-gate", "no answer from 10.0.0.1:10633 within 2 s", 69, "InitContainerFails"),
    ],
    ids=["injected", "without a message", "own name", "another container", "fails closed"],
)
def test_gate_that_restarts_on_its_node_is_a_cause(name: str, words: str, code: int, cause: str) -> None:
    (problem,) = judged(node("a"), JOB, gated(name, words, code)).problems

    assert (problem.found.cause.name, problem.found.subject) == (cause, "job/team/train")
    deletes = any("kubectl -n team delete pod train-x" in text for text in problem.found.remedy)
    assert deletes == (cause == "GateRestartsOnFaultyNode")


def test_refused_pod_that_its_job_replaces_is_no_cause() -> None:
    ended = {"name": "gpu-gate", "state": {"terminated": terminated(75, "Error", REFUSED)}}
    status = {"initContainerStatuses": [ended]}
    failed = pod("train-x", on="a", phase="Failed", owner=("Job", "train"), states=[], status=status)

    assert results(judged(node("a"), JOB, failed)) == []


def test_remedy_fits_another_line_about_the_same_cause() -> None:
    last = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled system error"
    lines = "NCCL WARN NET/IB : Got completion from peer 10.0.1.2<45678> with status=12 opcode=0", last
    named = judged(node("a"), JOB, crashing(end=terminated(1, "Error", "\n".join(lines)))).problems
    bare = judged(node("a"), JOB, crashing(end=terminated(1, "Error", last))).problems

    assert "NCCL_IB_GID_INDEX" in named[0].found.remedy[0]
    assert "NCCL_IB_GID_INDEX" not in bare[0].found.remedy[0]
