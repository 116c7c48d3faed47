"""Causes of this family: problems that keep a pod from its share of a card that HAMi manages."""

from __future__ import annotations

from diagnosis.model import Cause, CauseSeverity, Link

_HIGH, _MEDIUM, _LOW = CauseSeverity.HIGH, CauseSeverity.MEDIUM, CauseSeverity.LOW


def _admitted(name: str, means: str, remedy: str, source: str) -> Cause:
    return Cause(name, _HIGH, Link.ADMITTED, means, remedy, source)


def _scheduled(name: str, means: str, remedy: str, source: str = "", severity: CauseSeverity = _HIGH) -> Cause:
    return Cause(name, severity, Link.SCHEDULED, means, remedy, source)


def _accepted(name: str, means: str, remedy: str, source: str) -> Cause:
    return Cause(name, _HIGH, Link.ACCEPTED, means, remedy, source)


def _of_node(name: str, means: str, remedy: str, source: str, severity: CauseSeverity = _HIGH) -> Cause:
    return Cause(name, severity, None, means, remedy, source)


_WEBHOOK = "HAMi, pkg/scheduler/webhook.go"
_CHART = "HAMi's chart, templates/scheduler"
_PLUGIN = "HAMi, pkg/device-plugin/nvidiadevice/nvinternal/plugin"
_LOCK = "HAMi, pkg/util/nodelock"
_SCHEDULER = "HAMi, pkg/scheduler/scheduler.go"
_DEVICES = "HAMi, pkg/device/devices.go"

# The nodes.
PLUGIN_NOT_MEANT = _of_node(
    "HamiPluginNotOnNode",
    "A GPU node has no device plugin of HAMi's, as it lacks the label by which the plugin's DaemonSet selects nodes.",
    "Label the node, if HAMi is to share its cards.",
    "HAMi's chart, devicePlugin.nvidiaNodeSelector: gpu=on",
)
NOT_REGISTERED = _of_node(
    "HamiNodeNotRegistered",
    "HAMi's device plugin runs on a node and has not registered its cards there: HAMi reports `node unregistered`.",
    "Read the plugin's log: it finds no card, or may not write to the node.",
    f"{_DEVICES}; the annotation hami.io/node-nvidia-register",
)
REGISTER_STALE = _of_node(
    "HamiRegistrationStale",
    "HAMi's state has a node with cards that its device plugin no longer advertises: the kubelet offers none.",
    "Bring HAMi's device plugin on the node back.",
    f"{_DEVICES}; hami.io/node-nvidia-register and the node's allocatable nvidia.com/gpu",
)
REGISTER_UNREADABLE = _of_node(
    "HamiVersionSkew",
    "Nodes are registered in a form that the scheduler's version does not read: it knows none of their cards.",
    "Bring scheduler and device plugins to one version. HAMi reads JSON since 2.8, and its own text up to 2.7.",
    "HAMi 140b2cb5: the register's form changed with 2.8.0",
)
LOCK_STALE = _of_node(
    "HamiNodeLockStale",
    "A node is locked for a pod that HAMi will not finish binding, so that no other pod is bound there meanwhile.",
    "See why the device plugin did not answer for that pod, then take the lock off the node.",
    f"{_LOCK}: the annotation hami.io/mutex.lock; five minutes unless scheduler.nodeLockExpire is set",
    _MEDIUM,
)
CLOCK_APART = _of_node(
    "HamiHandshakeClockApart",
    "HAMi up to 2.7 ignores a node with a working device plugin: their clocks or time zones differ.",
    "Let the scheduler's pod run in UTC and the node's clock be set, or upgrade HAMi: 2.8 no longer asks.",
    "HAMi 2.5 to 2.7 write the handshake in local time and read it as UTC",
)
PLUGIN_SILENT = _of_node(
    "HamiPluginSilent",
    "HAMi up to 2.7 has asked a node's device plugin for a sign of life and hears none: it gives no card out there.",
    "Restart the device plugin's pod on the node.",
    f"{_DEVICES}; the annotation hami.io/node-handshake",
)

