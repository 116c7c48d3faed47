"""Find claims of dynamic resource allocation that no device satisfies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import islice, product

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.causes.components import NOT_READY
from gpu_healthcheck.diagnosis.causes.device_plugins import NO_SLICES
from gpu_healthcheck.diagnosis.causes.unscheduled.refused import closed_by, find_closed
from gpu_healthcheck.diagnosis.causes.unscheduled.waiting import Waiting, unplaced
from gpu_healthcheck.diagnosis.causes.verdicts import release_of
from gpu_healthcheck.diagnosis.facts.commands import command, explain, kubectl
from gpu_healthcheck.diagnosis.facts.components import Role, components, is_ready
from gpu_healthcheck.diagnosis.facts.dra_drivers import plugin_on
from gpu_healthcheck.diagnosis.facts.efa import EFA_CLASS, NETWORK_DRIVERS, ROCE_CLASS
from gpu_healthcheck.diagnosis.facts.fit_error import ReasonSubject, UnfitReason
from gpu_healthcheck.diagnosis.facts.gpu_nodes import GPU_DRIVERS, has_gpu
from gpu_healthcheck.diagnosis.facts.placement import asked_by, selects, tolerates
from gpu_healthcheck.diagnosis.facts.quantity import amount
from gpu_healthcheck.diagnosis.facts.symptoms import shortened
from gpu_healthcheck.diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, Origin, origins
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.dra import (
    DeviceClass,
    DeviceTaintRule,
    Request,
    ResourceClaim,
    ResourceSlice,
    SliceDevice,
)
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.meta import subject
from gpu_healthcheck.diagnosis.snapshot.nodes import Taint
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, Toleration
from gpu_healthcheck.healthcheck.memory.findings import gpu_address
from gpu_healthcheck.healthcheck.node.device_pools import address_of, is_whole
from gpu_healthcheck.healthcheck.node.device_rules import is_rule_name
from gpu_healthcheck.healthcheck.node.state import CONDITION, KEEPS_AWAY, UNHEALTHY
from gpu_healthcheck.healthcheck.text.naming import named

_scheduled = Family(Link.SCHEDULED)
NO_CLASS = _scheduled(
    "DeviceClassMissing",
    "A claim asks for a DeviceClass that does not exist.",
    "Name a class that exists (`kubectl get deviceclasses`), or install the DRA driver, which brings its own.",
)
NO_DEVICES = _scheduled(
    "NoDevicesPublished",
    "No node publishes devices of the DRA driver for the class of a claim.",
    "Check the kubelet plugin of the DRA driver on the GPU nodes.",
)
NO_MATCH = _scheduled(
    "NoDeviceMatchesClaim",
    "No published device matches a claim, or too few match on one node.",
    "Change the claim's selectors or count to the devices that exist: `kubectl get resourceslices -o yaml`.",
)
ALL_ALLOCATED = _scheduled(
    "DevicesAllAllocated",
    "Every device that would satisfy a claim is allocated to another claim.",
    "Stop unneeded workloads, delete unused claims (`kubectl get resourceclaims -A`), or add nodes.",
    severity=CauseSeverity.MEDIUM,
)
NO_CLAIM = _scheduled(
    "ResourceClaimMissing",
    "A pod names a ResourceClaim or a template that does not exist, or its claim was not created.",
    "Create it in the pod's namespace, or correct the name in the workload. The existing ones: "
    "`kubectl get resourceclaims,resourceclaimtemplates -A`.",
)
OTHER_FABRIC = _scheduled(
    "ClaimOfAnotherFabric",
    "A claim asks for EFA devices, and the nodes have RoCE, or the other way: p6e-gb300r has RoCE and no EFA.",
    "Claim the DeviceClass of the fabric that the nodes have, or select nodes of the other type.",
    source="https://docs.aws.amazon.com/eks/latest/userguide/device-management-efa.html; NVIDIA/aicr issue 1326",
)
CLAIM_UNMET = _scheduled(
    "ClaimNotSatisfied",
    "The scheduler can allocate no devices for a claim; the snapshot does not show the reason.",
    "Compare the claim's requests with the published devices: `kubectl get resourceslices -o yaml`.",
    severity=CauseSeverity.MEDIUM,
)
TAINTED = _scheduled(
    "DevicesTainted",
    "A claim waits for devices that are free but have a taint.",
    "Fix the reason of the taint: the taint is then removed, or ends when its DeviceTaintRule is deleted.",
    source="https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/",
)
CAUSES = (NO_CLASS, NO_DEVICES, NO_MATCH, ALL_ALLOCATED, TAINTED, NO_CLAIM, OTHER_FABRIC, CLAIM_UNMET)

_DRIVER = re.compile(r"device\.driver\s{0,3}==\s{0,3}['\"]([^'\"]{1,200})['\"]", re.ASCII)
_ATTRIBUTE = re.compile(
    r"\A\(?\s{0,3}device\.attributes\[['\"]([^'\"]{1,200})['\"]\]\.([A-Za-z0-9_]{1,64})"
    r"\s{0,3}(==|!=)\s{0,3}(?:['\"]([^'\"]{0,200})['\"]|(true|false|-?\d{1,18}))\s{0,3}\)?\Z",
    re.ASCII,
)
_CAPACITY = re.compile(
    r"\A\(?\s{0,3}device\.capacity\[['\"]([^'\"]{1,200})['\"]\]\.([A-Za-z0-9_]{1,64})\.compareTo\(\s{0,3}quantity\("
    r"['\"]([^'\"]{1,40})['\"]\)\s{0,3}\)\s{0,3}(>=|>|==|<=|<)\s{0,3}0\s{0,3}\)?\Z",
    re.ASCII,
)
_MAKERS = (
    (
        re.compile(r"(?:\A|\.)(?:gpu|mig)\.nvidia\.com\Z"),
        (
            "It belongs to the GPU part of NVIDIA's DRA driver, which is off by default. Take the device plugin off "
            "these nodes, because both would give out the same GPUs; then set resources.gpus.enabled=true and "
            "gpuResourcesEnabledOverride=true in the driver's Helm values."
        ),
    ),
    (
        re.compile(r"\Acompute-domain-[a-z-]{1,60}\.nvidia\.com\Z"),
        "Install NVIDIA's DRA driver, with resources.computeDomains.enabled=true in its Helm values.",
    ),
)
"""Steps by the name of a DeviceClass that is missing."""
_NOT_CREATED = "FailedResourceClaimCreation"
_CLAIM_DELAY = timedelta(minutes=1)
"""Time in which the controller creates a claim from its template."""
_MOST, _MOST_REASONS = 5, 3
_OTHER_FABRIC = {EFA_CLASS: ROCE_CLASS, ROCE_CLASS: EFA_CLASS}
_RULES = "DeviceTaintRule"
_ABOUT_CLAIMS = (ReasonSubject.CLAIM, ReasonSubject.CLAIM_MISSING, ReasonSubject.CLASS_MISSING)
_CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


class PublishedDevice(Struct, frozen=True):
    """Published device. `name` has the form used in a claim's allocation: driver/pool/device."""

    name: str
    driver: str
    pool: str
    node: str
    device: SliceDevice


