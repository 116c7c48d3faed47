"""Files of a release besides the images: the downloads, and a signed list of checksums."""

from __future__ import annotations

import hashlib
from pathlib import Path

CHECKSUMS = "checksums.txt"


def write_checksums(folder: Path) -> Path:
    """Write the checksums of all files in the format of `sha256sum --check`."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith(CHECKSUMS))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    listed = folder / CHECKSUMS
    listed.write_text("".join(lines))
    return listed
