"""Causes that stop both components and GPU pods. The components' family names them as the origin."""

from __future__ import annotations

from gpu_healthcheck.diagnosis.facts.library_errors import reported
from gpu_healthcheck.diagnosis.facts.log_lines import Hint
from gpu_healthcheck.diagnosis.model import CauseSeverity, Family, Link, Signature, TextSource, failing, starting

_CLI, _NCT, _KUBELET, _CONTAINERD = "libnvidia-container", "nvidia-container-toolkit", "kubelet", "containerd"
_EVENT = frozenset((TextSource.EVENT,))
_EVENT_OR_LOG = frozenset((TextSource.EVENT, TextSource.LOG))
_IMAGE = frozenset((TextSource.EVENT, TextSource.WAITING))
_CUDA = "CUDA driver API, CUresult"
_FAULTY = ("NodeKeptFromWork",)
"""Causes that explain a consequence of a faulty GPU."""
_FILES = ("RuntimeConfigMalformed", "RuntimeCriDisabled", "DefaultRuntimeUndefined")


_started_on_node = Family(Link.STARTED, of_node=True)
_started = Family(Link.STARTED)
_runtime_on_node = Family(Link.RUNTIME, of_node=True)
_prepared = Family(Link.PREPARED)
_runtime = Family(Link.RUNTIME)
_running_on_node = Family(Link.RUNNING, of_node=True)
DRIVER_NOT_LOADED = _started_on_node(
    "DriverNotLoaded",
    "The driver's kernel module is not loaded on the node, so no container gets a GPU.",
    "Load it on the node: `modprobe nvidia`. If it has no such module for its kernel, as after a kernel upgrade, build "
    "the driver again: `dkms autoinstall`, or install it anew; a driver pod does that at its restart.",
    starting(r"driver not loaded|nvml error: not loaded", _CLI),
    *reported("DriverNotLoaded"),
    follows=("DriverNotReady", *_FAULTY),
)
DRIVER_LIBRARY_MISSING = _started_on_node(
    "DriverLibraryMissing",
    "The toolkit does not find the driver's libraries on the node.",
    "Install the driver, or set its location for the toolkit: the GPU operator's driver.enabled and driver root.",
    starting(r"load library failed|libnvidia-ml\.so\.1: cannot open", _CLI),
    starting(r"initialization error: change root failed|ldcache error: open failed", _CLI),
    follows=("DriverNotReady",),
)
START_KILLED = _started(
    "ContainerStartKilled",
    "The kernel killed a program that starts the container, mostly because the container's memory limit is too small.",
    "Raise the container's memory limit to 512Mi or more: it also counts the programs that inject the GPU.",
    starting(
        r"(?:nvidia-c|ldcache|ldconfig|hook|runc)[^\n]{0,300}(?:terminated with signal 9\b|signal: killed)",
        _CLI,
    ),
    starting(r"container init was OOM-killed|OOM-killed \(memory limit too low", "runc"),
    source="libnvidia-container: `ldcache error: process /sbin/ldconfig.real terminated with signal 9`",
)
DRIVER_MISMATCH = _started_on_node(
    "DriverLibraryMismatched",
    "The driver's libraries and the loaded kernel module have different versions.",
    "Drain the node and reboot it, or reload the module: the libraries were upgraded while it was loaded.",
    starting(r"Driver/library version mismatch", _CLI),
    failing(r"Driver/library version mismatch", "NVML"),
    *reported("DriverLibraryMismatched"),
    follows=_FAULTY,
)
DRIVER_HANGS = _started_on_node(
    "DriverDoesNotAnswer",
    "The driver does not respond in time: a GPU hangs, or its initialization takes very long.",
    "Check the kernel log for an Xid; enable persistence mode; a hanging GPU needs a reset or a reboot.",
    starting(r"driver (?:rpc )?error: timed out", _CLI),
    *reported("DriverDoesNotAnswer"),
    follows=_FAULTY,
)
IMAGE_NEEDS_DRIVER = _started(
    "ImageNeedsNewerDriver",
    "The image requires a newer CUDA version than the node's driver supports.",
    "Use an image with an older CUDA version, or upgrade the driver.",
    starting(r"unsatisfied condition: ([^,]{1,80}), please update your driver", _CLI),
    starting(r"requirement error: unsatisfied condition: ([^,\\]{1,80})", _CLI),
)
DEVICE_UNKNOWN = _started_on_node(
    "GpuUnknownToRuntime",
    "The node lacks the GPU allocated to the container: it fell off the bus, was replaced, or was partitioned.",
    "Restart the device plugin on the node, and check for a GPU that fell off the bus.",
    starting(r"device error: (?!no-gpu-has)([^\s:]{1,80}): unknown device", _CLI),
    starting(r"device error: unknown device id: (?!no-gpu-has)([^\s:\\]{1,80})", _CLI),
    follows=_FAULTY,
)
ACCESS_DENIED = _started_on_node(
    "GpuAccessDenied",
    "A container is not allowed to open the GPU's device files: their mode, SELinux or seccomp, or the device rules of "
    "its cgroup refuse it.",
    "Check the files on the node: `ls -lZ /dev/nvidia*`. If their mode is 0660, as on SUSE, set the driver's option "
    'NVreg_DeviceFileMode=0666, or `user = "root:video"` in /etc/nvidia-container-runtime/config.toml. If SELinux '
    "refuses it, as `ausearch -m avc -ts recent` shows, allow it.",
    starting(r"(?:nvml|cuda) error: (insufficient permissions|os call failed|gpu access blocked)", _CLI),
    *reported("GpuAccessDenied"),
    failing(r"could not open the device file /dev/nvidia\S{1,20} \(Permission denied", "nvidia-smi, nvidia-modprobe"),
    failing(
        r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters|do not have suff\w{2,6} permissions",
        "CUPTI, Nsight, nvidia-smi",
    ),
    source="NVML errors 4, 17; CUDA error 304",
)
NO_GPU_FOUND = _running_on_node(
    "DriverFindsNoGpu",
    "The driver is loaded, but finds no GPU that it can use: it could not initialize one, or the container got none.",
    "If `nvidia-smi -L` on the node, or in its driver pod, lists no GPU either: keep new pods off the node, and read "
    "in its kernel log why, `dmesg | grep NVRM`. If that asks for the open kernel modules, install these; in a virtual "
    "machine, give the GPU 64-bit memory addresses (VMware: pciPassthru.use64bitMMIO); otherwise reboot. If it lists "
    "them, create the pod again; in MIG mode, create instances first.",
    failing(r"(?:\A|\n|failed: )[^\w\n]{0,20}No devices were found|No NVIDIA devices (?:were )?found", "nvidia-smi"),
    *reported("DriverFindsNoGpu"),
    source="nvidia-smi; NVML error 28",
    follows=_FAULTY,
)
TOOLKIT_BINARY = _started_on_node(
    "ToolkitProgramMissing",
    "The node lacks a program of NVIDIA's toolkit that the container runtime is configured to start.",
    "Reinstall the toolkit, or remove its handler from the runtime's configuration.",
    starting(
        r"exec: \\?\"?([^\s\"\\]{0,200}nvidia-c[^\s\"\\]{1,60})\\?\"?:[^\n]{0,80}(?:not found|no such file)", _NCT
    ),
    starting(
        r"(?:unable to retrieve OCI runtime error|failed to create shim)[^\n]{0,300}nvidia-container-runtime[^\n]{0,80}"
        r"(?:no such file|not found)",
        _CONTAINERD,
    ),
    starting(r"fork/exec (/\S{0,200}nvidia-c\S{1,60}): no such file", _CONTAINERD),
    follows=("ContainerToolkitNotReady",),
)
TOOLKIT_FAILS = _started_on_node(
    "ToolkitFails",
    "NVIDIA's toolkit fails to inject the GPU into the container.",
    "Follow its message; on the node, `nvidia-container-cli -k -d /dev/stderr info` shows more.",
    starting(r"nvidia-container-cli(?:\.real)?: ([^\n]{1,200})", _CLI),
    starting(r"nvidia-container-runtime(?:-hook)? did not terminate", _CONTAINERD),
    starting(r"could not apply required modification to OCI specification|hook #\d[^\n]{0,80}No help topic", _NCT),
    follows=_FAULTY,
)
CDI_UNRESOLVED = _started_on_node(
    "CdiDeviceUnresolved",
    "No CDI specification on the node lists the device allocated to the container.",
    "Generate the specification again: restart the device plugin, the toolkit's pod or nvidia-cdi-refresh.service.",
    starting(r"unresolvable CDI devices ([^\n]{1,400})", "container-device-interface"),
    follows=("DevicePluginNotReady", "ContainerToolkitNotReady", "DraDriverNotReady", *_FAULTY),
)
CDI_STALE = _started_on_node(
    "CdiSpecificationStale",
    "A CDI specification on the node names a file or device that no longer exists.",
    "Generate it again after each driver upgrade: `nvidia-ctk cdi generate`, or restart its generator.",
    starting(r"failed to stat CDI host device \\?\"?([^\s\"\\]{1,200})", _CONTAINERD),
    starting(
        r"mounting \\?\"((?!/var/lib/kubelet/)[^\s\"\\]{0,160}(?:nvidia|libcuda)[^\s\"\\]{0,80})\\?\" to rootfs"
        r"[^\n]{0,400}no such file",
        "runc",
    ),
    follows=_FAULTY,
)
COMMAND_MISSING = _started(
    "ContainerCommandMissing",
    "The container's command is not in its image, or can't be executed.",
    "Correct the command, or the image.",
    starting(
        r"exec: \\?\"?([^\s\"\\]{1,200})\\?\"?:[^\n]{0,60}(?:not found|no such file|permission denied|is a directory)",
        "runc",
    ),
    starting(r"exec format error", "runc"),
)
CREATION_FAILS = _started(
    "ContainerNotCreated", "The container runtime refuses to create or start the container.", "Follow its message."
)
RUNTIME_SILENT = _runtime_on_node(
    "ContainerRuntimeUnreachable",
    "The kubelet does not reach its container runtime.",
    "Read the log of the container runtime on the node, and check its configuration; then restart it.",
    # Network plugins and others have sockets, too.
    Signature(
        r"(?:containerd|crio|cri-dockerd|dockershim)\S{0,40}\.sock[^\n]{0,80}(?:connection refused|no such file)",
        _KUBELET,
        _EVENT,
    ),
    Signature(r"unknown service runtime\.v1", _KUBELET, _EVENT),
    follows=_FILES,
)
CGROUP_DRIVERS = _runtime_on_node(
    "CgroupDriverMismatched",
    "The kubelet and its container runtime use different cgroup drivers: one leaves cgroups to systemd, the other "
    "manages them itself.",
    "Set `cgroupDriver: systemd` for the kubelet, and for its runtime `SystemdCgroup = true` in each handler of "
    'containerd, or `cgroup_manager = "systemd"` of CRI-O, or neither; restart both.',
    starting(r"expected cgroupsPath to be of format", "runc"),
)
HANDLER_TYPELESS = _runtime_on_node(
    "RuntimeTypeMissing",
    "A handler in the configuration of the node's containerd has no runtime_type: no sandbox starts with it.",
    'Set `runtime_type = "io.containerd.runc.v2"` in the table of the handler on the node, then restart containerd.',
    starting(r"container\.Runtime\.Name must be set", _CONTAINERD),
)
NETWORK = _runtime_on_node(
    "PodNetworkFails",
    "The network plugin fails to set up the pod's network.",
    "Check the network plugin pod on the node; an address range may be exhausted.",
    Signature(r"network|\bcni\b|\bIPAM\b|NetworkNotReady|\bveth|IP address", "CNI plugins", _EVENT),
)
SANDBOX = _runtime_on_node(
    "SandboxNotCreated",
    "The container runtime fails to create the pod's sandbox.",
    "Follow its message.",
    Signature(r"", _CONTAINERD, _EVENT),
    follows=_FILES,
)
ATTACH = _runtime_on_node(
    "DranetAttachFailed",
    "DRANET does not attach the claimed network devices to the pod in time, or fails to: its containers do not start.",
    "Raise `plugin_request_timeout` of containerd's NRI on the node (2 s by default; `nri_plugin_request_timeout` of "
    "CRI-O), and restart that runtime. Delete a "
    "pod with the event NetworkDeviceAttachFailed: the same pod does not get the devices any more.",
    Signature(
        r"attach(?:ed|ing)? (?:\d{1,4}/\d{1,4} )?(?:network|RDMA) devices?\b|\bdranet-hook\b",
        "DRANET",
        frozenset((TextSource.EVENT, TextSource.WAITING)),
    ),
    source="https://dranet.dev/docs/concepts/device-attach-timing/: NetworkDeviceAttachDeferred, …Timeout and …Failed",
    follows=("NetworkDraDriverNotReady",),
)
IMAGE_REFUSED = _prepared(
    "ImagePullUnauthorized",
    "The registry refuses the image to this pod: credentials are missing or wrong.",
    "Name a secret with the registry's credentials in imagePullSecrets; an image of nvcr.io may need an NGC key.",
    Signature(
        r"unauthorized|authentication required|403 Forbidden|denied|insufficient_scope|no basic auth credentials",
        _CONTAINERD,
        _IMAGE,
    ),
)
IMAGE_PLATFORM = _prepared(
    "ImageOfAnotherArchitecture",
    "The image exists, but not for the processor architecture of the node.",
    "Use an image that is built for the node's architecture, or select nodes by the label kubernetes.io/arch.",
    Signature(
        r"no match for platform|no matching manifest for \S{1,60}|no image found in (?:manifest list|image index) for"
        r" architecture",
        "containerd, Docker, CRI-O",
        _IMAGE,
    ),
)
IMAGE_ABSENT = _prepared(
    "ImageNotFound",
    "The image does not exist in the registry.",
    "Correct the image's name or tag.",
    Signature(
        r"not found|manifest unknown|name unknown|does not exist|couldn't parse image"
        r"|invalid reference format|is not present with pull policy of Never",
        _CONTAINERD,
        _IMAGE,
    ),
)
IMAGE_NO_SPACE = _prepared(
    "ImageDiskFull",
    "The node has no disk space left for the image.",
    "Free space on the image disk, or use a larger one: CUDA images are many gigabytes.",
    Signature(r"no space left on device", _CONTAINERD, _IMAGE),
    of_node=True,
)
IMAGE_FAILS = _prepared(
    "ImagePullFails",
    "The image can't be pulled: the registry does not respond or limits the rate, or the network fails.",
    "Check whether the node reaches the registry: DNS name, proxy, certificate, rate limit.",
)
CONFIG_MISSING = _prepared(
    "ConfigReferenceMissing",
    "A ConfigMap or Secret that the pod refers to does not exist, or lacks the key.",
    "Create it, or correct the name: the kubelet retries on its own.",
    Signature(r"(configmap|secret)s? \\?\"([^\"\\]{1,253})\\?\" not found", _KUBELET, _IMAGE),
    Signature(
        r"couldn't find key \S{1,253} in (ConfigMap|Secret) (?:[^\s/]{1,63}/)?([^\s/,]{1,253})", _KUBELET, _IMAGE
    ),
    Signature(r"references non-existent (?:config|secret) key", f"{_KUBELET}, volumes", _IMAGE),
)
VOLUME_ELSEWHERE = _runtime(
    "VolumeHeldByAnotherNode",
    "The volume is attached to another node, and can be attached to one node only.",
    "Delete the pod that uses it there, or use a volume that many nodes can mount.",
    Signature(r"Multi-Attach error|already (?:exclusively )?attached to", _KUBELET, _EVENT),
)
VOLUME_FAILS = _runtime(
    "VolumeNotMounted",
    "A volume of the pod can't be attached or mounted on the node.",
    "Follow its message: check the storage driver on the node, the host path, or the claim.",
    Signature(r"", _KUBELET, _EVENT),
)
CLAIM_API = _runtime_on_node(
    "ClaimApiVersionMismatched",
    "The kubelet requests ResourceClaims in an API version that the API server does not serve: the two have versions "
    "that do not fit.",
    "Upgrade the older of the two: the kubelet must not be newer than the API server, and from 1.34 on both use "
    "resource.k8s.io/v1.",
    Signature(
        r"\bfetch ResourceClaim \S{1,253}(?: referenced by pod \S{1,253})?:[^\n]{0,40}"
        r"the server could not find the requested resource",
        _KUBELET,
        _EVENT_OR_LOG,
    ),
    source="https://kubernetes.io/releases/version-skew-policy/; pkg/kubelet/cm/dra/manager.go of Kubernetes",
)
CLAIM_FAILS = _runtime_on_node(
    "ClaimNotPrepared",
    "The pod's claim of dynamic resource allocation is not prepared on the node.",
    "Read the log of the DRA driver's kubelet plugin on the node.",
    starting(r"unable to get claim info for ResourceClaim", _KUBELET),
    Signature(r"Failed to prepare dynamic resources", _KUBELET, frozenset((TextSource.LOG,))),
    follows=("DraDriverNotReady", "NetworkDraDriverNotReady", "ImexHeldByHost", "ComputeDomainDaemonNotReady"),
)
IF_HELD = "If it has NV_ERR_IN_USE, turn the host's service off on the node: `systemctl disable --now nvidia-imex`"
IMEX_HELD = _runtime_on_node(
    "ImexHeldByHost",
    "The node's service nvidia-imex holds the driver's only IMEX session, so the daemon of a ComputeDomain gets none.",
    "Stop the service and keep it off: `systemctl disable --now nvidia-imex`, then `systemctl mask nvidia-imex` on the "
    "node, and in the nodes' image, because the driver's package enables it. Then delete the daemon's pod.",
    Signature(
        r"Failed to (?:allocate|create|open) (?:an? )?imex session(?![^\n]{0,200}NV_ERR_(?!IN_USE))"
        r"|\bimex\b[^\n]{0,200}NV_ERR_IN_USE|NV_ERR_IN_USE[^\n]{0,200}\bimex\b",
        "nvidia-imex",
        frozenset((TextSource.EVENT, TextSource.WAITING, TextSource.ENDED, TextSource.LOG)),
    ),
    source="https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-intro-install.html, ComputeDomains",
)
INIT_FAILS = _started(
    "InitContainerFails",
    "An init container fails, so the pod's own containers never start.",
    "Read its log.",
    severity=CauseSeverity.MEDIUM,
    follows=("RestartsOnFaultyNode",),
)
INIT_LASTS = _started(
    "InitContainerLasts",
    "An init container has run for over an hour, while the GPUs of its pod are unused.",
    "Read in its log why it waits.",
    severity=CauseSeverity.LOW,
)
NO_DEVICE_FILE = Signature(
    r"hostPath type check failed: (?:/dev/nvidia|/home/kubernetes/bin/nvidia is not)", _KUBELET, _EVENT
)
"""Text of DRIVER_NOT_LOADED about a volume: of a device file, or of GKE's folder of the driver."""
_BY_CDI = (
    "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, again after each change of the driver, then "
    "`nvidia-ctk config --in-place --set nvidia-container-runtime.mode=cdi`"
)
WITHOUT_LIMIT = (
    "No memory limit is set, so that is not the reason, unless the node itself lacks memory: see `dmesg | grep -i oom` "
    f"on it. Otherwise let the toolkit inject by CDI, without the program that is killed; on the node: {_BY_CDI}"
)
START_FIXES = (
    Hint(
        r"/home/kubernetes/bin/nvidia is not",
        "GKE has installed no driver on the node. Without the label cloud.google.com/gke-gpu-driver-version, its pool "
        "was made without automatic installation: let GKE install it (gpu-driver-version=default in the pool's "
        "accelerator settings), or apply Google's DaemonSet nvidia-driver-installer.",
    ),
    Hint(
        r"is mounted on \S{1,200} but it is not a shared(?: or slave)? mount",
        "The node's mounts are private, and this volume needs mount propagation. Share them on the node, now and at "
        "each boot: `mount --make-rshared /`. The kubelet then tries again.",
    ),
    Hint(
        r"hook #\d{1,3}: fork/exec /\S{0,200}nvidia-c\S{1,60}: no such file",
        "The CDI specification names NVIDIA's hook where the node does not have it. Set the environment variable "
        "NVIDIA_CDI_HOOK_PATH of the device plugin (GPU operator: devicePlugin.env; the plugin's own chart: "
        "cdi.nvidiaHookPath) to the hook's path on the node, on Talos /usr/local/bin/nvidia-cdi-hook, with the "
        "operator's toolkit /usr/local/nvidia/toolkit/nvidia-cdi-hook. Then create the pod again.",
    ),
    Hint(
        r"No help topic for '[\w-]{1,60}'",
        "NVIDIA's toolkit on the node is older than the program that wrote the CDI specification, and does not know "
        "this hook: update nvidia-container-toolkit on the node, then create the pod again.",
    ),
    Hint(
        r"stat failed: /dev/nvidia",
        "The node lacks that device file: the module behind it is not loaded, or its file was not made. Load it now "
        "and at each boot, nvidia-uvm by `nvidia-modprobe -u -c=0`. Only the capability display needs nvidia-modeset: "
        "name compute,utility in NVIDIA_DRIVER_CAPABILITIES instead of all.",
    ),
    Hint(
        r"requirement error: (?:invalid expression|parse)",
        "The image's NVIDIA_REQUIRE_CUDA can't be read: correct it, or set NVIDIA_DISABLE_REQUIRE=1 in the container.",
    ),
    Hint(
        r"no-gpu-has-\w{1,20}-to-run",
        "The gpushare device plugin found no pod that its scheduler extender has placed: kube-scheduler does not call "
        "the extender, or does not reach it. Add gpushare's extender to the scheduler's configuration, see that its "
        "service answers from the control plane, and create the pod again.",
    ),
    Hint(
        r"open (?:/\S{0,60})?/bin/(?:nvidia-|lib\S{0,80}nvidia)\S{1,80}: no such file",
        "The specification was made for a driver in another folder: set nvidiaDriverRoot in the Helm values of the DRA "
        "driver or the device plugin to where the driver is on the node, on Talos /usr/local. Then create the pod "
        "again.",
    ),
    Hint(
        r"container has runAsNonRoot and image (?:will run as root|has non-numeric user)",
        "The pod sets runAsNonRoot, and its image runs as root: set securityContext.runAsUser to a user that the image "
        "supports. A device plugin needs root: set runAsNonRoot to false in its manifest, or use its newer one.",
    ),
    Hint(
        r"mkdir /\S{1,200}: read-only file system",
        "The node's operating system keeps that folder read-only. For the operator's toolkit, set toolkit.installDir "
        "to a writable folder, or toolkit.enabled=false where the system brings its own; else change the hostPath.",
    ),
    Hint(
        r"failed to add device rules|cgroup subsystem devices not found",
        "NVIDIA's toolkit on the node is too old for cgroup v2 and the node's kernel: update it there, on Talos and "
        "Bottlerocket with the operating system or its extension. Until then let it inject by CDI: " + _BY_CDI,
    ),
    Hint(
        r"driver (?:rpc )?error: failed to process",
        "The toolkit's process that asks the driver has ended. Turn on persistence mode on the node: start "
        "nvidia-persistenced, or `nvidia-smi -pm 1`. If that is not enough, the log of `nvidia-container-cli -k -d "
        "/dev/stderr info` names the library that fails.",
    ),
    Hint(
        r"cuda error: unknown error",
        "The module nvidia_uvm does not work on the node: `nvidia-modprobe -u -c=0`; if that is not enough, reboot it.",
    ),
    Hint(
        r"file creation failed: [^\n]{1,300}file exists",
        "The image itself has libraries of a driver, often because it was saved from a running GPU container: build "
        "it without libcuda.so* and libnvidia-*.so*, which the toolkit mounts.",
    ),
    Hint(
        r"Container Runtime Hook directly [^\n]{0,80}is not supported",
        "The toolkit's mode on the node is cdi, and a hook calls it in the old way: `nvidia-ctk config --in-place "
        "--set nvidia-container-runtime.mode=auto`, or use NVIDIA's runtime for the pod.",
    ),
    Hint(
        r"error executing hook `?\S{0,200}nvidia-c",
        "crun reports only that NVIDIA's hook failed. The crun of OpenShift 4.18.21 to 4.18.23 breaks it: update to "
        "4.18.24 or later. Elsewhere update crun, or use runc; the hook's own words: `journalctl -u crio | grep -i "
        "nvidia`.",
    ),
    Hint(
        r"amazon linux[^\n]{0,2000}exec /usr/bin/nvidia-container-runtime: no such file",
        "The node was started from an AMI without NVIDIA's toolkit and driver: use the NVIDIA variant of the AMI in "
        "its node group or EC2NodeClass (AL2023_x86_64_NVIDIA; with Karpenter, an amiSelectorTerms alias selects it).",
    ),
    Hint(
        r"failed to (?:get|pull|start)[^\n]{0,40} sandbox image|(?:pull|resolve)[^\n]{0,40}/pause:",
        "The node does not get the image of each pod's sandbox, pause: set sandbox_image (containerd 2: sandbox in "
        "pinned_images) in containerd's configuration to one that it can pull, and restart containerd. A file that "
        "was written anew, as by NVIDIA's toolkit, may have lost the setting.",
    ),
    Hint(
        r"(?:task|container|shim)[^\n]{0,300}context deadline exceeded|context deadline exceeded: unknown",
        "The runtime did not get it started in time. See whether the driver hangs: `timeout 20 nvidia-smi` on the "
        "node. If so, keep new pods off the node, and reboot it; if not, look for a slow disk, and delete the pod.",
    ),
    Hint(
        r"/driver:[\w.-]{1,80}[^\n]{0,900}(?:not found|manifest unknown)",
        "NVIDIA publishes no driver image for this version and operating system: set a driver.version that has a tag "
        "for it, VERSION-OS in nvcr.io/nvidia/driver. If the operating system has none, as Debian, Talos and Amazon "
        "Linux, install the driver on the nodes in its way, and set driver.enabled=false.",
    ),
    Hint(
        r"image (?:tag|name|reference)? ?\"/?:",
        "The image's name has no registry: with OLM, a ClusterPolicy that sets driver.version must also set "
        "driver.repository (nvcr.io/nvidia) and driver.image (driver).",
    ),
)
"""Fixes by patterns of a message about a container or sandbox, after the node's operating system."""
CAUSES = (
    *(START_KILLED, DRIVER_NOT_LOADED, DRIVER_LIBRARY_MISSING, DRIVER_MISMATCH, DRIVER_HANGS, IMAGE_NEEDS_DRIVER),
    *(DEVICE_UNKNOWN, ACCESS_DENIED, TOOLKIT_BINARY, TOOLKIT_FAILS, CDI_UNRESOLVED, CDI_STALE, COMMAND_MISSING),
    *(CREATION_FAILS, RUNTIME_SILENT, CGROUP_DRIVERS, ATTACH, HANDLER_TYPELESS, NETWORK, SANDBOX, IMAGE_REFUSED),
    *(IMAGE_PLATFORM, IMAGE_ABSENT, IMAGE_NO_SPACE, IMAGE_FAILS, CONFIG_MISSING, VOLUME_ELSEWHERE, VOLUME_FAILS),
    *(CLAIM_API, CLAIM_FAILS, INIT_FAILS),
)
HARDWARE = _running_on_node(
    "GpuHardwareFault",
    "A faulty GPU of the node ended a program, or prevented its start.",
    "Cordon the node and end the pods that use the GPU; then reset it, `nvidia-smi --gpu-reset -i GPU`, or reboot the "
    "node. If the error recurs, replace the GPU.",
    starting(r"nvml error: gpu is lost", _CLI),
    failing(
        r"(?<!\b0 )(?<!\bno )uncorrectable ECC error(?!s?\W{1,4}0\b)|double[- ]bit ECC|GPU is lost|fallen off the bus"
        r"|GPU requires re(?:set|start|boot)|NVLink error (?:was )?detected|uncontained memory error"
        r"|Unable to determine the device handle for (?:GPU|gpu)",
        f"{_CUDA}, nvidia-smi",
    ),
    *reported("GpuHardwareFault"),
    source="CUDA errors 214, 220, 226; NVML errors 14 to 16; Xid 48, 63, 64, 74, 79, 94, 95",
    follows=_FAULTY,
)
FABRIC = _running_on_node(
    "FabricNotReady",
    "CUDA finds the GPUs but not the NVLink switches: the fabric manager does not run, or not yet.",
    "If the driver runs in a pod, as with the GPU operator, read that pod's log: its fabric manager fails; from B200 "
    "on, mostly for lack of the host's modules, `modprobe -a mlx5_ib ib_umad`. If it runs on the host, install "
    "nvidia-fabricmanager in the driver's exact version and start it: `systemctl enable --now nvidia-fabricmanager`. "
    "If it fails, `journalctl -u nvidia-fabricmanager` shows why.",
    *reported("FabricNotReady"),
    failing(r"\berror:? 802\b", _CUDA),
    source="CUDA errors 802, 919",
)
DOES_WITHOUT = failing(r"(?<!node has )No GPUs? (?:found|detected|available)", "many a program")
"""Text of a container that ends; a container that keeps running works without a GPU."""
AT_ITS_START = failing(
    r"no compatible GPUs were discovered|msg=\"inference compute\" id=\S{1,8} library=cpu|no usable GPU found",
    "Ollama, llama.cpp",
)
"""Text of a program that looks for a GPU once, when it starts, and then runs without it."""
NOT_INJECTED = _running_on_node(
    "GpuNotInjected",
    "A GPU was allocated to a container and does not work in it: the node's runtime did not inject it, or injected "
    "that of an earlier driver.",
    "The container itself must request the GPU, `nvidia.com/gpu: 1` in its limits, and `nvidia-smi` must work on the "
    "node. If `kubectl get runtimeclass` lists nvidia, set `runtimeClassName: nvidia` in the pod; k3s and RKE2 always "
    "need it. Elsewhere, without a GPU operator, make NVIDIA's runtime the default one of the node: `nvidia-ctk "
    "runtime configure` with --set-as-default, then restart that runtime. Create the pod again.",
    *reported("GpuNotInjected"),
    failing(
        r"No CUDA GPUs are available|Found no NVIDIA driver on your system"
        r"|torch\.cuda\.is_available\(\) (?:is|returned) False|Device string must not be empty"
        r"|libcuda\.so(?:\.1)?: cannot open shared object|No visible GPU devices|The NVIDIA Driver was not detected"
        r"|Failed to infer device type"
        r"|no supported devices found for platform|you might not have a CUDA gpu|Cannot load libcuda\.so"
        r"|no platforms that are instances of gpu|No visible GPU/TPU devices|No supported gpu backend found"
        r"|\b0 active drivers \(\[\]\)|Could not find cuda drivers on your machine"
        r"|mixed precision requires a GPU|(?:Error|Exception): [^\n]{0,80}CUDA is not available"
        r"|Torch is not able to use GPU"
        r"|Unable to dynamically load the \"cuda\" shared library|No visible GPU is found|available_devices = None"
        r"|CUDA driver library cannot be found|Environment for task type \[GPU\] not found"
        r"|can't stat gres\.conf file /dev/nvidia|kernel driver does not appear to be running on this host"
        r"|Failed to start model server: integer division or modulo by zero",
        "PyTorch, vLLM, JAX, Triton, TensorFlow, cudarc, XGBoost, CatBoost, Slurm, KServe, the loader, NVIDIA's images",
    ),
    failing(
        r"nvidia-smi: (?:(?:command )?not found|executable file)|exec: \\?\"nvidia-smi\\?\""
        r"|libnvidia-(?:ml|ptxjitcompiler|nvvm)\.so\S{0,12}: cannot open|couldn't find libnvidia-ml\.so"
        r"|couldn't communicate with the NVIDIA driver",
        "nvidia-smi",
    ),
    AT_ITS_START,
    DOES_WITHOUT,
)
INJECTION = (
    *(START_KILLED, HARDWARE, DRIVER_NOT_LOADED, DRIVER_MISMATCH, DRIVER_LIBRARY_MISSING, DRIVER_HANGS),
    *(IMAGE_NEEDS_DRIVER, DEVICE_UNKNOWN, ACCESS_DENIED, CDI_UNRESOLVED, CDI_STALE, TOOLKIT_BINARY),
    *(CGROUP_DRIVERS, TOOLKIT_FAILS),
)
"""Causes by messages of NVIDIA's toolkit and its callers while a container is created or started, in their order."""
NODES = (*CAUSES, HARDWARE, FABRIC, NOT_INJECTED, NO_GPU_FOUND, IMEX_HELD)
"""Causes that stop components as well as GPU pods."""
