"""GPUs under load: wrong results, and speeds compared with the siblings and with published figures."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.catalog.hardware import gpu_speed_table
from gpu_healthcheck.healthcheck.checks.gpu_load import CHECK
from gpu_healthcheck.healthcheck.model import Finding, Judgement, NotConfigured, Passed, Severity, Unobserved
from gpu_healthcheck.healthcheck.probes.gpu_load.speeds import GPU_LOAD, NOT_RUN, GpuSpeeds, LoadReading
from tests.checks.evidence import P5, finds, tells

H100, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"
HEALTHY = {"fp32": 66.0, "bf16": 930.0, "h2d": 52.0, "d2h": 51.0, "peer": 370.0}


def address(number: int) -> str:
    return f"0000:{number:02x}:00.0"


def gpu(number: int, name: str = H100, **speeds: float) -> GpuSpeeds:
    return GpuSpeeds(address(number), f"GPU-{number}", name, {**HEALTHY, **speeds})


def slowed(quantity: str, share: float) -> GpuSpeeds:
    slow = gpu(0)
    slow.speeds[quantity] *= share
    return slow


def siblings(*gpus: GpuSpeeds, number: int = 8) -> LoadReading:
    """Return these GPUs and healthy ones after them."""
    return LoadReading((*gpus, *(gpu(other) for other in range(len(gpus), number))))


def judge(reading: LoadReading) -> list[Judgement]:
    return finds(CHECK, P5, {GPU_LOAD: reading})


def findings(reading: LoadReading) -> list[tuple[str, str]]:
    return [(word.reason, word.subject) for word in judge(reading) if isinstance(word, Finding)]


def passes(reading: LoadReading) -> set[tuple[str, str]]:
    return {(word.reason, word.subject) for word in judge(reading) if isinstance(word, Passed)}


def test_healthy_gpus_pass_both() -> None:
    reading = siblings()
    assert (findings(reading), len(passes(reading))) == ([], 16)


@pytest.mark.parametrize(
    ("quantity", "reason"),
    [
        ("fp32", "GpuComputeSlow"),
        ("bf16", "GpuComputeSlow"),
        ("h2d", "GpuCopySlow"),
        ("d2h", "GpuCopySlow"),
        ("peer", "GpuCopySlow"),
    ],
)
@pytest.mark.parametrize(("share", "is_slow"), [(0.33, True), (0.89, True), (0.91, False), (1.0, False)])
def test_a_tenth_below_the_fastest_is_slow(quantity: str, reason: str, share: float, is_slow: bool) -> None:
    reading = siblings(slowed(quantity, share))

    assert findings(reading) == [(reason, f"gpu/{address(0)}")] * is_slow
    assert ((reason, f"gpu/{address(0)}") in passes(reading)) != is_slow
    assert len(passes(reading)) == 16 - is_slow


def test_a_finding_names_the_gpu_its_speed_and_the_fastest() -> None:
    (slow,) = [word for word in judge(siblings(gpu(0, fp32=20.0, bf16=100.0))) if isinstance(word, Finding)]
    assert slow == Finding(
        "GpuComputeSlow",
        Severity.MONITOR,
        f"gpu/{address(0)}",
        f"FP32 20.0 TFLOPS, GPU {address(1)} has 66.0 and published are 67; "
        f"BF16 100.0 TFLOPS, GPU {address(1)} has 930.0 and published are 989",
        {"uuid": "GPU-0"},
    )


@pytest.mark.parametrize(("speed", "is_slow"), [(40.0, True), (41.0, False)])
def test_all_gpus_may_be_slow_by_the_published_figure(speed: float, is_slow: bool) -> None:
    """0.85 of 48 GB/s are 40.8."""
    reading = LoadReading(tuple(gpu(number, h2d=speed) for number in range(8)))
    assert findings(reading) == [("GpuCopySlow", f"gpu/{address(number)}") for number in range(8)] * is_slow


def test_gpus_of_another_product_are_no_siblings() -> None:
    assert findings(siblings(gpu(0, T4, fp32=8.0, bf16=1.0, h2d=6.0, d2h=6.0, peer=1.0))) == []


def test_a_gpu_alone_without_figures_neither_passes_nor_fails() -> None:
    assert judge(LoadReading((gpu(0, T4),))) == []


def test_a_gpu_without_a_quantity_of_its_siblings_does_not_pass() -> None:
    lacks = gpu(0)
    del lacks.speeds["peer"]
    reading = siblings(lacks)
    assert findings(reading) == []
    assert passes(siblings()) - passes(reading) == {("GpuCopySlow", f"gpu/{address(0)}")}


class TestFailures:
    def test_wrong_results(self) -> None:
        broken = gpu(0)
        broken.wrong = ["fp32: 3 wrong sums", "copies change data"]
        (finding,) = [word for word in judge(siblings(broken)) if isinstance(word, Finding)]
        assert (finding.reason, finding.severity, finding.detail) == (
            "GpuLoadFailed",
            Severity.RESET,
            "fp32: 3 wrong sums; copies change data",
        )
        assert not {subject for _, subject in passes(siblings(broken))} & {f"gpu/{address(0)}"}

    def test_wrong_results_of_all_gpus_are_the_tests_own(self) -> None:
        broken = [gpu(number) for number in range(2)]
        for one in broken:
            one.wrong = ["fp32: 3 wrong sums"]
        (unobserved,) = judge(LoadReading(tuple(broken)))
        assert isinstance(unobserved, Unobserved)
        assert "the test itself may be wrong" in unobserved.detail
        assert findings(LoadReading((broken[0],))) == [("GpuLoadFailed", f"gpu/{address(0)}")]

    @pytest.mark.parametrize("code", [214, 220, 226, 700, 715, 719])
    def test_an_error_of_the_hardware(self, code: int) -> None:
        broken = GpuSpeeds(address(0), "GPU-0", H100, error="fp32: x", code=code)
        assert findings(siblings(broken)) == [("GpuLoadFailed", f"gpu/{address(0)}")]

    @pytest.mark.parametrize("code", [0, 2, 46, 100, 218, 221, 222, 802, 999])
    def test_another_error_proves_nothing(self, code: int) -> None:
        broken = GpuSpeeds(address(0), "GPU-0", H100, error="fp32: x", code=code)
        reading = siblings(broken)
        subject = f"gpu/{address(0)}"
        assert findings(reading) == []
        assert Unobserved(NOT_RUN, f"{subject}: fp32: x", subject) in judge(reading)
        assert len(passes(reading)) == 14


def test_test_that_could_not_run_is_unobserved() -> None:
    failed = Unobserved(NOT_RUN, "no library")
    assert judge(LoadReading(failed=failed)) == [failed]
    assert judge(LoadReading(absent="no GPU")) == [NotConfigured("no GPU")]
    mig = GpuSpeeds(address(0), "x", f"{H100} MIG 1g.10gb", HEALTHY)
    assert [type(word) for word in judge(LoadReading((mig,)))] == [NotConfigured]


def test_explanation_has_the_range_of_each_quantity() -> None:
    (shown,) = [word.what for word in tells(CHECK, P5, {GPU_LOAD: siblings(gpu(0, fp32=58.0))})]
    assert shown == (
        "8 of 8 GPUs: FP32 58.0 to 66.0 TFLOPS, BF16 930.0 to 930.0 TFLOPS, from the machine's memory "
        "52.0 to 52.0 GB/s, to the machine's memory 51.0 to 51.0 GB/s, to other GPUs 370.0 to 370.0 GB/s"
    )


def test_figures_are_of_known_quantities() -> None:
    assert {quantity for _, quantity in gpu_speed_table()} <= HEALTHY.keys()
    assert all(figure > 0 for figure in gpu_speed_table().values())
