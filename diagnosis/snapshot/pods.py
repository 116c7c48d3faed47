"""A pod, or a pod template, as the API shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice

from msgspec import Struct, field

from diagnosis.snapshot.hami_pod import CardOptions, ContainerShare, PodGrant, read_card_options, read_grant
from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.meta import Meta, read_meta

VISIBLE_DEVICES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_DEVICES = re.compile(r"(?:all|none|void|no|-1|(?:\d{1,3}|(?:GPU|MIG)-[0-9a-zA-Z/-]{1,60})(?:,|\Z))*\Z", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=-]{0,200}\Z", re.ASCII)
_OF_COMPONENTS = frozenset(
    (
        *("RUNTIME", "RUNTIME_CONFIG", "RUNTIME_SOCKET", "RUNTIME_DROP_IN_CONFIG", "RUNTIME_DROP_IN_CONFIG_HOST_PATH"),
        *("RUNTIME_CONFIG_SOURCE", "RUNTIME_EXECUTABLE_PATH", "RUNTIME_RESTART_MODE"),
        *("CONTAINERD_CONFIG", "CONTAINERD_SOCKET", "CONTAINERD_RUNTIME_CLASS", "CONTAINERD_SET_AS_DEFAULT"),
        *(
            "NVIDIA_RUNTIME_NAME",
            "NVIDIA_RUNTIME_SET_AS_DEFAULT",
            "DEVICE_LIST_STRATEGY",
            "MIG_STRATEGY",
            "CDI_ENABLED",
        ),
        *("FAIL_ON_INIT_ERROR", "PASS_DEVICE_SPECS", "NVIDIA_DRIVER_ROOT", "CONTAINER_DRIVER_ROOT"),
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
"""Only container whose command line is read, and only some flags of it."""
_LOCK_EXPIRE = "HAMI_NODELOCK_EXPIRE"
_FLAGS = frozenset(
    (
        *("node-scheduler-policy", "gpu-scheduler-policy", "scheduler-name"),
        *("node-label-selector", "node-lock-timeout"),
    )
)
_MOST_WORDS = 100
_SHOWN = _OF_COMPONENTS.union(VISIBLE_DEVICES, _LIMITS, (_LOCK_EXPIRE,))
OTHER_VALUE = "(set)"


class Expression(Struct, frozen=True):
    """One term of a selector: `key operator values`."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def takes(self, value: str | None) -> bool:
        """Whether the key may have this value; None if the key is absent. An unknown operator matches nothing."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return False

    def __str__(self) -> str:
        """Format as `team is a or b`."""
        match self.operator:
            case "In":
                return f"{self.key} is {' or '.join(self.values)}"
            case "NotIn":
                return f"{self.key} is not {' or '.join(self.values)}"
            case "Exists":
                return f"{self.key} is present"
            case "DoesNotExist":
                return f"{self.key} is absent"
        return f"{self.key} {self.operator} {', '.join(self.values)}".strip()


class Toleration(Struct, frozen=True):
    """Toleration of a pod."""

    key: str
    operator: str
    value: str
    effect: str


class Container(Struct, frozen=True):
    """Container of a pod. `sidecar`: an init container that keeps running in parallel with the others.

    `env`: values by name, as `shown_value` returns them.
    """

    name: str
    image: str = ""
    init: bool = False
    sidecar: bool = False
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False
    claims: tuple[str, ...] = ()
    """Names of the pod's resource claims that the container uses."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Flags of HAMi's extender, from `shown_flags`."""


class ContainerEnd(Struct, frozen=True):
    """End of a container. `exit_code` is None if it is unknown."""

    reason: str
    exit_code: int | None
    message: str
    at: datetime | None


class AllocatedDevice(Struct, frozen=True):
    """A device of a container, as the kubelet reports it (by feature gate until Kubernetes 1.36).

    `resource` is `nvidia.com/gpu`, or `claim:NAME/REQUEST`. `name` is the device plugin's ID, as `GPU-…` or `GPU-…::0`,
    or `driver/pool/device`. `health` is `Healthy`, `Unhealthy` or `Unknown`.
    """

    resource: str
    name: str
    health: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True):
    """Present state of a container. At most one of `waiting` ('' for none), `running`, `ended` is set."""

    name: str
    init: bool = False
    ready: bool = False
    restarts: int = 0
    waiting: str = ""
    """Reason for waiting, such as `ContainerCreating` or `CrashLoopBackOff`."""
    message: str = ""
    running: bool = False
    started: datetime | None = None
    ended: ContainerEnd | None = None
    last_ended: ContainerEnd | None = None
    devices: tuple[AllocatedDevice, ...] = ()


class Condition(Struct, frozen=True):
    """Condition of a pod or workload."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None

    def __str__(self) -> str:
        """Format as `Ready=False, KubeletNotReady: container runtime is down`."""
        return f"{self.type}={self.status}, {self.reason}: {self.message}"


