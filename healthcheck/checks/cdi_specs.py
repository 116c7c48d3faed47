"""Check: the CDI specifications in use for NVIDIA's devices name only existing devices and files.

Specifications that the container runtime does not read are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes, runtime_restart
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, counted
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CdiSpec, ContainerRuntime
from gpu_healthcheck.healthcheck.text.naming import named

_MOST_NAMED = 4

STALE = gpu_runtime.reason(
    "CdiSpecStale",
    "A CDI specification is outdated: it names devices or files that the node does not have. No pod can get its "
    "devices.",
    "Generate it again with the command in the detail: it is older than the driver or the last boot.",
    source="containerd: `failed to stat CDI host device`; runc: a mount's source, a hook's program",
)
MALFORMED = gpu_runtime.reason(
    "CdiSpecMalformed",
    "An NVIDIA CDI specification can't be read: the container runtime knows none of its devices.",
    "Generate it again with the command in the detail.",
    source="containerd: `unresolvable CDI devices`",
)


def judge(runtime: ContainerRuntime, _: Expectation) -> Iterator[Judgement]:
    specs = _specs_in_use(runtime)
    if not specs:
        yield NotConfigured("no NVIDIA CDI specification is in use")
        return
    yield from gpu_runtime.together(_findings(runtime, specs))
    yield Observation(", ".join(_summary(spec) for spec in specs))


def _findings(runtime: ContainerRuntime, specs: Sequence[CdiSpec]) -> Iterator[Finding]:
    for spec in specs:
        if spec.problem is not None and not spec.problem.only_ours:
            yield found(MALFORMED, runtime, f"{gpu_runtime.in_words(spec.problem)}; {_again(runtime, spec)}")
        elif spec.missing and not _is_hidden(spec, specs, runtime.used.cdi_folders):
            missing = named(spec.missing, _MOST_NAMED)
            yield found(
                STALE,
                runtime,
                f"{spec.path} ({spec.kind}) names {missing}, not found; {_again(runtime, spec)}",
            )


def _specs_in_use(runtime: ContainerRuntime) -> tuple[CdiSpec, ...]:
    """Return the specifications that the container runtime uses, or NVIDIA's program in its mode `cdi`."""
    by_toolkit = runtime.toolkit is not None and runtime.toolkit.mode == "cdi"
    return runtime.cdi_specs if by_toolkit else gpu_runtime.cdi_specs(runtime)


def _is_hidden(spec: CdiSpec, specs: Sequence[CdiSpec], folders: Sequence[str]) -> bool:
    """Whether a later folder defines all devices of this specification.

    If several folders define the same device, the definition in the last folder applies.
    """
    later = folders[_place(spec, folders) + 1 :]
    redefined = {
        name
        for other in specs
        for name in other.devices
        if other.kind == spec.kind and other.problem is None and _folder(other) in later
    }
    return bool(spec.devices) and set(spec.devices) <= redefined


def _folder(spec: CdiSpec) -> str:
    return spec.path.rpartition("/")[0]


def _place(spec: CdiSpec, folders: Sequence[str]) -> int:
    return [*folders].index(_folder(spec)) if _folder(spec) in folders else len(folders)


def _again(runtime: ContainerRuntime, spec: CdiSpec) -> str:
    """Return the advice that regenerates a specification.

    The device plugin writes its specification when it starts; nvidia-ctk writes the others.
    """
    if "k8s.device-plugin" in f"{spec.kind} {spec.path}":
        remedy = "delete the pod of NVIDIA's device plugin on this node: it writes the file when it starts"
        return runtime_restart.make_pod_anew(runtime, remedy)
    return runtime_fixes.generate_spec(spec.path)


def _summary(spec: CdiSpec) -> str:
    if spec.problem is not None:
        return f"{spec.path}: unreadable"
    return f"{spec.path}: {counted(len(spec.devices), 'device')} of {spec.kind}"


CHECK = gpu_runtime.check("cdi-specs", judge, STALE, MALFORMED)
