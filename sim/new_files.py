"""Batch creation of files: a simulated node has more than a thousand, and most tests create one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_new(folder: Path, values: Mapping[str, object]) -> None:
    """Write a line to each of these files below the folder, and create their folders."""
    base = str(folder)
    for below in {os.path.dirname(name) for name in values}:  # noqa: PTH120 - pathlib would double the time
        os.makedirs(f"{base}/{below}", exist_ok=True)  # noqa: PTH103
    for name, value in values.items():
        file = os.open(f"{base}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        os.write(file, f"{value}\n".encode())
        os.close(file)
