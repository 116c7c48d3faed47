"""Content of a report, in any form: the causes, and what else its target needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.answers.allocation import Allocation, allocation
from gpu_healthcheck.diagnosis.answers.chain import Chain, chains_of
from gpu_healthcheck.diagnosis.answers.drift import Change, changes
from gpu_healthcheck.diagnosis.answers.hami_chain import hami_chains
from gpu_healthcheck.diagnosis.answers.hami_parts import InstallationTable, installation_tables
from gpu_healthcheck.diagnosis.answers.node_inventory import InventoryRow, inventory
from gpu_healthcheck.diagnosis.answers.ranks import RankReport
from gpu_healthcheck.diagnosis.answers.target import (
    HAMI,
    Target,
    concerned,
    in_namespace,
    narrowed,
    of_causes,
    of_pods,
    pods_of,
    touches,
)
from gpu_healthcheck.diagnosis.answers.timeline import TimelineRow, timeline
from gpu_healthcheck.diagnosis.causes import HAMI_CAUSES, OF_WORKLOADS
from gpu_healthcheck.diagnosis.causes.diagnose import EVERYTHING, SAVED_STATE, Diagnosis, diagnose
from gpu_healthcheck.diagnosis.causes.ended_jobs import ENDS
from gpu_healthcheck.diagnosis.facts.commands import command
from gpu_healthcheck.diagnosis.facts.components import ComponentRow, component_table
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods
from gpu_healthcheck.diagnosis.facts.symptoms import is_stuck
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.naming import named

_EXPLAIN = ("Event", "Node", "Pod")
"""Kinds that show why a pod does not run."""
_MOST = 3
_VIEWER, _TEAM_VIEWER = "gpu-healthcheck-viewer", "gpu-healthcheck-team-viewer"
"""ClusterRoles: all that a diagnosis reads, and Nodes and Leases alone (kubernetes/manifests)."""


class Report(Struct, frozen=True):
    """Content of a report.

    `changes`: since an older state; None if not requested. `cluster` is None if the form does not show it.
    """

    diagnosis: Diagnosis
    chains: tuple[Chain, ...] = ()
    node: tuple[InventoryRow, ...] = ()
    """Inventory of the requested node."""
    changes: tuple[Change, ...] | None = None
    cluster: Allocation | None = None
    components: tuple[ComponentRow, ...] = ()
    hami: tuple[InstallationTable, ...] = ()
    unexplained: tuple[str, ...] = ()
    """GPU pods that do not run and have no cause, if parts that may show it are not visible."""
    own: frozenset[str] | None = None
    """Subjects of the requested pods, and of their owners; None if the report is about other objects too."""
    recognised: Mapping[str, int] = field(default_factory=dict)
    """Numbers of objects and lines that were recognised in a text; empty for a state without one."""
    timeline: tuple[TimelineRow, ...] = ()
    """Changes of the requested workload or pod in the order of time."""
    user: str = ""
    """User whom the API server denied a listing; '' if it denied none."""
    only_in: str = ""
    """Namespace to which the user's permissions on pods are limited; '' if they are not."""
    ranks: RankReport | None = None
    """Answer of the job's NCCL; None if not requested."""

    @property
    def nothing(self) -> str:
        """Return the sentence for a report without causes."""
        unseen = [unchecked.kind for unchecked in self.diagnosis.unseen]
        if self.unexplained:
            whole = {unchecked.kind for unchecked in self.diagnosis.unseen if unchecked.hides != EVERYTHING}
            lacking = " and ".join(f"{kind}s" for kind in _EXPLAIN if kind in whole)
            return f"It is unknown what keeps {named(self.unexplained, _MOST)} from running: {lacking} are not visible."
        if any(not chain.is_whole for chain in self.chains) or (self.ranks is not None and self.ranks.suspects):
            return "No cause was found" + (" in the visible part of the cluster." if unseen else ".")
        return "Nothing found in the visible part of the cluster." if unseen else "Nothing found."

    @property
    def recognised_parts(self) -> str:
        """Return what was recognised in a text, as `1 pod, 4 events`; '' for a state without one."""
        return ", ".join(f"{count:,} {what[:-1] if count == 1 else what}" for what, count in self.recognised.items())

    @property
    def unseen(self) -> tuple[str, ...]:
        """Return what is not visible: one sentence for all that the user may not list, one for each other kind."""
        if self.recognised and self.diagnosis.unseen:
            return (self._unseen_in_text(),)
        denied = [each for each in self.diagnosis.unseen if each.denied]
        others = (each for each in self.diagnosis.unseen if not each.denied)
        sentences = [f"{each.kind}: {each.why}; hides {_causes(each.hides.split(', '))}" for each in others]
        if denied:
            kinds = sorted((each.kind for each in denied), key=lambda kind: (kind not in _EXPLAIN, kind))
            hidden = dict.fromkeys(name for each in denied for name in each.hides.split(", "))
            user = self.user or "USER"
            role, what = (_TEAM_VIEWER, "Nodes") if self.only_in else (_VIEWER, "it")
            binding = f"{role}-{re.sub('[/%]', '-', user)}"  # a name must not contain these
            grant = command(
                "kubectl", "create", "clusterrolebinding", binding, f"--clusterrole={role}", f"--user={user}"
            )
            can = f"permits {what}: {grant}"
            if self.only_in and "Node" not in kinds:  # the rest would show the pods of other teams
                can = f"can check it: {command('gpu-healthcheck', 'diagnose', '-n', self.only_in)}"
            sentences.insert(
                0,
                f"You may not list {named(kinds, _MOST)} in the whole cluster; this hides {_causes(list(hidden))}. An "
                f"administrator of the cluster {can}",
            )
        return tuple(sentences)

    def _unseen_in_text(self) -> str:
        """Return the sentence about all that a text does not show."""
        damage = [each.why for each in self.diagnosis.unseen if each.kind == SAVED_STATE]
        others = [each for each in self.diagnosis.unseen if each.kind != SAVED_STATE]
        invalid = [f"{each.kind}: {each.why}" for each in others if each.hides == EVERYTHING]
        kinds = dict.fromkeys(each.kind for each in others if each.hides != EVERYTHING)
        hidden = dict.fromkeys(name for each in others for name in each.hides.split(", "))
        rest = f"not in the text: {named(list(kinds), _MOST)}; this hides {_causes(list(hidden))}" if kinds else ""
        return "; ".join(filter(None, (*damage[:_MOST], *invalid[:_MOST], rest)))


