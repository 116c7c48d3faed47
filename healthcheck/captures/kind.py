"""The kinds of files that `replay` reads: a name on the command line, which loads nothing."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a file can be."""

    KERNEL_LOG = "kernel-log"
    BUG_REPORT = "bug-report"
    DCGM = "dcgm"
    EVIDENCE = "evidence"