# The webhook and its back end.
WEBHOOK_MISSING = _of_node(
    "HamiWebhookMissing",
    "HAMi's scheduler is there and no webhook sends it pods: all go to Kubernetes' own, which knows no shares.",
    "Install HAMi's chart again, with its admission webhook.",
    f"{_CHART}/webhook.yaml: the webhook vgpu.hami.io",
)
NO_CA = _of_node(
    "HamiWebhookWithoutCa",
    "HAMi's webhook has no CA by which the API server could trust it: it is never asked.",
    "See why the chart's patch Job or cert-manager has not written it.",
    f"{_CHART}/job-patch, certmanager.yaml",
)
CERTIFICATE_EXPIRED = _of_node(
    "HamiWebhookCaExpired",
    "The CA by which the API server trusts HAMi's webhook has expired: the webhook is not asked any more.",
    "Make a new certificate, by the chart's Jobs or cert-manager, and restart the scheduler's pods.",
    f"{_CHART}/webhook.yaml, caBundle",
)
PATCH_FAILED = _of_node(
    "HamiCertificateJobFailed",
    "A Job of HAMi's chart failed that creates the webhook's certificate or registers it with the API server.",
    "Read the Job's log, fix its error, and upgrade the release again.",
    f"{_CHART}/job-patch",
)
NO_LEADER = _of_node(
    "HamiSchedulerWithoutEndpoints",
    "No pod answers behind HAMi's Service, though its scheduler runs: webhook calls go nowhere.",
    "See why no pod has become the leader: only that one has the label hami.io/scheduler-role=leader.",
    f"{_CHART}/service.yaml",
)
IGNORED = _admitted(
    "HamiWebhookIgnored",
    ("GPU pods do not reach HAMi's webhook, because of a label or its selector: Kubernetes' scheduler schedules them."),
    "Remove the label, or change the webhook's selector; then create the pods again.",
    "the label hami.io/webhook=ignore; namespaceSelector and objectSelector of the webhook",
)
OTHER_SCHEDULER = _admitted(
    "HamiOtherScheduler",
    "A workload names another scheduler, which HAMi's webhook keeps: its pods get no card.",
    "Take schedulerName out of the workload's template, or write HAMi's there.",
    f"{_WEBHOOK}: `pod already has different scheduler assigned`, since 2.7",
)
PRIVILEGED = _admitted(
    "HamiSkipsPrivileged",
    "A container that asks for GPUs is privileged: HAMi up to 2.9 does not touch it, since 2.10 it refuses the pod.",
    "Take privileged out of the container's securityContext: a card's limits mean nothing to a privileged one.",
    f"{_WEBHOOK}: `container … is privileged`",
)
MISSED = _admitted(
    "HamiWebhookMissed",
    "GPU pods were made while HAMi's webhook did not answer; its failurePolicy Ignore let them pass as they were.",
    "Once the webhook answers, delete the pods: their controller creates others, which reach it.",
    "failurePolicy: Ignore of the webhook vgpu.hami.io, the chart's default",
)
NODE_NAMED = _admitted(
    "HamiNodeNamed",
    "A GPU workload names its node itself, past HAMi's scheduler: its webhook or its device plugin refuses the pods.",
    "Take nodeName out of the template, and choose the node by a nodeSelector.",
    f"{_WEBHOOK}: `pod has node assigned`, since 2.6; `do not use nodeName in task spec` before",
)
QUOTA = _admitted(
    "HamiQuotaExceeded",
    "The namespace has used up its ResourceQuota of the cards' memory or cores, as HAMi counts it.",
    "End pods of the namespace, ask for less, or raise the quota.",
    "HAMi counts limits.nvidia.com/gpumem and limits.nvidia.com/gpucores of a ResourceQuota itself",
)

