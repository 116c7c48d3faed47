"""Find claims of dynamic resource allocation that no device satisfies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace

from diagnosis.causes.components import NOT_READY
from diagnosis.causes.device_plugins import NO_SLICES
from diagnosis.causes.unscheduled.offers import PublishedDevice, offered, published_anew, shut
from diagnosis.causes.unscheduled.refused import closed_by, find_refused
from diagnosis.causes.unscheduled.tainted_devices import TAINTED, find_tainted
from diagnosis.causes.unscheduled.waiting import NodeUse, Waiting, unplaced
from diagnosis.facts.commands import command, kubectl
from diagnosis.facts.components import Role, components
from diagnosis.facts.efa import EFA_CLASS, NETWORK_DRIVERS, ROCE_CLASS
from diagnosis.facts.fit_error import ReasonSubject, UnfitReason
from diagnosis.facts.gpu_nodes import has_gpu
from diagnosis.facts.placement import asked_by, selects
from diagnosis.facts.quantity import amount
from diagnosis.facts.symptoms import shortened
from diagnosis.model import CauseSeverity, Certainty, Family, FoundCause, Link, Origin, origins
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.dra import DeviceClass, Request, ResourceClaim
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.meta import Meta, subject
from diagnosis.snapshot.pods import Pod
from healthcheck.text.naming import named

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
_NOT_MADE = "FailedResourceClaimCreation"
_PATIENCE = timedelta(minutes=1)
_MOST = 5
_OTHER_FABRIC = {EFA_CLASS: ROCE_CLASS, ROCE_CLASS: EFA_CLASS}
_RULES = "DeviceTaintRule"
_SAYS = (ReasonSubject.CLAIM, ReasonSubject.CLAIM_MISSING, ReasonSubject.CLASS_MISSING)
_NEEDED = ("ResourceClaim", "ResourceClaimTemplate")


def is_dra(waiting: Waiting) -> bool:
    return bool(waiting.spec.claims) and (waiting.fit is None or bool(waiting.reasons(*_SAYS)))


def find_claims(snapshot: Snapshot, waiting: Waiting, affords: Callable[[int], bool]) -> Iterator[FoundCause]:
    """Yield the causes for pods whose claims prevent scheduling.

    `affords`: whether a request may be compared with so many devices; otherwise the scheduler's text is reported.
    """
    found = list(_missing(snapshot, waiting)) if snapshot.sees(*_NEEDED) else []
    for claim in _claims(snapshot, waiting):
        if not claim.devices and affords(len(claim.requests) * len(offered(snapshot))):
            found += (result for request in claim.requests for result in _judged(snapshot, waiting, claim, request))
    yield from found or (_by_text(snapshot, waiting, reason) for reason in waiting.reasons(*_SAYS))


def find_unlooked(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield pods without any message of a scheduler: it does not process pods whose claims are missing."""
    for pod in unplaced(snapshot):
        if lacks_claims(snapshot, pod):
            yield from _missing(snapshot, Waiting((pod,), snapshot.line(pod.meta)[-1], asked_by(pod.spec)))


