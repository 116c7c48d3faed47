"""`python -m sim.real_node up|shell|exec CMD…|xid|status|down|deps|suited`: a node to try things on by hand."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from go_programs.build import ProgramError
from go_programs.helm import program as helm
from release.image import SLIM, TARGETS
from sim.real_node import RealNode, RunningNode, images, needs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.real_node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring the node up, our image loaded, nothing applied")
    up.add_argument("--instance-type", default="p5.48xlarge")
    up.add_argument("--target", default=SLIM, choices=TARGETS, help="of the Dockerfile")
    commands.add_parser("shell", help="a shell on the node: kubectl, helm and gpu-healthcheck at hand")
    commands.add_parser("exec", help="one command on the node").add_argument("words", nargs=argparse.REMAINDER)
    xid = commands.add_parser("xid", help="the driver tells of a fault in the kernel's log")
    xid.add_argument("code", type=int, nargs="?", default=79)
    xid.add_argument("--gpu", type=int, default=3)
    commands.add_parser("status", help="what runs; 1 when no node is up")
    commands.add_parser("down", help="take it down, nothing stays")
    commands.add_parser("deps", help="install what it needs, by apt-get")
    commands.add_parser("suited", help="1 and one line where no installation would help")
    try:
        return _do(parser.parse_args())
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _do(options: argparse.Namespace) -> int:
    node = RunningNode()
    match options.command:
        case "up":
            _up(RealNode(instance_type=options.instance_type), options.target)
        case "shell":
            return subprocess.call(node.argv("bash", "--norc", "-i"))
        case "exec":
            return subprocess.call(node.argv(*options.words))
        case "xid":
            node.xid(options.gpu, options.code)
        case "status":
            print(node.kubectl("get", "nodes,pods", "--all-namespaces") if node.is_up else "no node is up")
            return 0 if node.is_up else 1
        case "down":
            RealNode().down()
        case "deps":
            needs.install()
        case "suited":
            return _say(needs.unsuited())
    return 0


def _up(node: RealNode, target: str) -> None:
    archive, program = images.ours(target), helm()
    node.up()
    node.load(archive)
    shutil.copy2(program, node.folder / "bin")
    print(f"{node.name} is up, and has our image; nothing is applied. On it: `make node-shell`; away: `make node-down`")


def _say(reason: str) -> int:
    if reason:
        print(reason, file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
