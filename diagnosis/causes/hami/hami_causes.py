"""Causes of this family: problems that keep a pod from its share of a card that HAMi manages."""

from __future__ import annotations

from diagnosis.causes.starting_causes import NODES
from diagnosis.model import CauseSeverity, Family, Link, Signature, TextSource, failing, rejecting


def _codes(*codes: str) -> Signature:
    """Return the codes by which HAMi's filter names the cause, including those for other vendors' cards."""
    return Signature("|".join(codes), "HAMi's scheduler", frozenset((TextSource.EVENT,)))


NO_DEVICES = ("NodeWithheld", "DevicePluginNotReady", "DevicePluginMissing", "GpusNotOffered", "UnhealthyGpus")
"""Causes that leave a kubelet without devices."""
_OF_NODE = tuple(cause.name for cause in NODES)
_WEBHOOK = "HAMi, pkg/scheduler/webhook.go"
_CHART = "HAMi's chart, templates/scheduler"
_PLUGIN = "HAMi, pkg/device-plugin/nvidiadevice/nvinternal/plugin"
_LOCK = "HAMi, pkg/util/nodelock"
_SCHEDULER = "HAMi, pkg/scheduler/scheduler.go"
_DEVICES = "HAMi, pkg/device/devices.go"

_fault = Family(None)
_admitted = Family(Link.ADMITTED)
_scheduled = Family(Link.SCHEDULED)
_accepted = Family(Link.ACCEPTED)
_running = Family(Link.RUNNING)

# The nodes.
PLUGIN_NOT_MEANT = _fault(
    "HamiPluginNotOnNode",
    "A GPU node has no HAMi device plugin, because it lacks the label that the plugin's DaemonSet selects.",
    "Label the node if HAMi should share its cards.",
    source="HAMi's chart, devicePlugin.nvidiaNodeSelector: gpu=on",
)
NOT_REGISTERED = _fault(
    "HamiNodeNotRegistered",
    "HAMi's device plugin runs on a node and has not registered its cards there: HAMi reports `node unregistered`.",
    "Read the plugin's log: it finds no card, or lacks the permission to write to the node.",
    source=f"{_DEVICES}; the annotation hami.io/node-nvidia-register",
)
REGISTER_STALE = _fault(
    "HamiRegistrationStale",
    "HAMi's state lists a node's cards although its device plugin no longer advertises them: the kubelet offers none.",
    "Restore HAMi's device plugin on the node.",
    source=f"{_DEVICES}; hami.io/node-nvidia-register and the node's allocatable nvidia.com/gpu",
    follows=("HamiDevicePluginNotReady", "HamiPluginNotOnNode", "UnhealthyGpus", "NodeWithheld", *_OF_NODE),
)
REGISTER_UNREADABLE = _fault(
    "HamiVersionSkew",
    "Nodes are registered in a format that the scheduler's version does not read: it knows none of their cards.",
    "Use one version for scheduler and device plugins. HAMi reads JSON since 2.8, its own text format up to 2.7.",
    source="HAMi 140b2cb5: the register's format changed with 2.8.0",
)
LOCK_STALE = _fault(
    "HamiNodeLockStale",
    "A node is locked for a pod that HAMi will not finish binding, so no other pod is bound there.",
    "Find out why the device plugin did not finish that pod, then remove the lock from the node.",
    severity=CauseSeverity.MEDIUM,
    source=f"{_LOCK}: the annotation hami.io/mutex.lock; five minutes unless scheduler.nodeLockExpire is set",
    follows=("HamiDevicePluginNotReady", "HamiRegistrationStale"),
)
CLOCK_APART = _fault(
    "HamiHandshakeClockApart",
    "HAMi up to 2.7 ignores a node with a working device plugin: their clocks or time zones differ.",
    "Run the scheduler pod in UTC and set the node's clock, or upgrade HAMi: 2.8 no longer uses the handshake.",
    source="HAMi 2.5 to 2.7 write the handshake in local time and read it as UTC",
)
PLUGIN_SILENT = _fault(
    "HamiPluginSilent",
    "A node's device plugin does not respond to the handshake of HAMi up to 2.7: HAMi allocates no card there.",
    "Restart the device plugin pod on the node.",
    source=f"{_DEVICES}; the annotation hami.io/node-handshake",
)

