"""Content of a report, in any form."""

from __future__ import annotations

from msgspec import Struct

from diagnosis.answers.allocation import Allocation
from diagnosis.answers.chain import Chain
from diagnosis.answers.drift import Change
from diagnosis.answers.hami_parts import InstallationTable
from diagnosis.answers.node_inventory import InventoryRow
from diagnosis.causes.diagnose import Diagnosis
from diagnosis.facts.components import ComponentRow


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
