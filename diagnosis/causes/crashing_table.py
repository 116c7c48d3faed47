"""Causes by which containers of GPU pods start and then fail."""

from __future__ import annotations

from gpu_healthcheck.diagnosis.causes.hami.allocating import LIBRARY as HAMI_LIBRARY
from gpu_healthcheck.diagnosis.causes.pod_startup_table import (
    ACCESS_DENIED,
    DRIVER_HANGS,
    DRIVER_MISMATCH,
    DRIVER_NOT_LOADED,
    FABRIC,
    HARDWARE,
    NO_GPU_FOUND,
    NOT_INJECTED,
)
from gpu_healthcheck.diagnosis.causes.running import CGROUP_LOST
from gpu_healthcheck.diagnosis.facts.library_errors import reported
from gpu_healthcheck.diagnosis.facts.symptoms import GATE_WORDS
from gpu_healthcheck.diagnosis.model import CauseSeverity, Family, Link, failing

_CUDA = "CUDA driver API, CUresult"
_OF_A_PROTOCOL = r"Failed to initialize (?:rdma|sendrecv) protocol"
"""Message of aws-ofi-nccl before it tries the other protocol."""
_HARMLESS = (
    rf"Missing \"|MSCCL|NET/IB ?: (?:No device found|Got async event)|NET/OFI {_OF_A_PROTOCOL}|\[Service thread\]"
)
"""Warnings of NCCL in logs of jobs that work, and of processes that end."""
_running = Family(Link.RUNNING, severity=CauseSeverity.MEDIUM)
DRIVER_TOO_OLD = _running(
    "CudaNewerThanDriver",
    "The image's CUDA is newer than the node's driver supports.",
    "Use an image with an older CUDA, upgrade the driver, or choose nodes by nvidia.com/cuda.driver-version.major.",
    *reported("CudaNewerThanDriver"),
    failing(
        r"NVIDIA driver on your system is too old|unsupported (?:PTX|toolchain)"
        r"|built for NVIDIA Driver Release[\s\S]{0,120}?compatibility mode is UNAVAILABLE"
        r"|kernel version \S{1,20} does not match DSO version|undefined symbol: (?-i:cu[A-Z])",
        _CUDA,
    ),
    severity=CauseSeverity.HIGH,
    source="CUDA errors 35, 222, 803, 804",
)
WRONG_ARCHITECTURE = _running(
    "ImageLacksGpuArchitecture",
    "The program in the image was not built for GPUs, or not for this model, or needs a newer one.",
    "Use an image built for this model, or choose another model by the node label nvidia.com/gpu.product.",
    *reported("ImageLacksGpuArchitecture"),
    failing(
        r"is not compatible with the current PyTorch installation"
        r"|engine plan file is generated on an incompatible device|only supported on GPUs with compute capability"
        r"|only supports \w{1,20} GPUs or newer|Value 'sm_\d{2,3}[af]?' is not defined|requires GPUs with sm_?\d"
        r"|not supported (?:for the current GPU|in this architecture)|no longer supports this GPU|but was built for sm"
        r"|doesn't support bf16/gpu|Torch not compiled with CUDA enabled"
        r"|Could not match a profile in manifest|\b0 compatible profile|out of resource: shared memory"
        r"|not compatible with compile time compute|GPU \w[^\n]{0,40} not enabled in this build|wasn't built with CUDA"
        r"|autodetect nvml functionality, but we weren't able|supported on CUDA devices with compute capability"
        r"|requires? (?:compute capability|\.target sm_)",
        "CUDA, PyTorch, TensorRT, vLLM, FlashAttention",
    ),
    severity=CauseSeverity.HIGH,
    source="CUDA error 209, `no kernel image is available for execution`",
)
GPU_MEMORY = _running(
    "GpuMemoryExhausted",
    "The program needs more memory than its GPU, or its share of a GPU, has free.",
    "Make the batch or the model smaller, use a GPU with more memory, or check which pods share this one.",
    failing(
        r"(?:torch|cupy)\.[\w.]{0,40}OutOfMemoryError|Failed to allocate CUDA memory|Error Code 2: OutOfMemory"
        r"|Device \d{1,3} OOM|CU(?:BLAS|DNN)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|RMM failure at"
        r"|RESOURCE_EXHAUSTED: Out of memory|OOM when allocating tensor[^\n]{0,300}\bGPU"
        r"|No available memory for the cache blocks|less than desired GPU memory utilization|failed to allocate GPU"
        r"|(?:larger than|stored in)(?: the)?(?: available| maximum)? KV cache|Error in memory profiling\. Initial"
        r"|Not enough memory\. Please try to \w{1,8} --mem-fraction-static"
        r"|(?:fail|un)\w{1,4} to allocate CUDA\d{0,2} buffer"
        r"|Out of memory error on GPU|Available memory of \d{1,16} is smaller than requested bytes"
        r"|NVML_SUCCESS == (?:r|DriverAPI)[^\n]{0,80}INTERNAL ASSERT FAILED|(?:Prefill|Decode) out of memory"
        r"|Some GPUs may be occupied by other processes|Dst tensor is not initialized|Status: out of memory"
        r"|cuDNN failed to initialize|Could not create cudnn handle|DNN library initialization failed",
        "PyTorch, JAX, TensorFlow, TensorRT, vLLM, SGLang, llama.cpp, ONNX Runtime, cuBLAS, HAMi",
    ),
    *reported("GpuMemoryExhausted"),
    source="`CUDA out of memory`; the kernel's OOM killer is not involved",
)
HOST_MEMORY = _running(
    "ContainerMemoryLimitExceeded",
    "The kernel killed the container, or a process in it, at its memory limit. The limit concerns the node's memory, "
    "not the GPU's.",
    "Raise the container's memory limit, or load less data at once.",
    failing(
        r"killed by signal: Killed|Signal 9 \(SIGKILL\) received|signaled to shutdown with signal 9"
        r"|killed due to (?:the node running low on memory|memory pressure)|terminated: signal: killed"
        r"|exited on signal 9 \(Killed|exits with return code = -9\b|died with <Signals\.SIGKILL",
        "PyTorch, text-generation-inference, Ray, Ollama, Open MPI, DeepSpeed, Python",
    ),
    source="reason OOMKilled, exit code 137",
)
SHARED_MEMORY = _running(
    "SharedMemoryTooSmall",
    "The container's /dev/shm is too small for its workers: it has 64 MiB unless the pod mounts more.",
    "Mount an emptyDir with `medium: Memory` at /dev/shm.",
    failing(
        r"insufficient shared memory|unable to (?:open|allocate) shared memory(?![^\n]{0,160}Too many open)"
        r"|(?<!PCIe )\bBus error\b|error while creating shared memory segment|failed to extend /dev/shm"
        r"|No space left on device[^\n]{0,40}/dev/shm"
        r"|unable to (?:write to|mmap \d{1,16} bytes from) (?:the )?file </?torch_",
        "PyTorch's DataLoader, NCCL",
    ),
    source="PyTorch's DataLoader and NCCL exchange data there",
)
PROGRAM = _running(
    "ProgramFaultOnGpu",
    "The program made an invalid access or call on the GPU, or wants more GPUs than it has; no finding on its node "
    "blames the GPU.",
    "Run it with CUDA_LAUNCH_BLOCKING=1 to locate the access. The program causes its Xid 13, 31 and 43 itself.",
    failing(
        r"device-side assert|misaligned address|invalid device ordinal"
        r"|larger than the number of available GPUs|number of required GPUs exceeds"
        r"|Cannot provide a placement group|node has no GPU|but torch\.cuda\.device_count\(\) is|device < num_gpus"
        r"|AssertionError: Invalid device id"
        r"|CUDNN_STATUS_EXECUTION_FAILED|invalid or unsupported GPU id|re-initialize CUDA in forked subprocess",
        f"{_CUDA}, vLLM, Triton",
    ),
    *reported("ProgramFaultOnGpu"),
    source="CUDA errors 101, 700, 710, 716, 719",
)
KERNEL_TIME = _running(
    "KernelTimedOut",
    "The driver ended a kernel of the program: it ran too long on a GPU that also drives a display, or it hung.",
    "If `nvidia-smi` on the node lists Disp.A On for that GPU, stop the display there, `systemctl isolate "
    "multi-user.target`, or split the kernel. Without a display: if the node's kernel log has an Xid 8 or 109 of that "
    "time, reset the GPU.",
    *reported("KernelTimedOut"),
    source="CUDA error 702: the watchdog of displays; Xid 8",
)
STUB_LIBRARY = _running(
    "StubLibraryLoaded",
    "The program loaded the stub of libcuda.so from the image's CUDA toolkit, not the driver's libcuda.so.1.",
    "Remove the toolkit's folder `stubs` from LD_LIBRARY_PATH and /etc/ld.so.conf.d of the image: it is for linking "
    "only. Then `ldconfig -p | grep libcuda` in the container lists the driver's library alone.",
    *reported("StubLibraryLoaded"),
    severity=CauseSeverity.HIGH,
    source="CUDA error 34; /usr/local/cuda/lib64/stubs",
)
UNLICENSED = _running(
    "VgpuUnlicensed",
    "The virtual GPU of the node has no valid licence.",
    "Give the driver its licence: a client token in /etc/nvidia/ClientConfigToken, and with the GPU operator the "
    "ConfigMap or Secret of driver.licensingConfig. `nvidia-smi -q | grep -i license` on the node shows its state.",
    *reported("VgpuUnlicensed"),
    severity=CauseSeverity.HIGH,
    source="CUDA error 102",
    of_node=True,
)
MPS = _running(
    "MpsConnectionFails",
    "The program has no working connection to the MPS server of its node.",
    "Check the MPS control daemon on the node: it must run, as the same user as the program, and its folder "
    "CUDA_MPS_PIPE_DIRECTORY must be mounted in the container. After a restart of the daemon, create the pods again.",
    *reported("MpsConnectionFails"),
    failing(r"MPS client failed to connect|Failed to connect to the MPS", "CUDA"),
    severity=CauseSeverity.HIGH,
    source="CUDA errors 805 to 810",
    of_node=True,
    follows=("MpsDaemonNotReady",),
)
CAPABILITY = _running(
    "DriverCapabilityMissing",
    "The container has the GPU, but not the driver's libraries for video or graphics.",
    "Set the variable `NVIDIA_DRIVER_CAPABILITIES: all` in the container, which then gets them at its next start. If "
    "they are still missing, the driver on the node was installed without them.",
    failing(
        r"(?:Cannot load|unable to load|cannot open)[^\n]{0,40}lib(?:nvidia-encode|nvcuvid|nvoptix|nvidia-opticalflow)"
        r"|lib(?:nvidia-encode|nvcuvid|GLX_nvidia|EGL_nvidia|nvoptix)\.so\S{0,8}: cannot open shared object"
        r"|\b(?:VK_)?ERROR_INCOMPATIBLE_DRIVER",
        "FFmpeg, Vulkan, the dynamic loader",
    ),
    source="NVIDIA container toolkit: driver capabilities; without the variable, only compute and utility",
)
LIBRARY = _running(
    "CudaLibraryMissing",
    "The image lacks a library of CUDA that its program loads, in the version that the program names. It is no part of "
    "the driver: the GPU and the node are not the reason.",
    "Use an image whose CUDA has the major version in the library's name, or install that library in the image (for "
    "example `pip install nvidia-cublas-cu12 nvidia-cudnn-cu12`) and add its folder to LD_LIBRARY_PATH.",
    failing(
        r"(?<!dlerror: )\blib(?:cudart|cu(?:blas|sparse)(?:Lt)?|cudnn\w{0,24}|cufft|curand|cusolver|cupti|nccl"
        r"|nvrtc|nvinfer|nvJitLink)\.so[.\d]{0,12}(?:: cannot open shared object| is not found or cannot be loaded)"
        r"|Unable to load any of \{libcu",
        "the dynamic loader, cuDNN, CTranslate2",
    ),
    severity=CauseSeverity.HIGH,
    source="NVIDIA container toolkit: it injects the driver's libraries alone",
)
POD_IDENTITY = _running(
    "NcclUsesPodIdentityAddress",
    "NCCL uses the address of the node's EKS Pod Identity agent as that of a rank: every node has the same "
    "address, so the ranks do not reach each other.",
    "Exclude the agent's interface: NCCL_SOCKET_IFNAME=^lo,docker,veth,pod-id-link, or name the node's interface.",
    failing(r"SocketPollConnect: connect(?:ing)? to \[?(?:169\.254\.170\.23|fd00:ec2::23)\b", "NCCL"),
    source="https://docs.aws.amazon.com/eks/latest/userguide/pod-id-agent-setup.html: 169.254.170.23 on each node",
)
NCCL = _running(
    "CollectiveFails",
    "The processes of a job do not reach each other: one of them ended, or the connection between them fails.",
    "Check the process that ended first: its message is the cause, the other messages are consequences. "
    "NCCL_DEBUG=INFO shows more.",
    *reported("CollectiveFails"),
    failing(
        rf"NCCL WARN (?!{_HARMLESS})|NCCL (?:error|failure)|Dist(?:Backend|Network|Store)Error|output empty list"
        rf"|NET/OFI (?!{_OF_A_PROTOCOL})[^\n]{{0,60}}(?:fail|couldn't|unable)"
        r"|Watchdog caught collective operation timeout|detected by watchdog at work"
        r"|Connection closed by peer[^\n]{0,80}(?:gloo|rank)"
        r"|gloo[^\n]{0,80}Connection (?:closed|reset) by peer|\[c10d\] The \w{6} socket has (?:timed out|failed)"
        r"|\bsocket(?:StartConnect|PollConnect|Progress(?:Opt)?): |Rendezvous(?:Connection|Timeout)Error"
        r"|\b(?-i:nccl[A-Z])\w{2,30} failed|nvshmem setup connections failed"
        r"|ProcessGroupNCCL's watchdog got stuck|via c10d key-value store"
        r"|init_process_group\b[\s\S]{0,400}?\n\w{1,20}Error: (?:Connection reset|host not found)"
        r"|ORTE (?:was unable to reliably start|daemon has unexpectedly failed)|connectFullMesh failed"
        r"|NIXL_ERR_(?:BACKEND|REMOTE_DISCONNECT)|UCX {1,3}ERROR [^\n]{0,120}(?:transport|refused|timed out|unreach)",
        "NCCL, PyTorch, Gloo, Open MPI, UCX, NIXL",
    ),
    source="NCCL; PyTorch's watchdog of collective operations",
    follows=("NcclUsesPodIdentityAddress", "NcclFallsBackToTcp", "RestartsOnFaultyNode"),
)
CUDA_UNKNOWN = _running(
    "CudaCannotInitialize",
    "CUDA cannot initialize on the node and reports no reason: most often nvidia_uvm is missing, or a leftover process "
    "uses the GPU.",
    "On the node: `modprobe nvidia_uvm`, then `nvidia-modprobe -c0 -u`, after which /dev/nvidia-uvm exists. Then "
    "create the pod again: a container keeps the devices of its start.",
    failing(r"devices?(?:\(s\) is/| )are busy or unavailable|but CUDA failed to initialize", _CUDA),
    *reported("CudaCannotInitialize"),
    severity=CauseSeverity.HIGH,
    source="CUDA errors 3, 46, 999",
    of_node=True,
)
PROBE = _running(
    "LivenessProbeKills",
    "The kubelet kills the container because its liveness or startup probe fails, for example while a model still "
    "loads. Neither the GPU nor a lack of memory is the reason.",
    "Add a startupProbe whose failureThreshold x periodSeconds is longer than the program loads, or delay the liveness "
    "probe.",
    failing(r"Container \S{1,63} failed (?:startup|liveness) probe, will be restarted", "the kubelet, in copied texts"),
)
SIGNAL = _running(
    "ContainerKilledBySignal",
    "The container ended by a signal of its own: a crash in native code, or an abort.",
    "Read its log; a core dump shows the place.",
    source="exit code 128 + signal: 132, 134, 135, 136, 139",
    follows=("RestartsOnFaultyNode",),
)
CRASHES = _running(
    "ContainerCrashes",
    "A container of a GPU pod fails repeatedly; none of its messages is a known GPU error.",
    "Read its log.",
    follows=("RestartsOnFaultyNode",),
)
ENDS = _running(
    "ContainerEndsAtOnce",
    "A container of a GPU pod exits at once without an error, and the pod's restartPolicy restarts it again and again.",
    "Make it a Job, or give it a command that keeps running.",
    severity=CauseSeverity.LOW,
)

