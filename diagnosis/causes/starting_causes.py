"""Causes that stop both components and GPU pods. The components' family names them as the origin."""

from __future__ import annotations

from diagnosis.model import Cause, CauseSeverity, Link


def _cause(name: str, link: Link, means: str, remedy: str, severity: CauseSeverity = CauseSeverity.HIGH) -> Cause:
    return Cause(name, severity, link, means, remedy)


DRIVER_NOT_LOADED = _cause(
    "DriverNotLoaded",
    Link.STARTED,
    "The driver's kernel module is not loaded on the node, so no container gets a GPU.",
    "Load it: after an upgrade of the kernel the driver has to be built again; see the driver's pod, or DKMS on the "
    "host, and `modprobe nvidia`.",
)
DRIVER_LIBRARY_MISSING = _cause(
    "DriverLibraryMissing",
    Link.STARTED,
    "The toolkit does not find the driver's libraries on the node.",
    (
        "Install the driver, or set its location for the toolkit: the GPU operator's driver.enabled, and its "
        "driver root."
    ),
)
DRIVER_MISMATCH = _cause(
    "DriverLibraryMismatched",
    Link.STARTED,
    "The driver's libraries and the kernel module that is loaded are of two versions.",
    "Drain the node and reboot it, or unload and load the module: its libraries were upgraded under it.",
)
DRIVER_HANGS = _cause(
    "DriverDoesNotAnswer",
    Link.STARTED,
    "The driver does not answer the toolkit in time: a GPU hangs, or takes very long to come up.",
    "Check the kernel log for an Xid; enable persistence mode; a hanging GPU needs a reset or a reboot.",
)
IMAGE_NEEDS_DRIVER = _cause(
    "ImageNeedsNewerDriver",
    Link.STARTED,
    "The image requires a newer CUDA version than the node's driver supports.",
    "Use an image of an older CUDA version, or upgrade the driver.",
)
DEVICE_UNKNOWN = _cause(
    "GpuUnknownToRuntime",
    Link.STARTED,
    "The container was to get a GPU that the node does not have by that name: it fell off, or was replaced or divided.",
    "Restart the device plugin on the node, and check for a GPU that fell off the bus.",
)
TOOLKIT_BINARY = _cause(
    "ToolkitProgramMissing",
    Link.STARTED,
    "A program of NVIDIA's toolkit that the container runtime is configured to start is not on the node.",
    "Install the toolkit again, or take its handler out of the runtime's configuration.",
)
TOOLKIT_FAILS = _cause(
    "ToolkitFails",
    Link.STARTED,
    "NVIDIA's toolkit fails while it brings the GPU into the container.",
    "Follow its message; on the node, `nvidia-container-cli -k -d /dev/stderr info` shows more.",
)
CDI_UNRESOLVED = _cause(
    "CdiDeviceUnresolved",
    Link.STARTED,
    "No CDI specification on the node has the device that the container was to get.",
    "Generate the specification again: restart the device plugin, the toolkit's pod or nvidia-cdi-refresh.service.",
)
CDI_STALE = _cause(
    "CdiSpecificationStale",
    Link.STARTED,
    "A CDI specification on the node names a file or a device that is no longer there.",
    "Generate it again after an upgrade of the driver: `nvidia-ctk cdi generate`, or restart its generator.",
)
COMMAND_MISSING = _cause(
    "ContainerCommandMissing",
    Link.STARTED,
    "The container's command is not in its image, or can't be run there.",
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
    "See whether it runs, and at which socket: `systemctl status containerd` on the node.",
)
CGROUP_DRIVERS = _cause(
    "CgroupDriverMismatched",
    Link.RUNTIME,
    "The kubelet and its container runtime do not agree on who sets up cgroups: one leaves it to systemd, the other "
    "does it itself.",
    "Set `cgroupDriver: systemd` for the kubelet and `SystemdCgroup = true` for each of the runtime's handlers, or "
    "neither, and restart both.",
)
NETWORK = _cause(
    "PodNetworkFails",
    Link.RUNTIME,
    "The network plugin fails to give the pod its network.",
    "Check the network plugin's pod on the node; an address range may be used up.",
)
SANDBOX = _cause(
    "SandboxNotCreated",
    Link.RUNTIME,
    "The container runtime fails to make the pod's sandbox.",
    "Follow its message.",
)
IMAGE_REFUSED = _cause(
    "ImagePullUnauthorized",
    Link.PREPARED,
    "The registry does not give the image to this pod: it wants a login, or another one.",
    "Name a secret with the registry's credentials in imagePullSecrets; an image of nvcr.io may need an NGC key.",
)
IMAGE_ABSENT = _cause(
    "ImageNotFound",
    Link.PREPARED,
    "The registry has no such image, or none for this machine's architecture.",
    "Correct the image's name or tag.",
)
IMAGE_NO_SPACE = _cause(
    "ImageDiskFull",
    Link.PREPARED,
    "The node has no room left for the image.",
    "Free the disk that holds images, or give the node a larger one: images with CUDA are many gigabytes.",
)
IMAGE_FAILS = _cause(
    "ImagePullFails",
    Link.PREPARED,
    "The image can't be pulled: the registry does not answer, limits the rate, or something between them fails.",
    "See whether the node reaches the registry: its name, a proxy, a certificate, a limit.",
)
CONFIG_MISSING = _cause(
    "ConfigReferenceMissing",
    Link.PREPARED,
    "A ConfigMap or a Secret that the pod refers to is not there, or has no such key.",
    "Create it, or correct the name: the kubelet tries again on its own.",
)
VOLUME_ELSEWHERE = _cause(
    "VolumeHeldByAnotherNode",
    Link.RUNTIME,
    "The volume is attached to another node, and can only be on one.",
    "End the pod that holds it there, or use a volume that many nodes may mount.",
)
VOLUME_FAILS = _cause(
    "VolumeNotMounted",
    Link.RUNTIME,
    "A volume of the pod can't be attached or mounted on the node.",
    "Follow its message: the storage's driver on the node, a path of the host, or the claim.",
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
    "A program was ended, or did not start, because of a fault of the node's GPU.",
    "Take the node out, and reset or replace the GPU, as its Xid asks for.",
    "CUDA errors 214, 220, 221; Xid 48, 63, 64, 74, 79, 94, 95",
)
FABRIC = Cause(
    "FabricNotReady",
    CauseSeverity.HIGH,
    Link.RUNNING,
    "CUDA finds the GPUs and not the NVLink switches between them: the fabric manager does not run, or not yet.",
    "Start nvidia-fabricmanager of the driver's very version on the node: `systemctl status nvidia-fabricmanager`.",
    "CUDA error 802, CUDA_ERROR_SYSTEM_NOT_READY",
)
NOT_INJECTED = Cause(
    "GpuNotInjected",
    CauseSeverity.HIGH,
    Link.RUNNING,
    "A container that was given a GPU does not see it: the runtime on the node did not bring it in.",
    "Check the container's devices, `ls /dev/nvidia*`; then the node's toolkit, its configuration and its driver.",
)
NODES = (*CAUSES, HARDWARE, FABRIC, NOT_INJECTED)
"""All that keeps a component from work as it keeps a GPU pod."""
