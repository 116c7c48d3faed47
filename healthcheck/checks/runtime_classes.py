"""Check: NVIDIA's RuntimeClasses for pods of this node name existing handlers.

The container runtime must have these handlers.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_healthcheck.healthcheck.checks import gpu_runtime, runtime_fixes, runtime_restart
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import found
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Observation, TooEarly
from gpu_healthcheck.healthcheck.model.node_facts import PodRuntimeClass
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import GKE
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import ContainerRuntime

_USUAL = "nvidia"
"""The usual handler in guides to GPU pods. Distributions (k3s: nvidia-experimental) and the GPU operator (nvidia-cdi,
nvidia-legacy) install other classes even if no node defines their handlers."""
_MOST_NAMED = 8

UNDEFINED = gpu_runtime.reason(
    "RuntimeClassHandlerUndefined",
    "An NVIDIA RuntimeClass names an unknown handler: this node's container runtime has none with this exact name.",
    "Use the same handler name in the RuntimeClass and in the container runtime's file.",
    source='containerd: `no runtime for "…" is configured`',
)


def judge(runtime: ContainerRuntime, expected: Expectation) -> Iterator[Judgement]:
    if expected.runtime_classes is None:
        # The agent's first check cycle runs before they are listed. Until then, earlier findings stay active.
        yield TooEarly("the cluster's RuntimeClasses are not known yet: only the agent reads them")
    elif runtime.distribution == GKE:
        yield NotConfigured("GKE's GPUs need no RuntimeClass")
    else:
        classes = [each for each in expected.runtime_classes if _USUAL in each.handler.lower()]
        yield from gpu_runtime.together(_undefined(runtime, classes))
        names = ", ".join(f"{each.name} ({each.handler})" for each in classes[:_MOST_NAMED])
        yield Observation(f"RuntimeClasses {names}" if names else "no NVIDIA RuntimeClass")


def _undefined(runtime: ContainerRuntime, classes: list[PodRuntimeClass]) -> Iterator[Finding]:
    defined = runtime.running_handlers
    by_lower = {name.lower(): name for name in defined}
    # Otherwise `nvidia-runtime` reports that the node gives none. With CRI-O's hook, pods need no class.
    gives_gpus = gpu_runtime.gives_gpus(runtime) and not runtime.hook
    # `runtime-loaded` reports a handler that is defined in the files but not loaded.
    known = {*defined, *(handler.name for handler in runtime.used.handlers)}
    for runtime_class in (each for each in classes if each.handler not in known):
        like = by_lower.get(runtime_class.handler.lower())
        message = f"RuntimeClass {runtime_class.name} names the handler {runtime_class.handler}"
        if like is not None:
            fix = f"case matters; {runtime_fixes.correct(runtime)}"
            yield found(UNDEFINED, runtime, f"{message}, but {runtime.path} defines {like}: {fix}")
        elif gives_gpus and (runtime_class.handler == _USUAL or runtime_class.for_this_node):
            has = f"{runtime.kind} here has {', '.join([*defined][:_MOST_NAMED])}"
            exclude = f"define it, or exclude this node with the class's nodeSelector; {runtime_fixes.correct(runtime)}"
            fix = runtime_restart.give_handler(runtime) if runtime_class.handler == _USUAL else exclude
            yield found(UNDEFINED, runtime, f"{message}; {has}: {fix}")


CHECK = gpu_runtime.check("runtime-classes", judge, UNDEFINED)