# The webhook and its back end.
WEBHOOK_MISSING = _fault(
    "HamiWebhookMissing",
    "HAMi's scheduler has no webhook that assigns pods to it: Kubernetes' scheduler gets all pods and knows no shares.",
    "Reinstall HAMi's chart with its admission webhook.",
    source=f"{_CHART}/webhook.yaml: the webhook vgpu.hami.io",
)
NO_CA = _fault(
    "HamiWebhookWithoutCa",
    "HAMi's webhook has no CA, so the API server can't trust it and never calls it.",
    "Find out why the chart's patch Job or cert-manager has not written the CA.",
    source=f"{_CHART}/job-patch, certmanager.yaml",
)
CERTIFICATE_EXPIRED = _fault(
    "HamiWebhookCaExpired",
    "The CA of HAMi's webhook has expired: the API server no longer calls the webhook.",
    "Create a new certificate with the chart's Jobs or cert-manager, then restart the scheduler pods.",
    source=f"{_CHART}/webhook.yaml, caBundle",
)
PATCH_FAILED = _fault(
    "HamiCertificateJobFailed",
    "A Job of HAMi's chart failed: it creates the webhook's certificate, or registers it with the API server.",
    "Read the Job's log, fix its error, and upgrade the release again.",
    source=f"{_CHART}/job-patch",
)
NO_LEADER = _fault(
    "HamiSchedulerWithoutEndpoints",
    "HAMi's Service has no endpoint although its scheduler runs: webhook calls fail.",
    "Find out why no pod became the leader: only the leader has the label hami.io/scheduler-role=leader.",
    source=f"{_CHART}/service.yaml",
)
IGNORED = _admitted(
    "HamiWebhookIgnored",
    "GPU pods do not reach HAMi's webhook, because of a label or its selector: Kubernetes' scheduler schedules them.",
    "Remove the label, or change the webhook's selector; then create the pods again.",
    source="the label hami.io/webhook=ignore; namespaceSelector and objectSelector of the webhook",
)
OTHER_SCHEDULER = _admitted(
    "HamiOtherScheduler",
    "A workload names another scheduler, and HAMi's webhook does not replace it: its pods get no card.",
    "Remove schedulerName from the pod template, or set HAMi's scheduler there.",
    source=f"{_WEBHOOK}: `pod already has different scheduler assigned`, since 2.7",
)
PRIVILEGED = _admitted(
    "HamiSkipsPrivileged",
    "A container that requests GPUs is privileged: HAMi up to 2.9 ignores it, HAMi since 2.10 refuses the pod.",
    "Remove privileged from the container's securityContext: card limits have no effect on privileged containers.",
    source=f"{_WEBHOOK}: `container … is privileged`",
)
MISSED = _admitted(
    "HamiWebhookMissed",
    "GPU pods were created while HAMi's webhook did not respond; failurePolicy Ignore let them pass unchanged.",
    "When the webhook responds again, delete the pods: their controller creates new ones, which pass the webhook.",
    source="failurePolicy: Ignore of the webhook vgpu.hami.io, the chart's default",
)
NODE_NAMED = _admitted(
    "HamiNodeNamed",
    "A GPU workload sets nodeName, which bypasses HAMi's scheduler: HAMi's webhook or device plugin refuses the pods.",
    "Remove nodeName from the pod template, and select the node by a nodeSelector.",
    rejecting(r"do not use nodeName in task spec", _PLUGIN),
    source=f"{_WEBHOOK}: `pod has node assigned`, since 2.6; `do not use nodeName in task spec` before",
)
QUOTA = _admitted(
    "HamiQuotaExceeded",
    "The namespace has used up its ResourceQuota of card memory or cores, as HAMi counts it.",
    "Delete pods of the namespace, request less, or raise the quota.",
    _codes("ResourceQuotaNotFit"),
    source="HAMi counts limits.nvidia.com/gpumem and limits.nvidia.com/gpucores of a ResourceQuota itself",
)

