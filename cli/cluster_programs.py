"""Programs of the cluster and of its nodes, for the list of commands and their help.

Each is a separate program: `main` starts it before this module is loaded, except for `-h`. Their options are declared
there, and here for the help; a test keeps both equal.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_healthcheck.cli.options import Context, Kubeconfig, RequestTimeout

Once = Annotated[bool, typer.Option("--once", help="Run one check cycle, apply its result, and exit.")]


def agent(
    once: Once = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Log the writes instead of sending them.")] = False,
) -> None:
    """Run the node agent. The DaemonSet starts it."""


def sweep(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the nodes that would be tested, and why the others would not.")
    ] = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Test the idle nodes that are due. The CronJob starts it."""


def sweep_run() -> None:
    """Test the node NODE_NAME. The pod of a sweep Job starts it."""


def quarantine_run(
    force: Annotated[bool, typer.Option("--force", help="Test although GPU pods are on the node.")] = False,
) -> None:
    """Test this node for hours. The quarantine Job starts it."""


def reset_run(
    gpu: Annotated[list[str] | None, typer.Option("--gpu", help="UUID, PCI address or index of a GPU.")] = None,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait until the GPUs are free.")] = 900.0,
) -> None:
    """Reset GPUs of this node. The pod of a reset Job starts it."""


def reset_idle() -> None:
    """Reset the GPUs of one idle node with RESET findings. The CronJob of that name starts it."""


def evict(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the pods that would be evicted, why and when.")
    ] = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Evict the pods that use a faulty GPU. The Deployment starts it."""


def gate(  # noqa: PLR0913, PLR0917 - each is an option of the program
    agent: Annotated[
        str, typer.Option("--agent", metavar="IP", help="Address of this node's agent; default: $NODE_IP.")
    ] = "",
    port: Annotated[int, typer.Option("--port", metavar="PORT", help="Port of the agent (METRICS_PORT).")] = 10633,
    pod: Annotated[str, typer.Option("--pod", metavar="UID", help="UID of this pod; default: $POD_UID.")] = "",
    tolerates: Annotated[
        str,
        typer.Option(
            "--tolerates",
            metavar="true|false",
            help="Whether this pod tolerates our taint; default: $GATE_TOLERATES. If it is unknown, the pod starts.",
        ),
    ] = "",
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="For Slurm's prolog and epilog: the verdict of this machine, from its agent or by a check.",
        ),
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="SECONDS", help="Longest wait; default: 2, and with --local 1.")
    ] = "",
    fail_closed: Annotated[bool, typer.Option("--fail-closed", help="Exit with 69 if there is no answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Ask this node's agent whether this pod may start: in an init container, or in Slurm's prolog.

    Exit code: 0 healthy, or could not ask; 69 could not ask, with --fail-closed; 75 refused; 3 usage.
    """