class BlockingTaint(Struct, frozen=True):
    """Taint that keeps a claim off a device. If `rule` is None, it is part of the driver's ResourceSlice."""

    offer: PublishedDevice
    taint: Taint
    rule: DeviceTaintRule | None = None


class Demand(Struct, frozen=True):
    """Request for devices of a class. `subject`: the claim; `text`: the request as evidence."""

    text: str
    subject: str
    request: Request
    device_class: DeviceClass

    @property
    def class_subject(self) -> str:
        return f"deviceclass/{self.device_class.meta.name}"

    @property
    def driver(self) -> str:
        """Return the driver that the selectors of the class name; '' if they name none."""
        return next((found[1] for text in self.device_class.selectors if (found := _DRIVER.search(text))), "")

    @property
    def terms(self) -> list[str]:
        return [term for text in (*self.device_class.selectors, *self.request.selectors) for term in _terms(text)]


@lru_cache(maxsize=1)
def published_devices(snapshot: Snapshot) -> tuple[PublishedDevice, ...]:
    return tuple(
        PublishedDevice(f"{piece.driver}/{piece.pool}/{device.name}", piece.driver, piece.pool, piece.node, device)
        for pool in snapshot.pools.values()
        for piece in pool
        for device in piece.devices
    )


def is_about_claims(waiting: Waiting) -> bool:
    """Whether the scheduler refuses the pods because of their claims, or gives no reason that can be parsed."""
    return bool(waiting.spec.claims) and (waiting.fit is None or bool(waiting.reasons(*_ABOUT_CLAIMS)))


