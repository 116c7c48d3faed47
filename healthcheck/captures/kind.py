"""Kinds of files that `replay` reads. This module loads no reader, so that the command line starts fast."""

from __future__ import annotations

from enum import StrEnum

EVIDENCE_FORMAT = "gpu-healthcheck evidence"
"""Value of the first key of an evidence file."""
MOST_EVIDENCE = 64 << 20
"""Most bytes of an unpacked evidence file. Without the kernel log, the file of a p5.48xlarge has about 100 KiB."""


class InputKind(StrEnum):
    """Kind of an input file."""

    KERNEL_LOG = "kernel-log"
    BUG_REPORT = "bug-report"
    DCGM = "dcgm"
    EVIDENCE = "evidence"
