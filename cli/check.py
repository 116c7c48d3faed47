"""`gpu-healthcheck check`: look at this node once, without a cluster, and say what is wrong."""

from __future__ import annotations

import math
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cli.one_look import judged, show
from cli.words import EXIT_CODES
from healthcheck import evidence_file
from healthcheck.checks import driver_messages, select_checks
from healthcheck.clock import now
from healthcheck.evidence_file import EvidenceError, Look
from healthcheck.examine import judge, look
from healthcheck.expectation import Expectation
from healthcheck.memory import Memory
from healthcheck.model import Check, Evidence, Host, Now, ProbeError
from healthcheck.node import INSTANCE_TYPE
from healthcheck.probes import kernel_log, machine, node_socket
from healthcheck.probes.libfabric import LONGEST_SECONDS, Libfabric
from healthcheck.probes.nvml_driver import Driver
from healthcheck.probes.runtime.cri import RuntimeStatus
from healthcheck.profiles import find_profile
from healthcheck.settings import Settings, SettingsError, read_settings
from healthcheck.sightings import noticed

USAGE = 3
_SAVE = typer.Option(
    "--save-evidence",
    metavar="FILE",
    help="Write what was seen, for `replay` to judge again; serial numbers, UUIDs and the kernel's log are in it.",
)


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[CHECK]...", help="Numbers or names; default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")] = False,
    root: Annotated[Path | None, typer.Option("--root", help="Look at the host tree in this directory.")] = None,
    instance_type: Annotated[str, typer.Option("--instance-type", help="What the node is expected to be.")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also the evidence that it rests on.")] = False,
    save_evidence: Annotated[Path | None, _SAVE] = None,
) -> None:
    """Look at this node once and judge it. Exit code: 0 pass or warn, 1 fail, 2 unknown, 3 usage."""
    settings, checks = _usable(names, root)
    if save_evidence and (reason := evidence_file.why_not(save_evidence)):
        _end(f"--save-evidence: {reason}")
    host_root = root or Path(os.environ.get("HOST_ROOT", "/"))
    instance_type = instance_type or ("" if root else _instance_type(host_root))
    seconds = settings.values.probe_seconds
    driver = Driver(host_root, seconds, use_loader=root is None)
    libfabric = Libfabric(host_root, min(seconds, LONGEST_SECONDS))
    runtime = RuntimeStatus(host_root, min(seconds, node_socket.LONGEST_SECONDS))
    try:
        host = Host(host_root, driver.look)
        if root is None:
            host = replace(host, ask_libfabric=libfabric.ask, ask_container_runtime=runtime.ask)
        seen = _look(host, checks, instance_type, settings, here=root is None)
    finally:
        driver.end()
        libfabric.end()
        runtime.end()
    result = judged(seen)
    show(result, as_json=as_json, verbose=verbose)
    if save_evidence:
        try:
            evidence_file.write(save_evidence, seen)
        except EvidenceError as error:
            _end(f"--save-evidence: {error}")
    raise typer.Exit(EXIT_CODES[result.verdict.status])


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


def _look(host: Host, checks: tuple[Check, ...], instance_type: str, settings: Settings, *, here: bool) -> Look:
    """`here`: the node is this machine, and so its kernel log has this machine's clock."""
    moment = now()
    try:
        boot = kernel_log.boot_id(host.root)
    except ProbeError:
        boot = ""
    evidence = look(host, checks)
    return Look(
        hostname=os.environ.get("NODE_NAME") or platform.node(),
        machine=machine.machine_id(host.root),
        boot_id=boot,
        now=moment,
        checks=checks,
        expected=Expectation(
            find_profile(settings.profiles, instance_type),
            instance_type,
            _driver_age(host, evidence, moment) if here else math.inf,
            policy=settings.values.policy,
            max_retired_pages_sbe=settings.values.max_retired_pages_sbe,
        ),
        monitor_ttl_seconds=settings.values.monitor_ttl_seconds,
        evidence=evidence,
    )


def _driver_age(host: Host, evidence: Evidence, moment: Now) -> float:
    """Seconds since the driver was loaded, as its line in the kernel's log says; since boot where none does."""
    if kernel_log.RING not in evidence.probes:
        evidence = look(host, (driver_messages.CHECK,))
    outcomes = judge((driver_messages.CHECK,), evidence, Expectation())
    return moment.monotonic - (noticed(Memory(), outcomes, moment).driver_loaded_at or 0.0)
