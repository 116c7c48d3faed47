"""A pod, or a pod template, as the API shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from typing import Annotated, TypeVar

from msgspec import Struct, field

from gpu_healthcheck.diagnosis.snapshot.hami_pod import (
    CardOptions,
    ContainerShare,
    PodGrant,
    read_card_options,
    read_grant,
)
from gpu_healthcheck.diagnosis.snapshot.meta import ApiObject, object_name, read_object
from gpu_healthcheck.healthcheck.node.label_selector import Expression
from gpu_healthcheck.healthcheck.text.boundary import (
    At,
    Moment,
    Text,
    by_name,
    each,
    entries,
    is_there,
    names,
    read,
    text,
    text_or_none,
    value_at,
)

VISIBLE_DEVICES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_DEVICES = re.compile(r"(?:all|none|void|no|-1|(?:\d{1,3}|(?:GPU|MIG)-[0-9a-zA-Z/-]{1,60})(?:,|\Z))*\Z", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=-]{0,200}\Z", re.ASCII)
_OF_COMPONENTS = frozenset(
    (
        *("RUNTIME", "RUNTIME_CONFIG", "RUNTIME_SOCKET", "RUNTIME_DROP_IN_CONFIG", "RUNTIME_DROP_IN_CONFIG_HOST_PATH"),
        *("RUNTIME_CONFIG_SOURCE", "RUNTIME_EXECUTABLE_PATH", "RUNTIME_RESTART_MODE", "CRIO_CONFIG_MODE"),
        *("CONTAINERD_CONFIG", "CONTAINERD_SOCKET", "CONTAINERD_RUNTIME_CLASS", "CONTAINERD_SET_AS_DEFAULT"),
        *(
            "NVIDIA_RUNTIME_NAME",
            "NVIDIA_RUNTIME_SET_AS_DEFAULT",
            "DEVICE_LIST_STRATEGY",
            "MIG_STRATEGY",
            "CDI_ENABLED",
        ),
        *("FAIL_ON_INIT_ERROR", "PASS_DEVICE_SPECS", "NVIDIA_DRIVER_ROOT", "CONTAINER_DRIVER_ROOT"),
        *("CONFIG_FILE", "DEFAULT_CONFIG"),
    )
)
"""Variables with settings of NVIDIA's components: paths and words."""
_LIMITS = frozenset(
    (
        *("CUDA_DISABLE_CONTROL", "GPU_CORE_UTILIZATION_POLICY", "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT"),
        *(f"CUDA_DEVICE_MEMORY_LIMIT_{card}" for card in range(64)),
    )
)
_LIMIT = re.compile(r"(?:true|false|default|force|disable|\d{1,9}[kmg]?)\Z", re.ASCII | re.IGNORECASE)
"""Variables by which HAMi's library limits a container to its share."""
HAMI_EXTENDER = "vgpu-scheduler-extender"
"""Container of which some flags of the command line are read."""
_LOCK_EXPIRE = "HAMI_NODELOCK_EXPIRE"
_FLAGS = frozenset(
    (
        *("node-scheduler-policy", "gpu-scheduler-policy", "scheduler-name"),
        *("node-label-selector", "node-lock-timeout"),
    )
)
_CONFIG_FILE = frozenset(("config-file",))
"""Flag of NVIDIA's device plugin, whose container has the plugin's name."""
_MOST_WORDS = 100
_SHOWN = _OF_COMPONENTS.union(VISIBLE_DEVICES, _LIMITS, (_LOCK_EXPIRE,))
OTHER_VALUE = "(set)"
_Part = TypeVar("_Part", bound=Struct)


class Toleration(Struct, frozen=True):
    """Toleration of a pod."""

    key: str = ""
    operator: Annotated[str, text_or_none] = "Equal"
    value: str = ""
    effect: str = ""


class Probe(Struct, frozen=True):
    """Probe by which the kubelet decides to restart a container. The defaults are those of Kubernetes."""

    delay: Annotated[int, At("initialDelaySeconds")] = 0
    period: Annotated[int, At("periodSeconds")] = 10
    failures: Annotated[int, At("failureThreshold")] = 3

    def __str__(self) -> str:
        """Format as `failureThreshold 3 x periodSeconds 10 = 30 s`."""
        delay = f"initialDelaySeconds {self.delay} + " if self.delay else ""
        whole = self.delay + self.failures * self.period
        return f"{delay}failureThreshold {self.failures} x periodSeconds {self.period} = {whole} s"


