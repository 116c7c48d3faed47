"""Check: NVIDIA's handlers, and runc if pods use it, have the same cgroup driver as the kubelet."""

from __future__ import annotations

from collections.abc import Container, Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found, of_nvidia, starts_runc
from gpu_healthcheck.healthcheck.model import Finding, Judgement, Observation
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, RUNC, ContainerRuntime

_NAMES = {True: "systemd", False: "cgroupfs"}

MISMATCH = gpu_runtime.reason(
    "CgroupDriverMismatch",
    "Kubelet and container runtime use different cgroup drivers: pods fail under load, or lose their GPUs.",
    "Set both to systemd, as the detail describes.",
    source="Kubernetes, Container Runtimes: cgroup drivers",
)


def judge(runtime: ContainerRuntime, expected: Expectation) -> Iterator[Judgement]:
    driver = _kubelets(runtime)
    if driver is None:
        yield Observation("the kubelet uses the runtime's cgroup driver, or its own is unknown")
        return
    yield from find_faults(runtime, [each.handler for each in expected.runtime_classes or ()])
    yield Observation(f"the kubelet's cgroup driver is {_NAMES[driver]}", "the same in the runtime")


def find_faults(runtime: ContainerRuntime, of_classes: Container[str] = ()) -> Iterator[Finding]:
    """Return a finding if a handler has another cgroup driver than the kubelet.

    `of_classes`: handlers of the cluster's RuntimeClasses.
    """
    driver = _kubelets(runtime)
    return gpu_runtime.together(_of_handlers(runtime, driver, of_classes) if driver is not None else ())


def _kubelets(runtime: ContainerRuntime) -> bool | None:
    """Return whether the kubelet's cgroup driver is systemd; None if unknown.

    A runtime that can report its driver decides it (KubeletCgroupDriverFromCRI): containerd since 2.0, CRI-O since
    1.28. The kubelet asks since 1.31, and no file on the node shows its version.
    """
    if runtime.kind != CONTAINERD or not runtime.is_containerd_2:
        return runtime.kubelet.systemd_cgroup if runtime.kubelet and runtime.kind == CONTAINERD else None
    # containerd reports the driver of the default handler or, if its options set no driver, of the first handler by
    # name whose options do.
    used = runtime.used
    handlers = sorted(used.handlers, key=lambda handler: (handler.name != used.default, handler.name))
    return next((handler.systemd_cgroup for handler in handlers if handler.systemd_cgroup is not None), None)


def _of_handlers(runtime: ContainerRuntime, driver: bool, of_classes: Container[str]) -> Iterator[Finding]:
    used = runtime.used
    names = {handler.name for handler in of_nvidia(used.handlers)}
    # containerd also lists runc beside another default (EKS). Pods then need a RuntimeClass for it.
    names |= {RUNC} if used.default == RUNC or RUNC in of_classes else set()
    for handler in used.handlers:
        if handler.name in names and starts_runc(handler) and bool(handler.systemd_cgroup) is not driver:
            value = "true" if handler.systemd_cgroup else "false or not set"
            message = f"{runtime.path}: SystemdCgroup of {handler.name} is {value}"
            fix = runtime_fixes.correct(runtime)
            yield found(MISMATCH, runtime, f"{message}, but the kubelet's driver is {_NAMES[driver]}; {fix}")


CHECK = gpu_runtime.check("cgroup-driver", judge, MISMATCH)
