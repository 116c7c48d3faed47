"""Causes that stop both components and GPU pods. The components' family names them as the origin."""

from __future__ import annotations

from diagnosis.model import Cause, CauseSeverity, Link


def _cause(name: str, link: Link, means: str, remedy: str, severity: CauseSeverity = CauseSeverity.HIGH) -> Cause:
    return Cause(name, severity, link, means, remedy)


DRIVER_NOT_LOADED = _cause(
    "DriverNotLoaded",
    Link.STARTED,
    "The driver's kernel module is not loaded on the node, so no container gets a GPU.",
    "Load it. After a kernel upgrade the driver must be built again: check the driver pod, or DKMS on the "
    "host, and `modprobe nvidia`.",
)
DRIVER_LIBRARY_MISSING = _cause(
    "DriverLibraryMissing",
    Link.STARTED,
    "The toolkit does not find the driver's libraries on the node.",
    ("Install the driver, or set its location for the toolkit: the GPU operator's driver.enabled and driver root."),
)
DRIVER_MISMATCH = _cause(
    "DriverLibraryMismatched",
    Link.STARTED,
    "The driver's libraries and the loaded kernel module have different versions.",
    "Drain the node and reboot it, or reload the module: the libraries were upgraded while it was loaded.",
)
DRIVER_HANGS = _cause(
    "DriverDoesNotAnswer",
    Link.STARTED,
    "The driver does not respond to the toolkit in time: a GPU hangs, or its initialization takes very long.",
    "Check the kernel log for an Xid; enable persistence mode; a hanging GPU needs a reset or a reboot.",
)
IMAGE_NEEDS_DRIVER = _cause(
    "ImageNeedsNewerDriver",
    Link.STARTED,
    "The image requires a newer CUDA version than the node's driver supports.",
    "Use an image with an older CUDA version, or upgrade the driver.",
)
DEVICE_UNKNOWN = _cause(
    "GpuUnknownToRuntime",
    Link.STARTED,
    "The node lacks the GPU allocated to the container: it fell off the bus, was replaced, or was partitioned.",
    "Restart the device plugin on the node, and check for a GPU that fell off the bus.",
)
TOOLKIT_BINARY = _cause(
    "ToolkitProgramMissing",
    Link.STARTED,
    "The node lacks a program of NVIDIA's toolkit that the container runtime is configured to start.",
    "Reinstall the toolkit, or remove its handler from the runtime's configuration.",
)
TOOLKIT_FAILS = _cause(
    "ToolkitFails",
    Link.STARTED,
    "NVIDIA's toolkit fails to inject the GPU into the container.",
    "Follow its message; on the node, `nvidia-container-cli -k -d /dev/stderr info` shows more.",
)
CDI_UNRESOLVED = _cause(
    "CdiDeviceUnresolved",
    Link.STARTED,
    "No CDI specification on the node lists the device allocated to the container.",
    "Generate the specification again: restart the device plugin, the toolkit's pod or nvidia-cdi-refresh.service.",
)
CDI_STALE = _cause(
    "CdiSpecificationStale",
    Link.STARTED,
    "A CDI specification on the node names a file or device that no longer exists.",
    "Generate it again after each driver upgrade: `nvidia-ctk cdi generate`, or restart its generator.",
)
COMMAND_MISSING = _cause(
    "ContainerCommandMissing",
    Link.STARTED,
    "The container's command is not in its image, or can't be executed.",
    "Correct the command, or the image.",
)
CREATION_FAILS = _cause(
    "ContainerNotCreated",
    Link.STARTED,
    "The container runtime refuses to create or start the container.",
    "Follow its message.",
)
RUNTIME_SILENT = _cause(
    "ContainerRuntimeUnreachable",
    Link.RUNTIME,
    "The kubelet does not reach its container runtime.",
    "Check whether it runs, and at which socket: `systemctl status containerd` on the node.",
)
CGROUP_DRIVERS = _cause(
    "CgroupDriverMismatched",
    Link.RUNTIME,
    "The kubelet and its container runtime use different cgroup drivers: one leaves cgroups to systemd, the other "
    "manages them itself.",
    "Set `cgroupDriver: systemd` for the kubelet and `SystemdCgroup = true` for each handler of the runtime, or "
    "neither; restart both.",
)
NETWORK = _cause(
    "PodNetworkFails",
    Link.RUNTIME,
    "The network plugin fails to set up the pod's network.",
    "Check the network plugin pod on the node; an address range may be exhausted.",
)
SANDBOX = _cause(
    "SandboxNotCreated",
    Link.RUNTIME,
    "The container runtime fails to create the pod's sandbox.",
    "Follow its message.",
)
IMAGE_REFUSED = _cause(
    "ImagePullUnauthorized",
    Link.PREPARED,
    "The registry refuses the image to this pod: credentials are missing or wrong.",
    "Name a secret with the registry's credentials in imagePullSecrets; an image of nvcr.io may need an NGC key.",
)
IMAGE_ABSENT = _cause(
    "ImageNotFound",
    Link.PREPARED,
    "The image does not exist in the registry, or not for the node's architecture.",
    "Correct the image's name or tag.",
)
IMAGE_NO_SPACE = _cause(
    "ImageDiskFull",
    Link.PREPARED,
    "The node has no disk space left for the image.",
    "Free space on the image disk, or use a larger one: CUDA images are many gigabytes.",
)
IMAGE_FAILS = _cause(
    "ImagePullFails",
    Link.PREPARED,
    "The image can't be pulled: the registry does not respond or limits the rate, or the network fails.",
    "Check whether the node reaches the registry: DNS name, proxy, certificate, rate limit.",
)
CONFIG_MISSING = _cause(
    "ConfigReferenceMissing",
    Link.PREPARED,
    "A ConfigMap or Secret that the pod refers to does not exist, or lacks the key.",
    "Create it, or correct the name: the kubelet retries on its own.",
)
VOLUME_ELSEWHERE = _cause(
    "VolumeHeldByAnotherNode",
    Link.RUNTIME,
    "The volume is attached to another node, and can be attached to one node only.",
    "Delete the pod that uses it there, or use a volume that many nodes can mount.",
)
VOLUME_FAILS = _cause(
    "VolumeNotMounted",
    Link.RUNTIME,
    "A volume of the pod can't be attached or mounted on the node.",
    "Follow its message: check the storage driver on the node, the host path, or the claim.",
)
CLAIM_FAILS = _cause(
    "ClaimNotPrepared",
    Link.RUNTIME,
    "The driver of dynamic resource allocation fails to prepare the pod's claim on the node.",
    "Read the log of the DRA driver's kubelet plugin on the node.",
)
INIT_FAILS = _cause(
    "InitContainerFails",
    Link.STARTED,
    "An init container fails, so the pod's own containers never start.",
    "Read its log.",
    CauseSeverity.MEDIUM,
)
INIT_LASTS = _cause(
    "InitContainerLasts",
    Link.STARTED,
    "An init container has run for over an hour, while the GPUs of its pod are unused.",
    "Read in its log why it waits.",
    CauseSeverity.LOW,
)
CAUSES = (
    *(DRIVER_NOT_LOADED, DRIVER_LIBRARY_MISSING, DRIVER_MISMATCH, DRIVER_HANGS, IMAGE_NEEDS_DRIVER, DEVICE_UNKNOWN),
    *(TOOLKIT_BINARY, TOOLKIT_FAILS, CDI_UNRESOLVED, CDI_STALE, COMMAND_MISSING, CREATION_FAILS),
    *(
        RUNTIME_SILENT,
        CGROUP_DRIVERS,
        NETWORK,
        SANDBOX,
        IMAGE_REFUSED,
        IMAGE_ABSENT,
        IMAGE_NO_SPACE,
        IMAGE_FAILS,
        CONFIG_MISSING,
    ),
    *(VOLUME_ELSEWHERE, VOLUME_FAILS, CLAIM_FAILS, INIT_FAILS),
)
HARDWARE = Cause(
    "GpuHardwareFault",
    CauseSeverity.HIGH,
    Link.RUNNING,
    "A faulty GPU of the node ended a program, or prevented its start.",
    "Remove the node from service, then reset or replace the GPU, as its Xid requires.",
    "CUDA errors 214, 220, 221; Xid 48, 63, 64, 74, 79, 94, 95",
)
FABRIC = Cause(
    "FabricNotReady",
    CauseSeverity.HIGH,
    Link.RUNNING,
    "CUDA finds the GPUs but not the NVLink switches: the fabric manager does not run, or not yet.",
    "Start nvidia-fabricmanager in the driver's exact version on the node: `systemctl status nvidia-fabricmanager`.",
    "CUDA error 802, CUDA_ERROR_SYSTEM_NOT_READY",
)
NOT_INJECTED = Cause(
    "GpuNotInjected",
    CauseSeverity.HIGH,
    Link.RUNNING,
    "A GPU was allocated to a container and is missing in it: the runtime on the node did not inject it.",
    "Check the container's devices, `ls /dev/nvidia*`; then the node's toolkit, its configuration and its driver.",
)
NODES = (*CAUSES, HARDWARE, FABRIC, NOT_INJECTED)
"""Causes that stop components as well as GPU pods."""
