"""A container runtime's facts for the checks: containerd with NVIDIA's handler, as its loader prints it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Finding, Judgement, Observation, Severity
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    CdiSpec,
    ConfigurationProblem,
    ContainerRuntime,
    Handler,
    Kubelet,
    Live,
    ReadFile,
    RuntimeBinary,
    RuntimeConfiguration,
)
from tests.checks.evidence import P5, finds, tells

FILE, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
SOCKET = "/run/containerd/containerd.sock"
PROGRAM = "/usr/bin/nvidia-container-runtime"
V2 = "io.containerd.runc.v2"
RUNC = Handler("runc", V2, "", True)
NVIDIA = Handler("nvidia", V2, PROGRAM, True)
AKS = replace(NVIDIA, name="nvidia-container-runtime")
OFFERED = replace(AKS, binary="nvidia-container-runtime")
SPEC = CdiSpec("/var/run/cdi/nvidia.yaml", "nvidia.com/gpu", ("0", "all"))
BROKEN = ConfigurationProblem(FILE, "expected ']'", 3, 7)
RESTART = "`systemctl restart containerd`"
FIX = f"correct {FILE}"
_RUNTIME_FIELDS = set(ContainerRuntime.__struct_fields__)


def runtime(*handlers: Handler, **more: Any) -> ContainerRuntime:
    """A runtime whose files define these handlers; `more` changes its surroundings or its configuration."""
    fields = {key: more.pop(key) for key in [*more] if key in _RUNTIME_FIELDS}
    plain: dict[str, Any] = {
        "default": "runc",
        "cdi": False,
        "cdi_folders": ("/etc/cdi", "/var/run/cdi"),
        "schema": 2,
        "section": "s",
    }
    files = RuntimeConfiguration(handlers, **(plain | more))
    base = ContainerRuntime(
        FILE,
        socket=SOCKET,
        known_from="--container-runtime-endpoint of kubelet",
        files=(ReadFile(FILE, 1_750_000_000.0),),
        kubelet=Kubelet("kubelet", 902, systemd_cgroup=True),
        programs=(RuntimeBinary(PROGRAM, PROGRAM, True, "x86_64"),),
        on_disk=files,
        architecture="x86_64",
        for_gpus=True,
    )
    return replace(base, **fields)


def running(
    *handlers: Handler, version: str = "1.7.27", not_ready: str = "", default: str = "runc", cdi: bool | None = False
) -> Live:
    """The report of a running containerd 1.7 with these handlers."""
    return Live("containerd", version, not_ready, RuntimeConfiguration(handlers, default, cdi))


def judge(check: Check, runtime: ContainerRuntime, expected: Expectation = P5) -> list[Judgement]:
    return finds(check, expected, {CONTAINER_RUNTIME: runtime})


def seen(check: Check, runtime: ContainerRuntime, expected: Expectation = P5) -> list[Observation]:
    return tells(check, expected, {CONTAINER_RUNTIME: runtime})


def finding(reason: str, detail: str, kind: str = "containerd") -> Finding:
    return Finding(reason, Severity.MONITOR, f"runtime/{kind}", detail, flickers=True)


def reasons(findings: list[Judgement]) -> list[str]:
    return [finding.reason for finding in findings if isinstance(finding, Finding)]
