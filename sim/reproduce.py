"""Build the checked-out commit twice, images on the stand-in base, and compare the results."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from sim.real_node import images, needs
from tools.go_programs.build import ProgramError
from tools.release import packages
from tools.release.image import NAME, TARGETS, build, build_arguments, digest
from tools.release.origin import exported, origin
from tools.release.running import ReleaseError


def built_twice(target: str) -> list[str]:
    """Print the digests of two builds, and return the target if they differ."""
    made_from = origin()
    digests = []
    with exported(made_from.revision) as tree, images.on_stand_ins() as words:
        for number in ("1", "2"):
            build(images.buildah, NAME, [*build_arguments(target, made_from), *words], tree)
            digests.append(digest(images.buildah, NAME))
            images.buildah("rmi", NAME)
            print(f"{target} {number}: {digests[-1]}", flush=True)
    return [target] if len(set(digests)) > 1 else []


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
        differing = [*packed_twice(), *(name for target in TARGETS for name in built_twice(target))]
    except (ReleaseError, ProgramError) as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 1
    print(f"differ: {', '.join(differing)}" if differing else "bit-identical")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