# The scheduler.
EXTENDER = _scheduled(
    "HamiExtenderUnreachable",
    "Kubernetes' scheduler in HAMi's pod gets no answer from HAMi's extender there, so it schedules no GPU pod.",
    "Check the container vgpu-scheduler-extender: its restarts and its log.",
    f"{_CHART}/configmapnew.yaml: urlPrefix of the extender",
)
EXTENDER_SLOW = _scheduled(
    "HamiExtenderSlow",
    "HAMi's extender answers Kubernetes' scheduler too late, so that pods are not placed, or only now and then.",
    "See its CPU limit; --profiling lets it serve /debug/pprof at its https port.",
    f"{_CHART}/configmapnew.yaml: httpTimeout",
    _MEDIUM,
)
NO_RIGHT = _scheduled(
    "HamiMayNotWrite",
    "HAMi's scheduler may not write its decisions to pods or nodes, so no pod is bound.",
    "Give its service account the rights of the chart's ClusterRole back.",
    f"{_SCHEDULER}, Bind",
)
WRITE_FAILS = _scheduled(
    "HamiWriteFails",
    "The API server or etcd fails on the writes of HAMi's scheduler at bind.",
    "Check the API server and etcd; HAMi tries again.",
    f"{_SCHEDULER}, Bind",
)
BIND_FAILS = _scheduled(
    "HamiBindingFails",
    "HAMi has found a node for the pod and can't bind it there.",
    "Read its reason.",
    f"{_SCHEDULER}, Bind: the event BindingFailed",
)
FILTERED_ONLY = _scheduled(
    "HamiFilteredNotBound",
    "HAMi has found a node with cards for the pod, and it is not bound: another rule of the scheduler's is in the way.",
    "Read the log of the container kube-scheduler in HAMi's scheduler pod for this pod.",
    f"{_SCHEDULER}: the event FilteringSucceed",
    _MEDIUM,
)

# Shortages on cards.
NODES_UNREGISTERED = _scheduled(
    "HamiKnowsNoNode",
    "HAMi's scheduler knows no cards of any node for the pod: it reports `node unregistered` for all of them.",
    "Bring HAMi's device plugin to the nodes, and see that it writes their registration.",
    "`node unregistered`, `node usage unavailable` in FailedScheduling",
)
MEMORY = _scheduled(
    "HamiCardMemoryShort",
    "No card has as much memory left as the pod asks of each.",
    "Ask for less nvidia.com/gpumem, free a card, or use nodes with larger cards.",
    "CardInsufficientMemory",
)
CORES = _scheduled(
    "HamiCardCoresShort",
    "No card has as many percent of its cores left as the pod asks of each.",
    "Ask for fewer nvidia.com/gpucores, or free a card.",
    "CardInsufficientCore, CardComputeUnitsExhausted",
)
SLOTS = _scheduled(
    "HamiCardSlotsTaken",
    "As many pods as may share a card share it already.",
    "End pods on the cards, or raise deviceSplitCount.",
    "CardTimeSlicingExhausted",
)
EXCLUSIVE = _scheduled(
    "HamiExclusiveConflict",
    "The pod needs unshared cards, and all are in use, or another pod uses a card exclusively.",
    "Wait for a whole card; or ask for nvidia.com/gpumem: without it a pod gets 100 gpucores, which is a card alone.",
    "ExclusiveDeviceAllocateConflict; the webhook writes gpucores=100 where no memory is asked for, since 2.7",
)
TOO_FEW_CARDS = _scheduled(
    "HamiTooFewCards",
    "The pod asks for more cards than one node has, or has with enough left: nvidia.com/gpu counts cards of one node.",
    "Ask for fewer cards in each container.",
    "NodeInsufficientDevice, AllocatedCardsInsufficientRequest",
)
CONSTRAINED = _scheduled(
    "HamiConstraintMatchesNoCard",
    "The pod's annotations want cards of a type, UUID or mode that no card there has.",
    "Correct the annotation: the types and UUIDs are those of hami.io/node-nvidia-register.",
    "CardTypeMismatch, CardUuidMismatch, ModeNotFit",
)
UNHEALTHY = _scheduled(
    "HamiCardUnhealthy",
    "Cards that the pod could have are registered as unhealthy.",
    "Check the GPUs of the node: their plugin observed an Xid, or NVML does not answer.",
    "CardNotHealth, CardUnhealthy",
)
CORDONED = _scheduled(
    "HamiCardCordoned",
    "Cards that the pod could have are cordoned: a person has named them in hami.io/device-cordon.",
    "Take them out of the annotation once they are well.",
    "CardCordoned, since 2.10",
    _MEDIUM,
)
NUMA = _scheduled(
    "HamiNumaNotFit",
    "The pod wants all its cards on one NUMA node, and none has as many with room.",
    "Take nvidia.com/numa-bind away, or ask for fewer cards.",
    "NumaNotFit",
)
MIG = _scheduled(
    "HamiMigNotFit",
    "No MIG profile of the cards is large enough for the pod's request.",
    "Ask for the size of a profile, or free a card whole.",
    "CardMigTopologyInfeasible, CardNotFoundCustomFilterRule",
)
UNFIT = _scheduled(
    "HamiNodeUnfit",
    "HAMi finds no card for the pod and does not log the reason at the present log level.",
    "Let the extender log at -v=5, and read its lines of this pod.",
    "NodeUnfitPod; `node not fit pod` in 2.5",
)

