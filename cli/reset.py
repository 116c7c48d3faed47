"""`gpu-healthcheck reset`: reset GPUs of a node, or reboot it, and verify that pods can use them again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated

import typer
from msgspec.structs import asdict
from rich.text import Text

from gpu_healthcheck.cli.node_requests import CouldNot, NodeThreads
from gpu_healthcheck.cli.options import (
    Context,
    Kubeconfig,
    RequestTimeout,
    TableFormat,
    TableJsonOrYaml,
    complete_nodes,
    node_names,
    positive_seconds,
)
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.cli.output.lines import print_line, print_step
from gpu_healthcheck.cli.output.progress import ProgressDisplay
from gpu_healthcheck.cli.reset_node import POLL_SECONDS, NodeReset, ResetOptions, ResetOutcome, ResetPlan
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.retries import Interrupted
from gpu_healthcheck.healthcheck.deep.reset_plan import Step, gpu_name, needs_reboot
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, FAULT, INTERRUPTED
from gpu_healthcheck.healthcheck.model import Status
from gpu_healthcheck.healthcheck.operations.drain import DrainPermissions
from gpu_healthcheck.healthcheck.operations.reset_job import job_name
from gpu_healthcheck.healthcheck.text.boundary import as_json
from gpu_healthcheck.healthcheck.text.printable import printable


def _gpu(text: str) -> str:
    try:
        return gpu_name(text)
    except ValueError as error:
        raise typer.BadParameter(f"{printable(text)!r}: {error}") from None


NodeName = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        help="Its name.",
        callback=lambda name: next(iter(node_names([name]))),
        autocompletion=complete_nodes,
    ),
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="UUID|INDEX",
        parser=_gpu,
        help="Only this GPU; repeatable. Default: each GPU with a finding that a reset ends.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Reset without such a finding, or despite known failures. Also evict pods that are not recreated.",
    ),
]
Reboot = Annotated[
    bool,
    typer.Option(
        "--reboot",
        help="Drain and reboot the node if the reset fails, or at once if no reset ends its findings.",
    ),
]
NoReboot = Annotated[bool, typer.Option("--no-reboot", help="Never reboot the node. This is the default.")]
EmptyDir = Annotated[
    bool, typer.Option("--delete-emptydir-data", help="Also evict pods with an emptyDir; its data is lost.")
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=positive_seconds,
        show_default=False,
        help="Longest wait until the GPUs are free, and until pods can request them again, a reboot included; "
        "default: 25m.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the planned actions; change nothing.")]


def reset(  # noqa: PLR0913, PLR0917 - each is an option of the command
    node: NodeName,
    gpu: Gpus = None,
    reboot: Reboot = False,
    no_reboot: NoReboot = False,
    force: Force = False,
    delete_emptydir_data: EmptyDir = False,
    timeout: Timeout = 1500.0,
    dry_run: DryRun = False,
    output: TableJsonOrYaml = TableFormat.TABLE,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Reset faulty GPUs of a node without a reboot, and verify that pods can use them again.

    This takes a minute or more.

    Only pods that hold these GPUs are evicted, and no process is killed. With --reboot, all pods are evicted before
    a reboot, except those of DaemonSets. Ctrl-C before the reset restores the node, but not evicted
    pods; later, it waits for the reset. If this program is killed, the Job restores the node after a minute.

    Exit code: 0 the GPUs work; 1 they do not; 2 nothing was reset; 130 Ctrl-C.
    """
    if reboot and no_reboot:
        raise typer.BadParameter("--reboot and --no-reboot exclude each other", param_hint="--no-reboot")
    allowed = DrainPermissions(force=force, empty_dir=delete_emptydir_data)
    options = ResetOptions(tuple(gpu or ()), force, allowed, timeout, reboot)
    access = Access(kubeconfig, context, request_timeout)
    console = Screen(stderr=output is not TableFormat.TABLE)
    with ProgressDisplay(console, [node]) as display:
        threads = NodeThreads(display, access, POLL_SECONDS)
        if dry_run:
            result = _planned(threads, node, options)
        else:
            (result,) = threads.run([node], partial(_reset, threads, options))
    if output is TableFormat.TABLE:
        show(result, console)
    else:
        write_as(output, asdict(result) | {"record": as_json(result.record)})
    raise typer.Exit(INTERRUPTED if threads.stopping.is_set() else _exit_code(result))


