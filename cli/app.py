"""The commands, put together."""

from __future__ import annotations

import sys
import traceback
from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import healthcheck
from healthcheck.host.opening import shortage_behind
from healthcheck.host.program import COULD_NOT, INTERRUPTED, USAGE
from healthcheck.host.streams import end_with_whoever_reads, say, take_any_text

_IN_FILES = ("check", "replay", "status", "diagnose", "quarantine", "release", "verify", "uninstall", "explain")
"""Each is the function of that name in the file of that name."""


class _Loading(UserDict[str, Any]):
    """The commands by name; the file of one is imported when it is called or asked for its help."""

    def __init__(self, loaded: Mapping[str, Any]) -> None:
        super().__init__(dict.fromkeys(_IN_FILES))
        self.update(loaded)

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            alone = typer.Typer(add_completion=False)
            alone.command(name)(getattr(import_module(f"cli.{name}"), name))
            self.data[name] = typer.main.get_command(alone)
        return self.data[name]


class _Commands(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Loading(self.commands)


app = typer.Typer(
    cls=_Commands,
    name="gpu-healthcheck",
    help="GPU node health for Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def every_command(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """GPU node health for Kubernetes."""


@app.command("agent")
def agent() -> None:
    """Run the node agent: what the DaemonSet starts (--once, --dry-run)."""
    # Only for the list of commands: `main` has handed over to the agent's own program before this is loaded.


@app.command("sweep")
def sweep() -> None:
    """Test the idle nodes that are due: what the CronJob starts (--dry-run shows which, and why no other)."""
    # Only for the list of commands, as the agent.


@app.command("sweep-run", hidden=True)
def sweep_run() -> None:
    """Test the node NODE_NAME: what the pod of a sweep's Job starts."""
    # Only so that its name is known, as the agent's.


@app.command("quarantine-run")
def quarantine_run() -> None:
    """Test the node that this runs on, hours long: what the quarantine Job starts (--force beside GPU pods)."""
    # Only for the list of commands, as the agent.


@app.command("version")
def version() -> None:
    """Print the version."""
    print(healthcheck.__version__)


def run() -> None:
    """Run a command. A fault of ours is no fault of the node: could not look, as all that comes to no answer."""
    take_any_text()
    end_with_whoever_reads()
    try:
        code = app(standalone_mode=False)
    except typer.Exit as end:
        code = end.exit_code
    except typer.Abort:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last boundary: a fault of ours must not read as one of the node
        show = getattr(error, "show", None)  # click's usage errors print themselves
        if lacked := shortage_behind(error):
            say(f"gpu-healthcheck: it could not look: {lacked}")
            code = COULD_NOT
        elif show is None:
            traceback.print_exc()
            code = COULD_NOT
        else:
            show()
            code = USAGE
    sys.exit(code or 0)
