"""A container runtime's facts as the probe hands them to the checks: containerd 1 with NVIDIA's handler, well."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from healthcheck.checks.expectation import Expectation
from healthcheck.model import Check, Finding, Judgement, Observation, Severity
from healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from healthcheck.probes.container_runtime.facts import (
    CdiSpec,
    ConfigurationProblem,
    ContainerRuntime,
    Handler,
    Kubelet,
    ReadFile,
    RuntimeBinary,
    RuntimeConfiguration,
)
from tests.checks.evidence import P5, finds, tells

FILE, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
SOCKET = "/run/containerd/containerd.sock"
PROGRAM = "/usr/bin/nvidia-container-runtime"
RUNC = Handler("runc", "io.containerd.runc.v2", "", True, FILE, 7)
NVIDIA = Handler("nvidia", "io.containerd.runc.v2", PROGRAM, True, FILE, 12)
AKS = replace(NVIDIA, name="nvidia-container-runtime")
OFFERED = replace(AKS, binary="nvidia-container-runtime")
STARTED = 1_750_000_000.0
SPEC = CdiSpec("/var/run/cdi/nvidia.yaml", "nvidia.com/gpu", ("0", "all"))
BROKEN = ConfigurationProblem(FILE, "Expected ']'", 3, 7)
UNREADABLE = ConfigurationProblem(FILE, "more than 1 MiB", only_ours=True)
RESTART = "`systemctl restart containerd`"
MEND = f"correct {FILE}"
_RUNTIME_FIELDS = set(ContainerRuntime.__struct_fields__)


def configuration(*handlers: Handler, **more: Any) -> RuntimeConfiguration:
    base = RuntimeConfiguration(
        FILE, version="1.7.27", schema=2, files=(ReadFile(FILE, STARTED - 60),), handlers=handlers
    )
    return replace(base, **{"built_in": ("runc",), "cdi_folders": ("/etc/cdi", "/var/run/cdi"), **more})


def runtime(*handlers: Handler, **more: Any) -> ContainerRuntime:
    """A runtime with those handlers; `more` changes its surroundings or its configuration."""
    fields = {key: more.pop(key) for key in [*more] if key in _RUNTIME_FIELDS}
    base = ContainerRuntime(
        configuration(*handlers, **more),
        socket=SOCKET,
        known_from="--container-runtime-endpoint of kubelet",
        started=STARTED,
        kubelet=Kubelet("kubelet", 902, systemd_cgroup=True),
        programs=(RuntimeBinary(PROGRAM, PROGRAM, True, "x86_64"),),
        architecture="x86_64",
        for_gpus=True,
    )
    return replace(base, **fields)


def judge(check: Check, runtime: ContainerRuntime, expected: Expectation = P5) -> list[Judgement]:
    return finds(check, expected, {CONTAINER_RUNTIME: runtime})


def seen(check: Check, runtime: ContainerRuntime, expected: Expectation = P5) -> list[Observation]:
    return tells(check, expected, {CONTAINER_RUNTIME: runtime})


def finding(reason: str, detail: str, kind: str = "containerd") -> Finding:
    return Finding(reason, Severity.MONITOR, f"runtime/{kind}", detail, flickers=True)


def reasons(findings: list[Judgement]) -> list[str]:
    return [finding.reason for finding in findings if isinstance(finding, Finding)]
