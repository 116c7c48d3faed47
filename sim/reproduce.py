"""Build the checked-out commit twice, images on the stand-in base, and compare the results."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from sim.real_node import images, needs
from tools.go_programs.build import ProgramError
from tools.release import packages
from tools.release.image import NAME, TARGETS, build, build_arguments, layout
from tools.release.layout import Layout, differences
from tools.release.origin import exported, origin
from tools.release.running import ReleaseError


def twice(target: str) -> list[str]:
    """Build twice, print the digests, and return the differences."""
    made_from = origin()
    with tempfile.TemporaryDirectory() as folder, exported(made_from.revision) as tree, images.on_stand_ins() as words:
        built = []
        for number in ("1", "2"):
            arguments = [*build_arguments(target, made_from), *words]
            build(images.buildah, NAME, arguments, tree)
            layout(images.buildah, NAME, Path(folder) / number)
            images.buildah("rmi", NAME)
            built.append(Layout(Path(folder) / number))
            print(f"{target} {number}: {built[-1].digest}", flush=True)
        return differences(*built)


def packed_twice() -> list[str]:
    """Print the checksums of wheel and source archive, and return those that differ."""
    made_from = origin()
    with tempfile.TemporaryDirectory() as folder:
        built = []
        for number in ("1", "2"):
            out = Path(folder) / number
            out.mkdir()
            with exported(made_from.revision) as tree:
                files = packages.build(tree, out, made_from.epoch)
            built.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
            for name, checksum in built[-1].items():
                print(f"{name} {number}: sha256:{checksum}", flush=True)
    return sorted(name for name in built[0] if built[0][name] != built[1].get(name))


def main() -> int:
    if reason := needs.missing():
        print(f"reproduce: {reason}", file=sys.stderr)
        return 1
    try:
        found = {"packages": packed_twice()} | {target: twice(target) for target in TARGETS}
    except (ReleaseError, ProgramError) as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 1
    for target, lines in found.items():
        print(f"{target}: {'bit-identical' if not lines else 'differs'}", *lines[:50], sep="\n  ")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
