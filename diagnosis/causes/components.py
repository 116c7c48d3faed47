"""Find components that GPUs need and that are not ready.

The report names the component, its location, the stage that it has reached, and the component it waits for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.admission import refused_workloads
from gpu_healthcheck.diagnosis.causes.pod_startup_table import CLAIM_API, CLAIM_FAILS, NODES
from gpu_healthcheck.diagnosis.causes.runtime_handlers import ELSEWHERE, UNLOADABLE
from gpu_healthcheck.diagnosis.causes.runtime_handlers import MISSING as HANDLER_MISSING
from gpu_healthcheck.diagnosis.facts.commands import kubectl, logs
from gpu_healthcheck.diagnosis.facts.components import YOUNG, Component, Role, components
from gpu_healthcheck.diagnosis.facts.dra_drivers import CLAIM_EVENT
from gpu_healthcheck.diagnosis.facts.driver_steps import INSTALLER, installer_steps
from gpu_healthcheck.diagnosis.facts.gpu_nodes import devices_in, has_gpu, is_changed, is_judged
from gpu_healthcheck.diagnosis.facts.gpu_requests import asks_for_gpus, gpu_pods_on
from gpu_healthcheck.diagnosis.facts.log_lines import Hint, failed_run, fix_of, telling_lines
from gpu_healthcheck.diagnosis.facts.moving_pods import steps_to_move
from gpu_healthcheck.diagnosis.facts.node_services import runtime_kind
from gpu_healthcheck.diagnosis.facts.placement import ZERO
from gpu_healthcheck.diagnosis.facts.pod_stage import IMAGE, Stage, StageKind, stage
from gpu_healthcheck.diagnosis.facts.quantity import amount, counted
from gpu_healthcheck.diagnosis.facts.runtime_advice import fix_steps, handlers_of, set_target, where_it_should_write
from gpu_healthcheck.diagnosis.facts.safe_steps import keep_off, let_in, repair_gpu
from gpu_healthcheck.diagnosis.facts.symptoms import shortened
from gpu_healthcheck.diagnosis.model import (
    Cause,
    CauseSeverity,
    Certainty,
    Family,
    FoundCause,
    Origin,
    Search,
    Signature,
    origins,
    starting,
)
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.cluster_events import Event
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.operations.agent_start import start_fix
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD

_OPERATOR = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/troubleshooting.html"
HAMI_DOCS = "https://project-hami.io/docs/troubleshooting/troubleshooting"
_BUILDS = timedelta(minutes=30)
"""A driver container may compile the driver; its own startup probe waits 20 minutes."""


_READ_LOG = "Read its pod's state and its last log lines, and fix the reported error."
_high = Family(None, of_node=True, source=_OPERATOR)
_medium = Family(None, of_node=True, source=_OPERATOR, severity=CauseSeverity.MEDIUM)
_low = Family(None, of_node=True, source=_OPERATOR, severity=CauseSeverity.LOW)


def _component(family: Family, name: str, means: str, *texts: Signature, source: str = _OPERATOR) -> Cause:
    return family(name, means, _READ_LOG, *texts, source=source)


NOT_READY: Mapping[Role, Cause] = {
    Role.OPERATOR: _component(
        _medium, "GpuOperatorNotReady", "The GPU operator does not run, so no program sets up or repairs GPU nodes."
    ),
    Role.NODE_FEATURES: _component(
        _medium,
        "NodeFeatureDiscoveryNotReady",
        "Node feature discovery does not run: new GPU nodes are not recognised.",
    ),
    Role.DRIVER: _component(_high, "DriverNotReady", "The driver pod does not become ready on a GPU node."),
    Role.TOOLKIT: _component(
        _high,
        "ContainerToolkitNotReady",
        "The container toolkit pod does not become ready: the container runtime injects no GPUs.",
    ),
    Role.DEVICE_PLUGIN: _component(
        _high, "DevicePluginNotReady", "The device plugin does not work on a GPU node: it offers no GPUs there."
    ),
    Role.MPS: _component(
        _medium,
        "MpsDaemonNotReady",
        "The MPS control daemon does not work on a GPU node.",
        starting(
            r"mounting \\?\"([^\s\"\\]{0,80}nvidia/mps[^\s\"\\]{0,80})\\?\" to rootfs[^\n]{0,400}no such file", "runc"
        ),
    ),
    Role.GPU_FEATURES: _component(
        _low,
        "GpuFeatureDiscoveryNotReady",
        "GPU feature discovery does not work: GPU labels are missing or outdated.",
    ),
    Role.DCGM: _component(_low, "DcgmNotReady", "DCGM's host engine does not work on a GPU node."),
    Role.EXPORTER: _component(
        _low, "DcgmExporterNotReady", "The DCGM exporter does not work: no metrics of these GPUs."
    ),
    Role.MIG_MANAGER: _component(
        _medium, "MigManagerNotReady", "The MIG manager does not work, so changes of MIG profiles have no effect."
    ),
    Role.VALIDATOR: _component(
        _medium, "OperatorValidatorNotReady", "The operator's validator fails: a stage of the GPU stack is broken."
    ),
    Role.CUDA_VALIDATOR: _component(
        _high, "CudaValidationFails", "The operator's CUDA test fails on a node: no CUDA program works there."
    ),
    Role.SANDBOX: _component(
        _medium,
        "SandboxDevicesNotReady",
        "The component that passes GPUs to virtual machines does not work on a node.",
    ),
    Role.DRA_DRIVER: _component(
        _high, "DraDriverNotReady", "The DRA driver does not work: claims of its devices are not prepared."
    ),
    Role.DOMAIN_DAEMON: _high(
        "ComputeDomainDaemonNotReady",
        "The IMEX daemon of a ComputeDomain does not work on a node: pods there get no IMEX channel.",
        _READ_LOG,
        source="https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu: templates/compute-domain-daemon.tmpl.yaml",
    ),
    Role.EFA_PLUGIN: _component(
        _medium, "EfaPluginNotReady", "The EFA device plugin does not work: no pod gets EFA devices there."
    ),
    Role.NETWORK_DRA: _component(
        _medium,
        "NetworkDraDriverNotReady",
        "The network's DRA driver does not work: claims of EFA or RoCE devices are not prepared there.",
        source="https://docs.aws.amazon.com/eks/latest/userguide/device-management-efa.html",
    ),
    Role.RDMA_PLUGIN: _component(
        _medium,
        "RdmaPluginNotReady",
        "The RDMA shared device plugin does not work: no pod gets RDMA devices (rdma/…) there.",
        source="https://github.com/Mellanox/k8s-rdma-shared-dev-plugin",
    ),
    Role.SRIOV_PLUGIN: _component(
        _medium,
        "SriovPluginNotReady",
        "The SR-IOV network device plugin does not work: no pod gets virtual functions there.",
        source="https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin",
    ),
    Role.HAMI_SCHEDULER: _component(
        _high,
        "HamiSchedulerNotReady",
        "HAMi's scheduler does not run: pods pass its webhook unchanged, and pods that wait for the scheduler "
        "stay Pending.",
        source=HAMI_DOCS,
    ),
    Role.HAMI_PLUGIN: _component(
        _high,
        "HamiDevicePluginNotReady",
        "HAMi's device plugin does not work on a GPU node: its cards are not registered, and none is allocated.",
        source=HAMI_DOCS,
    ),
    Role.AGENT: Family(None, of_node=True)(
        "HealthAgentNotReady",
        "The agent of gpu-healthcheck does not work on a node, so its GPUs are not checked.",
        "Fix what `gpu-healthcheck verify` names: the image, a quota, an admission policy, or the error in its log.",
        severity=CauseSeverity.MEDIUM,
    ),
    Role.SWEEPER: _component(
        _low, "SweeperNotReady", "The sweeper of gpu-healthcheck does not run, so no deep tests start."
    ),
}
VALIDATION = Family(None, source=_OPERATOR)(
    "ValidationHangs",
    "The GPU operator's pods wait for a stage of the GPU stack that does not become ready on the node.",
    "Fix the stage that they wait for: driver, then toolkit, then CUDA, then the device plugin.",
)
_WAITED_FOR = {
    "driver-validation": (Role.DRIVER,),
    "toolkit-validation": (Role.TOOLKIT, Role.DRIVER),
    "cuda-validation": (Role.CUDA_VALIDATOR, Role.TOOLKIT, Role.DRIVER),
    "plugin-validation": (Role.DEVICE_PLUGIN, Role.TOOLKIT, Role.DRIVER),
    "mps-control-daemon-mounts": (Role.MPS, Role.DRIVER),
}
"""Components that each init container of the operator waits for, in the order of the stages."""
_ON_OTHER_NODES = (Role.NODE_FEATURES, Role.EFA_PLUGIN, Role.NETWORK_DRA, Role.RDMA_PLUGIN, Role.SRIOV_PLUGIN)
"""Roles that also run on nodes without GPUs."""
_ADVICE = {
    "driver-validation": (
        "The driver does not work: check the driver pod there, or run `nvidia-smi` on a host with its own driver."
    ),
    "toolkit-validation": "The container toolkit is not installed completely: check its pod there.",
    "cuda-validation": "CUDA programs fail: check the pod nvidia-cuda-validator and the container runtime.",
    "plugin-validation": "The device plugin advertises no GPU: check its pod there.",
}
_STANDS_ON = {
    Role.TOOLKIT: (Role.DRIVER,),
    Role.DEVICE_PLUGIN: (Role.DRIVER, Role.TOOLKIT),
    Role.HAMI_PLUGIN: (Role.DRIVER, Role.TOOLKIT),
    Role.MPS: (Role.DRIVER, Role.TOOLKIT),
    Role.GPU_FEATURES: (Role.DRIVER, Role.TOOLKIT),
    Role.DCGM: (Role.DRIVER, Role.TOOLKIT),
    Role.EXPORTER: (Role.DRIVER, Role.TOOLKIT, Role.DCGM),
    Role.MIG_MANAGER: (Role.DRIVER, Role.TOOLKIT),
    Role.VALIDATOR: (Role.DRIVER, Role.TOOLKIT, Role.CUDA_VALIDATOR, Role.DEVICE_PLUGIN),
    Role.CUDA_VALIDATOR: (Role.DRIVER, Role.TOOLKIT),
    Role.DRA_DRIVER: (Role.DRIVER, Role.TOOLKIT),
    Role.DOMAIN_DAEMON: (Role.DRIVER, Role.TOOLKIT, Role.DRA_DRIVER),
}
_LONGEST = 400
IN_USE = (
    "A process still uses the old driver: stop programs of the host that use it, and move the node's pods with GPUs."
)
_TEMPLATE = (
    "CONTAINERD_CONFIG in toolkit.env is a template of k3s or RKE2, which the toolkit can't read and need not write: "
    "both add NVIDIA's handler at their next start, if they find its program. Leave the variable out:"
)
_NO_SOCKET = (
    "The toolkit does not reach containerd: set CONTAINERD_SOCKET in toolkit.env to that of the kubelet's containerd."
)
_LOST = "A GPU of the node does not answer: it is lost."
_NO_LIBRARY = (
    "Its own container has no driver: run it with the nvidia runtime (RuntimeClass or default "
    "runtime), or correct its setting for the driver root."
)
HINTS = (
    Hint(
        "waiting for NVIDIA vGPU Manager to be setup",
        "The node's sandbox validator reports when the vGPU manager is ready: read the log of its pod. If there is no "
        "such pod, let the operator create it, by the label nvidia.com/gpu.deploy.sandbox-validator=true of the node.",
    ),
    Hint(
        "unable to read MDEV devices directory",
        "The vGPU manager's kernel module does not run on the node: read the log of the nvidia-vgpu-manager-daemonset "
        "pod there, and fix its error first.",
    ),
    Hint(
        r"CDI container edits did not apply|/imexd/imexd\.cfg\.tmpl: no such file",
        "CDI is off in the container runtime: set `enable_cdi = true` in containerd's configuration, and restart it.",
    ),
    Hint(
        "No matching network interface found for any IP address",
        "The IMEX daemon's list of nodes lacks its own address: delete its pod, so that it registers its present one.",
    ),
    Hint(
        "Imex session|NV_ERR_IN_USE",
        "Another IMEX daemon of the node holds the only session: the host's nvidia-imex, or another ComputeDomain's.",
    ),
    Hint(
        "NVIDIA_DRIVER_ROOT|nvidiaDriverRoot",
        (
            "The DRA driver finds no GPU driver: set nvidiaDriverRoot in its Helm values to where that is: / for one "
            "on the host, /run/nvidia/driver for the GPU operator's, /home/kubernetes/bin/nvidia on GKE."
        ),
    ),
    Hint(
        "NVLink fabric (?:not attached|registration error)|empty cluster UUID, refusing to start",
        (
            "The GPUs are not registered with their NVLink fabric, and the plugin restarts until they are. If "
            "`nvidia-smi -q | grep -A 4 Fabric` on the node does not change to Completed, repair the fabric manager, "
            "on an NVL72 rack the switches. A cluster without multi-node NVLink needs no ComputeDomains: set "
            "resources.computeDomains.enabled=false in the DRA driver's Helm values."
        ),
    ),
    Hint(
        r"IMEX channel '?\d|nvidia-caps-imex-channels",
        (
            "The node's GPU driver has no IMEX channels: it is not loaded, too old, or the GPUs have no multi-node "
            "NVLink. Without that, set resources.computeDomains.enabled=false in the DRA driver's Helm values."
        ),
    ),
    Hint(
        "checkpoint is corrupted|checkpoint failed checksum",
        (
            "Another version of the DRA driver wrote its checkpoint: return to that version. Otherwise move the file "
            "away on the node, /var/lib/kubelet/plugins/gpu.nvidia.com/checkpoint.json, for the container "
            "compute-domains that of compute-domain.nvidia.com, and create the node's pods with claims again."
        ),
    ),
    Hint(
        "No valid EFA devices found",
        (
            "The machine has no EFA interface. If its pods need none, keep the plugin off it with a node selector. "
            "Otherwise attach them at the launch: by the launch template, with Karpenter by pods that request "
            "vpc.amazonaws.com/efa."
        ),
    ),
    Hint(
        "cannot add more nodes, already at maximum",
        "The ComputeDomain has more nodes than an IMEX domain may have: use one per NVLink clique, or a newer driver.",
    ),
    Hint(
        "unsupported config version",
        "The toolkit's image is too old for the configuration version of the node's containerd: remove toolkit.version "
        "and toolkit.image from the Helm values or ClusterPolicy, or set a newer one (version 3: v1.17.4 or later).",
    ),
    Hint(r"keys cannot contain \{ character", _TEMPLATE),
    Hint(
        r"error running nvidia-\S{1,20} .{1,200}containerd config dump\]: exit status",
        "Toolkit 1.17.0 needs containerd's program on the path, which k3s, RKE2, k0s and MicroK8s do not put there: "
        "set toolkit.version to v1.17.1 or later, or use a newer operator; these read the file instead.",
    ),
    Hint(
        "Error: unable to load config",
        "The toolkit can't read containerd's configuration: correct the place that the message names. On the node, "
        "`containerd config dump` checks the file.",
    ),
    Hint(r"unable to dial|dial unix \S{0,200}containerd\S{0,40}sock", _NO_SOCKET),
    Hint(
        "RHCOS .{0,60}imagetag missing|broken Driver Toolkit",
        "The operator finds no image of OpenShift's driver toolkit for the node's RHCOS version: compare `oc get -n "
        "openshift imagestream driver-toolkit` with the node's label "
        "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION. An old label: restart node feature discovery. A "
        "missing tag, as without a connection: mirror the release's driver toolkit and import it there.",
    ),
    Hint(
        "forward compatibility was attempted",
        "The validator's CUDA is newer than the node's driver: install a newer driver, and delete the validator's pod.",
    ),
    Hint(
        r"\(error code CUDA-capable device\(s\) is/are busy or unavailable\)",
        "CUDA gets no context: another process has the GPU in exclusive mode (`nvidia-smi -q -d COMPUTE`, `nvidia-smi "
        "-c 0`), or the validator has no code for a GPU this old, as that of 26.7 for Volta: then set "
        "WITH_WORKLOAD=false in validator.cuda.env.",
    ),
    Hint(
        r"(?<!parameters/path: )read-only file system",
        "The operating system keeps that folder read-only: use its own driver and toolkit (Talos, Bottlerocket), with "
        "driver.enabled=false and toolkit.enabled=false, or set toolkit.installDir to a writable folder.",
    ),
    Hint(
        r"(?:open|mkdir|remove|rename|unlink\w*|symlink) /\S{0,300} permission denied"
        r"|could not insert 'nvidia\S{0,20} (?:Permission denied|Operation not permitted)",
        "The node refuses it to the container: allow privileged pods in its namespace, and see whether SELinux "
        "refuses it: `ausearch -m avc -ts recent` on the node.",
    ),
    Hint(
        "Key was rejected by service|Required key not available",
        "Secure Boot refuses the unsigned module: use signed, precompiled drivers, or turn Secure Boot off.",
    ),
    Hint(
        "entitlement may be improperly|system is not registered|no enabled repositor|valid baseurl",
        "The driver has no package repository: entitle the node (RHEL), set driver.repoConfig, or use precompiled.",
    ),
    Hint(
        "no such host|Temporary failure (?:in name resolution|resolving)|Could not resolve host|i/o timeout",
        "The node does not reach a name server or a repository: check its network and its firewall.",
    ),
    Hint(
        r"Could not (?:resolve|locate) Linux kernel version|find the kernel (?:source tree|headers)"
        r"|/lib/modules/\S{1,100}/build: No such file"
        r"|(?:locate package|find any package|match for argument:|find a match:) \S{0,20}(?:linux-|kernel-)"
        r"|(?:linux-headers|kernel-devel|kernel-headers)\S{0,80} (?:has no installation candidate|not found)",
        "The headers of the node's kernel are missing: use a driver image for that kernel, give the node access to "
        "its package repository, or install the driver on the host.",
    ),
    Hint(
        r"\.[ch]:\d+(?::\d+)?: (?:fatal )?error: |\bld(?:\.\w+)?: error: |\*\*\* \[.{1,200}\] Error \d"
        r"|modpost: .{0,200}undefined!|GPL-incompatible module|unrecognized command[- ]line option"
        r"|step: .?Building kernel modules",
        "The driver does not compile for the node's kernel: set a newer driver version that supports this kernel "
        "(driver.version), or boot the node with a kernel that this version supports.",
    ),
    Hint(
        "Module nvidia not found in directory",
        "No module is built for the running kernel: use a driver image for it, or build the host's driver for it.",
    ),
    Hint(
        r"Module (?:i2c_core|ipmi_\w{1,20}) not found in directory",
        "The kernel lacks modules that the driver needs: install its extra modules (linux-modules-extra) on the node.",
    ),
    Hint(
        "requires use of the NVIDIA open kernel modules",
        "This GPU needs the open kernel modules: set driver.kernelModuleType=open, or install them on the host.",
    ),
    Hint(
        "not supported by open nvidia.ko|Open nvidia.ko is only ready",
        "The open kernel modules do not support this GPU: set driver.kernelModuleType=proprietary.",
    ),
    Hint(
        r"installed in this system (?:is|are)(?: not supported by the| supported through the) .{0,80}(?:driver|Legacy)",
        "This driver version does not support the GPU: set one of the branch that the log names (driver.version).",
    ),
    Hint(
        r"(?<!such as )(?<!blacklist )(?<!options )(?<!disable )(?<!nvidiafb, or )nouveau(?!,? is present|, rivafb)",
        "The driver nouveau uses the GPU: block it on the host, and reboot the node.",
    ),
    Hint(
        "(?:nvidia|driver) is in use|Could not unload NVIDIA driver kernel modules|Failed to uninstall nvidia driver"
        "|NVIDIA kernel module .{1,40} appears to already be loaded",
        IN_USE,
    ),
    Hint(
        "Driver/library version mismatch",
        "The driver's libraries and the loaded module have different versions: drain the node and reboot it.",
    ),
    Hint(
        r"ERROR_LIBRARY_NOT_FOUND|libnvidia-ml\.so|Incompatible (?:strategy|platform)|invalid device discovery"
        r"|DCGM initialization error|could not load NVML library",
        _NO_LIBRARY,
    ),
    Hint(
        "device plugin already connected",
        "The kubelet still has the connection of an earlier plugin with the same socket. If the message lasts: let no "
        "other plugin use the socket, and restart the kubelet on the node.",
    ),
    Hint(
        r"Could not (?:contact Kubelet|register device plugin)|dial unix \S{1,200}kubelet\.sock",
        "The plugin does not reach the kubelet's socket: let it mount the kubelet's folder device-plugins, which lies "
        "in /var/lib/k0s/kubelet on k0s and in /var/snap/microk8s/common/var/lib/kubelet on MicroK8s.",
    ),
    Hint(
        "specified config .{0,200}does not exist|no configuration files available|all fallbacks failed",
        "The node's label nvidia.com/device-plugin.config, or the default of the Helm values, names no key of the "
        "plugin's ConfigMap: correct the label, or add the key.",
    ),
    Hint(
        "device minor number: Not Supported",
        "The GPU has no minor number, as on Jetson and WSL2: there MPS is not possible, so share it by "
        "sharing.timeSlicing instead; without sharing, use a newer device plugin.",
    ),
    Hint(
        "requires --mps-root",
        "The configuration has sharing.mps: install the plugin with its Helm chart, which runs the MPS daemon too.",
    ),
    Hint(
        "unable to (?:load|finalize|validate|parse) (?:config|flags)|error (?:load|pars)ing config",
        "The plugin's configuration is invalid: correct the key of its ConfigMap that the node uses.",
    ),
    Hint(
        "No MIG devices associated|migEnabled=true was not configured",
        "MIG is on and a card has no instances: apply a MIG configuration to the node, or turn MIG off. If its label "
        "nvidia.com/mig.config names one already, the MIG manager awaits a change: set another value, then this one.",
    ),
    Hint(
        "more than one MIG device type present|same migEnabled value",
        "The MIG strategy is single and the cards have different profiles: give all the same profile, or use mixed.",
    ),
    Hint(
        "driver not loaded|communicate with the NVIDIA driver|NVIDIA-SMI has failed|modules are not yet loaded",
        "The driver's kernel module is not loaded on the node.",
    ),
    Hint("Unable to determine the device handle|GPU is lost|fallen off the bus", _LOST),
    Hint(
        "No devices were found",
        "The driver is loaded and initializes no GPU. The node's kernel log has the reason, `dmesg | grep NVRM`: if it "
        "asks for the open kernel modules, set driver.kernelModuleType=open, otherwise a driver version for this GPU.",
    ),
    Hint(
        r"driver detected on the host: exit status 14\b",
        "nvidia-smi ends with 14, because the infoROM of a GPU is corrupted, and the validator takes the host's "
        "driver for absent: have the GPU repaired that nvidia-smi warns of.",
    ),
    Hint(
        "failed to validate the driver|run command 'nvidia-smi'|validate a driver container installation",
        "The validator finds no driver. One of the host counts only with /usr/bin/nvidia-smi, which must run there: "
        "link it to that path, or install it. One in a container: see its driver pod on the node.",
    ),
    Hint(
        "In use by another client|could not be reset|error resetting all GPU",
        "A process still uses the GPUs: delete the node's GPU pods by name, stop programs of the host, or reboot it.",
    ),
    Hint(
        "Insufficient Permissions",
        "The driver refuses it to the container: for MIG, set NVIDIA_MIG_MONITOR_DEVICES=all in it and run it "
        "privileged; with SELinux, `setsebool -P container_use_devices on` on the node.",
    ),
    Hint(
        "creating symlink creator|create symlinks under /dev/char",
        "The host's driver lacks a module that the validator loads: install it, or set "
        "DISABLE_DEV_CHAR_SYMLINK_CREATION=true in validator.driver.env of the ClusterPolicy.",
    ),
    Hint(
        "cannot delete Pods? .{0,80}(?:local storage|declare no controller)",
        "The driver's update may not evict the pods in the log: save what they need, and delete them by name.",
    ),
    Hint(
        "violate the pod's disruption budget",
        "A PodDisruptionBudget keeps a pod on the node: give that workload another ready pod elsewhere.",
    ),
    Hint("no space left on device", "The node's disk is full: free space there, for instance from unused images."),
    Hint(
        r"no matches for kind \S{1,80} in version",
        "A CRD is missing or too old: apply the CRDs of the chart's version; Helm does not upgrade them.",
    ),
    Hint(
        r"is forbidden: User \S{1,300} cannot",
        "Its service account lacks the permission that the log names: apply the roles of this version's chart again.",
    ),
    Hint(
        "too many open files",
        "Raise the node's limit of watches: the sysctl fs.inotify.max_user_instances, for instance to 8192.",
    ),
    Hint(
        "address already in use",
        "Another program on the node uses that port: remove the second installation, or change the port.",
    ),
    Hint(
        r"load the kernel module|could not insert 'nvidia|probe routine was not called|No NVIDIA devices probed",
        "The module does not load. The node's kernel log (dmesg, lines with NVRM or nouveau) shows which of three: "
        "another kernel driver owns the GPU (block that, reboot), the module is built for another kernel or by another "
        "gcc (use a driver for this kernel), or this version does not support the GPU (use another version).",
    ),
    Hint(
        "module of DCGM that is not currently loaded",
        "Profiling metrics need a GPU that has them and the capability SYS_ADMIN: add that to the exporter's security "
        "context, or use a file of metrics without DCGM_FI_PROF_… (`-f /etc/dcgm-exporter/default-counters.csv`).",
    ),
    Hint(
        "OOMKilled",
        "The container needs more memory than its limit: raise the limit (dcgm-exporter: 512Mi, with 8 GPUs 1Gi).",
    ),
)
"""Fixes by patterns of a log, the more specific ones first.

