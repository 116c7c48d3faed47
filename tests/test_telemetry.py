"""Content of a scrape of the agent, and its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gpu_healthcheck.agent.telemetry import MOST_FINDINGS, DeepRun, Telemetry
from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.healthcheck.host.metrics_page import MetricsText
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding
from gpu_healthcheck.healthcheck.model import Finding, KernelEvent, Nature, Severity, Status
from tests.hostile import HOSTILE

ACCEPTED = ("text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0")
FIRST = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)
LABELS = ("reason", "tier", "subject", "gpu", "UUID")


def finding(severity: Severity = Severity.REBOOT, subject: str = "gpu/0000:18:00.0", **about: str) -> Finding:
    return Finding("Xid79", severity, subject, "fallen off the bus", about)


def active(entry: Finding) -> ActiveFinding:
    return ActiveFinding(entry, "xid", Nature.EVENT, FIRST, FIRST, 1, "boot", 0.0)


def shown(*findings: Finding) -> Telemetry:
    telemetry = Telemetry()
    worst = max((finding.severity for finding in findings), default=Severity.PASS)
    telemetry.show_verdict(worst, Status.FAIL, [*map(active, findings)], {"0-nvidia-smi": False})
    return telemetry


def page(telemetry: Telemetry, accept: str = ACCEPTED[0]) -> str:
    encode, _ = choose_encoder(accept)
    return encode(telemetry.registry).decode()


def series(telemetry: Telemetry) -> list[tuple[str, ...]]:
    """The labels of each finding, as a scraper reads them."""
    families = text_string_to_metric_families(page(telemetry))
    samples = next(family for family in families if family.name == "gpu_healthcheck_finding").samples
    assert {sample.value for sample in samples} <= {1}
    return [tuple(sample.labels[label] for label in LABELS) for sample in samples]


def test_a_finding_is_there_while_it_stands() -> None:
    telemetry = shown(finding(index="3", uuid="GPU-8d3a"))
    assert series(telemetry) == [("Xid79", "REBOOT", "gpu/0000:18:00.0", "3", "GPU-8d3a")]

    telemetry.show_verdict(Severity.PASS, Status.PASS, (), {})
    assert series(telemetry) == []


def test_a_finding_has_the_time_of_its_first_observation_until_it_ends() -> None:
    telemetry = shown(finding())
    name, labels = "gpu_healthcheck_finding_first_seen_timestamp_seconds", ("Xid79", "gpu/0000:18:00.0")
    assert values(telemetry, name) == {labels: FIRST.timestamp()}

    telemetry.show_verdict(Severity.PASS, Status.PASS, (), {})
    assert values(telemetry, name) == {}


def values(telemetry: Telemetry, name: str) -> Mapping[tuple[str, ...], float]:
    """The samples of a metric, by label values."""
    samples = [sample for family in telemetry.registry.collect() for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def test_taint_and_budget_are_absent_until_they_are_known() -> None:
    telemetry = Telemetry()
    names = ("tainted", "budget_slots_used", "budget_slots_allowed")
    assert [values(telemetry, f"gpu_healthcheck_{name}") for name in names] == [{}, {}, {}]

    telemetry.show_taint(tainted=True, slots=None)
    assert [values(telemetry, f"gpu_healthcheck_{name}") for name in names] == [{(): 1}, {}, {}]
    telemetry.show_taint(tainted=False, slots=(3, 5))
    assert [values(telemetry, f"gpu_healthcheck_{name}") for name in names] == [{(): 0}, {(): 3}, {(): 5}]


def test_runs_of_sweeper_and_quarantine_with_their_durations() -> None:
    telemetry = Telemetry()
    telemetry.show_runs({"sweep": DeepRun("pass", 1000.0, 300.0), "quarantine": DeepRun("odd", 900.0, None)})
    assert values(telemetry, "gpu_healthcheck_deep_run_timestamp_seconds") == {("sweep",): 1000, ("quarantine",): 900}
    assert values(telemetry, "gpu_healthcheck_deep_run_duration_seconds") == {("sweep",): 300}
    status = values(telemetry, "gpu_healthcheck_deep_run_status")
    assert {labels for labels, value in status.items() if value} == {("sweep", "pass")}
    assert len(status) == 8

    telemetry.show_runs({})
    assert values(telemetry, "gpu_healthcheck_deep_run_status") == {}


def test_error_counters_of_efa_devices_are_counters_and_those_at_0_have_no_series() -> None:
    telemetry = Telemetry()
    telemetry.show_efa_errors({("rdmap16s0", "rx_drops"): 7, ("rdmap16s0", "retrans_pkts"): 0})
    telemetry.show_rdma_errors({("mlx5_0", "symbol_error"): 3, ("mlx5_0", "port_rcv_errors"): 0})
    assert values(telemetry, "gpu_healthcheck_efa_errors_total") == {("rdmap16s0", "rx_drops"): 7}
    assert values(telemetry, "gpu_healthcheck_rdma_errors_total") == {("mlx5_0", "symbol_error"): 3}
    assert "# TYPE gpu_healthcheck_efa_errors_total counter" in page(telemetry)


def test_an_xid_is_counted_for_its_gpu_if_the_node_knows_it() -> None:
    telemetry, gpus = Telemetry(), {"0000:18:00.0": {"index": "0", "uuid": "GPU-a"}}
    for subject, reason, known in (
        ("gpu/0000:18:00.0", "Xid79", True),
        ("gpu/0000:18:00.0", "Xid79", True),
        ("gpu/ffff:18:00.0", "Xid79", True),
        ("gpu/0000:18:00.0", "Xid9999", False),
        ("nvswitch/0000:85:00.0", "SXid11004", True),
        ("driver", "GpuInitFailed", True),
    ):
        telemetry.count(KernelEvent(reason, subject, 1, 0.0, known=known), gpus)
    assert values(telemetry, "gpu_healthcheck_xids_total") == {
        ("79", "0", "GPU-a"): 2,
        ("79", "", ""): 1,
        ("unknown", "0", "GPU-a"): 1,
    }
    assert values(telemetry, "gpu_healthcheck_sxids_total") == {("11004",): 1}
    assert values(telemetry, "gpu_healthcheck_driver_messages_total") == {("GpuInitFailed",): 1}


def test_a_finding_of_no_gpu_has_no_index() -> None:
    assert series(shown(finding(subject="node"))) == [("Xid79", "REBOOT", "node", "", "")]


def test_of_too_many_findings_the_worst_have_a_series_and_the_rest_is_counted() -> None:
    mild = [finding(Severity.MONITOR, f"gpu/{number}") for number in range(MOST_FINDINGS)]
    telemetry = shown(*mild, finding(Severity.ISOLATE, "gpu/last"), finding(Severity.RESET, "gpu/last"))

    entries = series(telemetry)
    assert len(entries) == MOST_FINDINGS
    assert [texts[1] for texts in entries[:3]] == ["ISOLATE", "RESET", "MONITOR"]
    assert telemetry.registry.get_sample_value("gpu_healthcheck_findings_left_out") == 2


@pytest.mark.parametrize("text", [*HOSTILE, 'a"b\\c\n', "x" * 100_000])
def test_no_label_is_long_or_steers_anything(text: str) -> None:
    """Texts of the driver and its log may be anything; Prometheus still accepts the page."""
    telemetry = shown(finding(subject=text, index=text, uuid=text))
    telemetry.show_driver(text, text, {(text, text): 90}, {(text, text, text): 1.0}, {(text, text): 9})

    (messages,) = series(telemetry)
    assert all(len(name) <= 128 and name.isprintable() for name in messages)
    assert len(page(telemetry).encode()) < 20_000


def test_what_an_earlier_driver_reported_leaves_with_it() -> None:
    telemetry = shown(finding())
    telemetry.show_driver(
        "570.1", "libnvidia-ml.so.1", {("0", "GPU-a"): 87}, {("power_brake", "0", "GPU-a"): 1.0}, {("0", "GPU-a"): 9}
    )
    assert b"gpu_healthcheck_driver_info{" in page(telemetry).encode()

    telemetry.show_no_driver()
    names = ("driver_info{", "gpu_slowdown_celsius{", "throttled_seconds_total{", "ecc_corrected_errors_total{")
    assert not any(name in page(telemetry) for name in names)


def test_a_scrape_sees_one_verdict_whole() -> None:
    """A new verdict while a scrape is under way is the next one's."""
    telemetry = shown(finding())
    scrape = telemetry.registry.collect()
    seen = [next(iter(scrape))]
    telemetry.show_verdict(Severity.PASS, Status.PASS, (), {})
    seen += scrape

    values = {(sample.name, *sample.labels.values()): sample.value for family in seen for sample in family.samples}
    assert values["gpu_healthcheck_node_severity",] == Severity.REBOOT
    assert values["gpu_healthcheck_node_status", "fail"] == 1
    assert values["gpu_healthcheck_standing_findings", "REBOOT"] == 1
    assert len([name for name, *_ in values if name == "gpu_healthcheck_finding"]) == 1