class SchedulingGroup(Struct, frozen=True):
    """Group of pods that Kubernetes schedules together: a PodGroup, or in 1.35 a group within a Workload.

    `replica`: replicas of one group are scheduled independently of each other.
    """

    kind: str
    name: str
    within: str = ""
    replica: str = ""


class PodSpec(Struct, frozen=True):
    """Specification of a pod, or of a workload's pod template."""

    containers: tuple[Container, ...] = ()
    node: str = ""
    """Name of its node; '' before it is bound."""
    scheduler: str = ""
    runtime_class: str = ""
    priority_class: str = ""
    gates: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[tuple[Expression, ...], ...] | None = None
    """Node affinity terms, one of which must hold; None without terms. `metadata.name` is a key too."""
    tolerations: tuple[Toleration, ...] = ()
    overhead: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    """Names of its resource claims, each with its ResourceClaim or ResourceClaimTemplate."""
    volume_claims: tuple[str, ...] = ()
    host_volumes: Mapping[str, str] = field(default_factory=dict)
    """Mounted host paths by volume name."""
    host_network: bool = False
    service_account: str = ""
    deadline: bool = False
    """Whether it has an active deadline; quotas call such pods Terminating."""
    group: SchedulingGroup | None = None
    restart_policy: str = ""

    @property
    def host_paths(self) -> tuple[str, ...]:
        return tuple(self.host_volumes.values())


class Pod(Struct, frozen=True):
    """Pod with its state. `states`: init containers first, then the others."""

    meta: Meta
    spec: PodSpec
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    states: tuple[ContainerState, ...] = ()
    claim_names: Mapping[str, str] = field(default_factory=dict)
    """ResourceClaim created for each of its resource claims."""
    nominated: str = ""
    grant: PodGrant | None = None
    """Cards that HAMi's scheduler assigned; None if it has not processed the pod."""
    card_options: CardOptions = field(default_factory=CardOptions)

    @property
    def subject(self) -> str:
        return self.meta.subject

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


def condition_in(conditions: Iterable[Condition], kind: str, status: str = "") -> Condition | None:
    """Return the condition of this type, if it has the status; '' for any."""
    return next((one for one in conditions if one.type == kind and status in ("", one.status)), None)


def read_pod(raw: Fields) -> Pod:
    """Read a Pod. Raises ValueError if it has no name."""
    meta = read_meta("Pod", raw)
    states = (*_states(raw, "initContainerStatuses"), *_states(raw, "containerStatuses"))
    return Pod(
        meta,
        read_spec(raw.at("spec")),
        raw.text("status", "phase"),
        raw.text("status", "reason"),
        raw.message("status", "message"),
        read_conditions(raw),
        states,
        {each.text("name"): each.text("resourceClaimName") for each in raw.each("status", "resourceClaimStatuses")},
        raw.text("status", "nominatedNodeName"),
        read_grant(meta.annotations),
        read_card_options(meta.annotations),
    )


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
    """Return, by name, the flags with scheduling options of HAMi's extender; others may be secret."""
    if container != HAMI_EXTENDER:
        return {}
    found, before = {}, ""
    for word in islice(words, _MOST_WORDS):
        name, has_value, value = word.lstrip("-").partition("=")
        if before and not word.startswith("-"):
            name, has_value, value = before, "=", word
        before = name if word.startswith("-") and not has_value else ""
        if has_value and name in _FLAGS and _PLAIN.match(value):
            found[name] = value
    return found


def read_conditions(raw: Fields) -> tuple[Condition, ...]:
    """Read the `status.conditions` of any object."""
    return tuple(
        Condition(
            fields.text("type"),
            fields.text("status"),
            fields.text("reason"),
            fields.message("message"),
            fields.moment("lastTransitionTime"),
        )
        for fields in raw.each("status", "conditions")
    )


