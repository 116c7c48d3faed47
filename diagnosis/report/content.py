"""Content of a report, in any form."""

from __future__ import annotations

from msgspec import Struct

from diagnosis.allocation import Allocation
from diagnosis.chain import Chain
from diagnosis.components import ComponentRow
from diagnosis.diagnose import Diagnosis
from diagnosis.drift import Change
from diagnosis.hami_parts import InstallationTable
from diagnosis.node_inventory import InventoryRow


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