# From binding to the container.
NOT_SEEN = _accepted(
    "HamiNoBindingPod",
    "HAMi's device plugin was asked for a card for a pod that HAMi's scheduler has not placed.",
    "Find the reason why the pod did not reach HAMi's webhook, then create the pod again.",
    "HAMi, GetPendingPod: `no binding pod found on node`",
)
NUMBER = _accepted(
    "HamiDeviceNumberMismatch",
    "The kubelet asks HAMi's device plugin for another number of cards than the scheduler noted on the pod.",
    "Delete the pod, so that it is scheduled again; set nvidia.com/gpu as a limit only, and as a whole number.",
    f"{_PLUGIN}: `device number not matched`",
)
CARD_GONE = _accepted(
    "HamiAllocatedCardGone",
    "The card that HAMi's scheduler chose is not on the node any more, as its device plugin sees it.",
    "Check the node's cards, restart the device plugin's pod there, then delete the Failed pod.",
    f"{_PLUGIN}: `resolve allocated NVIDIA devices`",
)
ALLOCATION_HANGS = _accepted(
    "HamiAllocationHangs",
    "HAMi has bound the pod and marked it as allocating, and no device plugin has answered for it since.",
    "Check HAMi's device plugin on the node and the kubelet there; then delete the pod.",
    "the annotations hami.io/bind-phase=allocating and hami.io/bind-time",
)
ALLOCATION_FAILED = _accepted(
    "HamiAllocationFailed",
    "HAMi's device plugin has refused to give the pod the cards that the scheduler chose.",
    "Read the plugin's log on the node; then delete the pod.",
    "the annotation hami.io/bind-phase=failed",
)
NO_CONTROL = Cause(
    "HamiLimitsSwitchedOff",
    _LOW,
    None,
    "A container switches HAMi's limits off by CUDA_DISABLE_CONTROL: it may use the whole card that others share.",
    "Take the variable away unless it is meant so.",
    "HAMi-core is not loaded where CUDA_DISABLE_CONTROL=true",
)
LIBRARY = Cause(
    "HamiLibraryMissing",
    _HIGH,
    Link.RUNNING,
    (
        "HAMi's library is not at the path that the container loads it from: limits have no effect, or every "
        "program ends."
    ),
    (
        "Restart HAMi's device plugin on the node: at its start it copies the library to the host. Then create "
        "the pod again."
    ),
    "`libvgpu.so … cannot be preloaded`, written by ld.so",
)
