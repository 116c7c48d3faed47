"""`python -m sim.real_node up|shell|exec CMD…|status|down|deps|suited`: a node to try things on by hand."""

from __future__ import annotations

import argparse
import subprocess
import sys

from release.image import SLIM, TARGETS
from sim.control_plane import ControlPlaneError
from sim.real_node import RealNode, RunningNode, images, needs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.real_node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring the node up, our image loaded, nothing applied")
    up.add_argument("--instance-type", default="p5.48xlarge")
    up.add_argument("--target", default=SLIM, choices=TARGETS, help="of the Dockerfile")
    commands.add_parser("shell", help="a shell on the node, kubectl at hand")
    commands.add_parser("exec", help="one command on the node").add_argument("words", nargs=argparse.REMAINDER)
    commands.add_parser("status", help="what runs; 1 when no node is up")
    commands.add_parser("down", help="take it down, nothing stays")
    commands.add_parser("deps", help="install what it needs, by apt-get")
    commands.add_parser("suited", help="1 and one line where no installation would help")
    try:
        return _do(parser.parse_args())
    except ControlPlaneError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _do(options: argparse.Namespace) -> int:
    node = RunningNode()
    match options.command:
        case "up":
            fresh = RealNode(instance_type=options.instance_type)
            fresh.up()
            fresh.load(images.ours(options.target))
        case "shell":
            return subprocess.call(node.argv("bash", "--norc", "-i"))
        case "exec":
            return subprocess.call(node.argv(*options.words))
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


def _say(reason: str) -> int:
    if reason:
        print(reason, file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