def _causes(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST else f"{len(names)} possible causes"


def report_of(
    snapshot: Snapshot, target: Target | None, namespace: str, old: Snapshot | None, *, overview: bool
) -> Report:
    """Judge the state, and return the report about the target, or about a namespace or the whole cluster.

    `old`: the state to compare with. `overview`: add the allocation and the components, but not for one pod, of which
    only the dependencies were read.
    """
    pods = pods_of(snapshot, target) if target is not None and target.kind not in ("Node", HAMI) else ()
    if pods:  # evidence and commands name the first pods
        names = {pod.subject for pod in pods}
        snapshot = replace(snapshot, pods=(*pods, *(pod for pod in snapshot.pods if pod.subject not in names)))
    is_workload = target is not None and target.kind not in ("Node", HAMI)
    diagnosis = diagnose(snapshot, OF_WORKLOADS) if is_workload else diagnose(snapshot)
    since = changes(old, snapshot) if old is not None else None
    report = Report(
        diagnosis, changes=since, user=snapshot.user, only_in=snapshot.only_in, recognised=snapshot.recognised
    )
    if overview and (target is None or target.kind not in ("Pod", HAMI)):
        report = replace(report, cluster=allocation(snapshot), components=component_table(snapshot))
    if target is not None and target.kind == HAMI:
        shown = of_causes(diagnosis, HAMI_CAUSES)
        shown = in_namespace(shown, namespace) if namespace else shown
        return replace(report, diagnosis=shown, hami=installation_tables(snapshot))
    if target is None:
        shown = in_namespace(diagnosis, namespace) if namespace else diagnosis
        stuck = _unexplained(shown, (pod for pod in gpu_pods(snapshot) if namespace in ("", pod.meta.namespace)))
        return replace(report, diagnosis=shown, hami=installation_tables(snapshot), unexplained=stuck)
    diagnosis = narrowed(diagnosis, concerned(snapshot, target))
    if target.kind == "Node":
        return replace(report, diagnosis=diagnosis, node=inventory(snapshot, snapshot.by_node[target.name]))
    chains = (*chains_of(snapshot, pods, diagnosis.problems), *hami_chains(snapshot, pods, diagnosis.problems))
    own = frozenset(text for pod in pods for text in snapshot.line(pod.meta)) | {target.subject}
    diagnosis = of_pods(_without_other_ends(diagnosis, target), own, {pod.subject for pod in pods})
    report = replace(report, timeline=timeline(snapshot, target), unexplained=_unexplained(diagnosis, pods))
    return replace(report, diagnosis=diagnosis, chains=chains, own=own)


def _without_other_ends(diagnosis: Diagnosis, target: Target) -> Diagnosis:
    """Return the diagnosis without the ends of workloads below or above the target, such as a CronJob's old Jobs."""
    own = frozenset((target.subject,))
    kept = (each for each in diagnosis.problems if each.found.cause not in ENDS or touches(each, own))
    return replace(diagnosis, problems=tuple(kept))


def _unexplained(diagnosis: Diagnosis, pods: Iterable[Pod]) -> tuple[str, ...]:
    """Return the pods that do not run, if there is no cause, and parts that may show it are not visible."""
    hidden = {unchecked.kind for unchecked in diagnosis.unseen if unchecked.hides != EVERYTHING}
    if diagnosis.problems or hidden.isdisjoint(_EXPLAIN):
        return ()
    return tuple(pod.subject for pod in pods if pod.phase == "Pending" or is_stuck(pod) or _ended_silently(pod))


def _ended_silently(pod: Pod) -> bool:
    """Whether the pod failed and its own status has no reason."""
    return pod.phase == "Failed" and not (pod.reason or pod.message or any(state.ended for state in pod.states))
