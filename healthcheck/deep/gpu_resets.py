"""GPUs that must be reset together, and platforms on which resets are known to fail. Data with sources."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct


class ResetScope(StrEnum):
    """GPUs of one reset."""

    ONE = "one"
    """The GPU alone."""
    LINKED = "linked"
    """All GPUs with NVLinks."""
    ALL = "all"
    """All GPUs of the node, with the fabric manager stopped."""


class ScopeRow(Struct, frozen=True):
    """Scope for GPUs from an NVLink version on (nvmlNvlinkVersion_t; 0: no NVLink).

    `with_nvswitch` None: the row applies with and without NVSwitches.
    """

    least_version: int
    with_nvswitch: bool | None
    scope: ResetScope
    source: str


_MANUAL = "nvidia-smi manual, --gpu-reset"
SCOPES = (
    ScopeRow(6, None, ResetScope.ONE, f"{_MANUAL}: Hopper and later need no fabric manager to be reset one by one"),
    ScopeRow(4, True, ResetScope.ALL, f"{_MANUAL}: Ampere without a fabric manager: all linked GPUs in one command"),
    ScopeRow(4, False, ResetScope.ONE, f"{_MANUAL}: from Ampere on, GPUs with NVLinks are reset one by one"),
    ScopeRow(1, None, ResetScope.LINKED, f"{_MANUAL}: before Ampere, all linked GPUs in one command"),
    ScopeRow(0, None, ResetScope.ONE, f"{_MANUAL}: no NVLink"),
)
"""First matching row applies. On Ampere with NVSwitches, a single GPU is reset only through a running fabric manager;
this system stops it and resets all. NVLink 2.2 (3) is Volta's and Turing's, 3.0 (4) Ampere's, 4.0 (6) Hopper's."""
UNKNOWN_LINKS = ScopeRow(0, None, ResetScope.ALL, "the NVLink version is unknown, so no GPU counts as independent")


class KnownFailure(Struct, frozen=True):
    """Platform on which a GPU reset is known to fail, by the beginning of the Node's `spec.providerID`."""

    provider: str
    why: str
    source: str


KNOWN_FAILURES = (
    KnownFailure(
        "aws://",
        "EC2's hypervisor refuses the function-level reset of a GPU, also for metal instances; a reboot ends the fault",
        "NVIDIA/ai-cloud-validation PR 603, awslabs/awsome-distributed-ai PR 1190",
    ),
)


def scope_of(versions: Iterable[int | None], *, has_nvswitch: bool) -> ScopeRow:
    """Return the scope for GPUs with these NVLinks; a version is None if NVML does not report it."""
    listed = list(versions)
    known = [version for version in listed if version is not None]
    if listed and not known:
        return UNKNOWN_LINKS
    version = min(known, default=0)
    return next(row for row in SCOPES if version >= row.least_version and row.with_nvswitch in (None, has_nvswitch))


def known_failure(provider_id: str) -> KnownFailure | None:
    """Return the row of the platform; None if resets are not known to fail there."""
    return next((row for row in KNOWN_FAILURES if provider_id.startswith(row.provider)), None)