The installer's sentence about a module that does not load names nouveau as an example, and proves nothing.
"""


class UnreadyPod(Struct, frozen=True):
    """Pod of a component that is not ready, and should be."""

    component: Component
    pod: Pod
    stage: Stage
    node: Node | None
    subject: str
    """Subject: the node, or the component if the pod has no node."""

    def __str__(self) -> str:
        """Format as a pod with its node."""
        return f"{self.pod.subject} on {self.subject}" if self.subject != self.component.subject else self.pod.subject


def find(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield each component that is not ready where it should be.

    A component that only waits for another one is listed as its consequence.
    """
    every, events = components(snapshot), _warnings(snapshot)
    troubles = [trouble for component in every for trouble in _troubles(snapshot, component)]
    subjects = _subjects(troubles)
    waiting: list[UnreadyPod] = []
    named: set[Origin] = set()
    for trouble in troubles:
        if trouble.stage.kind is StageKind.INIT and trouble.stage.container in _WAITED_FOR:
            waiting.append(trouble)
        else:
            found = _found(trouble, subjects, snapshot, events.get(trouble.pod.subject, ()))
            key = found.cause.name, found.subject
            # Of pods that fail alike on many nodes, the commands of the first one are enough.
            yield found if key not in named else replace(found, remedy=found.remedy[:-1])
            named.add(key)
    yield from _hanging(waiting, subjects, snapshot)
    yield from _without_pods(every, snapshot)


