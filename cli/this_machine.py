"""One check cycle of this machine, without a cluster, for `check` and `release --local`.

`check siblings --now` reads the GPUs twice.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from msgspec.structs import replace

from gpu_healthcheck.cli.words import end
from gpu_healthcheck.healthcheck.captures.evidence_file import EvidenceCycle
from gpu_healthcheck.healthcheck.catalog.profiles import find_profile
from gpu_healthcheck.healthcheck.checks import (
    CHECKS,
    checks_named,
    dcgm_diag,
    driver,
    driver_messages,
    gpu_siblings,
    groups_in,
)
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError
from gpu_healthcheck.healthcheck.host.clock import now
from gpu_healthcheck.healthcheck.host.opening import want_folder
from gpu_healthcheck.healthcheck.host.streams import complain, say
from gpu_healthcheck.healthcheck.memory.file import MemoryFile, MemoryFileError
from gpu_healthcheck.healthcheck.memory.findings import Acknowledgement, Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import Check, Evidence, Host, Nature, Now, ProbeError, Shortage
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE
from gpu_healthcheck.healthcheck.probes import kernel_log, machine
from gpu_healthcheck.healthcheck.probes.container_runtime.cri import RuntimeStatus
from gpu_healthcheck.healthcheck.probes.efa.libfabric import Libfabric
from gpu_healthcheck.healthcheck.probes.gpu_pods import GpuPods, read_pods_of
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import SUCCESS, DriverReading, Gpus
from gpu_healthcheck.healthcheck.settings.declaration import IMDS
from gpu_healthcheck.healthcheck.settings.reading import Settings, read_settings, unknown_keys

_ELSEWHERE = (
    "{} needs the whole node for hours: `gpu-healthcheck quarantine NODE` drains the node and runs it in a Job "
    "(program `quarantine-run`); available here: {}"
)


def light_cycle() -> tuple[Path, EvidenceCycle, Settings]:
    """Return the root of this machine's files, a cycle of the light and the kernel-log checks, and the settings."""
    settings, configured = usable_settings([], None, accept_invalid=False)
    checks = tuple(check for check in CHECKS if check.nature is Nature.EVENT or check in configured)
    root = find_root(None)
    with probing(root, here=True) as host:
        return root, check_once(host, checks, instance_type_of(root), settings, here=True), settings


def state_dir(root: Path) -> Path:
    """Return the folder of the releases; on a node with an agent, its state directory."""
    return Path(os.environ.get("STATE_DIR") or root / "var/lib/gpu-healthcheck")


def _acknowledged(folder: Path, machine: str) -> tuple[Acknowledgement, ...]:
    """Return the events that were released on this machine. An unreadable file is reported and releases nothing."""
    try:
        return MemoryFile(folder).acknowledged(machine)
    except (MemoryFileError, Shortage) as error:
        complain("check", f"{error}; releases on this node are unknown")
        return ()


@contextmanager
def probing(root: Path, *, here: bool) -> Iterator[Host]:
    """Yield the host with its probes in child processes. `here`: the node is this machine."""
    nvml, libfabric, runtime = Driver(root, use_loader=here), Libfabric(root), RuntimeStatus(root)
    try:
        host = Host(root, nvml.read)
        if here:
            host = replace(host, ask_libfabric=libfabric.ask, ask_container_runtime=runtime.ask)
        yield host
    finally:
        nvml.end()
        libfabric.end()
        runtime.end()


def usable_settings(
    names: list[str], root: Path | None, *, accept_invalid: bool = True
) -> tuple[Settings, tuple[Check, ...]]:
    """Return the settings and the chosen checks. `accept_invalid`: defaults replace invalid values of the ConfigMap."""
    directory = Path(os.environ.get("CONFIG_DIR", "/etc/gpu-healthcheck"))
    settings = read_settings(directory)
    if any(value.is_of_environment or not accept_invalid for value in settings.bad):
        end("check", "\n".join(str(value) for value in settings.bad))
    for value in settings.bad:
        complain("check", f"{value}; its default is used")
    try:
        checks = _named(names) if names else settings.values.checks
    except ValueError as error:
        end("check", str(error))
    if unknown := unknown_keys(directory):
        complain("check", str(unknown))
    if root is not None and dcgm_diag.LEVEL_2 in checks:
        end("check", f"--root {root}: {dcgm_diag.LEVEL_2.group} can only test the GPUs of this machine")
    return settings, checks


