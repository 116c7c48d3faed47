"""`gpu-healthcheck verify`: check that the installation works."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import Context, Kubeconfig, RequestTimeout, seconds_of
from healthcheck.cluster.kubeconfig import Access

Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=seconds_of,
        show_default=False,
        help="Repeat failed checks for this time, as 90s or 2m; default: once.",
    ),
]


def verify(
    timeout: Timeout = 0.0, context: Context = "", kubeconfig: Kubeconfig = "", request_timeout: RequestTimeout = None
) -> None:
    """Check the installation: policies are in force, GPU nodes have labels, and agents check them.

    Exit code: 0 it works; 1 a part is missing; 2 could not check.
    """
    from cli.verifying import tell  # noqa: PLC0415 - its help needs none of it

    raise typer.Exit(tell(Access(kubeconfig, context, request_timeout), timeout))