def _troubles(snapshot: Snapshot, component: Component) -> Iterator[UnreadyPod]:
    if component.role not in NOT_READY or component.wanted == 0:
        return
    unseen, now = not snapshot.sees("Node"), snapshot.now
    for pod in component.pods:
        node = snapshot.by_node.get(pod.spec.node)
        # The agent starts within seconds also on a new node, and its users look for it at once.
        new = node is not None and not is_judged(node, now) and not (component.role is Role.AGENT and node.ready)
        if node is not None and (new or _is_unneeded(component, node)):
            continue
        # If nodes are not visible, a node may be as new as its pods.
        if unseen and snapshot.is_new(pod.meta, YOUNG):
            continue
        at = stage(pod, now)
        if _is_trouble(component, pod, at, now):
            known = node is not None or (unseen and pod.spec.node)
            yield UnreadyPod(component, pod, at, node, f"node/{pod.spec.node}" if known else component.subject)


def _is_unneeded(component: Component, node: Node) -> bool:
    """Whether the component does not matter on the node at present.

    Either the node has no GPU, or the operator is changing the layers that the component depends on.
    """
    is_on_other_nodes = component.meta.kind == "DaemonSet" and component.role in _ON_OTHER_NODES
    if is_on_other_nodes and not has_gpu(node):
        return True
    return is_changed(node) and component.role not in (Role.DRIVER, Role.MIG_MANAGER)


