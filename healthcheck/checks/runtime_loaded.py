"""Check: the running container runtime is ready, and uses the configuration in its files."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.checks import gpu_runtime, runtime_restart
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, subject
from healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    TooEarly,
)
from healthcheck.probes.container_runtime import configuration as container_runtime
from healthcheck.probes.container_runtime import cri
from healthcheck.probes.container_runtime.facts import RUNC, ContainerRuntime, Live, RuntimeConfiguration

_SETTLED_SECONDS = 10.0
"""A file written this soon after its reader was started is taken for one that it read."""
_MOST_NAMED = 8

NOT_LOADED = Reason(
    "RuntimeConfigNotLoaded",
    Severity.MONITOR,
    "The kubelet's container runtime runs with another configuration than its files have.",
    "Restart it, by the command named.",
    flickers=True,
    threshold=f"what it says of itself differs; where it can't be asked, a file {_SETTLED_SECONDS:g} s after its start",
    source="containerd, CRI-O and Docker read their handlers once, at their start",
)
NOT_KEPT = Reason(
    "NvidiaRuntimeNotKept",
    Severity.MONITOR,
    "The kubelet's container runtime runs with a handler of NVIDIA's that its files no longer have.",
    "Define it in its files again before the next restart or reboot: GPU containers can't be started after that.",
    flickers=True,
    source="the CRI's own status, against the files",
)
NOT_READY = Reason(
    "RuntimeNotReady",
    Severity.MONITOR,
    "The kubelet's container runtime says of itself that it is not ready: no container can be started.",
    "Read its log for the cause it names, and restart it.",
    flickers=True,
    source="the CRI's condition RuntimeReady",
)


def judge(seen: Evidence, _: Expectation) -> Iterator[Judgement]:
    runtime = yield from gpu_runtime.used_with_gpus(seen)
    if runtime is None or runtime.used is None:
        return
    used, live = runtime.used, runtime.live
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

    They take precedence over the times of the files: a file that is rewritten with the same text changes nothing.
    """
    lacks = list(_lacks(used, live))
    if lacks:
        message = f"{'; '.join(lacks[:_MOST_NAMED])}"
        yield found(NOT_LOADED, used, f"{message}; {runtime_restart.restart(runtime, used)}")
    ours = runtime_restart.lost_handlers(runtime, used)
    if ours:
        give = runtime_restart.give_handler(runtime, used)
        message = f"{used.path} no longer defines {', '.join(ours[:_MOST_NAMED])}, with which it still runs"
        yield found(NOT_KEPT, used, f"{message}: {give}")


def _lacks(used: RuntimeConfiguration, live: Live) -> Iterator[str]:
    """Yield each setting of the files that differs in the running runtime."""
    programs = dict(live.binaries)
    for handler in used.handlers:
        place = gpu_runtime.where(handler)
        if handler.name not in (live.handlers or ()) and handler.name != RUNC:
            yield f"{place}: {handler.name} is defined, and the running {used.kind} does not know it"
        elif handler.binary and handler.name in programs and programs[handler.name] != handler.binary:
            runs = programs[handler.name] or RUNC
            yield f"{place}: {handler.name} starts {handler.binary}, and in the running {used.kind} {runs}"
    if live.default and live.default != used.default:
        file = used.default_in or used.path
        yield f"{file}: the default is {used.default}, and in the running {used.kind} {live.default}"
    # Without the version CDI's default is not known either.
    if used.version and live.cdi is not None and live.cdi != used.cdi:
        words = {True: "on", False: "off"}
        yield f"{used.path}: CDI is {words[used.cdi]}, and in the running {used.kind} {words[live.cdi]}"


def _why_untold(runtime: ContainerRuntime, used: RuntimeConfiguration) -> str:
    if runtime.since_boot is not None:
        return f"nothing here tells whether {used.kind} was started before its files were written"
    return f"no running {used.kind} is to be seen that could tell what it has loaded"


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
        return f"judged by the times of its files: {runtime.why_not_live or 'it was not asked'}"
    names = (
        "" if live.handlers is None else f" with {', '.join(name for name in live.handlers if name) or 'no handler'}"
    )
    return f"{live.name or 'it'} {live.version}".rstrip() + f" answers{names}"


CHECK = Check(
    "runtime-loaded",
    "7-container-runtime",
    (container_runtime.CONTAINER_RUNTIME,),
    judge,
    (NOT_LOADED, NOT_KEPT, NOT_READY),
)
