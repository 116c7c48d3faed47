"""Check: the running container runtime is ready, and uses the configuration in its files."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_restart
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found, subject
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation, TooEarly
from gpu_healthcheck.healthcheck.probes.container_runtime import cri
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    RUNC,
    ContainerRuntime,
    Handler,
    Live,
    RuntimeConfiguration,
)

_MOST_NAMED = 8

NOT_LOADED = gpu_runtime.reason(
    "RuntimeConfigNotLoaded",
    "The container runtime has not loaded its configuration: the kubelet's runtime runs with another one than that "
    "in its files.",
    "Restart it with the command in the detail.",
    threshold="its status differs from what its own loader prints",
    source="containerd and CRI-O read their handlers once, at their start",
)
NOT_KEPT = gpu_runtime.reason(
    "NvidiaRuntimeNotKept",
    "NVIDIA's handler is lost at the next restart: the kubelet's container runtime runs with it, but its files no "
    "longer define it.",
    "Define the handler in its files before the next restart or reboot: after that, GPU containers can't start.",
    source="comparison of the CRI's status with the files",
)
NOT_READY = gpu_runtime.reason(
    "RuntimeNotReady",
    "The container runtime is not ready: so the kubelet's runtime reports, and no container can start.",
    "Read the cause in its log, and restart it.",
    source="the CRI's condition RuntimeReady",
)


def judge(runtime: ContainerRuntime, _: Expectation) -> Iterator[Judgement]:
    live, files = runtime.live, runtime.on_disk
    if live is not None and live.not_ready:
        yield found(NOT_READY, runtime, f"{live.not_ready}; {runtime_restart.restart(runtime)}")
    reasons = (NOT_LOADED.name, NOT_KEPT.name)
    if live is None and runtime.why_not_live != cri.NOT_YET:
        yield from gpu_runtime.unknown(runtime)
    elif live is None:
        yield TooEarly(cri.NOT_YET, subject(runtime), (*reasons, NOT_READY.name))
    elif files is None or files.cri_disabled:
        # `container-runtime` reports why.
        refused = f"its own loader refuses {runtime.refusal.file}" if runtime.refusal is not None else ""
        why = refused or ("its files disable the CRI" if files is not None else "its files could not be judged")
        yield TooEarly(why, subject(runtime), reasons)
    elif live.configuration is not None:
        yield from _against_itself(runtime, files, live.configuration)
    yield Observation(_summary(live) if live is not None else runtime.why_not_live)


def _against_itself(
    runtime: ContainerRuntime, files: RuntimeConfiguration, in_force: RuntimeConfiguration
) -> Iterator[Finding]:
    """Yield the differences between the running configuration and the files."""
    differences = list(_differences(f"the running {runtime.kind}", files, in_force))
    if differences:
        message = f"{runtime.path}: {'; '.join(differences[:_MOST_NAMED])}"
        yield found(NOT_LOADED, runtime, f"{message}; {runtime_restart.restart(runtime)}")
    lost = ", ".join(runtime_restart.lost_handlers(runtime)[:_MOST_NAMED])
    if lost:
        message = f"{runtime.path} no longer defines {lost}, but the runtime still runs with it"
        yield found(NOT_KEPT, runtime, f"{message}: {runtime_restart.give_handler(runtime)}")


def _differences(running: str, files: RuntimeConfiguration, in_force: RuntimeConfiguration) -> Iterator[str]:
    """Yield each setting of the files that differs in the running runtime, as far as that reports it."""
    by_name = {handler.name: handler for handler in in_force.handlers}
    for handler in files.handlers:
        name, other = handler.name, by_name.get(handler.name, Handler(handler.name))
        if name not in by_name and name != RUNC:
            yield f"{name} is defined, but {running} does not know it"
        elif handler.binary and (other.binary or handler.binary) != handler.binary:
            yield f"{name} starts {handler.binary}, but in {running} {other.binary}"
        elif handler.runtime_type and (other.runtime_type or handler.runtime_type) != handler.runtime_type:
            yield f"{name} has runtime_type {handler.runtime_type}, but in {running} {other.runtime_type}"
        elif handler.systemd_cgroup is not None and other.systemd_cgroup is (not handler.systemd_cgroup):
            own, running_value = ("true", "false") if handler.systemd_cgroup else ("false", "true")
            yield f"SystemdCgroup of {name} is {own}, but in {running} {running_value}"
    if in_force.default and files.default and in_force.default != files.default:
        yield f"the default is {files.default}, but in {running} {in_force.default}"
    if in_force.cdi is not None and files.cdi is not None and in_force.cdi is not files.cdi:
        words = {True: "on", False: "off"}
        yield f"CDI is {words[files.cdi]}, but in {running} {words[in_force.cdi]}"


def _summary(live: Live) -> str:
    names = [handler.name for handler in live.configuration.handlers] if live.configuration is not None else []
    known = f" with {', '.join(filter(None, names)) or 'no handler'}" if live.configuration is not None else ""
    return f"{live.name or 'it'} {live.version}".rstrip() + f" answers{known}"


CHECK = gpu_runtime.check("runtime-loaded", judge, NOT_LOADED, NOT_KEPT, NOT_READY, also_refused=True)
