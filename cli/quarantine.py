"""`gpu-healthcheck quarantine`: find the fault of nodes, each in a thread, and recommend an action."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated

import typer
from msgspec.structs import asdict
from rich.text import Text

from gpu_healthcheck.cli.access import cluster_of
from gpu_healthcheck.cli.node_requests import CouldNot, NodeThreads, must_have, reason_line, reason_lines
from gpu_healthcheck.cli.options import (
    Context,
    Kubeconfig,
    Nodes,
    RequestTimeout,
    TableFormat,
    TableJsonOrYaml,
    positive_seconds,
)
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.cli.output.lines import print_line, print_rows, print_step
from gpu_healthcheck.cli.output.progress import ProgressDisplay
from gpu_healthcheck.cli.quarantine_node import (
    PASSED,
    POLL_SECONDS,
    RIGHTS,
    NodeQuarantine,
    QuarantineOptions,
    QuarantineOutcome,
    QuarantinePlan,
)
from gpu_healthcheck.cli.words import STYLES, explained
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.retries import Interrupted
from gpu_healthcheck.healthcheck.host.console import Screen
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, INTERRUPTED
from gpu_healthcheck.healthcheck.host.streams import complain
from gpu_healthcheck.healthcheck.operations.drain import DrainPermissions, cordoned_by
from gpu_healthcheck.healthcheck.operations.next_step import NextStep
from gpu_healthcheck.healthcheck.operations.quarantine_job import job_name
from gpu_healthcheck.healthcheck.text.boundary import as_json
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.healthcheck.verdict.record import RunRecord

NOT_PASSED = 1
_RECOMMENDATION_STYLES = {PASSED: "bold green", "rerun": "bold magenta"}


Drain = Annotated[
    bool,
    typer.Option("--drain/--no-drain", show_default=False, help="Evict the pods on it first (the default)."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Also evict pods that are not recreated: no controller, or their Job then fails."),
]
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
        help="Longest wait for the pods to end; default: 15m.",
    ),
]
ReleaseOnPass = Annotated[
    bool,
    typer.Option("--release-on-pass", help="Uncordon the node if no fault was found and this command cordoned it."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the planned actions; change nothing.")]


def quarantine(  # noqa: PLR0913, PLR0917 - each is an option of the command
    nodes: Nodes,
    drain: Drain = True,
    force: Force = False,
    delete_emptydir_data: EmptyDir = False,
    timeout: Timeout = 900.0,
    release_on_pass: ReleaseOnPass = False,
    dry_run: DryRun = False,
    output: TableJsonOrYaml = TableFormat.TABLE,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    request_timeout: RequestTimeout = None,
) -> None:
    """Cordon, drain and test nodes with a deep diagnostic, and recommend an action for each.

    This takes an hour or more.

    Ctrl-C leaves the test running; the same command follows it again, or shows its result. A person's own cordon is
    never lifted.

    Exit code: 0 return to service; 1 another recommendation; 2 a node could not be tested; 130 Ctrl-C. Of several
    nodes, the worst.
    """
    options = QuarantineOptions(drain, DrainPermissions(force, delete_emptydir_data), timeout, release_on_pass)
    access = Access(kubeconfig, context, request_timeout)
    console = Screen(stderr=output is not TableFormat.TABLE)
    interrupted = False
    try:
        must_have(RIGHTS, cluster_of(access).rights.is_allowed)
    except (CouldNot, ClusterError) as error:
        complain("quarantine", "\n  ".join(map(printable, reason_lines(error))))
        results = [QuarantineOutcome(name, why_not=reason_line(error)) for name in nodes]
    else:
        with ProgressDisplay(console, nodes) as display:
            threads = NodeThreads(display, access, POLL_SECONDS)
            if dry_run:
                results = [_planned(threads, options, name) for name in nodes]
            else:
                results = threads.run(nodes, partial(_quarantine, threads, options))
        interrupted = threads.stopping.is_set()
    if output is TableFormat.TABLE:
        for result in results:
            show(result, console)
    else:
        write_as(output, [asdict(result) | {"record": as_json(result.record)} for result in results])
    raise typer.Exit(INTERRUPTED if interrupted else max(map(_exit_code, results)))


def _planned(threads: NodeThreads, options: QuarantineOptions, name: str) -> QuarantineOutcome:
    """Print and return the planned actions."""
    try:
        requests = threads.requests(name)
        plan = NodeQuarantine(requests, options).plan()
    except (CouldNot, ClusterError) as error:
        return QuarantineOutcome(name, why_not=threads.report(name, error))
    lines = tuple(_plan_words(plan, options))
    for line in lines:
        requests.progress.say(line)
    return QuarantineOutcome(name, cordoned=plan.node.cordoned, plan=lines)


def _quarantine(threads: NodeThreads, options: QuarantineOptions, name: str) -> QuarantineOutcome:
    plan = None
    try:
        node = NodeQuarantine(threads.requests(name), options)
        plan = node.plan()
        return node.run(plan)
    except Interrupted:
        error: Exception = CouldNot("interrupted")
    except (CouldNot, ClusterError) as failure:
        error = failure
    outcome = QuarantineOutcome(name, why_not=threads.report(name, error))
    if plan is not None:
        _print_leftovers(threads, options, name)
    return outcome


def _print_leftovers(threads: NodeThreads, options: QuarantineOptions, name: str) -> None:
    """Print the state of the node in the cluster, read again with a request that the first Ctrl-C does not end."""
    say = threads.progress(name).say
    try:
        for line in NodeQuarantine(threads.requests(name, threads.leaving), options).leftovers():
            say(line)
    except Interrupted:
        say(f"its state in the cluster was not read: gpu-healthcheck quarantine {name} continues the run", "bold red")
    except (CouldNot, ClusterError) as error:
        say(f"its state in the cluster is unknown: {explained(error)}", "bold red")


def _plan_words(plan: QuarantinePlan, options: QuarantineOptions) -> Iterable[str]:
    if not plan.node.cordoned:
        yield "would be cordoned"
    else:
        by = cordoned_by(plan.node)
        yield f"is cordoned already, {f'by {by}' if by else 'by another owner: it stays cordoned'}"
    if plan.following:
        how = "show the result of" if plan.following.outcome else "follow"
        which = "which has ended already" if plan.following.outcome else "which has not ended"
        yield f"would {how} Job {plan.following.namespace}/{plan.following.name}, {which}"
        return
    yield from (f"would evict {pod.title}{f' ({pod.warning})' if pod.warning else ''}" for pod in plan.drain.leaving)
    yield from (f"would leave {title}: {why}" for title, why in plan.drain.left)
    if not options.drain:
        yield "would evict no pods (--no-drain): the test does not start while a pod holds a GPU"
    yield f"would create Job {job_name(plan.node.name)} and follow it"


# --- the result


def show(result: QuarantineOutcome, console: Screen) -> None:
    if not result.recommendation:
        return
    record = result.record
    at = printable(record.timestamp or "")
    console.print()
    console.print_words(Text.assemble((result.node, "bold"), f": quarantine run of {at}"))
    print_rows(console, list(_check_rows(record)))
    for finding in record.findings or ():
        words = printable(f"{finding.reason} on {finding.subject}: {finding.detail}")
        severity = finding.severity.name if finding.severity else ""
        print_line(console, Text(f"{severity:8}", STYLES.get(severity, "")), Text(words))
    if record.bug_report:
        console.print_words(Text(f"NVIDIA's bug report is on the node: {printable(record.bug_report)}"))
    style = _RECOMMENDATION_STYLES.get(result.recommendation, "bold red")
    console.print(Text.assemble("recommendation: ", (printable(result.recommendation), style)))
    for reason in record.reasons or ():
        print_line(console, Text(" "), Text(printable(reason)))
    print_step(console, result.step)
    if result.recommendation == PASSED and result.step == NextStep():
        console.print("it is not cordoned: it accepts work again")


def _check_rows(record: RunRecord) -> Iterator[list[Text]]:
    yield [Text(title, "bold") for title in ("test", "status", "severity", "result")]
    causes: dict[str, list[str]] = {}
    for cause_row in record.unobserved or ():
        causes.setdefault(cause_row.check or "", []).append(printable(f"{cause_row.cause}: {cause_row.detail}"))
    for row in record.checks or ():
        words = [printable(word or "") for word in (row.check, row.status, row.severity)]
        result = "; ".join(filter(None, [printable(row.seen or ""), *causes.get(words[0], ())]))
        yield [*(Text(word, STYLES.get(word, "")) for word in words), Text(result)]


def _exit_code(result: QuarantineOutcome) -> int:
    if result.why_not:
        return COULD_NOT
    return 0 if result.recommendation in (PASSED, "") else NOT_PASSED