# The scheduler.
EXTENDER = _scheduled(
    "HamiExtenderUnreachable",
    "kube-scheduler in HAMi's pod gets no response from HAMi's extender, so it schedules no GPU pod.",
    "Check the container vgpu-scheduler-extender: its restarts and its log.",
    source=f"{_CHART}/configmapnew.yaml: urlPrefix of the extender",
)
EXTENDER_SLOW = _scheduled(
    "HamiExtenderSlow",
    "HAMi's extender responds to kube-scheduler too late, so pods are not scheduled, or only sometimes.",
    "Check its CPU limit; with --profiling it serves /debug/pprof on its https port.",
    severity=CauseSeverity.MEDIUM,
    source=f"{_CHART}/configmapnew.yaml: httpTimeout",
)
NO_RIGHT = _scheduled(
    "HamiMayNotWrite",
    "HAMi's scheduler lacks the permission to write to pods or nodes, so no pod is bound.",
    "Restore its service account's permissions from the chart's ClusterRole.",
    source=f"{_SCHEDULER}, Bind",
)
WRITE_FAILS = _scheduled(
    "HamiWriteFails",
    "The API server or etcd rejects the writes of HAMi's scheduler at binding.",
    "Check the API server and etcd; HAMi retries.",
    source=f"{_SCHEDULER}, Bind",
)
BIND_FAILS = _scheduled(
    "HamiBindingFails",
    "HAMi has found a node for the pod but can't bind it there.",
    "Read the reason in its message.",
    source=f"{_SCHEDULER}, Bind: the event BindingFailed",
)
FILTERED_ONLY = _scheduled(
    "HamiFilteredNotBound",
    "HAMi has found a node with cards for the pod, but another scheduler rule prevents the binding.",
    "Read the log of the container kube-scheduler in HAMi's scheduler pod for this pod.",
    severity=CauseSeverity.MEDIUM,
    source=f"{_SCHEDULER}: the event FilteringSucceed",
)

# Shortages on cards.
NODES_UNREGISTERED = _scheduled(
    "HamiKnowsNoNode",
    "HAMi's scheduler knows no node with cards for the pod: it reports `node unregistered` for all of them.",
    "Run HAMi's device plugin on the nodes, and check that it writes their registration.",
    source="`node unregistered`, `node usage unavailable` in FailedScheduling",
)
MEMORY = _scheduled(
    "HamiCardMemoryShort",
    "No card has as much free memory as the pod requests of each card.",
    "Request less nvidia.com/gpumem, free a card, or use nodes with larger cards.",
    _codes("CardInsufficientMemory"),
    source="CardInsufficientMemory",
)
CORES = _scheduled(
    "HamiCardCoresShort",
    "No card has as many free cores (in percent) as the pod requests of each card.",
    "Request fewer nvidia.com/gpucores, or free a card.",
    _codes("CardInsufficientCore", "CardComputeUnitsExhausted"),
    source="CardInsufficientCore, CardComputeUnitsExhausted",
)
SLOTS = _scheduled(
    "HamiCardSlotsTaken",
    "The cards are already shared by the maximum number of pods.",
    "Delete pods on the cards, or raise deviceSplitCount.",
    _codes("CardTimeSlicingExhausted"),
    source="CardTimeSlicingExhausted",
)
EXCLUSIVE = _scheduled(
    "HamiExclusiveConflict",
    "The pod needs unshared cards, and all are in use, or another pod uses a card exclusively.",
    "Wait for a whole card; or request nvidia.com/gpumem: without it a pod gets 100 gpucores, an unshared card.",
    _codes("ExclusiveDeviceAllocateConflict"),
    source="ExclusiveDeviceAllocateConflict; since 2.7 the webhook writes gpucores=100 if no memory is requested",
)
TOO_FEW_CARDS = _scheduled(
    "HamiTooFewCards",
    "The pod requests more cards than one node has, or has with enough free: nvidia.com/gpu counts cards of one node.",
    "Request fewer cards in each container.",
    _codes("NodeInsufficientDevice", "AllocatedCardsInsufficientRequest"),
    source="NodeInsufficientDevice, AllocatedCardsInsufficientRequest",
)
CONSTRAINED = _scheduled(
    "HamiConstraintMatchesNoCard",
    "The pod's annotations require a card type, UUID or mode that no card has.",
    "Correct the annotation: the types and UUIDs are those of hami.io/node-nvidia-register.",
    _codes("CardTypeMismatch", "CardUuidMismatch", "ModeNotFit", "CardQosPolicyMismatch", "CardAppClassMismatch"),
    source="CardTypeMismatch, CardUuidMismatch, ModeNotFit",
)
UNHEALTHY = _scheduled(
    "HamiCardUnhealthy",
    "Suitable cards are registered as unhealthy.",
    "Check the GPUs of the node: their plugin observed an Xid, or NVML does not respond.",
    _codes("CardNotHealth", "CardUnhealthy"),
    source="CardNotHealth, CardUnhealthy",
    follows=("HamiRegistrationStale", "UnhealthyGpus", "NodeWithheld"),
)
CORDONED = _scheduled(
    "HamiCardCordoned",
    "Suitable cards are cordoned: they are listed in hami.io/device-cordon.",
    "Remove them from the annotation when they are healthy.",
    _codes("CardCordoned"),
    severity=CauseSeverity.MEDIUM,
    source="CardCordoned, since 2.10",
)
NUMA = _scheduled(
    "HamiNumaNotFit",
    "The pod requires all its cards on one NUMA node, and no NUMA node has enough free cards.",
    "Remove nvidia.com/numa-bind, or request fewer cards.",
    _codes("NumaNotFit"),
    source="NumaNotFit",
)
MIG = _scheduled(
    "HamiMigNotFit",
    "No MIG profile of the cards is large enough for the pod's request.",
    "Request the size of a profile, or free a whole card.",
    _codes("CardNotFoundCustomFilterRule", "CardMigTopologyInfeasible"),
    source="CardMigTopologyInfeasible, CardNotFoundCustomFilterRule",
)
UNFIT = _scheduled(
    "HamiNodeUnfit",
    "HAMi finds no card for the pod and does not log the reason at the current log level.",
    "Set the extender's log level to -v=5, and read its lines about this pod.",
    source="NodeUnfitPod; `node not fit pod` in 2.5",
)

