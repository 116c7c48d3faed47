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
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PRODUCT = ("agent", "cli", "diagnosis", "healthcheck", "quarantine", "repair", "sweeper")


@dataclass(frozen=True)
class Limits:
    """Most parts, levels and arrows of a package."""

    parts: int
    levels: int
    arrows: int


LIMITS = {
    "agent": Limits(8, 6, 20),
    "diagnosis": Limits(8, 7, 25),
    "healthcheck": Limits(14, 8, 61),
}


@dataclass(frozen=True)
class Structure:
    """Parts of a package, and the imports between them. `levels` is None if the parts import each other in a circle."""

    parts: frozenset[str]
    arrows: Counter[tuple[str, str]]
    levels: int | None


@cache
def graph() -> grimp.ImportGraph:
    """Return the imports of the product."""
    return grimp.build_graph(*PRODUCT, cache_dir=None)


def structure(package: str) -> Structure:
    """Return the structure of one package."""
    arrows = Counter(imports_between_parts(package))
    parts = frozenset(child.rpartition(".")[2] for child in graph().find_children(package))
    below: dict[str, set[str]] = {part: set() for part in parts}
    for importer, imported in arrows:
        below[importer].add(imported)
    return Structure(parts, arrows, levels(below))


def imports_between_parts(package: str) -> Iterator[tuple[str, str]]:
    """Yield importing and imported part of each import that leaves a part."""
    for module in graph().find_descendants(package):
        for imported in graph().find_modules_directly_imported_by(module):
            pair = (part_of(module, package), part_of(imported, package))
            if all(pair) and pair[0] != pair[1]:
                yield pair


def part_of(module: str, package: str) -> str:
    """Return the module's part of the package; '' for another package, and for the root itself."""
    root, _, rest = module.partition(".")
    return rest.partition(".")[0] if root == package else ""


def levels(below: Mapping[str, set[str]]) -> int | None:
    """Return the number of levels; None for parts that import each other in a circle."""
    height: dict[str, int] = {}
    try:
        for part in TopologicalSorter(below).static_order():
            height[part] = 1 + max((height[other] for other in below[part]), default=0)
    except CycleError:
        return None
    return max(height.values(), default=0)


def counts() -> Iterator[tuple[str, str, int | None, int]]:
    """Yield the counted thing, its package, the count and the limit."""
    for package, limits in LIMITS.items():
        found = structure(package)
        yield "parts", package, len(found.parts), limits.parts
        yield "levels", package, found.levels, limits.levels
        yield "arrows", package, len(found.arrows), limits.arrows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrows", metavar="PACKAGE", choices=PRODUCT, help="list the arrows of this package")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    if options.arrows:
        for (importer, imported), number in sorted(structure(options.arrows).arrows.items()):
            console.print(f"{importer} -> {imported} ({number})", markup=False)
        return 0
    table = Table("count", "of", "today", "limit")
    above = []
    for what, where, count, limit in counts():
        table.add_row(what, where, "a circle" if count is None else f"{count:,}", f"{limit:,}")
        if count is None or count > limit:
            above.append(f"{what} of {where}")
    console.print(table)
    if above:
        Console(stderr=True).print(f"above the limit: {', '.join(above)}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
