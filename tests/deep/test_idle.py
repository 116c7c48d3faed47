"""Users of the GPUs; an unread list is not an empty list."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.deep.diagnostic import Idleness
from gpu_healthcheck.healthcheck.model import Evidence, ProbeError, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Gpu, Gpus

PODS = [(f"team/train-{number}", "nvidia.com/gpu", 2) for number in range(5)]


def look(*processes: int | None) -> Evidence:
    gpus = tuple(Gpu(index, address=f"0000:0{index}:00.0", processes=number) for index, number in enumerate(processes))
    return Evidence({NVML: DriverReading(Gpus("570", "lib", gpus))})


@pytest.mark.parametrize(
    ("pods", "seen", "used"),
    [
        ([], look(0, 0), ""),
        ([], look(None, 0), ""),
        (PODS[:1], look(0, 0), "team/train-0 has 2 nvidia.com/gpu"),
        (PODS[:1], None, "team/train-0 has 2 nvidia.com/gpu"),
        ([], look(0, 3), "processes use gpu/0000:01:00.0"),
        (
            PODS,
            look(1),
            ", ".join(f"team/train-{number} has 2 nvidia.com/gpu" for number in range(3)) + " and 2 more",
        ),
    ],
)
def test_finding_names_the_users(pods: list[tuple[str, str, int]], seen: Evidence | None, used: str) -> None:
    assert Idleness(lambda: pods, lambda: seen).used() == used


@pytest.mark.parametrize(
    "seen",
    [
        None,
        Evidence({}),
        Evidence({NVML: Unobserved(UnobservedCause.named("ProbeFailed"), "x")}),
        Evidence({NVML: DriverReading(Unobserved(UnobservedCause.named("DriverNotLoaded"), "x"))}),
    ],
)
def test_missing_answer_of_nvml_is_unknown(seen: Evidence | None) -> None:
    with pytest.raises(ProbeError):
        Idleness(list, lambda: seen).used()


def test_silent_kubelet_leaves_no_node_idle() -> None:
    def silent() -> list[tuple[str, str, int]]:
        raise ProbeError("no socket")

    idleness = Idleness(silent, lambda: look(0))
    for ask in (idleness.used, idleness.held):
        with pytest.raises(ProbeError):
            ask()


def test_during_a_test_its_own_processes_are_nobody() -> None:
    assert Idleness(list, lambda: look(9)).held() == ""
