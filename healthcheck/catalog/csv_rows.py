"""Reader of the catalogue's data files: rows of text, each with its line and source."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.resources import files


def read_rows(name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row with the number of its last line.

    Raises ValueError for an invalid row, which the build should reject.
    """
    text = files("gpu_healthcheck.healthcheck.catalog").joinpath(name).read_text(encoding="utf-8")
    reader = csv.DictReader(text.splitlines(), restval="", strict=True)
    for row in reader:
        if None in row or not row["source"]:
            raise ValueError(f"{name}:{reader.line_num}: too many cells, or none for the source")
        yield reader.line_num, row
