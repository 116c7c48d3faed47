"""`gpu-healthcheck sweep`: test the idle nodes that are due, wait for the Jobs, and clean up."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from functools import partial

import structlog
from rich.text import Text

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.cluster.connection import connect
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.deep.job import TemplateError
from gpu_healthcheck.healthcheck.host.console import Cell, Screen, TableColumn, fitted_table
from gpu_healthcheck.healthcheck.host.log import log_as_json
from gpu_healthcheck.healthcheck.host.program import COULD_NOT, Options, exit_code
from gpu_healthcheck.healthcheck.host.streams import complain, end_with_whoever_reads, take_any_text
from gpu_healthcheck.healthcheck.settings.reading import SettingsError, complain_of_environment, read_variables
from gpu_healthcheck.healthcheck.text.durations import timeout
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sweeper.select import Decision
from gpu_healthcheck.sweeper.settings import SweeperSettings, cluster_values
from gpu_healthcheck.sweeper.sweep import Sweep, SweepPlan

log = structlog.get_logger()

_MOST_NAMED = 20
_COLUMNS = (
    TableColumn("node", is_name=True),
    TableColumn("type", least=16, leaves=1),
    TableColumn("tested", leaves=3),
    TableColumn("result", leaves=2),
    TableColumn("overdue", leaves=4),
    TableColumn("sweep", least=60, is_repeated=True),
)


class SweepStopped(BaseException):
    """SIGTERM or SIGINT. The next sweep continues from any state, as after a crash."""


def main(arguments: list[str] | None = None) -> int:
    take_any_text()
    end_with_whoever_reads()
    options = _options(arguments)
    try:
        settings = read_variables(SweeperSettings)
    except SettingsError as error:
        return complain_of_environment("sweep", error)
    log_as_json(settings.log_level)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        cluster = Cluster(partial(connect, _access(options)), _pass_over, options.request_timeout)
        sweep = Sweep(cluster, cluster_values(settings.config_dir))
        plan = sweep.plan()
        if options.dry_run:
            screen = Screen()
            table = fitted_table(_COLUMNS, map(_cells, plan.decisions), screen.width if screen.is_terminal else None)
            for line in table.lines:
                screen.print(line, soft_wrap=True)
            for note in (*table.notes, *map(Text, _of_the_budget(plan))):
                screen.print_words(note, indent=2)
        else:
            _log_plan(plan)
            sweep.run(plan)
    except (ClusterError, TemplateError) as error:
        complain("sweep", str(error))
        return COULD_NOT
    except SweepStopped:
        log.warning("stopped; the next sweep follows the running Jobs")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = Options("sweep", __doc__)
    parser.add_argument(
        "--dry-run", action="store_true", help="show the nodes that would be tested, and why the others would not"
    )
    parser.add_argument(
        "--context", default="", metavar="NAME", help="context of the kubeconfig; default: its current one"
    )
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="default: KUBECONFIG, else the pod's service account"
    )
    parser.add_argument("--request-timeout", type=timeout, metavar="TIME", help="limit of each request, as 5s; 0: none")
    return parser.parse_args(arguments)


def _access(options: argparse.Namespace) -> Access | None:
    """Return the access that a person requested; None for the CronJob, which uses the account of its pod."""
    asked = options.dry_run or options.context or options.kubeconfig
    return Access(options.kubeconfig, options.context) if asked else None


def _stop(*_: object) -> None:
    raise SweepStopped


def _pass_over(what: str) -> None:
    log.warning("skipped: unreadable", what=what)


def _log_plan(plan: SweepPlan) -> None:
    selected = [decision.node.name for decision in plan.decisions if not decision.why]
    overdue = [decision for decision in plan.decisions if decision.node.overdue]
    log.info(
        "planned",
        nodes=len(plan.decisions),
        taken=selected,
        followed=[job.name for job in plan.leftovers.alive],
        stray=[job.name for job in plan.leftovers.stray],
        marked=list(plan.leftovers.marked),
        overdue=len(overdue),
        unowned=len(plan.unowned),
    )
    for name in plan.without_agent[:_MOST_NAMED]:
        log.warning("a node without an agent keeps our taint and counts towards the limit of tainted nodes", node=name)
    for decision in [decision for decision in overdue if decision.why][:_MOST_NAMED]:
        log.warning(
            "a node is overdue for its deep test", node=decision.node.name, why=decision.why, tested=_tested(decision)
        )


def _cells(decision: Decision) -> list[Cell]:
    node = decision.node
    result = node.tested.status if node.tested else ""
    overdue = "yes" if node.overdue else ""
    texts = (node.name, node.instance_type, _tested(decision), result, overdue, decision.why or "TAKEN")
    return [(text, "") for text in texts]


def _of_the_budget(plan: SweepPlan) -> Iterator[str]:
    for freed in plan.unowned[:_MOST_NAMED]:
        yield f"the Lease {freed.slot.name}, which counts {freed.slot.holder} as tainted, has no owner: {freed.why}"
    if len(plan.unowned) > _MOST_NAMED:
        yield f"and {len(plan.unowned) - _MOST_NAMED} more such Leases"
    for name in plan.without_agent[:_MOST_NAMED]:
        yield f"{name} has no agent, keeps our taint, and counts towards the limit of tainted nodes"


def _tested(decision: Decision) -> str:
    return timestamp(decision.node.tested.at) if decision.node.tested else "never"


if __name__ == "__main__":
    sys.exit(exit_code(main))