@pytest.mark.parametrize("accept", ACCEPTED)
def test_a_page_has_no_series_that_says_nothing(accept: str) -> None:
    text = page(Telemetry(), accept)
    assert f'gpu_healthcheck_build_info{{version="{__version__}"}} 1.0' in text
    assert "_created" not in text
    assert Status.NOT_CONFIGURED.value not in text


def test_requests_that_wait_for_the_metrics_get_one_encoding() -> None:
    collected: list[None] = []

    class Slow(Collector):
        def collect(self) -> Iterable[Family]:
            time.sleep(0.002)
            collected.append(None)
            return ()

    registry = CollectorRegistry()
    registry.register(Slow())
    text = MetricsText(registry, "")

    async def ask_endlessly() -> None:
        await text.page()
        await asyncio.gather(*(text.page() for _ in range(100)))

    collected.clear()
    asyncio.run(ask_endlessly())

    assert len(collected) == 2


def test_metrics_are_as_new_as_their_request() -> None:
    telemetry = shown()
    text = MetricsText(telemetry.registry, "")

    async def ask_around_a_finding() -> tuple[bytes, bytes]:
        before = await text.page()
        telemetry.show_verdict(Severity.REBOOT, Status.FAIL, [active(finding())], {})
        return before.body, (await text.page()).body

    before, after = asyncio.run(ask_around_a_finding())

    assert (b"Xid79" in before, b"Xid79" in after) == (False, True)
