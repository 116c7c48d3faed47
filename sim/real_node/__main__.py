"""`python -m sim.real_node up|shell|exec CMD…|xid|status|down|deps|suited`: a node for manual tests."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from gpu_healthcheck.sim.real_node import RealNode, RunningNode, images, needs
from tools.go_programs.build import ProgramError
from tools.go_programs.helm import program as helm
from tools.release.image import SLIM, TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.real_node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the node with our image loaded and no manifests applied")
    up.add_argument("--instance-type", default="p5.48xlarge")
    up.add_argument("--target", default=SLIM, choices=TARGETS, help="target of the Dockerfile")
    commands.add_parser("shell", help="open a shell on the node, with kubectl, helm and gpu-healthcheck")
    commands.add_parser("exec", help="run one command on the node").add_argument("words", nargs=argparse.REMAINDER)
    xid = commands.add_parser("xid", help="write a fault of the driver to the kernel log")
    xid.add_argument("code", type=int, nargs="?", default=79)
    xid.add_argument("--gpu", type=int, default=3)
    commands.add_parser("status", help="show the running pods; exit code 1 if no node is up")
    commands.add_parser("down", help="stop the node and remove everything")
    commands.add_parser("deps", help="install the requirements by apt-get")
    commands.add_parser("suited", help="exit with 1 and the reason if this machine cannot run a node")
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
            return _print_reason(needs.unsuited())
    return 0


def _up(node: RealNode, target: str) -> None:
    if reason := needs.missing():  # before the image is built, which needs the same programs
        raise ProgramError(reason)
    archive, program = images.ours(target), helm()
    node.up()
    node.load(archive)
    shutil.copy2(program, node.folder / "bin")
    print(f"{node.name} is up with our image, without manifests. Shell: `make node-shell`; stop: `make node-down`")


def _print_reason(reason: str) -> int:
    if reason:
        print(reason, file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