def _is_trouble(component: Component, pod: Pod, at: Stage, now: datetime) -> bool:
    if at.kind in (StageKind.READY, StageKind.GOING):
        return False
    if pod.phase == "Failed":
        return False  # its controller makes a new pod, or the workload reports that it can't
    if at.kind is StageKind.FAILS or (component.role is Role.AGENT and at.kind is StageKind.UNPLACED and at.message):
        return True
    return at.lasts(now, _BUILDS if component.role is Role.DRIVER else YOUNG)


def _subjects(troubles: Iterable[UnreadyPod]) -> dict[tuple[Role, str], str]:
    """Return, by role and node, the object to fix.

    It is the workload if that fails everywhere for the same reason, else the node.
    """
    groups = grouped(((each.component.role, each.component.subject, each.stage.reason), each) for each in troubles)
    subjects = {}
    for (role, subject, reason), some in groups.items():
        everywhere = len(some) > 1 and len(some) >= (some[0].component.wanted or 0)
        shared = everywhere or reason in IMAGE or reason == "CreateContainerConfigError"
        of_nodes = some[0].component.meta.kind not in ("Deployment", "StatefulSet")
        for unready in some:
            on_node = of_nodes and not shared and unready.subject != unready.component.subject
            subjects[role, unready.subject] = unready.subject if on_node else subject
    return subjects


