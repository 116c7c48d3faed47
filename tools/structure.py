"""Count parts, levels and arrows of each package; fail above the limits.

A part is a folder or a module at the root of a package. An arrow is a pair of parts of which one imports the other. The
number of levels is the length of the longest chain of arrows. `python -m tools.structure` prints the counts;
`--arrows PACKAGE` lists the arrows of a package with the number of imports in each.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
ROOT_PACKAGE = "gpu_healthcheck"
PRODUCT = ("agent", "cli", "diagnosis", "evict", "healthcheck", "quarantine", "repair", "sweeper")


LIMITS = {
    "agent": {"parts": 8, "levels": 6, "arrows": 20},
    "diagnosis": {"parts": 8, "levels": 7, "arrows": 25},
    "healthcheck": {"parts": 14, "levels": 8, "arrows": 61},
}


@cache
def graph() -> grimp.ImportGraph:
    """Return the imports of the product."""
    return grimp.build_graph(ROOT_PACKAGE, cache_dir=None)


def arrows(package: str) -> Counter[tuple[str, str]]:
    """Return the arrows of a package with the number of imports in each."""
    return Counter(imports_between_parts(package))


def imports_between_parts(package: str) -> Iterator[tuple[str, str]]:
    """Yield importing and imported part of each import that leaves a part."""
    for module in graph().find_descendants(f"{ROOT_PACKAGE}.{package}"):
        for imported in graph().find_modules_directly_imported_by(module):
            pair = (part_of(module, package), part_of(imported, package))
            if all(pair) and pair[0] != pair[1]:
                yield pair


def part_of(module: str, package: str) -> str:
    """Return the module's part of the package; '' for another package, and for the root itself."""
    _, root, *parts = module.split(".")
    return parts[0] if parts and root == package else ""


def levels(below: Mapping[str, set[str]]) -> int:
    """Return the number of levels. Raises CycleError for parts that import each other in a circle."""
    height: dict[str, int] = {}
    for part in TopologicalSorter(below).static_order():
        height[part] = 1 + max((height[other] for other in below[part]), default=0)
    return max(height.values(), default=0)


def counts(package: str) -> dict[str, int]:
    """Return the number of parts, levels and arrows of a package. Raises CycleError."""
    parts = {child.rpartition(".")[2] for child in graph().find_children(f"{ROOT_PACKAGE}.{package}")}
    pairs = arrows(package)
    below = {part: {imported for importer, imported in pairs if importer == part} for part in parts}
    return {"parts": len(parts), "levels": levels(below), "arrows": len(pairs)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrows", metavar="PACKAGE", choices=PRODUCT, help="list the arrows of this package")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    if options.arrows:
        for (importer, imported), number in sorted(arrows(options.arrows).items()):
            console.print(f"{importer} -> {imported} ({number})", markup=False)
        return 0
    table = Table("count", "of", "today", "limit")
    above = []
    for package, limits in LIMITS.items():
        for what, count in counts(package).items():
            table.add_row(what, package, f"{count:,}", f"{limits[what]:,}")
            if count > limits[what]:
                above.append(f"{what} of {package}")
    console.print(table)
    if above:
        Console(stderr=True).print(f"above the limit: {', '.join(above)}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