class Container(Struct, frozen=True):
    """Container of a pod. `init`: whether it is one of the init containers."""

    name: str = ""
    image: Annotated[str, partial(text, longest=1024)] = ""
    init: Annotated[bool, At()] = False
    restart_policy: Annotated[str, At("restartPolicy")] = ""
    requests: Annotated[Mapping[str, str], At("resources.requests")] = field(default_factory=dict)
    limits: Annotated[Mapping[str, str], At("resources.limits")] = field(default_factory=dict)
    env: Annotated[Mapping[str, str], _env] = field(default_factory=dict)
    """Values by name, as `shown_value` returns them."""
    privileged: Annotated[bool, At("securityContext.privileged")] = False
    claims: Annotated[tuple[str, ...], At("resources.claims"), names] = ()
    """Names of the pod's resource claims that the container uses."""
    startup: Annotated[Probe | None, At("startupProbe")] = None
    liveness: Annotated[Probe | None, At("livenessProbe")] = None
    flags: Annotated[Mapping[str, str], At(""), _flags] = field(default_factory=dict)
    """Known flags of its command line, from `shown_flags`."""

    @property
    def sidecar(self) -> bool:
        """Whether it is an init container that keeps running in parallel with the others."""
        return self.init and self.restart_policy == "Always"


class ContainerEnd(Struct, frozen=True):
    """End of a container. `exit_code` is None if it is unknown."""

    reason: str = ""
    exit_code: Annotated[int | None, At("exitCode")] = None
    message: Text = ""
    at: Annotated[Moment, At("finishedAt")] = None
    started: Annotated[Moment, At("startedAt")] = None


class AllocatedDevice(Struct, frozen=True):
    """A device of a container, as the kubelet reports it (by feature gate until Kubernetes 1.36).

    `resource` is `nvidia.com/gpu`, or `claim:NAME/REQUEST`. `name` is the device plugin's ID, as `GPU-…` or `GPU-…::0`,
    or `driver/pool/device`. `health` is `Healthy`, `Unhealthy` or `Unknown`.
    """

    resource: Annotated[str, At()] = ""
    name: Annotated[str, At("resourceID")] = ""
    health: str = ""
    message: Text = ""


class ContainerState(Struct, frozen=True):
    """Present state of a container. At most one of `waiting` ('' for none), `running`, `ended` is set."""

    name: str = ""
    init: Annotated[bool, At()] = False
    ready: bool = False
    restarts: Annotated[int, At("restartCount")] = 0
    waiting: Annotated[str, At("state.waiting.reason")] = ""
    """Reason for waiting, such as `ContainerCreating` or `CrashLoopBackOff`."""
    message: Annotated[Text, At("state.waiting.message")] = ""
    running: Annotated[bool, At("state.running"), is_there] = False
    started: Annotated[Moment, At("state.running.startedAt")] = None
    ended: Annotated[ContainerEnd | None, At("state.terminated"), _end] = None
    last_ended: Annotated[ContainerEnd | None, At("lastState.terminated"), _end] = None
    devices: Annotated[tuple[AllocatedDevice, ...], At("allocatedResourcesStatus"), _devices] = ()


