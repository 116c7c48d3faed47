"""The kinds of files that `replay` reads: a name on the command line, which loads nothing."""

from __future__ import annotations

from enum import StrEnum

EVIDENCE_FORMAT = "gpu-healthcheck evidence"
"""What a file of evidence says first that it is."""
MOST_EVIDENCE = 64 << 20
"""Bytes, unpacked. That of a p5.48xlarge has some 100 KiB beside the kernel's log."""


class InputKind(StrEnum):
    """Kind of an input file."""

    KERNEL_LOG = "kernel-log"
    BUG_REPORT = "bug-report"
    DCGM = "dcgm"
    EVIDENCE = "evidence"
