"""Reads all tables of the catalogue at once.

A long-running process calls this at its start, while it can still open files.
"""

from __future__ import annotations

from gpu_healthcheck.healthcheck.catalog import cuda_errors, dcgm, eks_reasons, hardware, nvlink, sxid, xid

TABLES = (
    *(xid.actions, xid.xid_table, sxid.sxid_table, xid.recovery_actions),
    *(nvlink.nvlink4_table, nvlink.nvlink5_table, hardware.fabrics, hardware.all_reduce_table),
    *(eks_reasons.eks_words, hardware.gpu_speed_table),
    *(dcgm.dcgm_table, dcgm.dcgm_tests, dcgm.dcgm_returns),
    *(cuda_errors.cuda_errors, cuda_errors.library_errors, cuda_errors.error_fixes),
)


def read_all() -> None:
    """Read all tables. Raises ValueError for an invalid row, which the build should reject."""
    for table in TABLES:
        table()
