"""`gpu-healthcheck check`: look at this node once, without a cluster, and say what is wrong."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.words import EXIT_CODES, SEVERITY_STYLES, STATUS_STYLES
from healthcheck import record as records
from healthcheck.checks import select_checks
from healthcheck.clock import now
from healthcheck.examine import judge, look
from healthcheck.exits import expired
from healthcheck.expectation import Expectation
from healthcheck.looks import looked
from healthcheck.memory import Memory, Standing
from healthcheck.model import Check, Host, Nature, Outcome, ProbeError, Status, Unobserved
from healthcheck.node import INSTANCE_TYPE
from healthcheck.probes import kernel_log, machine
from healthcheck.probes.nvml import Driver
from healthcheck.profiles import find_profile
from healthcheck.record import Identity
from healthcheck.settings import Settings, SettingsError, read_settings
from healthcheck.sightings import noticed
from healthcheck.verdict import Verdict, decide, status_of, worst

USAGE = 3


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[CHECK]...", help="Numbers or names; default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")] = False,
    root: Annotated[Path | None, typer.Option("--root", help="Look at the host tree in this directory.")] = None,
    instance_type: Annotated[str, typer.Option("--instance-type", help="What the node is expected to be.")] = "",
) -> None:
    """Look at this node once and judge it. Exit code: 0 pass or warn, 1 fail, 2 unknown, 3 usage."""
    settings, checks = _usable(names, root)
    host_root = root or Path(os.environ.get("HOST_ROOT", "/"))
    driver = Driver(host_root, settings.values.probe_seconds, use_loader=root is None)
    instance_type = instance_type or ("" if root else _instance_type(host_root))
    try:
        outcomes, memory = _look(Host(host_root, driver.look), checks, instance_type, settings)
    finally:
        driver.end()
    verdict = decide(memory, outcomes)
    name = os.environ.get("NODE_NAME") or platform.node()
    if as_json:
        record = records.render(verdict, memory, Identity(name, instance_type), now().wall)
        sys.stdout.write(records.dump(record) + "\n")
    else:
        _show(name, instance_type, verdict, outcomes, memory)
    raise typer.Exit(EXIT_CODES[verdict.status])


def _usable(names: list[str] | None, root: Path | None) -> tuple[Settings, tuple[Check, ...]]:
    try:
        settings = read_settings(Path(os.environ.get("CONFIG_DIR", "/etc/gpu-healthcheck")))
        checks = select_checks(names) if names else settings.values.checks
    except SettingsError as error:
        _end("\n".join(str(one) for one in error.bad))
    except ValueError as error:
        _end(str(error))
    if root is not None and not root.is_dir():
        _end(f"--root {root}: no such directory")
    return settings, checks


def _end(message: str) -> NoReturn:
    sys.stderr.write(f"gpu-healthcheck check: {message}\n")
    raise typer.Exit(USAGE)


def _instance_type(root: Path) -> str:
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.IMDS)
    try:
        return machine.instance_type(root, endpoint)
    except ProbeError:
        return _type_on_the_node()


def _type_on_the_node() -> str:
    """Inside the agent's pod, the Node's own label: what the agent goes by when nobody answers for the metadata."""
    node_name = os.environ.get("NODE_NAME", "")
    if not node_name or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return ""
    from healthcheck.cluster import Cluster, ClusterError  # noqa: PLC0415 - elsewhere a check needs no cluster

    try:
        return Cluster().read_node(node_name).labels.get(INSTANCE_TYPE, "")
    except ClusterError:
        return ""


def _look(
    host: Host, checks: tuple[Check, ...], instance_type: str, settings: Settings
) -> tuple[tuple[Outcome, ...], Memory]:
    moment = now()
    expected = Expectation(
        find_profile(settings.profiles, instance_type),
        instance_type,
        policy=settings.values.policy,
        max_retired_pages_sbe=settings.values.max_retired_pages_sbe,
    )
    outcomes = judge(checks, look(host, checks), expected)
    try:
        boot = kernel_log.boot_id(host.root)
    except ProbeError:
        boot = ""
    memory = Memory(machine.machine_id(host.root), boot)
    levels = [one for one, check in zip(outcomes, checks, strict=True) if check.nature is Nature.LEVEL]
    # One look is all there is: what could flicker is shown as it was seen.
    memory = looked(memory, levels, moment, looks_to_confirm=1)
    memory = noticed(memory, outcomes, moment)
    return outcomes, expired(memory, moment, settings.values.monitor_ttl_seconds)


def _show(name: str, instance_type: str, verdict: Verdict, outcomes: tuple[Outcome, ...], memory: Memory) -> None:
    console = Console(highlight=False)
    table = Table("check", "status", "what", box=None, pad_edge=False, header_style="bold")
    told: set[Unobserved] = set()
    for outcome in outcomes:
        for row in _rows(outcome, memory, told):
            table.add_row(*row)
    console.print(table)
    kind = instance_type or "unknown instance type: no expectation"
    status = (verdict.status.value, STATUS_STYLES[verdict.status])
    console.print(Text.assemble(f"\n{name} ({kind}): ", status, f", severity {verdict.severity.name}"))


def _rows(outcome: Outcome, memory: Memory, told: set[Unobserved]) -> list[tuple[Text | str, ...]]:
    """One line per finding and per cause; a cause that a check above has told is not told again in full."""
    standing = [one for one in memory.standing if one.check == outcome.check]
    label = f"{outcome.group.partition('-')[0]} {outcome.check}"
    status = status_of(worst(one.finding.severity for one in standing), could_not_look=not outcome.observed)
    if not outcome.configured and not standing:
        status = Status.NOT_CONFIGURED
    word = Text(status.value, STATUS_STYLES[status])
    rows: list[tuple[Text | str, ...]] = [(label, word, _finding_line(one)) for one in standing]
    for cause in outcome.unobserved:
        rows.append((label, word, f"{cause.cause}: {'as above' if cause in told else cause.detail}"))
        told.add(cause)
    return rows or [(label, word, "")]


def _finding_line(standing: Standing) -> Text:
    finding = standing.finding
    times = f" ({standing.count} times)" if standing.count > 1 else ""
    severity = (f"{finding.reason} {finding.severity.name}", SEVERITY_STYLES[finding.severity])
    return Text.assemble(severity, f" on {finding.subject}: {finding.detail}{times}")
