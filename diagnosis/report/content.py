"""Content of a report, in any form: the causes, and what else its target needs."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from diagnosis.answers.allocation import Allocation, allocation
from diagnosis.answers.chain import Chain, chains_of
from diagnosis.answers.drift import Change, changes
from diagnosis.answers.hami_chain import hami_chains
from diagnosis.answers.hami_parts import InstallationTable, installation_tables
from diagnosis.answers.node_inventory import InventoryRow, inventory
from diagnosis.answers.target import Target, concerned, in_namespace, narrowed, pods_of
from diagnosis.causes.diagnose import Diagnosis, diagnose
from diagnosis.facts.components import ComponentRow, component_table
from diagnosis.snapshot import Snapshot


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


def report_of(
    snapshot: Snapshot, target: Target | None, namespace: str, old: Snapshot | None, *, overview: bool
) -> Report:
    """Judge the state, and return the report about the target, or about a namespace or the whole cluster.

    `old`: the state to compare with. `overview`: add the allocation and the components, but not for one pod, of which
    only the dependencies were read.
    """
    diagnosis = diagnose(snapshot)
    report = Report(diagnosis, changes=changes(old, snapshot) if old is not None else None)
    if overview and (target is None or target.kind != "Pod"):
        report = replace(report, cluster=allocation(snapshot), components=component_table(snapshot))
    if target is None:
        shown = in_namespace(diagnosis, namespace) if namespace else diagnosis
        return replace(report, diagnosis=shown, hami=installation_tables(snapshot))
    diagnosis = narrowed(diagnosis, concerned(snapshot, target))
    if target.kind == "Node":
        return replace(report, diagnosis=diagnosis, node=inventory(snapshot, snapshot.by_node[target.name]))
    pods = pods_of(snapshot, target)
    chains = (*chains_of(snapshot, pods, diagnosis.problems), *hami_chains(snapshot, pods, diagnosis.problems))
    return replace(report, diagnosis=diagnosis, chains=chains)
