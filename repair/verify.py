"""Facts from NVML before and after a reset: the GPUs of the reset, and whether they work again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from healthcheck.deep.gpu_resets import ResetScope, ScopeRow, scope_of
from healthcheck.probes.nvml.gpus import SUCCESS, Gpu
from healthcheck.probes.pci import PciFunction
from healthcheck.verdict.record import ResetGpuRow


class Selection(Struct, frozen=True):
    """GPUs of a reset.

    `missing` are requested GPUs that neither NVML nor PCI has, `handed_away` those of virtual machines.
    """

    gpus: tuple[ResetGpuRow, ...]
    row: ScopeRow
    minors: frozenset[int]
    """Minor numbers of their device files; empty if one is unknown, so that every GPU's counts."""
    missing: tuple[str, ...] = ()
    handed_away: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names for nvidia-smi; `()` means all GPUs of the node."""
        return () if self.row.scope is ResetScope.ALL else tuple(gpu.uuid or gpu.address or "" for gpu in self.gpus)


def select(
    asked: Sequence[str], gpus: Sequence[Gpu], functions: Collection[PciFunction], persistent: Collection[str] = ()
) -> Selection:
    """Return the requested GPUs, together with those that must be reset with them.

    `persistent` are the UUIDs of GPUs whose persistence mode an earlier run has not restored.
    """
    on_pci = {function.address: function for function in functions if function.is_gpu}
    chosen = {gpu.index: gpu for gpu in gpus if not {gpu.uuid, gpu.address, str(gpu.index)}.isdisjoint(asked)}
    known = {name for gpu in chosen.values() for name in (gpu.uuid, gpu.address, str(gpu.index))}
    silent = [name for name in asked if name not in known]
    unnamed = [address for address in silent if address in on_pci]
    row = scope_of(
        (link.version for gpu in gpus for link in gpu.nvlinks or ()),
        has_nvswitch=any(function.is_nvswitch for function in functions),
    )
    if row.scope is ResetScope.ALL:
        chosen = {gpu.index: gpu for gpu in gpus}
    elif row.scope is ResetScope.LINKED:
        chosen |= {gpu.index: gpu for gpu in gpus if gpu.nvlinks}
    minors = [gpu.minor for gpu in chosen.values()]
    return Selection(
        (
            *(
                ResetGpuRow(
                    address=gpu.address,
                    uuid=gpu.uuid,
                    index=str(gpu.index),
                    persistence=gpu.persistence or gpu.uuid in persistent or None,
                )
                for gpu in chosen.values()
            ),
            *(ResetGpuRow(address=address, uuid="", index="") for address in unnamed),
        ),
        row,
        frozenset() if unnamed or None in minors else frozenset(minor for minor in minors if minor is not None),
        tuple(name for name in silent if name not in on_pci),
        tuple(name for name in unnamed if on_pci[name].is_handed_away),
    )


def why_not_working(selection: Selection, gpus: Iterable[Gpu]) -> Iterator[str]:
    """Yield why a GPU of the reset does not work yet: silent, a pending recovery action, or pending rows."""
    answering = {gpu.address: gpu for gpu in gpus if gpu.address}
    for row in selection.gpus:
        gpu = answering.get(row.address or "")
        if gpu is None or gpu.error != SUCCESS:
            yield f"GPU {row.address} does not answer NVML" + (f" (error {gpu.error})" if gpu else "")
        elif gpu.recovery_action:
            yield f"the driver still recommends recovery action {gpu.recovery_action} for GPU {row.address}"
        elif gpu.row_remap is not None and gpu.row_remap.pending:
            yield f"GPU {row.address} still has rows to be remapped"


def after_reset(selection: Selection, gpus: Iterable[Gpu]) -> tuple[ResetGpuRow, ...]:
    """Return the GPUs of the reset with the names that NVML reports now."""
    answering = {gpu.address: gpu for gpu in gpus}
    return tuple(
        ResetGpuRow(address=gpu.address, uuid=gpu.uuid, index=str(gpu.index))
        for row in selection.gpus
        if (gpu := answering.get(row.address or "")) is not None
    )