class Condition(Struct, frozen=True):
    """Condition of an object."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: Text = ""
    since: Annotated[Moment, At("lastTransitionTime")] = None

    def __str__(self) -> str:
        """Format as `Ready=False, KubeletNotReady: container runtime is down`."""
        return f"{self.type}={self.status}, {self.reason}: {self.message}"


def condition_in(conditions: Iterable[Condition], kind: str, status: str = "") -> Condition | None:
    """Return the condition of this type, if it has the status; '' for any."""
    return next((one for one in conditions if one.type == kind and status in ("", one.status)), None)


Conditions = Annotated[tuple[Condition, ...], At("status.conditions")]


class SchedulingGroup(Struct, frozen=True):
    """Group of pods that Kubernetes schedules together: a PodGroup, or in 1.35 a group within a Workload.

    `replica`: replicas of one group are scheduled independently of each other.
    """

    kind: str = "Workload"
    name: str = ""
    within: Annotated[str, At("podGroup")] = ""
    replica: Annotated[str, At("podGroupReplicaKey")] = ""


class PodSpec(Struct, frozen=True):
    """Specification of a pod, or of a workload's pod template."""

    containers: Annotated[tuple[Container, ...], At(""), _containers] = ()
    """Init containers first, then the others."""
    node: Annotated[str, At("nodeName"), object_name] = ""
    """Name of its node; '' before it is bound."""
    scheduler: Annotated[str, At("schedulerName")] = ""
    runtime_class: Annotated[str, At("runtimeClassName")] = ""
    priority_class: Annotated[str, At("priorityClassName")] = ""
    gates: Annotated[tuple[str, ...], At("schedulingGates"), names] = ()
    node_selector: Annotated[Mapping[str, str], At("nodeSelector")] = field(default_factory=dict)
    affinity: Annotated[tuple[tuple[Expression, ...], ...] | None, At(_REQUIRED_TERMS), read_terms] = None
    """Node affinity terms, one of which must hold; None without terms. `metadata.name` is a key too."""
    tolerations: tuple[Toleration, ...] = ()
    overhead: Mapping[str, str] = field(default_factory=dict)
    claims: Annotated[Mapping[str, str], At("resourceClaims"), _CLAIM_SOURCES] = field(default_factory=dict)
    """Names of its resource claims, each with its ResourceClaim or ResourceClaimTemplate."""
    volume_claims: Annotated[tuple[str, ...], At("volumes"), _volume_claims] = ()
    host_volumes: Annotated[Mapping[str, str], At("volumes"), _host_volumes] = field(default_factory=dict)
    """Mounted host paths by volume name."""
    host_network: Annotated[bool, At("hostNetwork")] = False
    service_account: Annotated[str, At("serviceAccountName")] = ""
    deadline: Annotated[bool, At("activeDeadlineSeconds"), is_there] = False
    """Whether it has an active deadline; quotas call such pods Terminating."""
    group: Annotated[SchedulingGroup | None, At("schedulingGroup", "workloadRef"), _group] = None
    restart_policy: Annotated[str, At("restartPolicy")] = ""

    @property
    def host_paths(self) -> tuple[str, ...]:
        return tuple(self.host_volumes.values())


class Pod(ApiObject, frozen=True, dict=True):
    """Pod with its state. `states`: init containers first, then the others."""

    spec: PodSpec = field(default_factory=PodSpec)
    phase: Annotated[str, At("status.phase")] = ""
    reason: Annotated[str, At("status.reason")] = ""
    message: Annotated[Text, At("status.message")] = ""
    started: Annotated[Moment, At("status.startTime")] = None
    conditions: Conditions = ()
    states: Annotated[tuple[ContainerState, ...], At("status"), _states] = ()
    claim_names: Annotated[Mapping[str, str], At("status.resourceClaimStatuses"), _CLAIM_NAMES] = field(
        default_factory=dict
    )
    """ResourceClaim created for each of its resource claims."""
    address: Annotated[str, At("status.podIP")] = ""
    nominated: Annotated[str, At("status.nominatedNodeName")] = ""

    @cached_property
    def grant(self) -> PodGrant | None:
        """Return the cards that HAMi's scheduler assigned; None if it has not processed the pod."""
        return read_grant(self.meta.annotations)

    @cached_property
    def card_options(self) -> CardOptions:
        """Return the options of cards that the pod requests from HAMi."""
        return read_card_options(self.meta.annotations)

    @property
    def over(self) -> bool:
        """Whether the whole pod has ended: it owns no resources any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def shares(self) -> tuple[ContainerShare, ...]:
        """Return HAMi's shares of NVIDIA cards that all containers were given."""
        return self.grant.shares if self.grant is not None else ()

    def condition(self, kind: str) -> Condition | None:
        return condition_in(self.conditions, kind)


def read_pod(raw: object) -> Pod:
    """Read a Pod. Raises ValueError if it has no name, or a value of the wrong type."""
    return read_object(Pod, "Pod", raw)