def _found(
    unready: UnreadyPod, subjects: Mapping[tuple[Role, str], str], snapshot: Snapshot, warnings: Iterable[Event]
) -> FoundCause:
    role, pod = unready.component.role, unready.pod
    message = unready.stage.message.replace("\\n", "\n")  # the end of a log, if the container ended
    evidence = [f"{unready}: {replace(unready.stage, message=shortened(message, _LONGEST))}"]
    if unready.stage.kind is StageKind.CREATING:
        evidence += [f"{event.reason}: {event.message}" for event in warnings][:2]
    log = snapshot.logs.get((pod.subject, unready.stage.container), message if "\n" in message else "")
    lines = telling_lines(log, ended=unready.stage.kind is StageKind.FAILS)
    evidence += [f"its log: {line}" for line in lines]
    if lines and role in (Role.DRIVER, Role.TOOLKIT) and unready.component.version:
        evidence.append(f"its image: {unready.component.version}")
    if role is Role.DEVICE_PLUGIN and unready.node is not None:
        names = sorted(devices_in((*unready.node.capacity, *unready.node.allocatable)))
        offered = {name: unready.node.allocatable.get(name, "0") for name in names}
        shown = ", ".join(f"{value} {name}" for name, value in offered.items())
        is_empty = not any(amount(value) or ZERO for value in offered.values())
        evidence.append(f"{unready.node.subject} offers {'no GPUs' if is_empty else shown}")
    independent = unready.stage.reason in IMAGE or unready.stage.kind is StageKind.UNPLACED
    above = () if independent else _STANDS_ON.get(role, ())
    # Other pods' claims on the node do not concern a pod without a warning about its own.
    own_claim = (event.message for event in warnings if event.reason == CLAIM_EVENT)
    refused_claim = unready.stage.kind is StageKind.CREATING and not all(map(CLAIM_API.texts[0].search, own_claim))
    causes = (each for each in NODES if each is not CLAIM_FAILS or refused_claim)
    own = origins(causes, unready.subject, unready.component.subject)
    runtime = (
        *origins(UNLOADABLE, unready.subject),
        (ELSEWHERE.name, unready.component.subject),
        (HANDLER_MISSING.name, unready.subject),
    )
    cards = origins(("MigGeometryInvalid",), unready.subject) if role is Role.DEVICE_PLUGIN else ()
    subject = subjects.get((role, unready.subject), unready.subject)
    return FoundCause(
        NOT_READY[role],
        subject,
        tuple(evidence),
        tuple(_remedy(snapshot, unready, "\n".join((*failed_run(log), unready.stage.message, *evidence)))),
        (unready.subject,) if subject != unready.subject else (),
        because_of=(*own, *_causes_above(unready, above, subjects), *(() if independent else runtime), *cards),
    )


