"""Check: the running container runtime is ready, and uses the configuration in its files."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_restart
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, subject
from healthcheck.model import Finding, Judgement, Observation, TooEarly
from healthcheck.probes.container_runtime import cri
from healthcheck.probes.container_runtime.facts import RUNC, ContainerRuntime, Live, RuntimeConfiguration

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


def judge(runtime: ContainerRuntime, _: RuntimeConfiguration, __: Expectation) -> Iterator[Judgement]:
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
    elif live.handlers is not None:
        yield from _against_itself(runtime, files, live)
    yield Observation(_summary(live) if live is not None else runtime.why_not_live)


def _against_itself(runtime: ContainerRuntime, files: RuntimeConfiguration, live: Live) -> Iterator[Finding]:
    """Yield the differences between the running configuration and the files."""
    lacks = list(_lacks(runtime, files, live))
    if lacks:
        message = f"{runtime.path}: {'; '.join(lacks[:_MOST_NAMED])}"
        yield found(NOT_LOADED, runtime, f"{message}; {runtime_restart.restart(runtime)}")
    ours = runtime_restart.lost_handlers(runtime)
    if ours:
        give = runtime_restart.give_handler(runtime)
        message = (
            f"{runtime.path} no longer defines {', '.join(ours[:_MOST_NAMED])}, but the runtime still runs with it"
        )
        yield found(NOT_KEPT, runtime, f"{message}: {give}")


def _lacks(runtime: ContainerRuntime, files: RuntimeConfiguration, live: Live) -> Iterator[str]:
    """Yield each setting of the files that differs in the running runtime."""
    running = f"the running {runtime.kind}"
    programs, drivers, types = dict(live.binaries), dict(live.systemd_cgroups), dict(live.types)
    for handler in files.handlers:
        name = handler.name
        if name not in (live.handlers or ()) and name != RUNC:
            yield f"{name} is defined, but {running} does not know it"
        elif handler.binary and programs.get(name, handler.binary) != handler.binary:
            yield f"{name} starts {handler.binary}, but in {running} {programs[name]}"
        elif handler.runtime_type and (types.get(name) or handler.runtime_type) != handler.runtime_type:
            yield f"{name} has runtime_type {handler.runtime_type}, but in {running} {types[name]}"
        elif handler.systemd_cgroup is not None and drivers.get(name) is (not handler.systemd_cgroup):
            own, other = ("true", "false") if handler.systemd_cgroup else ("false", "true")
            yield f"SystemdCgroup of {name} is {own}, but in {running} {other}"
    if live.default and files.default and live.default != files.default:
        yield f"the default is {files.default}, but in {running} {live.default}"
    if live.cdi is not None and live.cdi != files.cdi:
        words = {True: "on", False: "off"}
        yield f"CDI is {words[files.cdi]}, but in {running} {words[live.cdi]}"


def _summary(live: Live) -> str:
    names = (
        "" if live.handlers is None else f" with {', '.join(name for name in live.handlers if name) or 'no handler'}"
    )
    return f"{live.name or 'it'} {live.version}".rstrip() + f" answers{names}"


CHECK = gpu_runtime.check("runtime-loaded", judge, NOT_LOADED, NOT_KEPT, NOT_READY, also_refused=True)