def _planned(threads: NodeThreads, node: str, options: ResetOptions) -> ResetOutcome:
    """Print and return the planned actions."""
    try:
        requests = threads.requests(node)
        lines = tuple(_plan_words(NodeReset(requests, options, requests.retries).plan(), options))
    except (CouldNot, ClusterError) as error:
        return ResetOutcome(node, why_not=threads.report(node, error))
    for line in lines:
        requests.progress.say(line)
    return ResetOutcome(node, plan=lines)


def _reset(threads: NodeThreads, options: ResetOptions, node: str) -> ResetOutcome:
    try:
        reset = NodeReset(threads.requests(node), options, threads.requests(node, threads.leaving).retries)
        return reset.run(reset.plan())
    except Interrupted:
        ends = f": gpu-healthcheck reset {node} continues it, and restores what it has changed"
        error: Exception = CouldNot("interrupted" + (ends if threads.leaving.is_set() else ""))
    except (CouldNot, ClusterError) as failure:
        error = failure
    return ResetOutcome(node, why_not=threads.report(node, error))


def _plan_words(plan: ResetPlan, options: ResetOptions) -> Iterable[str]:
    if plan.following:
        yield f"would follow Job {plan.following.namespace}/{plan.following.name}, which has not ended"
        return
    if plan.is_unreturned:
        yield "would restore the node after an earlier reset: the GPU operator's pods, annotations, taint and GPUs"
        return
    if plan.is_rebooting:
        yield "would wait until the node has rebooted, as an earlier run requested, and verify its GPUs"
        return
    if plan.is_at_once:
        yield f"would drain and reboot the node: {', '.join(needs_reboot(plan.node)) or 'no reset ends its findings'}"
        yield from (
            f"would evict {pod.title}{f' ({pod.warning})' if pod.warning else ''}" for pod in plan.drain.leaving
        )
    else:
        yield from (f"would reset {target}" for target in plan.targets)
        yield from ("would drain and reboot the node if the reset fails" for _ in range(options.reboot))
    if plan.operands:
        yield f"would switch off until the reset has ended: {', '.join(plan.operands)}"
    if plan.holding and not plan.is_at_once:
        yield f"would evict each of these pods that uses a GPU of the reset: {'; '.join(map(str, plan.holding))}"
    yield f"would create Job {job_name(plan.node.name)} and follow it"


def show(result: ResetOutcome, console: Screen) -> None:
    record = result.record
    if not result.status:
        return
    for gpu in record.gpus or ():
        console.print(Text(printable(f"GPU {gpu.index or '?'} {gpu.address} {gpu.uuid}")), soft_wrap=True)
    for row in record.steps or ():
        print_line(console, Text(f"{printable(row.step or ''):14}", "dim"), Text(printable(row.detail or "")))
    for reason in (*(record.reasons or ()), *result.left):
        print_line(console, Text(" "), Text(printable(reason), "red"))
    if record.bug_report:
        console.print(Text(f"NVIDIA's bug report is on the node: {printable(record.bug_report)}"), soft_wrap=True)
    if _exit_code(result) == 0:
        how = "with" if any(row.step == Step.REBOOT for row in record.steps or ()) else "without"
        after = f" after {result.seconds:.0f} s" if round(result.seconds) else ""
        console.print(Text(f"the GPUs work again{after}, {how} a reboot", "bold green"))
    else:
        if result.status == Status.FAIL.value:
            console.print("the findings and their taint stay")
        print_step(console, result.step)


def _exit_code(result: ResetOutcome) -> int:
    if result.plan:
        return 0
    if result.why_not:
        return COULD_NOT
    return 0 if result.status == Status.PASS.value and not result.left else FAULT