def read_spec(raw: Fields) -> PodSpec:
    required = raw.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    return PodSpec(
        containers=(
            *(_container(fields, init=True) for fields in raw.each("initContainers")),
            *(_container(fields, init=False) for fields in raw.each("containers")),
        ),
        node=raw.text("nodeName"),
        scheduler=raw.text("schedulerName"),
        runtime_class=raw.text("runtimeClassName"),
        priority_class=raw.text("priorityClassName"),
        gates=tuple(fields.text("name") for fields in raw.each("schedulingGates")),
        node_selector=raw.words("nodeSelector"),
        affinity=tuple(map(read_term, required.each("nodeSelectorTerms")))
        if required.has("nodeSelectorTerms")
        else None,
        tolerations=tuple(map(read_toleration, raw.each("tolerations"))),
        overhead=raw.words("overhead"),
        claims=dict(_claims(raw)),
        volume_claims=tuple(
            filter(None, (fields.text("persistentVolumeClaim", "claimName") for fields in raw.each("volumes")))
        ),
        host_volumes={
            fields.text("name"): fields.text("hostPath", "path")
            for fields in raw.each("volumes")
            if fields.has("hostPath", "path")
        },
        host_network=raw.flag("hostNetwork"),
        service_account=raw.text("serviceAccountName"),
        deadline=raw.has("activeDeadlineSeconds"),
        group=_group(raw),
        restart_policy=raw.text("restartPolicy"),
    )


def _group(raw: Fields) -> SchedulingGroup | None:
    if name := raw.text("schedulingGroup", "podGroupName"):
        return SchedulingGroup("PodGroup", name)
    ref = raw.at("workloadRef")
    if not ref.has("name"):
        return None
    return SchedulingGroup("Workload", ref.text("name"), ref.text("podGroup"), ref.text("podGroupReplicaKey"))


def read_expressions(raw: Fields, *path: str) -> tuple[Expression, ...]:
    return tuple(Expression(each.text("key"), each.text("operator"), each.texts("values")) for each in raw.each(*path))


def read_term(raw: Fields) -> tuple[Expression, ...]:
    """Read one term of a node selector: all of its expressions must hold."""
    return (*read_expressions(raw, "matchExpressions"), *read_expressions(raw, "matchFields"))


def read_toleration(raw: Fields) -> Toleration:
    return Toleration(raw.text("key"), raw.text("operator") or "Equal", raw.text("value"), raw.text("effect"))


def _container(raw: Fields, *, init: bool) -> Container:
    name = raw.text("name")
    return Container(
        name,
        raw.text("image", longest=1024),
        init,
        init and raw.text("restartPolicy") == "Always",
        raw.words("resources", "requests"),
        raw.words("resources", "limits"),
        dict(_env(raw)),
        raw.flag("securityContext", "privileged"),
        tuple(fields.text("name") for fields in raw.each("resources", "claims")),
        shown_flags(name, (*raw.texts("command"), *raw.texts("args"))) if name == HAMI_EXTENDER else {},
    )


def _env(raw: Fields) -> Iterator[tuple[str, str]]:
    for fields in raw.each("env"):
        name = fields.text("name")
        # Most variables of a cluster are not relevant: their values are not even read.
        yield name, shown_value(name, fields.text("value")) if name in _SHOWN else OTHER_VALUE


def _claims(raw: Fields) -> Iterator[tuple[str, str]]:
    for fields in raw.each("resourceClaims"):
        yield fields.text("name"), fields.text("resourceClaimName") or fields.text("resourceClaimTemplateName")


def _states(raw: Fields, key: str) -> Iterator[ContainerState]:
    for fields in raw.each("status", key):
        yield ContainerState(
            fields.text("name"),
            key == "initContainerStatuses",
            fields.flag("ready"),
            fields.number("restartCount") or 0,
            fields.text("state", "waiting", "reason"),
            fields.message("state", "waiting", "message"),
            fields.has("state", "running"),
            fields.moment("state", "running", "startedAt"),
            _ended(fields.at("state", "terminated")),
            _ended(fields.at("lastState", "terminated")),
            tuple(_devices(fields)) if fields.has("allocatedResourcesStatus") else (),
        )


def _devices(state: Fields) -> Iterator[AllocatedDevice]:
    for resource in state.each("allocatedResourcesStatus"):
        name = resource.text("name")
        for fields in resource.each("resources"):
            yield AllocatedDevice(name, fields.text("resourceID"), fields.text("health"), fields.message("message"))


def _ended(raw: Fields) -> ContainerEnd | None:
    if not raw.has("exitCode") and not raw.has("reason"):
        return None
    return ContainerEnd(raw.text("reason"), raw.number("exitCode"), raw.message("message"), raw.moment("finishedAt"))