def _on_this_node(snapshot: Snapshot, unready: UnreadyPod, known: str) -> Iterator[str]:
    """Yield the steps of a fix that depend on the node: its GPU pods, its runtime, the pod's own class."""
    pod, role = unready.pod, unready.component.role
    if known is _LOST:
        yield from repair_gpu(snapshot, pod.spec.node)
    elif known is IN_USE:
        held = [one for one in gpu_pods_on(snapshot).get(pod.spec.node, ()) if not one.over]
        yield from keep_off(snapshot, pod.spec.node)
        yield from steps_to_move(snapshot, held, "other nodes")
        yield "The driver's pod then tries again by itself. If the driver is still in use, reboot the node."
        yield from let_in(snapshot, pod.spec.node)
    elif known in (_TEMPLATE, _NO_SOCKET) and role is Role.TOOLKIT:
        should = where_it_should_write(unready.node, None)
        yield from set_target(snapshot, unready.component.meta.namespace, should)
    elif known is _NO_LIBRARY and not pod.spec.runtime_class and unready.component.meta.kind == "DaemonSet":
        yield from _name_class(snapshot, unready)
    elif unready.stage.reason == "PodInitializing" and any(state.ended is not None for state in pod.states):
        why = "Unless its events show a pull that goes on, its next container was never created, as when containerd is"
        yield f"{why} restarted at that moment. Its DaemonSet creates the pod again: {kubectl('delete', pod.meta)}"


