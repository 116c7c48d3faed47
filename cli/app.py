"""The commands, put together."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from gpu_healthcheck import healthcheck
from gpu_healthcheck.cli.command_help import COMPLETION, Command, Group
from gpu_healthcheck.healthcheck.host.opening import shortage_behind
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, INTERRUPTED, USAGE
from gpu_healthcheck.healthcheck.host.streams import end_with_whoever_reads, say, take_any_text, write_document

COMMANDS = {
    "check": "Check this node once and print the verdict.",
    "replay": "Judge saved logs or evidence.",
    "status": "Show every GPU node, worst first.",
    "diagnose": "Show why GPU pods and nodes are stuck.",
    "quarantine": "Cordon, drain and test nodes with a deep diagnostic, and recommend an action for each.",
    "reset": "Reset faulty GPUs of a node without a reboot, and verify that pods can use them again.",
    "release": "Release nodes: their present findings of logged errors (Xids) no longer count.",
    "verify": "Check the installation: policies are in force, and each GPU node has labels and a live agent.",
    "uninstall": "Remove our labels, taints, annotations and conditions from all nodes and GPUs.",
    "explain": "Explain a code, reason or message: its meaning, NVIDIA's advice, and the settings of this cluster.",
    "mcp": "Serve status, diagnose, explain and replay, read-only, to an MCP client on stdin and stdout.",
    "demo": "Show a GPU failure on a simulated node. It needs no cluster, GPU or root.",
    "completion": "Print the completion script of a shell.",
    "version": "Print the version.",
}
"""Commands in the order of the help, with its first line. Each is the function and the file of its name."""
PROGRAMS = {
    "agent": "Run the node agent. The DaemonSet starts it.",
    "sweep": "Test the idle nodes that are due. The CronJob starts it.",
    "sweep-run": "Test the node NODE_NAME. The pod of a sweep Job starts it.",
    "quarantine-run": "Test this node for hours. The quarantine Job starts it.",
    "reset-run": "Reset GPUs of this node. The pod of a reset Job starts it.",
    "reset-idle": "Reset the GPUs of one idle node with RESET findings. The CronJob of that name starts it.",
    "evict": "Evict the pods that use a faulty GPU. The Deployment starts it.",
    "gate": "Ask this node's agent whether this pod may start: in an init container, or in Slurm's prolog.",
}
"""Programs of the cluster and its nodes, each a function of `cli.cluster_programs`."""
_OF_JOBS = ("sweep-run", "reset-run", "reset-idle")
AS_PLUGIN = "kubectl-gpu_healthcheck"


class _Commands(Group):
    """Group of the commands. A command's file is imported when the command is called, not for the list of commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        listed = {**COMMANDS, **PROGRAMS}
        self.commands = {name: Command(name, help=listed[name], hidden=name in _OF_JOBS) for name in listed}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, command_of(name) if name else None, rest


def command_of(name: str) -> Command:
    """Import a command with its options."""
    module = import_module(f"gpu_healthcheck.cli.{'cluster_programs' if name in PROGRAMS else name}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=Command, hidden=name in _OF_JOBS)(getattr(module, name.replace("-", "_")))
    return cast("Command", typer.main.get_command(alone))


app = typer.Typer(
    cls=_Commands,
    name="gpu-healthcheck",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        write_document(f"{healthcheck.__version__}\n")
        raise typer.Exit


def _print_help(context: typer.Context, *, wanted: bool) -> None:
    if wanted:
        write_document(f"{context.get_help()}\n")
        raise typer.Exit


@app.callback(add_help_option=False)  # typer's default would load pydantic for it
def every_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    wanted: Annotated[
        bool,
        typer.Option("--help", "-h", help="Show this message and exit.", callback=_print_help, is_eager=True),
    ] = False,
) -> None:
    """GPU node health for Kubernetes: the fleet, single nodes, their faults and how to fix them."""
    del version, wanted  # each ends the program when it is given
    if context.invoked_subcommand is None:
        write_document(f"{context.get_help()}\n")


def run() -> None:
    """Run a command. An unexpected exception exits with "could not check", never with a fault of the node."""
    take_any_text()
    end_with_whoever_reads()
    if COMPLETION in os.environ:
        from gpu_healthcheck.cli import completion  # noqa: PLC0415 - no other command needs it

        completion.prepare()
    try:
        code = app(standalone_mode=False, prog_name=called())
    except typer.Exit as end:
        code = end.exit_code
    except typer.Abort:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a defect here is not a fault of the node
        show = getattr(error, "show", None)  # click's usage errors print themselves
        if lacked := shortage_behind(error):
            say(f"gpu-healthcheck: could not check: {lacked}")
            code = COULD_NOT
        elif show is None:
            traceback.print_exc()
            code = COULD_NOT
        else:
            show()
            code = USAGE
    sys.exit(code or 0)


def called() -> str:
    """Return the command as the user typed it: kubectl runs the file with the plugin's name."""
    return "kubectl gpu-healthcheck" if Path(sys.argv[0]).name == AS_PLUGIN else "gpu-healthcheck"


def complete(words: list[str]) -> None:
    """Print kubectl's completions for these words; nothing if that fails."""
    take_any_text()
    end_with_whoever_reads()
    from gpu_healthcheck.cli import completion  # noqa: PLC0415 - no command needs it

    completion.answer_kubectl(words, app)
