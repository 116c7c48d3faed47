"""`gpu-healthcheck`, also reachable as `kubectl gpu-healthcheck`."""

from __future__ import annotations

import os
import sys

import typer

import healthcheck
from cli import check, status

USAGE = 3

app = typer.Typer(
    name="gpu-healthcheck",
    help="GPU node health for Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("check")(check.check)
app.command("status")(status.status)


@app.command(
    "agent", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def agent(context: typer.Context) -> None:
    """Run the node agent: what the DaemonSet starts (--once, --dry-run)."""
    # Its own program, so that the agent carries nothing of this one's memory for the rest of its life.
    os.execv(sys.executable, [sys.executable, "-m", "agent", *context.args])  # noqa: S606 - no shell


@app.command("version")
def version() -> None:
    """Print the version."""
    print(healthcheck.__version__)


def main() -> None:
    """Run a command; wrong usage is exit code 3."""
    try:
        code = app(standalone_mode=False)
    except typer.Exit as end:
        code = end.exit_code
    except typer.Abort:
        code = 130
    except Exception as error:
        show = getattr(error, "show", None)  # click's usage errors print themselves
        if show is None:
            raise
        show()
        code = USAGE
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