def _name_class(snapshot: Snapshot, unready: UnreadyPod) -> Iterator[str]:
    """Yield the steps after which a component that was installed alone runs with NVIDIA's runtime."""
    node, has = unready.node, handlers_of(unready.node) if unready.node is not None else None
    if has is not None and not any("nvidia" in handler for handler in has):
        yield from fix_steps(snapshot, node, None)
    if runtime_kind(node) != CONTAINERD:
        return
    names = [one.meta.name for one in snapshot.runtime_classes if "nvidia" in one.handler]
    if not names and snapshot.sees("RuntimeClass"):
        yield "Create a RuntimeClass with the name and the handler nvidia: there is none"
    patch = json.dumps({"spec": {"template": {"spec": {"runtimeClassName": next(iter(names), "nvidia")}}}})
    change = kubectl("patch", unready.component.meta, "--type=merge", "-p", patch)
    yield f"It names no RuntimeClass: set runtimeClassName in the Helm values of its chart; without a chart: {change}"


def _remedy(snapshot: Snapshot, unready: UnreadyPod, texts: str) -> Iterator[str]:
    pod = unready.pod
    agents = start_fix(unready.stage.reason, texts) if unready.component.role is Role.AGENT else ""
    known = agents or hint(texts)
    if known:
        yield known
    yield from _on_this_node(snapshot, unready, known)
    if unready.stage.container == INSTALLER:
        yield from installer_steps(unready.node, pod)
    elif unready.stage.kind is StageKind.FAILS and unready.stage.container and unready.stage.reason not in IMAGE:
        previous = ("--previous",) if unready.stage.reason == "CrashLoopBackOff" else ()
        yield f"Find out why it exits: {logs(pod.meta, '-c', unready.stage.container, '--tail=50', *previous)}"
    elif unready.stage.kind in (StageKind.UNREADY, StageKind.INIT):
        yield f"Find out why it is not ready: {logs(pod.meta, '-c', unready.stage.container, '--tail=50')}"
    else:
        yield f"Find the reason: {kubectl('describe', pod.meta)}"