def shown_value(variable: str, value: str) -> str:
    """Return the value of a variable that names devices or configures a component; else `(set)`.

    Any other variable may be a secret: its value is neither kept nor saved.
    """
    if variable in VISIBLE_DEVICES:
        return value if _DEVICES.match(value) else OTHER_VALUE
    if variable in _LIMITS:
        return value if _LIMIT.match(value) else OTHER_VALUE
    known = variable in _OF_COMPONENTS or variable == _LOCK_EXPIRE
    return value if known and _PLAIN.match(value) else OTHER_VALUE


def shown_flags(container: str, words: Iterable[str]) -> dict[str, str]:
    """Return, by name, the flags of HAMi's extender and NVIDIA's device plugin that are known; others may be secret."""
    known = _flags_of(container)
    if not known:
        return {}
    found, before = {}, ""
    for word in islice(words, _MOST_WORDS):
        name, has_value, value = word.lstrip("-").partition("=")
        if before and not word.startswith("-"):
            name, has_value, value = before, "=", word
        before = name if word.startswith("-") and not has_value else ""
        if has_value and name in known and _PLAIN.match(value):
            found[name] = value
    return found


def _flags_of(container: str) -> frozenset[str]:
    return _FLAGS if container == HAMI_EXTENDER else _CONFIG_FILE if "device-plugin" in container else frozenset()


_REQUIRED_TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_CLAIM_SOURCES = by_name("name", "resourceClaimName", "resourceClaimTemplateName")
_CLAIM_NAMES = by_name("name", "resourceClaimName")


def read_terms(value: object) -> tuple[tuple[Expression, ...], ...]:
    """Read the terms of a node selector. In each term, all expressions must hold."""
    return each(_term, value)


def _term(value: object) -> tuple[Expression, ...]:
    return tuple(
        read(Expression, entry)
        for key in ("matchExpressions", "matchFields")
        for entry in entries(value_at(value, key))
    )


def _containers(spec: object) -> tuple[Container, ...]:
    return tuple(_marked(Container, spec, "initContainers", "containers"))


def _states(status: object) -> tuple[ContainerState, ...]:
    return tuple(_marked(ContainerState, status, "initContainerStatuses", "containerStatuses"))


def _marked(kind: type[_Part], parent: object, of_init: str, of_others: str) -> Iterator[_Part]:
    """Yield the entries of both lists, with a mark for init containers."""
    for key in (of_init, of_others):
        for entry in entries(value_at(parent, key)):
            yield read(kind, entry, init=key == of_init)


def _env(value: object) -> dict[str, str]:
    # Most variables of a cluster are not relevant: their values are not even read.
    names = ((text(value_at(entry, "name") or ""), entry) for entry in entries(value))
    return {
        name: shown_value(name, text(value_at(entry, "value") or "")) if name in _SHOWN else OTHER_VALUE
        for name, entry in names
    }


def _flags(container: object) -> dict[str, str]:
    name = text(value_at(container, "name") or "")
    if not _flags_of(name):
        return {}
    return shown_flags(name, [text(word) for key in ("command", "args") for word in entries(value_at(container, key))])


def _end(value: object) -> ContainerEnd | None:
    end = read(ContainerEnd, value)
    return end if end.reason or end.exit_code is not None else None


def _devices(value: object) -> tuple[AllocatedDevice, ...]:
    return tuple(
        read(AllocatedDevice, device, resource=text(value_at(resource, "name") or ""))
        for resource in entries(value)
        for device in entries(value_at(resource, "resources"))
    )


def _volume_claims(value: object) -> tuple[str, ...]:
    names = (value_at(entry, "persistentVolumeClaim", "claimName") for entry in entries(value))
    return tuple(text(name) for name in names if name)


def _host_volumes(value: object) -> dict[str, str]:
    paths = ((value_at(entry, "name"), value_at(entry, "hostPath", "path")) for entry in entries(value))
    return {text(name or ""): text(path) for name, path in paths if path is not None}


def _group(value: object) -> SchedulingGroup | None:
    if name := value_at(value, "podGroupName"):
        return SchedulingGroup("PodGroup", text(name))
    return read(SchedulingGroup, value) if value_at(value, "name") is not None else None
