"""`python -m tests.upgrade FROM`: the upgrade from that commit to this tree and back, with active faults."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from bench.outcome import CouldNotMeasure
from tests.upgrade import processes
from tests.upgrade.save import save
from tests.upgrade.versions import HERE, Version, version_of
from tools.go_programs.build import ProgramError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade", description=__doc__)
    parser.add_argument("commit", metavar="FROM", help="the commit of the version before")
    parser.add_argument("--checkout", type=Path, help="of that commit, with its .venv: none is made")
    parser.add_argument("--save", metavar="FOLDER", type=Path, help="write what FROM writes there, and try nothing")
    parser.add_argument("--real-node", action="store_true", help="on a real kubelet, with both images (Debian, root)")
    options = parser.parse_args()
    root = options.checkout
    ready = Version(options.commit, root, root / ".venv/bin/python") if root else None
    try:
        with nullcontext(ready) if ready else version_of(options.commit) as before:
            if options.save:
                save(before, options.save)
            elif options.real_node:
                from tests.upgrade import on_node

                on_node.tell(before)
            else:
                processes.tell(before, HERE)
    except (CouldNotMeasure, ProgramError) as error:
        print(error, file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"lost on the way: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
