"""Check: NVIDIA's handlers, and runc if pods use it, have the same cgroup driver as the kubelet."""

from __future__ import annotations

from collections.abc import Container, Iterator

from healthcheck.checks import gpu_runtime, runtime_fixes
from healthcheck.checks.expectation import Expectation
from healthcheck.checks.gpu_runtime import found, of_nvidia, where
from healthcheck.model import Finding, Judgement, Observation
from healthcheck.probes.container_runtime.facts import CONTAINERD, RUNC, ContainerRuntime, Handler, RuntimeConfiguration

_NAMES = {True: "systemd", False: "cgroupfs"}

MISMATCH = gpu_runtime.reason(
    "CgroupDriverMismatch",
    "The kubelet and its container runtime use different cgroup drivers: pods fail under load, or lose their GPUs.",
    "Set both to systemd, as the detail describes.",
    source="Kubernetes, Container Runtimes: cgroup drivers",
)


def judge(runtime: ContainerRuntime, used: RuntimeConfiguration, expected: Expectation) -> Iterator[Judgement]:
    wanted = _wanted(runtime, used)
    if wanted is None:
        yield Observation("the kubelet uses the runtime's cgroup driver, or its own is unknown")
        return
    yield from find_faults(runtime, used, [each.handler for each in expected.runtime_classes or ()])
    yield Observation(f"the kubelet's cgroup driver is {_NAMES[wanted]}", "the same in the runtime")


def find_faults(
    runtime: ContainerRuntime, used: RuntimeConfiguration, of_classes: Container[str] = ()
) -> Iterator[Finding]:
    """Yield a finding if a handler or the runtime has another cgroup driver than the kubelet.

    `of_classes`: handlers of the cluster's RuntimeClasses.
    """
    wanted = _wanted(runtime, used)
    if wanted is not None:
        yield from _of_all(runtime, used, wanted)
        yield from gpu_runtime.together(_of_handlers(runtime, used, wanted, of_classes))


def _wanted(runtime: ContainerRuntime, used: RuntimeConfiguration) -> bool | None:
    """Return whether the kubelet's cgroup driver is systemd; None if unknown.

    A kubelet that queries containerd 2 gets the driver of the default handler.
    """
    kubelets = runtime.kubelet.systemd_cgroup if runtime.kubelet else None
    if kubelets is not None or not used.is_containerd_2:
        return kubelets
    # containerd reports the driver of the default handler or, if its options set no driver, of the first handler by
    # name whose options do.
    handlers = sorted(used.handlers, key=lambda handler: (handler.name != used.default, handler.name))
    return next((handler.systemd_cgroup for handler in handlers if handler.systemd_cgroup is not None), None)


def _of_all(runtime: ContainerRuntime, used: RuntimeConfiguration, wanted: bool) -> Iterator[Finding]:
    """Yield the finding for CRI-O and Docker, which have one driver for all handlers."""
    if used.systemd_cgroup not in (None, wanted):
        message = f"{used.path}: the cgroup driver is {_NAMES[not wanted]}, but the kubelet's is {_NAMES[wanted]}"
        yield found(MISMATCH, used, f"{message}; {runtime_fixes.correct(runtime, used, used.path)}")


def _of_handlers(
    runtime: ContainerRuntime, used: RuntimeConfiguration, wanted: bool, of_classes: Container[str]
) -> Iterator[Finding]:
    ours = {handler.name for handler in of_nvidia(used.handlers)}
    # `containerd config dump` also lists runc beside another default (EKS). Pods then need a RuntimeClass for it.
    if used.default == RUNC or RUNC in of_classes:
        ours.add(RUNC)
    for handler in used.handlers if used.kind == CONTAINERD else ():
        if handler.name in ours and _starts_runc(handler) and bool(handler.systemd_cgroup) is not wanted:
            message = f"{where(handler)}: SystemdCgroup of {handler.name} is {_said(handler)}"
            fix = runtime_fixes.correct(runtime, used, handler.file)
            yield found(MISMATCH, used, f"{message}, but the kubelet's driver is {_NAMES[wanted]}; {fix}")


def _starts_runc(handler: Handler) -> bool:
    """Whether the handler starts runc. Other shims have no option SystemdCgroup."""
    return handler.runtime_type in ("", gpu_runtime.OLDEST_SHIM) or handler.runtime_type.startswith(gpu_runtime.SHIMS)


def _said(handler: Handler) -> str:
    return "true" if handler.systemd_cgroup else "false or not set"


CHECK = gpu_runtime.check("cgroup-driver", judge, MISMATCH)