def _causes_above(
    unready: UnreadyPod, roles: Iterable[Role], subjects: Mapping[tuple[Role, str], str]
) -> Iterator[Origin]:
    for role in roles:
        if (role, unready.subject) in subjects:
            yield NOT_READY[role].name, subjects[role, unready.subject]


def _hanging(
    waiting: Iterable[UnreadyPod], subjects: Mapping[tuple[Role, str], str], snapshot: Snapshot
) -> Iterator[FoundCause]:
    """Yield the waiting pods of each node, ordered by stage; the first stage is the one to examine."""
    order = list(_WAITED_FOR)
    # A test that needs a GPU may have to wait on a node whose GPUs are in use by pods.
    full = {pod.spec.node for pod in snapshot.pods if not pod.over and asks_for_gpus(pod.spec)}
    explained: set[str] = set()
    for unready in sorted(waiting, key=lambda trouble: order.index(trouble.stage.container)):
        if unready.stage.container == "plugin-validation" and unready.pod.spec.node in full:
            continue
        evidence = [f"{unready} waits in its init container {unready.stage.container}"]
        messages = snapshot.logs.get((unready.pod.subject, unready.stage.container), "")
        evidence += [f"its log: {line}" for line in telling_lines(messages, ended=False)]
        above = tuple(_causes_above(unready, _WAITED_FOR[unready.stage.container], subjects))
        above = tuple(pair for pair in above if pair[0] != NOT_READY[unready.component.role].name)
        advice = hint("\n".join(failed_run(messages))) or _ADVICE.get(unready.stage.container, "")
        log = logs(unready.pod.meta, "-c", unready.stage.container, "--tail=20")
        lost = repair_gpu(snapshot, unready.pod.spec.node) if advice is _LOST else ()
        remedy = (*filter(None, (advice,)), *lost, f"Read why it waits: {log}")
        remedy = remedy if unready.subject not in explained else ()
        explained.add(unready.subject)
        yield FoundCause(VALIDATION, unready.subject, tuple(evidence), remedy, because_of=above)


def _without_pods(every: Iterable[Component], snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield workloads that should have pods and have none, with the messages of their controllers.

    Workloads whose pods are not visible are included.
    """
    warnings, refused = _warnings(snapshot), refused_workloads(snapshot)
    # If pods are not visible, the missing pods may belong to nodes that are new, gone or being changed.
    changing = sum(not is_judged(node, snapshot.now) or is_changed(node) for node in snapshot.nodes)
    for component in every:
        if component.role not in NOT_READY or not component.wanted:
            continue
        above = refused.get(component.subject, ())
        refusals = list(_refused(component, warnings.get(component.subject, ()), above))
        yield from refusals
        young = snapshot.is_new(component.meta, YOUNG)
        if refusals or young or any(not pod.over for pod in component.pods):
            continue
        remedy = (f"Find the reason for its missing pods: {kubectl('describe', component.meta)}",)
        messages = [f"{event.reason}: {event.message}" for event in warnings.get(component.subject, ())[:2]]
        if not component.made and not component.ready:
            evidence = (f"{component.subject} needs {component.wanted} pods, and none was created", *messages)
            yield FoundCause(NOT_READY[component.role], component.subject, evidence, remedy, because_of=above)
        elif component.ready is not None and component.ready + changing < component.wanted:
            evidence = (
                f"{component.subject}: {component.ready} of {component.wanted} pods are ready; they are not visible",
                *messages,
            )
            yield FoundCause(NOT_READY[component.role], component.subject, evidence, remedy, certainty=Certainty.LIKELY)


def _refused(component: Component, warnings: Iterable[Event], above: tuple[Origin, ...]) -> Iterator[FoundCause]:
    """Yield the agent's DaemonSet if the API server refuses some of its pods, however young it is."""
    refusal = next((event for event in warnings if event.reason == "FailedCreate"), None)
    made, wanted = component.made or 0, component.wanted or 0
    if component.role is Role.AGENT and refusal is not None and made < wanted:
        evidence = (
            f"{component.subject} needs {counted(wanted, 'pod')}, and {made} of them exist",
            f"{refusal.reason}: {shortened(refusal.message, _LONGEST)}",
        )
        look = f"Read all its Events: {kubectl('describe', component.meta)}"
        steps = tuple(filter(None, (start_fix(refusal.reason, refusal.message), look)))
        yield FoundCause(NOT_READY[Role.AGENT], component.subject, evidence, steps, because_of=above)


def _warnings(snapshot: Snapshot) -> dict[str, list[Event]]:
    """Return the Warning events of each object, newest first."""
    found = grouped((event.about, event) for event in snapshot.events if event.warning)
    for some in found.values():
        some.sort(key=lambda one: str(one.last), reverse=True)
    return found


def hint(texts: str) -> str:
    """Return the fix for the texts of a component."""
    return fix_of(texts, HINTS)


SEARCHES = (Search((*NOT_READY.values(), VALIDATION), (), find),)
