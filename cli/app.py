"""The commands, put together."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import healthcheck
from cli import cluster_programs, completion
from cli.command_help import Command, Group
from healthcheck.host.opening import shortage_behind
from healthcheck.host.program import COULD_NOT, INTERRUPTED, USAGE
from healthcheck.host.streams import end_with_whoever_reads, say, take_any_text, write_document

COMMANDS = {
    "check": "Check this node once and print the verdict.",
    "replay": "Judge saved logs or evidence.",
    "status": "Show every GPU node, worst first.",
    "diagnose": "Show why GPU pods and nodes are stuck. "
    "Exit code: 0 no cause found, 1 causes found, 2 could not check.",
    "quarantine": "Cordon, drain and test nodes with a deep diagnostic, and recommend an action for each. "
    "Takes an hour or more.",
    "release": "Release nodes: their present event findings are acknowledged and no longer count.",
    "verify": "Check the installation: policies are in force, GPU nodes have labels, and agents check them.",
    "uninstall": "Remove our labels, taints, annotations and conditions from all nodes, "
    "and our device taints from GPUs.",
    "explain": "Explain a code or reason: its meaning, NVIDIA's advice, and the settings of this cluster.",
    "completion": "Print the completion script of a shell.",
    "version": "Print the version.",
}
"""First docstring line of each command; a command is the function of that name in the file of that name."""
AS_PLUGIN = "kubectl-gpu_healthcheck"


class _Commands(Group):
    """Group of the commands. A command's file is imported when the command or its help is called, not to list it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {**{name: Command(name, help=line) for name, line in COMMANDS.items()}, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name, cls=Command)(getattr(import_module(f"cli.{name}"), name))
            command = typer.main.get_command(alone)
        return name, command, rest


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


for _program in (
    cluster_programs.agent,
    cluster_programs.sweep,
    cluster_programs.sweep_run,
    cluster_programs.quarantine_run,
    cluster_programs.gate,
):
    _name = _program.__name__.replace("_", "-")
    app.command(_name, cls=Command, hidden=_program is cluster_programs.sweep_run)(_program)


def run() -> None:
    """Run a command. An unexpected exception exits with "could not check", never with a fault of the node."""
    take_any_text()
    end_with_whoever_reads()
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
    completion.answer_kubectl(words, app)