def lacks_claims(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether missing claims explain why no scheduler reports about the pod."""
    silent = pod.condition("PodScheduled") is None and not pod.spec.gates
    waiting = Waiting((pod,), pod.subject, {})
    return silent and bool(pod.spec.claims) and snapshot.sees(*_NEEDED) and any(_missing(snapshot, waiting))


def find_by_resource(snapshot: Snapshot, waiting: Waiting, name: str, known: DeviceClass) -> Iterator[FoundCause]:
    """Yield causes for an extended resource that a DeviceClass provides, without a device plugin."""
    if snapshot.sees("ResourceSlice"):
        count = int(waiting.asked[name])
        asks = f"one pod requests {count} {name}, of class {known.meta.name}"
        claim = ResourceClaim(Meta("DeviceClass", "", known.meta.name))
        yield from _offered(snapshot, waiting, (asks, Request(name, known.meta.name, count), claim, known))


def _by_text(snapshot: Snapshot, waiting: Waiting, reason: UnfitReason) -> FoundCause:
    """Return the cause named by the scheduler's text, and by events of the controller that makes claims."""
    noted = (event for pod in waiting.pods[:_MOST] for event in snapshot.events_of(pod) if event.reason == _NOT_MADE)
    evidence = (f"the scheduler: {reason.text}", *(event.message for event in noted))
    if reason.says is ReasonSubject.CLASS_MISSING:
        return waiting.found(NO_CLASS, *evidence, subject=f"deviceclass/{reason.what}", certainty=Certainty.LIKELY)
    if reason.says is ReasonSubject.CLAIM_MISSING:
        named = subject("ResourceClaim", waiting.pods[0].meta.namespace, reason.what)
        where = named if reason.what else waiting.workload
        return waiting.found(NO_CLAIM, *evidence, subject=where, certainty=Certainty.LIKELY)
    if not snapshot.sees(_RULES):
        evidence += (f"whether a {_RULES} keeps work off devices is not visible: {snapshot.missing[_RULES]}",)
    above = _why_no_slices(snapshot)
    return waiting.found(CLAIM_UNMET, *evidence, certainty=Certainty.LIKELY, because_of=above)


def _claims(snapshot: Snapshot, waiting: Waiting) -> Iterator[ResourceClaim]:
    """Yield the claims of the first pod, from its objects or templates; similar pods request the same."""
    pod = waiting.pods[0]
    known, space = snapshot.claim, pod.meta.namespace
    for name, source in pod.spec.claims.items():
        claim = known.get((space, pod.claim_names.get(name, ""))) or known.get((space, source))
        if claim is not None:
            yield claim


def _missing(snapshot: Snapshot, waiting: Waiting) -> Iterator[FoundCause]:
    pod = waiting.pods[0]
    if snapshot.is_new(pod.meta, _PATIENCE):
        return
    mine = _claim_kinds(snapshot).get(pod.meta.namespace, {})
    for name, source in pod.spec.claims.items():
        kinds = mine.get(source)
        if not kinds:
            message = ", ".join(islice(mine, _MOST)) or "none"
            evidence = f"{waiting.workload}: claim {name} names {source}, and {pod.meta.namespace} has {message}"
            yield waiting.found(NO_CLAIM, evidence, subject=subject("ResourceClaim", pod.meta.namespace, source))
        elif set(kinds) == {"ResourceClaimTemplate"} and name not in pod.claim_names:
            evidence = f"{pod.subject}: no ResourceClaim was created from the template {source}"
            look = command(
                "kubectl",
                "-n",
                pod.meta.namespace,
                "get",
                "events",
                f"--field-selector=involvedObject.name={pod.meta.name}",
            )
            remedy = (f"kube-controller-manager creates it; check its events: {look}",)
            yield waiting.found(
                NO_CLAIM, evidence, subject=subject("ResourceClaimTemplate", pod.meta.namespace, source), remedy=remedy
            )


@lru_cache(maxsize=1)
def _claim_kinds(snapshot: Snapshot) -> Mapping[str, Mapping[str, list[str]]]:
    """Return the kinds of claims and templates by namespace and name, the names in order."""
    metas = sorted((claim.meta for claim in snapshot.claims), key=lambda meta: meta.name)
    spaces = grouped((meta.namespace, (meta.name, meta.kind)) for meta in metas)
    return {namespace: grouped(some) for namespace, some in spaces.items()}


def _judged(snapshot: Snapshot, waiting: Waiting, claim: ResourceClaim, request: Request) -> Iterator[FoundCause]:
    known = next(
        (device_class for device_class in snapshot.device_classes if device_class.meta.name == request.device_class),
        None,
    )
    asks = f"{claim.meta.subject} requests {'all' if request.all else request.count} of class {request.device_class}"
    if known is None:
        if snapshot.sees("DeviceClass") and request.device_class:
            classes = ", ".join(sorted(each.meta.name for each in snapshot.device_classes)[:_MOST]) or "none"
            evidence = (asks, f"existing DeviceClasses: {classes}")
            yield waiting.found(NO_CLASS, *evidence, subject=f"deviceclass/{request.device_class}")
        return
    if not snapshot.sees("ResourceSlice"):
        return
    yield from _offered(snapshot, waiting, (asks, request, claim, known))


def _offered(
    snapshot: Snapshot, waiting: Waiting, asked: tuple[str, Request, ResourceClaim, DeviceClass]
) -> Iterator[FoundCause]:
    anew = tuple(published_anew(snapshot, _driver(asked[3])))
    for result in _short(snapshot, waiting, asked):
        known = replace(result, evidence=(*result.evidence, *anew[:_MOST]), certainty=Certainty.LIKELY)
        yield known if anew else result


def _short(
    snapshot: Snapshot, waiting: Waiting, asked: tuple[str, Request, ResourceClaim, DeviceClass]
) -> Iterator[FoundCause]:
    asks, request, claim, known = asked
    driver, offers = _driver(known), offered(snapshot)
    of_driver = [offer for offer in offers if driver in ("", offer.driver)]
    terms = [term for text in (*known.selectors, *request.selectors) for term in _terms(text)]
    matching = [device for device in of_driver if all(_holds(term, device) for term in terms)]
    if not matching and (others := _of_other_fabric(snapshot, waiting, known, offers)):
        yield _other_fabric(waiting, claim, request, others)
        return
    if not of_driver:
        network = driver in NETWORK_DRIVERS or known.meta.name in _OTHER_FABRIC
        evidence = (asks, f"no ResourceSlice of driver {driver or known.meta.name}; {_drivers(offers)}")
        remedy = tuple(_without_slices(snapshot, network=network))
        above = _why_no_slices(snapshot, network=network)
        yield waiting.found(
            NO_DEVICES, *evidence, subject=f"deviceclass/{known.meta.name}", remedy=remedy, because_of=above
        )
        return
    if _most_on_a_node(matching) < request.count:
        most = f"{len(matching)} of {len(of_driver)} devices match, {_most_on_a_node(matching)} on one node at most"
        yield waiting.found(NO_MATCH, asks, *_unmet(terms, of_driver), most, subject=claim.meta.subject)
        return
    yield from _taken(snapshot, waiting, asked, matching)


def _taken(
    snapshot: Snapshot,
    waiting: Waiting,
    asked: tuple[str, Request, ResourceClaim, DeviceClass],
    matching: Sequence[PublishedDevice],
) -> Iterator[FoundCause]:
    asks, request, _, known = asked
    by = _holders(snapshot)
    unheld = [one for one in matching if one.name not in by]
    taints = shut(snapshot, unheld, request.tolerations)
    untainted = [one for one in unheld if one.name not in taints]
    nodes = (snapshot.by_node.get(text) for text in dict.fromkeys(offer.node for offer in untainted))
    closed = {node.name: node for node in nodes if node is not None and closed_by(waiting.spec, node)}
    free = [one for one in untainted if one.node not in closed]
    if _is_enough(request, free, matching):
        return
    if _is_enough(request, untainted, matching):
        yield from find_refused(snapshot, waiting, (NodeUse(node, {}) for node in closed.values()))
        return
    subject, message = f"deviceclass/{known.meta.name}", f"{len(matching)} devices match, {len(free)} are free"
    if _is_enough(request, unheld, matching):
        yield find_tainted(snapshot, waiting, subject, (asks, message), tuple(taints.values()))
        return
    held = Counter(
        f"{by[one.name].meta.subject} ({', '.join(by[one.name].reserved_for) or 'no pod'})"
        for one in matching
        if one.name in by
    )
    users = ", ".join(f"{name}: {count}" for name, count in held.most_common(_MOST))
    kept = [f"{name}: taint {taint.taint}" for name, taint in taints.items()]
    evidence = (asks, f"{message}; allocated to {users or 'no claim'}", *kept[:_MOST])
    yield waiting.found(ALL_ALLOCATED, *evidence, subject=subject)


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
def _why_no_slices(snapshot: Snapshot, *, network: bool = False) -> tuple[Origin, ...]:
    """Return all possible reasons why the DRA driver, of GPUs or of the network, publishes nothing."""
    roles = (Role.NETWORK_DRA,) if network else (Role.DRA_DRIVER, Role.DRIVER)
    drivers = (component for component in components(snapshot) if component.role in roles)
    causes = (*(NOT_READY[role] for role in roles), *(() if network else (NO_SLICES,)))
    nodes = (node.subject for node in snapshot.nodes)
    return (*((NOT_READY[driver.role].name, driver.subject) for driver in drivers), *origins(causes, *nodes))


def _without_slices(snapshot: Snapshot, *, network: bool) -> Iterator[str]:
    """Yield the steps to get a DRA driver to publish devices."""
    drivers = [each for each in components(snapshot) if each.role is Role.NETWORK_DRA] if network else []
    if drivers:
        yield f"Check the {Role.NETWORK_DRA.value} on the GPU nodes: {kubectl('describe', drivers[0].meta)}"
    elif network:
        yield "Install the network's DRA driver: the chart aws-dranet (driver dra.net); EKS Auto Mode has none."
    else:
        look = command("kubectl", "get", "pods", "-A", "-o", "wide")
        yield f"Check the DRA driver's kubelet plugin on the GPU nodes: {look}"


def _of_other_fabric(
    snapshot: Snapshot, waiting: Waiting, asked: DeviceClass, offers: Sequence[PublishedDevice]
) -> tuple[DeviceClass, list[PublishedDevice]] | None:
    """Return the class of the other fabric of AWS and its devices, if every GPU node of the pods has only these."""
    name = _OTHER_FABRIC.get(asked.meta.name, "")
    other = next((each for each in snapshot.device_classes if each.meta.name == name and each.selectors), None)
    if other is None or _of_class(asked, offers):
        return None
    matching = _of_class(other, offers)
    there = {offer.node for offer in matching}
    eligible = [node.name for node in snapshot.nodes if has_gpu(node) and selects(waiting.spec, node)]
    return (other, matching) if eligible and there.issuperset(eligible) else None


def _of_class(known: DeviceClass, offers: Sequence[PublishedDevice]) -> list[PublishedDevice]:
    """Return the published devices that match the class."""
    terms = [term for text in known.selectors for term in _terms(text)]
    driver = _driver(known)
    return [each for each in offers if driver in ("", each.driver) and all(_holds(term, each) for term in terms)]


def _other_fabric(
    waiting: Waiting, claim: ResourceClaim, request: Request, others: tuple[DeviceClass, list[PublishedDevice]]
) -> FoundCause:
    known, devices = others
    nodes = dict.fromkeys(f"node/{offer.node}" for offer in devices if offer.node)
    evidence = (
        f"{claim.meta.subject} requests class {request.device_class}; no published device matches",
        f"{len(devices)} devices match the class {known.meta.name}, on {named(nodes, _MOST)}",
    )
    remedy = (f"Set `deviceClassName: {known.meta.name}` in the claim for these nodes.",)
    return waiting.found(OTHER_FABRIC, *evidence, subject=claim.meta.subject, remedy=remedy)


def _driver(known: DeviceClass) -> str:
    """Return the driver that the selectors of the class name; '' if they name none."""
    return next((found[1] for text in known.selectors if (found := _DRIVER.search(text))), "")


def _drivers(offers: Iterable[PublishedDevice]) -> str:
    names = sorted({offer.driver for offer in offers})
    return f"drivers that publish devices: {', '.join(names[:_MOST])}" if names else "no driver publishes devices"


def _most_on_a_node(offers: Iterable[PublishedDevice]) -> int:
    return max(Counter(offer.node for offer in offers).values(), default=0)


def _terms(expression: str) -> Iterator[str]:
    """Yield the terms that must all hold. Alternatives form one term, which is not judged."""
    if "||" not in expression:
        yield from (word.strip() for word in expression.split("&&"))


def _holds(term: str, offer: PublishedDevice) -> bool:
    """Whether the term holds for the device; terms in an unknown form count as true."""
    driver = _DRIVER.fullmatch(term)
    if driver:
        return offer.driver == driver[1]
    attribute = _ATTRIBUTE.match(term)
    if attribute:
        there = _value(offer.device.attributes, attribute[1], attribute[2])
        wanted = attribute[4] if attribute[4] is not None else attribute[5]
        return (there == wanted) is (attribute[3] == "==")
    capacity = _CAPACITY.match(term)
    return _compares(offer, capacity) if capacity else True


def _compares(offer: PublishedDevice, term: re.Match[str]) -> bool:
    there, wanted = amount(_value(offer.device.capacity, term[1], term[2]) or ""), amount(term[3])
    if there is None or wanted is None:
        return there is not None
    by = {">=": there >= wanted, ">": there > wanted, "==": there == wanted, "<=": there <= wanted, "<": there < wanted}
    return by[term[4]]


def _value(values: Mapping[str, str], domain: str, name: str) -> str | None:
    """Return the value under the short name, or under the qualified one."""
    return values.get(name, values.get(f"{domain}/{name}"))


def _unmet(terms: Iterable[str], offers: Sequence[PublishedDevice]) -> Iterator[str]:
    """Yield terms that hold for no device, each with the values that the devices have."""
    for term in terms:
        if not any(_holds(term, offer) for offer in offers):
            yield f"no device meets {shortened(term)}; {_there(term, offers)}"


def _there(term: str, offers: Iterable[PublishedDevice]) -> str:
    known = _ATTRIBUTE.match(term) or _CAPACITY.match(term)
    if known is None:
        return _drivers(offers)
    sizes, fields = ".capacity[" in term, Counter[str]()
    for offer in offers:
        there = offer.device.capacity if sizes else offer.device.attributes
        fields[_value(there, known[1], known[2]) or "(none)"] += 1
    return f"existing {known[2]}: " + ", ".join(f"{value} ({count})" for value, count in fields.most_common(_MOST))
