"""`python -m tests.newcomer [WAY…]`: the documents' commands on a real kubelet, by each way to install."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.real_node import RealNode, images
from tests.newcomer.story import Newcomer
from tests.newcomer.ways import WAYS
from tests.node.stage import Stage
from tools.go_programs.build import ProgramError
from tools.go_programs.helm import program as helm


def main() -> int:
    names = [way.name for way in WAYS]
    parser = argparse.ArgumentParser(prog="python -m tests.newcomer", description=__doc__)
    parser.add_argument("ways", metavar="WAY", nargs="*", choices=[[], *names], help=f"of {', '.join(names)}")
    wanted = parser.parse_args().ways or names
    try:
        _tell(wanted)
    except (AssertionError, ProgramError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _tell(names: list[str]) -> None:
    archive, program = images.ours(), helm()
    for way in (one for one in WAYS if one.name in names):
        with (
            tempfile.TemporaryDirectory(prefix="gpu-healthcheck-newcomer-") as folder,
            SimulatedNode.create(Path(folder) / "gpu-node-1") as host,
            RealNode(host.root) as node,
        ):
            node.load(archive)
            shutil.copy2(program, node.folder / "bin")
            Newcomer(Stage(host, node), way).hour()


if __name__ == "__main__":
    sys.exit(main())