GATE_RESTARTS = _running(
    "GateRestartsOnFaultyNode",
    "The gate refuses the pod because its node is faulty, but the pod's restartPolicy starts it there again and again.",
    "In the job's template, set `restartPolicy: Never` and a podFailurePolicy that ignores exit code 75: docs/gate.md.",
    failing(GATE_WORDS, "the gate"),
    severity=CauseSeverity.HIGH,
    source="init container gpu-gate, exit code 75",
)
RECOGNISED = (
    GATE_RESTARTS,
    *(HARDWARE, FABRIC, DRIVER_MISMATCH, DRIVER_NOT_LOADED, DRIVER_TOO_OLD, WRONG_ARCHITECTURE, CGROUP_LOST),
    *(ACCESS_DENIED, STUB_LIBRARY, UNLICENSED, MPS, NOT_INJECTED, NO_GPU_FOUND, KERNEL_TIME, GPU_MEMORY),
    *(CAPABILITY, LIBRARY, SHARED_MEMORY, PROGRAM, CUDA_UNKNOWN, HAMI_LIBRARY, HOST_MEMORY, POD_IDENTITY, NCCL),
    DRIVER_HANGS,
)
"""Causes by the exit message and log of a failed container.

Hardware errors are first, consequences of a failed peer are last.
"""
