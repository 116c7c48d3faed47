"""RuntimeClasses against the handlers of the node's container runtime."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.runtime_classes import CHECK
from gpu_healthcheck.healthcheck.checks.runtime_fixes import give_handler
from gpu_healthcheck.healthcheck.model import Judgement, TooEarly
from gpu_healthcheck.healthcheck.model.node_facts import PodRuntimeClass
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import GKE
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import ContainerRuntime
from tests.checks.evidence import P5
from tests.checks.runtimes import (
    AKS,
    FILE,
    FIX,
    NVIDIA,
    RUNC,
    SPEC,
    finding,
    judge,
    reasons,
    running,
    runtime,
    seen,
)


def judged(runtime: ContainerRuntime, *classes: PodRuntimeClass) -> list[Judgement]:
    return judge(CHECK, runtime, replace(P5, runtime_classes=classes))


def named(handler: str, *, for_this_node: bool = False) -> PodRuntimeClass:
    return PodRuntimeClass(f"class-{handler.lower()}", handler, for_this_node)


CDI = {"cdi": True, "cdi_specs": (SPEC,)}
GIVE = give_handler(runtime(RUNC))


def test_the_usual_handler_is_expected_wherever_gpus_are_given() -> None:
    message = "RuntimeClass class-nvidia names the handler nvidia; containerd here has runc, nvidia-container-runtime"
    assert judged(runtime(RUNC, AKS), named("nvidia")) == [
        finding("RuntimeClassHandlerUndefined", f"{message}: {GIVE}")
    ]
    assert reasons(judged(runtime(RUNC, **CDI), named("nvidia"))) == ["RuntimeClassHandlerUndefined"]


@pytest.mark.parametrize("observed", [runtime(RUNC, NVIDIA), runtime(RUNC), runtime(RUNC, AKS, distribution=GKE)])
def test_where_it_is_defined_or_nothing_gives_gpus_it_is_not(observed: ContainerRuntime) -> None:
    """The check `nvidia-runtime` reports a node on which no handler gives a GPU."""
    assert reasons(judged(observed, named("nvidia"))) == []


@pytest.mark.parametrize("handler", ["nvidia-cdi", "nvidia-legacy", "nvidia-experimental", "kata-qemu-nvidia-gpu"])
def test_other_handlers_only_where_the_class_selects_the_node(handler: str) -> None:
    """k3s and the GPU operator define classes with handlers that some nodes lack."""
    assert judged(runtime(RUNC, NVIDIA), named(handler)) == []
    assert reasons(judged(runtime(RUNC, NVIDIA), named(handler, for_this_node=True))) == [
        "RuntimeClassHandlerUndefined"
    ]


@pytest.mark.parametrize("handler", ["crun", "gvisor", "", "kata"])
def test_classes_of_others_are_nobodys_business(handler: str) -> None:
    assert judged(runtime(RUNC, NVIDIA), named(handler, for_this_node=True)) == []


@pytest.mark.parametrize(
    ("defined", "asked"), [("Nvidia", "nvidia"), ("NVIDIA", "nvidia"), ("nvidia-CDI", "nvidia-cdi")]
)
def test_handler_that_differs_in_case_is_reported(defined: str, asked: str) -> None:
    message = f"RuntimeClass class-{asked} names the handler {asked}, but {FILE} defines {defined}: case matters; {FIX}"
    assert judged(runtime(RUNC, replace(NVIDIA, name=defined)), named(asked)) == [
        finding("RuntimeClassHandlerUndefined", message)
    ]


def test_the_running_configuration_counts_and_unloaded_parts_are_reported_separately() -> None:
    live = running(RUNC, NVIDIA)
    assert judged(runtime(RUNC, AKS, live=live), named("nvidia")) == []
    assert judged(runtime(RUNC, NVIDIA, AKS, live=running(RUNC, AKS)), named("nvidia")) == []


def test_findings_stay_until_the_runtime_classes_are_known() -> None:
    untold = TooEarly("the cluster's RuntimeClasses are not known yet: only the agent reads them")
    assert judge(CHECK, runtime(RUNC, AKS)) == [untold]


def test_observation_names_the_runtime_classes() -> None:
    expected = replace(P5, runtime_classes=(named("nvidia"), named("crun")))
    assert seen(CHECK, runtime(NVIDIA), expected)[0].what == "RuntimeClasses class-nvidia (nvidia)"
    expected = replace(P5, runtime_classes=())
    assert seen(CHECK, runtime(NVIDIA), expected)[0].what == "no NVIDIA RuntimeClass"