# From binding to the container.
NOT_SEEN = _accepted(
    "HamiNoBindingPod",
    "HAMi's device plugin got a card request for a pod that HAMi's scheduler has not bound.",
    "Find out why the pod did not reach HAMi's webhook, then create the pod again.",
    rejecting(r"no binding pod found on node|no node lock naming a pending pod", _PLUGIN),
    source="HAMi, GetPendingPod: `no binding pod found on node`",
)
NUMBER = _accepted(
    "HamiDeviceNumberMismatch",
    "The kubelet requests another number of cards from HAMi's device plugin than the scheduler noted on the pod.",
    "Delete the pod, so that it is scheduled again; set nvidia.com/gpu as a limit only, and as a whole number.",
    rejecting(r"device number not matched", _PLUGIN),
    source=f"{_PLUGIN}: `device number not matched`",
)
CARD_GONE = _accepted(
    "HamiAllocatedCardGone",
    "HAMi's device plugin no longer finds the card that HAMi's scheduler chose.",
    "Check the node's cards, restart the device plugin pod there, then delete the Failed pod.",
    rejecting(r"resolve allocated NVIDIA devices", _PLUGIN),
    source=f"{_PLUGIN}: `resolve allocated NVIDIA devices`",
    of_node=True,
    follows=NO_DEVICES,
)
ALLOCATION_HANGS = _accepted(
    "HamiAllocationHangs",
    "HAMi has bound the pod and marked it as allocating, but no device plugin has finished the allocation.",
    "Check HAMi's device plugin on the node and the kubelet there; then delete the pod.",
    source="the annotations hami.io/bind-phase=allocating and hami.io/bind-time",
    follows=("HamiDevicePluginNotReady", "HamiRegistrationStale", *_OF_NODE),
)
ALLOCATION_FAILED = _accepted(
    "HamiAllocationFailed",
    "HAMi's device plugin refused to allocate the cards that the scheduler chose.",
    "Read the plugin's log on the node; then delete the pod.",
    source="the annotation hami.io/bind-phase=failed",
)
NO_CONTROL = _fault(
    "HamiLimitsSwitchedOff",
    "A container disables HAMi's limits by CUDA_DISABLE_CONTROL: it may use the whole card that others share.",
    "Remove the variable unless it is intended.",
    severity=CauseSeverity.LOW,
    source="HAMi-core is not loaded where CUDA_DISABLE_CONTROL=true",
)
LIBRARY = _running(
    "HamiLibraryMissing",
    "HAMi's library is missing at the path from which the container loads it: limits have no effect, or every "
    "program ends.",
    "Restart HAMi's device plugin on the node: at its start it copies the library to the host. Then create "
    "the pod again.",
    failing(
        r"libvgpu\.so[^\n]{0,120}(?:cannot be preloaded|cannot open shared object)"
        r"|while loading shared libraries: libvgpu\.so",
        "ld.so, of HAMi's library",
    ),
    source="`libvgpu.so … cannot be preloaded`, written by ld.so",
)