def find_root(root: Path | None) -> Path:
    option = "HOST_ROOT" if root is None else "--root"
    root = root or Path(os.environ.get("HOST_ROOT", "/"))
    try:
        want_folder(root)
    except ProbeError as error:
        end("check", f"{option} {error}")
    return root


def _named(words: list[str]) -> tuple[Check, ...]:
    """Return the named checks. Raises ValueError for a check that can't run here, and for an unknown name."""
    here = (*CHECKS, dcgm_diag.LEVEL_2)
    wanted: set[str] = set()
    for word in words:
        checks = checks_named(word)
        if not set(checks) & set(here):
            raise ValueError(_ELSEWHERE.format(checks[0].group, groups_in(here)))
        wanted.update(check.name for check in checks)
    return tuple(check for check in here if check.name in wanted)


def instance_type_of(root: Path) -> str:
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", IMDS)
    try:
        return machine.instance_type(root, endpoint)
    except ProbeError:
        return _type_on_the_node()


def _type_on_the_node() -> str:
    """Return the Node's instance type label inside the agent's pod, as the agent does without the metadata service."""
    node_name = os.environ.get("NODE_NAME", "")
    if not node_name or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return ""
    from gpu_healthcheck.healthcheck.cluster.client import Cluster  # noqa: PLC0415 - only in the agent's pod

    try:
        return Cluster().nodes.read(node_name).labels.get(INSTANCE_TYPE, "")
    except ClusterError:
        return ""


def check_once(
    host: Host, checks: tuple[Check, ...], instance_type: str, settings: Settings, *, here: bool
) -> EvidenceCycle:
    """Run one check cycle. `here`: the node is this machine, so its kernel log uses this machine's clock."""
    moment = now()
    try:
        boot = kernel_log.boot_id(host.root)
    except ProbeError:
        boot = ""
    # DCGM numbers its GPUs. NVML is read first and maps the numbers to GPUs.
    # The GPUs that answer show which events of the log a reset has ended.
    event_checks = (driver.CHECK,) if any(check.nature is Nature.EVENT for check in checks) else ()
    evidence = read_probes(host, (*event_checks, *checks))
    machine_id = machine.machine_id(host.root)
    return EvidenceCycle(
        hostname=os.environ.get("NODE_NAME") or ("" if here else machine.hostname(host.root)) or platform.node(),
        machine=machine_id,
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
        acknowledged=_acknowledged(state_dir(host.root), machine_id),
    )


def _driver_age(host: Host, evidence: Evidence, moment: Now) -> float:
    """Return seconds since the driver was loaded, by its line in the kernel log; without that line, since boot."""
    if kernel_log.RING not in evidence.probes:
        evidence = read_probes(host, (driver_messages.CHECK,))
    outcomes = judge((driver_messages.CHECK,), evidence, Expectation())
    return moment.monotonic - (after_kernel_log(Memory(), outcomes, moment).driver_loaded_at or 0.0)


def after_first_read(host: Host, seconds: float) -> Host:
    """Read the GPUs and their pods, wait, and return the host whose next read ends the measurement."""
    readings: list[DriverReading] = []
    pods: list[GpuPods] = []

    def ask_driver() -> DriverReading:
        readings.append(host.ask_driver())  # type: ignore[misc]
        return readings[-1]

    def ask_gpu_pods() -> tuple[GpuPods, ...]:
        answer, at = readings[-1].answer, readings[-1].read_at
        if isinstance(answer, Gpus):
            pods.append(read_pods_of(host, at, [gpu for gpu in answer.gpus if gpu.error == SUCCESS]))
        return tuple(pods)

    measured = replace(host, ask_driver=ask_driver, ask_gpu_pods=ask_gpu_pods)
    read_probes(measured, (gpu_siblings.CHECK,))
    say(f"the GPUs were read once; the second read is in {seconds:g} s, Ctrl-C ends it")
    sleep(seconds)
    return measured