def find_claims(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield why no devices are allocated for the claims of the pods; nothing if the objects show no reason."""
    if snapshot.sees(*_CLAIM_KINDS):
        yield from _missing(snapshot, waiting)
    for claim in _open_claims(snapshot, waiting):
        for request in claim.requests:
            yield from _unmet_request(snapshot, waiting, claim.meta.subject, request)


def open_requests(snapshot: Snapshot, alike: Iterable[Waiting]) -> int:
    """Return how many requests `find_claims` compares with all devices for these pods."""
    claims = (claim for waiting in alike if is_about_claims(waiting) for claim in _open_claims(snapshot, waiting))
    return sum(len(claim.requests) for claim in claims)


def _open_claims(snapshot: Snapshot, waiting: Waiting) -> Iterator[ResourceClaim]:
    """Yield the claims of the first pod that have no devices."""
    pod, claims = waiting.pods[0], snapshot.claim
    for name, source in pod.spec.claims.items():
        names = ((waiting.namespace, each) for each in (pod.claim_names.get(name, ""), source))
        claim = next((claims[each] for each in names if each in claims), None)
        if claim is not None and not claim.devices:
            yield claim


def find_by_text(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    """Yield the causes named by the scheduler's text, and by events of the controller that makes claims."""
    events = (event for pod in waiting.pods[:_MOST] for event in snapshot.events_of(pod))
    creation = [event.message for event in events if event.reason == _NOT_CREATED]
    for reason in waiting.reasons(*_ABOUT_CLAIMS):
        yield _by_reason(snapshot, waiting, reason, creation)


def _by_reason(snapshot: Snapshot, waiting: Waiting, reason: UnfitReason, creation: Sequence[str]) -> FoundCause:
    evidence = (f"the scheduler: {reason.text}", *creation)
    if reason.about is ReasonSubject.CLASS_MISSING:
        return _no_class(waiting, reason.what, evidence, Certainty.LIKELY)
    if reason.about is ReasonSubject.CLAIM_MISSING:
        where = subject("ResourceClaim", waiting.namespace, reason.what) if reason.what else ""
        return waiting.found(NO_CLAIM, *evidence, subject=where, certainty=Certainty.LIKELY)
    if not snapshot.sees(_RULES):
        evidence += (f"whether a {_RULES} keeps work off devices is not visible: {snapshot.missing[_RULES]}",)
    return waiting.found(
        CLAIM_UNMET, *evidence, certainty=Certainty.LIKELY, because_of=_why_no_slices(snapshot, network=False)
    )


def find_missing(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods without any message of a scheduler: it does not process pods whose claims are missing."""
    for pod in unplaced(snapshot):
        if lacks_claims(snapshot, pod):
            yield from _missing(snapshot, Waiting((pod,), snapshot.line(pod.meta)[-1], asked_by(pod.spec)))


def lacks_claims(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether missing claims explain why no scheduler reports about the pod."""
    silent = pod.condition("PodScheduled") is None and not pod.spec.gates and bool(pod.spec.claims)
    return silent and snapshot.sees(*_CLAIM_KINDS) and any(_missing(snapshot, Waiting((pod,), pod.subject, {})))


def find_by_resource(snapshot: Snapshot, waiting: Waiting, name: str, known: DeviceClass) -> Iterator[FoundCause]:
    """Yield causes for an extended resource that a DeviceClass provides, without a device plugin."""
    if snapshot.sees("ResourceSlice"):
        count = int(waiting.asked[name])
        text = f"one pod requests {count} {name}, of class {known.meta.name}"
        request = Request(name, known.meta.name, count)
        yield from _unmet(snapshot, waiting, Demand(text, f"deviceclass/{known.meta.name}", request, known))


def _missing(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    pod, namespace = waiting.pods[0], waiting.namespace
    if snapshot.is_new(pod.meta, _CLAIM_DELAY):
        return
    kinds_of = _claim_kinds(snapshot).get(namespace, {})
    for name, source in pod.spec.claims.items():
        kinds = kinds_of.get(source, ())
        if not kinds:
            existing = ", ".join(islice(kinds_of, _MOST)) or "none"
            evidence = f"{waiting.workload}: claim {name} names {source}, and {namespace} has {existing}"
            yield waiting.found(NO_CLAIM, evidence, subject=subject("ResourceClaim", namespace, source))
        elif set(kinds) == {"ResourceClaimTemplate"} and name not in pod.claim_names:
            evidence = f"{pod.subject}: no ResourceClaim was created from the template {source}"
            remedy = f"kube-controller-manager creates it; check its events: {kubectl('describe', pod.meta)}"
            template = subject("ResourceClaimTemplate", namespace, source)
            yield waiting.found(NO_CLAIM, evidence, subject=template, remedy=(remedy,))


@lru_cache(maxsize=1)
def _claim_kinds(snapshot: Snapshot) -> Mapping[str, Mapping[str, list[str]]]:
    """Return the kinds of claims and templates by namespace and name, the names in order."""
    metas = sorted((claim.meta for claim in snapshot.claims), key=lambda meta: meta.name)
    namespaces = grouped((meta.namespace, (meta.name, meta.kind)) for meta in metas)
    return {namespace: grouped(some) for namespace, some in namespaces.items()}


def _unmet_request(snapshot: Snapshot, waiting: Waiting, claim: str, request: Request) -> Iterator[FoundCause]:
    text = f"{claim} requests {'all' if request.all else request.count} of class {request.device_class}"
    classes = _classes(snapshot)
    known = classes.get(request.device_class)
    if known is not None and snapshot.sees("ResourceSlice"):
        yield from _unmet(snapshot, waiting, Demand(text, claim, request, known))
    elif known is None and snapshot.sees("DeviceClass") and request.device_class:
        existing = f"existing DeviceClasses: {', '.join(islice(classes, _MOST)) or 'none'}"
        yield _no_class(waiting, request.device_class, (text, existing))


def _no_class(
    waiting: Waiting, name: str, evidence: Sequence[str], certainty: Certainty = Certainty.PROVEN
) -> FoundCause:
    makers = (step for names, step in _MAKERS if names.search(name))
    return waiting.found(
        NO_CLASS,
        *evidence,
        subject=f"deviceclass/{name}",
        remedy=(next(makers, NO_CLASS.remedy),),
        certainty=certainty,
    )


@lru_cache(maxsize=1)
def _classes(snapshot: Snapshot) -> Mapping[str, DeviceClass]:
    return {each.meta.name: each for each in sorted(snapshot.device_classes, key=lambda each: each.meta.name)}


def _unmet(snapshot: Snapshot, waiting: Waiting, demand: Demand) -> Iterator[FoundCause]:
    """Yield why no node has enough free devices. While a driver publishes its devices again, this is not certain."""
    anew = [
        f"the driver is publishing its pool {driver}/{name} again: {len(pool)} of {pool[0].count} ResourceSlices"
        for (driver, name), pool in snapshot.pools.items()
        if demand.driver in ("", driver) and not is_whole(pool)
    ]
    for found in _without_devices(snapshot, waiting, demand):
        certainty = Certainty.LIKELY if anew else found.certainty
        yield replace(found, evidence=(*found.evidence, *anew[:_MOST]), certainty=certainty)


def _without_devices(snapshot: Snapshot, waiting: Waiting, demand: Demand) -> Iterator[FoundCause]:
    devices, driver, count = published_devices(snapshot), demand.driver, demand.request.count
    of_driver = [device for device in devices if driver in ("", device.driver)]
    matching = [device for device in of_driver if all(_holds(term, device) for term in demand.terms)]
    if not matching and (other := _other_fabric(snapshot, waiting, demand)):
        yield other
    elif not of_driver:
        network = driver in NETWORK_DRIVERS or demand.device_class.meta.name in _OTHER_FABRIC
        empty = [each for pool in snapshot.pools.values() for each in pool if driver in ("", each.driver)]
        where = named((f"node/{each.node}" for each in empty), _MOST)
        none = f"the ResourceSlices of {where} list no device" if empty else "no ResourceSlice"
        yield waiting.found(
            NO_DEVICES,
            demand.text,
            f"{none} of driver {driver or demand.device_class.meta.name}; {_drivers(devices)}",
            subject=demand.class_subject,
            remedy=(*_restarts(snapshot, empty), _start_driver(snapshot, network=network)),
            because_of=_why_no_slices(snapshot, network=network),
        )
    elif (most := max(Counter(device.node for device in matching).values(), default=0)) < count:
        numbers = f"{len(matching)} of {len(of_driver)} devices match, {most} on one node at most"
        yield waiting.found(NO_MATCH, demand.text, *_unmet_terms(demand, of_driver), numbers, subject=demand.subject)
    else:
        yield from _allocated(snapshot, waiting, demand, matching)


def _allocated(
    snapshot: Snapshot, waiting: Waiting, demand: Demand, matching: Sequence[PublishedDevice]
) -> Iterator[FoundCause]:
    """Yield what keeps the claim off matching devices: node taints, device taints, or other claims."""
    request, holders = demand.request, _holders(snapshot)
    unheld = [device for device in matching if device.name not in holders]
    taints = _blocking_taints(snapshot, unheld, request.tolerations)
    untainted = [device for device in unheld if device.name not in taints]
    nodes = (snapshot.by_node.get(name) for name in dict.fromkeys(device.node for device in untainted))
    closed = {node.name: node for node in nodes if node is not None and closed_by(waiting.spec, node)}
    free = [device for device in untainted if device.node not in closed]
    numbers = f"{len(matching)} devices match, {len(free)} are free"
    if _is_enough(request, free, matching):
        return
    if _is_enough(request, untainted, matching):
        yield from find_closed(snapshot, waiting, closed.values())
    elif _is_enough(request, unheld, matching):
        yield _tainted(snapshot, waiting, demand, numbers, tuple(taints.values()))
    else:
        claims = (holders[device.name] for device in matching if device.name in holders)
        held = Counter(f"{each.meta.subject} ({', '.join(each.reserved_for) or 'no pod'})" for each in claims)
        users = ", ".join(f"{name}: {number}" for name, number in held.most_common(_MOST))
        kept = [f"{name}: taint {taint.taint}" for name, taint in taints.items()]
        evidence = (demand.text, f"{numbers}; allocated to {users or 'no claim'}", *kept[:_MOST])
        yield waiting.found(ALL_ALLOCATED, *evidence, subject=demand.class_subject)


@lru_cache(maxsize=1)
def _holders(snapshot: Snapshot) -> Mapping[str, ResourceClaim]:
    """Return the claims by the name of each device that is allocated to them."""
    return {device: claim for claim in snapshot.claims for device in claim.devices}


def _is_enough(request: Request, some: Sequence[PublishedDevice], matching: Sequence[PublishedDevice]) -> bool:
    """Whether one node has as many of these devices as requested; for a request of all, all that match."""
    there = Counter(device.node for device in some)
    if request.all:
        return any(there[node] == count for node, count in Counter(device.node for device in matching).items())
    return max(there.values(), default=0) >= request.count


@lru_cache(maxsize=2)
def _why_no_slices(snapshot: Snapshot, *, network: bool) -> tuple[Origin, ...]:
    """Return all possible reasons why the DRA driver, of GPUs or of the network, publishes nothing."""
    roles = (Role.NETWORK_DRA,) if network else (Role.DRA_DRIVER, Role.DRIVER)
    drivers = (component for component in components(snapshot) if component.role in roles)
    causes = (*(NOT_READY[role] for role in roles), *(() if network else (NO_SLICES,)))
    nodes = (node.subject for node in snapshot.nodes)
    return (*((NOT_READY[driver.role].name, driver.subject) for driver in drivers), *origins(causes, *nodes))


def _restarts(snapshot: Snapshot, empty: Iterable[ResourceSlice]) -> Iterator[str]:
    """Yield the steps for kubelet plugins that run and found no device at their start."""
    pods = (plugin_on(snapshot, each.node) for each in empty if each.driver in GPU_DRIVERS)
    for pod in islice((pod for pod in pods if pod is not None and is_ready(pod)), _MOST):
        yield (
            f"The driver's pod on {pod.spec.node} found no GPU, most often because it started before the GPU driver: "
            f"recreate it: {kubectl('delete', pod.meta)}"
        )


def _start_driver(snapshot: Snapshot, *, network: bool) -> str:
    """Return the step that gets a DRA driver to publish devices."""
    if not network:
        look = command("kubectl", "get", "pods", "-A", "-o", "wide")
        return f"Check the DRA driver's kubelet plugin on the GPU nodes: {look}"
    driver = next((each for each in components(snapshot) if each.role is Role.NETWORK_DRA), None)
    if driver is None:
        return "Install the network's DRA driver: the chart aws-dranet (driver dra.net); EKS Auto Mode has none."
    return f"Check the {Role.NETWORK_DRA.value} on the GPU nodes: {kubectl('describe', driver.meta)}"


def _other_fabric(snapshot: Snapshot, waiting: Waiting, demand: Demand) -> FoundCause | None:
    """Return the result if every GPU node of the pods has only devices of AWS's other fabric; else None."""
    name = _OTHER_FABRIC.get(demand.device_class.meta.name, "")
    other = next((each for each in snapshot.device_classes if each.meta.name == name and each.selectors), None)
    if other is None or _of_class(snapshot, demand.device_class):
        return None
    devices = _of_class(snapshot, other)
    nodes = dict.fromkeys(f"node/{device.node}" for device in devices if device.node)
    eligible = [node.subject for node in snapshot.nodes if has_gpu(node) and selects(waiting.spec, node)]
    if not eligible or not set(nodes).issuperset(eligible):
        return None
    evidence = (
        f"{demand.subject} requests class {demand.device_class.meta.name}; no published device matches",
        f"{len(devices)} devices match the class {name}, on {named(nodes, _MOST)}",
    )
    remedy = f"Set `deviceClassName: {name}` in the claim for these nodes."
    return waiting.found(OTHER_FABRIC, *evidence, subject=demand.subject, remedy=(remedy,))


def _of_class(snapshot: Snapshot, known: DeviceClass) -> list[PublishedDevice]:
    terms = [term for text in known.selectors for term in _terms(text)]
    return [each for each in published_devices(snapshot) if all(_holds(term, each) for term in terms)]


def _drivers(devices: Iterable[PublishedDevice]) -> str:
    names = sorted({device.driver for device in devices})
    return f"drivers that publish devices: {', '.join(names[:_MOST])}" if names else "no driver publishes devices"


def _blocking_taints(
    snapshot: Snapshot, devices: Iterable[PublishedDevice], tolerations: Iterable[Toleration]
) -> dict[str, BlockingTaint]:
    """Return, by device name, the first taint that no toleration covers."""
    rules = _taint_rules(snapshot)
    found: dict[str, BlockingTaint] = {}
    for device in devices:
        keys = product(("", device.driver), ("", device.pool), ("", device.device.name))
        # Rules first, because the author of a rule can explain it.
        taints = [BlockingTaint(device, rule.taint, rule) for key in keys for rule in rules.get(key, ())]
        taints += [BlockingTaint(device, taint) for taint in device.device.taints]
        for each in taints:
            if each.taint.effect in KEEPS_AWAY and not tolerates(tolerations, each.taint):
                found.setdefault(device.name, each)
    return found


@lru_cache(maxsize=1)
def _taint_rules(snapshot: Snapshot) -> Mapping[tuple[str, str, str], list[DeviceTaintRule]]:
    """Return the rules by driver, pool and device; '' for any."""
    return grouped(((rule.driver, rule.pool, rule.device), rule) for rule in snapshot.device_rules if rule.selects)


def _tainted(
    snapshot: Snapshot, waiting: Waiting, demand: Demand, numbers: str, taints: Sequence[BlockingTaint]
) -> FoundCause:
    ignored = all(taint.rule is not None and not taint.rule.is_heeded for taint in taints)
    described = [_described(snapshot, taint) for taint in taints]
    remedy = dict.fromkeys(step for _, steps in described[:_MOST] for step in steps)
    return waiting.found(
        TAINTED,
        *(demand.text, numbers, *(text for text, _ in described)),
        subject=demand.class_subject,
        remedy=tuple(remedy),
        certainty=Certainty.LIKELY if ignored else Certainty.PROVEN,
    )


def _described(snapshot: Snapshot, taint: BlockingTaint) -> tuple[str, tuple[str, ...]]:
    """Return the taint as evidence, and the steps that remove it."""
    offer, rule = taint.offer, taint.rule
    where = f"node/{offer.node}" if offer.node else f"the pool {offer.pool}"
    text = f"{offer.device.name} of {where} has the taint {taint.taint}"
    if rule is None:
        look = command("kubectl", "get", "resourceslices", f"--field-selector=spec.nodeName={offer.node}", "-o=yaml")
        step = f"Its driver removes the taint when the device is healthy: {look}"
        return f"{text} in its ResourceSlice, from {offer.driver}", (step,)
    text += f" by {rule.meta.subject}"
    text += "" if rule.is_heeded else ", which the cluster's controllers have not processed"
    # Our agent's rules are recognised by their name and the key of the taint.
    if not (is_rule_name(rule.meta.name, rule.pool, rule.device) and rule.taint.key == UNHEALTHY):
        return text, (
            f"Find out who created the rule, and why: {kubectl('get', rule.meta, '-o=yaml')}",
            f"To remove the taint: {kubectl('delete', rule.meta)}",
        )
    reasons = _reasons(snapshot, offer)
    text += f": {', '.join(reasons)}" if reasons else ""
    steps = (f"See the action for {reason}: {explain(reason)}" for reason in reasons)
    return text, (*steps, f"When the GPU is fixed: {release_of(offer.node)}")


def _reasons(snapshot: Snapshot, offer: PublishedDevice) -> list[str]:
    """Return the reasons of our agent's findings on that GPU.

    If none match the device's address, use those of the Node's condition.
    """
    node = snapshot.by_node.get(offer.node)
    if node is None:
        return []
    address = address_of(offer.device.attributes)
    here = [found.reason for found in node.findings if address and gpu_address(found.subject) == address]
    condition = node.condition(CONDITION, "False")
    return list(dict.fromkeys(here or ([condition.reason] if condition is not None else [])))[:_MOST_REASONS]


def _terms(expression: str) -> Iterator[str]:
    """Yield the terms that must all hold. Alternatives form one term, which is not judged."""
    if "||" not in expression:
        yield from (word.strip() for word in expression.split("&&"))


def _holds(term: str, device: PublishedDevice) -> bool:
    """Whether the term holds for the device; terms in an unknown form count as true."""
    if driver := _DRIVER.fullmatch(term):
        return device.driver == driver[1]
    if attribute := _ATTRIBUTE.match(term):
        wanted = attribute[4] if attribute[4] is not None else attribute[5]
        return (_value(attribute, device) == wanted) is (attribute[3] == "==")
    if capacity := _CAPACITY.match(term):
        there, limit = amount(_value(capacity, device) or ""), amount(capacity[3])
        if there is None or limit is None:
            return there is not None
        order = (there > limit) - (there < limit)
        return order in {">=": (0, 1), ">": (1,), "==": (0,), "<=": (-1, 0), "<": (-1,)}[capacity[4]]
    return True


def _value(term: re.Match[str], device: PublishedDevice) -> str | None:
    """Return the value under the short name of the term, or under the qualified one."""
    values = device.device.capacity if term.re is _CAPACITY else device.device.attributes
    return values.get(term[2], values.get(f"{term[1]}/{term[2]}"))


def _unmet_terms(demand: Demand, devices: Sequence[PublishedDevice]) -> Iterator[str]:
    """Yield terms that hold for no device, each with the values that the devices have."""
    for term in demand.terms:
        if any(_holds(term, device) for device in devices):
            continue
        existing, known = _drivers(devices), _ATTRIBUTE.match(term) or _CAPACITY.match(term)
        if known:
            values = Counter(_value(known, device) or "(none)" for device in devices).most_common(_MOST)
            existing = f"existing {known[2]}: {', '.join(f'{value} ({number})' for value, number in values)}"
        yield f"no device meets {shortened(term)}; {existing}"
