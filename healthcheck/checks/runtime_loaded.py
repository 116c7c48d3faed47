"""Check: the running container runtime is ready, and uses the configuration in its files."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_restart
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, subject
from healthcheck.model import Finding, Judgement, NotConfigured, Observation, TooEarly
from healthcheck.probes.container_runtime import cri
from healthcheck.probes.container_runtime.facts import RUNC, ContainerRuntime, Live, RuntimeConfiguration

_SETTLED_SECONDS = 10.0
"""A file written within this time after the start of the runtime counts as read."""
_MOST_NAMED = 8

NOT_LOADED = gpu_runtime.reason(
    "RuntimeConfigNotLoaded",
    "The kubelet's container runtime runs with another configuration than that in its files.",
    "Restart it with the command in the detail.",
    threshold=f"its reported status differs; without a status, a file changed {_SETTLED_SECONDS:g} s after its start",
    source="containerd, CRI-O and Docker read their handlers once, at their start",
)
NOT_KEPT = gpu_runtime.reason(
    "NvidiaRuntimeNotKept",
    "The kubelet's container runtime runs with an NVIDIA handler that its files no longer define.",
    "Define the handler in its files before the next restart or reboot: after that, GPU containers can't start.",
    source="comparison of the CRI's status with the files",
)
NOT_READY = gpu_runtime.reason(
    "RuntimeNotReady",
    "The kubelet's container runtime reports that it is not ready: no container can start.",
    "Read the cause in its log, and restart it.",
    source="the CRI's condition RuntimeReady",
)


def judge(runtime: ContainerRuntime, used: RuntimeConfiguration, _: Expectation) -> Iterator[Judgement]:
    live = runtime.live
    if live is not None and live.not_ready:
        yield found(NOT_READY, used, f"{live.not_ready}; {runtime_restart.restart(runtime, used)}")
    reasons = (NOT_LOADED.name, NOT_KEPT.name)
    if runtime.why_not_live == cri.NOT_YET:
        yield TooEarly(runtime.why_not_live, subject(used), (*reasons, NOT_READY.name))
    elif live is None and runtime.started is None:
        yield NotConfigured(_why_untold(runtime, used))
        return
    elif used.problem is not None:
        yield TooEarly(f"{used.problem.file} can't be read", subject(used), reasons)
    elif live is not None and live.handlers is not None:
        yield from _against_itself(runtime, used, live)
    else:
        yield from _newer(runtime, used)
    yield Observation(_summary(runtime))


def _against_itself(runtime: ContainerRuntime, used: RuntimeConfiguration, live: Live) -> Iterator[Finding]:
    """Yield the differences between the running configuration and the files.

    They take precedence over the times of the files, because a file may be rewritten with the same text.
    """
    lacks = list(_lacks(used, live))
    if lacks:
        message = f"{'; '.join(lacks[:_MOST_NAMED])}"
        yield found(NOT_LOADED, used, f"{message}; {runtime_restart.restart(runtime, used)}")
    ours = runtime_restart.lost_handlers(runtime, used)
    if ours:
        give = runtime_restart.give_handler(runtime, used)
        message = f"{used.path} no longer defines {', '.join(ours[:_MOST_NAMED])}, but the runtime still runs with it"
        yield found(NOT_KEPT, used, f"{message}: {give}")


def _lacks(used: RuntimeConfiguration, live: Live) -> Iterator[str]:
    """Yield each setting of the files that differs in the running runtime."""
    programs, drivers = dict(live.binaries), dict(live.systemd_cgroups)
    for handler in used.handlers:
        place = gpu_runtime.where(handler)
        if handler.name not in (live.handlers or ()) and handler.name != RUNC:
            yield f"{place}: {handler.name} is defined, but the running {used.kind} does not know it"
        elif handler.binary and handler.name in programs and programs[handler.name] != handler.binary:
            runs = programs[handler.name] or RUNC
            yield f"{place}: {handler.name} starts {handler.binary}, but in the running {used.kind} {runs}"
        elif handler.systemd_cgroup is not None and drivers.get(handler.name) is (not handler.systemd_cgroup):
            own, other = ("true", "false") if handler.systemd_cgroup else ("false", "true")
            yield f"{place}: SystemdCgroup of {handler.name} is {own}, but in the running {used.kind} {other}"
    if live.default and live.default != used.default:
        file = used.default_in or used.path
        yield f"{file}: the default is {used.default}, but in the running {used.kind} {live.default}"
    # Without the version, CDI's default is unknown.
    if used.version and live.cdi is not None and live.cdi != used.cdi:
        words = {True: "on", False: "off"}
        yield f"{used.path}: CDI is {words[used.cdi]}, but in the running {used.kind} {words[live.cdi]}"


def _why_untold(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    if runtime.since_boot is not None:
        return f"unknown whether {used.kind} was started before its files were written"
    return f"no running {used.kind} is visible, so its loaded configuration is unknown"


def _newer(runtime: ContainerRuntime, used: RuntimeConfiguration) -> Iterator[Finding]:
    if runtime.started is None:
        return
    newer = [file.path for file in used.files if file.written > runtime.started + _SETTLED_SECONDS]
    if newer:
        message = f"{', '.join(newer)}: changed after {used.kind} was started"
        yield found(NOT_LOADED, used, f"{message}; {runtime_restart.restart(runtime, used)}")


def _summary(runtime: ContainerRuntime) -> str:
    live = runtime.live
    if live is None:
        if runtime.why_not_live == cri.NOT_YET:
            return cri.NOT_YET
        return f"by the modification times of its files: {runtime.why_not_live or 'its status was not read'}"
    names = (
        "" if live.handlers is None else f" with {', '.join(name for name in live.handlers if name) or 'no handler'}"
    )
    return f"{live.name or 'it'} {live.version}".rstrip() + f" answers{names}"


CHECK = gpu_runtime.check("runtime-loaded", judge, NOT_LOADED, NOT_KEPT, NOT_READY, also_unreadable=True)
