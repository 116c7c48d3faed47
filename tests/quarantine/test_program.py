"""`gpu-healthcheck quarantine-run` as a process: its tests, reports, and marks on its Node."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from gpu_healthcheck.healthcheck.deep.deep_record import deep_record
from gpu_healthcheck.healthcheck.text.boundary import read_row
from gpu_healthcheck.healthcheck.text.moments import moment, timestamp
from gpu_healthcheck.healthcheck.verdict.record import RunRecord, passed_since
from tests.agent.deep.test_deep import answer
from tests.probes.dcgm.documents import FAULTY, Said
from tests.quarantine.world import ALL_REDUCE, LEVEL_4, LOAD, LOOPBACK, NODE, ROCE, SPOT, P, World
from tests.waiting import GIVE_UP_SECONDS

pytestmark = pytest.mark.cluster

NOBODY = ("", "", False)
TESTS_OF_4 = ("software", "memory", "pcie", "diagnostic", "memtest")
BLIND = {"check": "gpu-count", "cause": "DriverNotAnswering", "detail": "nvml"}
BANDWIDTH = Said("GPU 0 is slower than it should be", 30)


def statuses(world: World) -> dict[str, str]:
    return {row["check"]: row["status"] for row in world.record["checks"]}


def run_of(kind: str, minutes: float) -> str:
    until = timestamp(datetime.now(UTC) + timedelta(minutes=minutes))
    return json.dumps({"kind": kind, "holder": "somebody", "until": until})


def test_passing_node_goes_back_to_service_and_each_result_is_logged(world: World) -> None:
    world.annotate(sweep_result='{"timestamp": "2026-11-20T00:00:00Z", "status": "pass"}')
    before = world.annotations
    ended = world.run()

    record = world.record
    assert {key: text for key, text in world.annotations.items() if key != f"{P}/quarantine-result"} == before
    assert (ended.code, record["status"], record["severity"]) == (0, "pass", "PASS")
    assert (record["recommendation"], record["node"], record["by"]) == ("return-to-service", NODE, "quarantine")
    passed = dict.fromkeys((LEVEL_4, LOOPBACK, LOAD, ALL_REDUCE), "pass")
    assert statuses(world) == {**passed, ROCE: "not-configured"}
    assert (record["findings"], record["unobserved"], "running" in record) == ([], [], False)
    assert passed_since(read_row(RunRecord, record)) == moment(record["started"])
    assert deep_record(read_row(RunRecord, record), "quarantine-result").result.all_passed
    assert (world.marks, world.node["spec"]["taints"]) == (NOBODY, [SPOT])
    assert [line["test"] for line in ended.said("test: ended")] == [LEVEL_4, LOOPBACK, ROCE, LOAD, ALL_REDUCE]
    assert [line["device"] for line in ended.said("test: device")] == list(world.host.efa_names[:2])
    assert [line["recommendation"] for line in ended.said("done")] == ["return-to-service"]
    assert ended.out == ""


@pytest.mark.parametrize(
    ("files", "reason", "recommendation", "failed"),
    [
        ({"dcgm/answer": answer(("memory", 1), FAULTY, tests=TESTS_OF_4)}, "DcgmDiagMemory", "replace", LEVEL_4),
        ({"fi_pingpong/fails": "DEVICE error"}, "EfaLoopbackFailed", "reboot", LOOPBACK),
        ({"nccl/fails": "nvlink"}, "NcclFailed", "reset", ALL_REDUCE),
        ({"cuda/gpu3/wrong": "bf16"}, "GpuLoadFailed", "reset", LOAD),
    ],
)
def test_a_node_that_fails_is_not_given_back_to_work(
    world: World, files: dict[str, str], reason: str, recommendation: str, failed: str
) -> None:
    for name, text in files.items():
        world.host.write_value(name, text.replace("DEVICE", world.host.efa_names[0]))

    ended = world.run()

    record = world.record
    assert (ended.code, record["status"], record["recommendation"]) == (1, "fail", recommendation)
    assert [entry["reason"] for entry in record["findings"]] == [reason]
    assert {check for check, status in statuses(world).items() if status == "fail"} == {failed}
    assert (passed_since(read_row(RunRecord, record)), record["unobserved"], world.marks) == (None, [], NOBODY)
    assert [
        finding.finding.reason for finding in deep_record(read_row(RunRecord, record), "quarantine-result").result.found
    ] == [reason]


@pytest.mark.parametrize(
    ("files", "causes"),
    [
        (
            {"dcgm/hostengine": "localhost:5555", "fi_pingpong/fails": "DEVICE memory", "cuda/error": "802"},
            {(LEVEL_4, "DcgmNoHostengine"), (LOOPBACK, "EfaLoopbackNotRun"), (LOAD, "GpuLoadNotRun")},
        ),
        (
            {
                "proc/4300/comm": "dcgm-exporter",
                "proc/4300/stat": "4300 (dcgm-exporter) S",
                "cuda/gpu3/used": "20",
                "nccl/fails": "library",
            },
            {(LEVEL_4, "DcgmEngineEmbedded"), (LOAD, "GpuLoadNotRun"), (ALL_REDUCE, "AllReduceNotRun")},
        ),
        ({"nccl/fails": "library"}, {(ALL_REDUCE, "AllReduceNotRun")}),
    ],
    ids=["three", "three others", "one"],
)
def test_tests_that_could_not_run_are_to_be_repeated_and_are_no_fault(
    world: World, files: dict[str, str], causes: set[tuple[str, str]]
) -> None:
    for name, text in files.items():
        world.host.write_value(name, text.replace("DEVICE", world.host.efa_names[0]))

    ended = world.run()

    record = world.record
    assert (ended.code, record["status"], record["severity"], record["recommendation"]) == (
        2,
        "unknown",
        "PASS",
        "rerun",
    )
    assert {(entry["check"], entry["cause"]) for entry in record["unobserved"]} == causes
    assert (passed_since(read_row(RunRecord, record)), world.marks) == (None, NOBODY)


@pytest.mark.parametrize(
    ("files", "faults", "causes", "recommendation"),
    [
        ({}, [], [], "return-to-service"),
        ({"ib_write_bw/gbits": "SECOND 12.50"}, [], [], "return-to-service"),
        ({"ib_write_bw/fails": "SECOND completion"}, ["RdmaLoopbackFailed"], [], "reboot"),
        ({"ib_write_bw/fails": "SECOND memory"}, [], ["RdmaLoopbackNotRun"], "rerun"),
        ({"ib_write_bw/fails": "FIRST completion\nSECOND completion"}, [], ["RdmaLoopbackNotRun"] * 2, "rerun"),
    ],
    ids=["healthy", "slow", "one fails", "could not run", "all fail"],
)
def test_each_rdma_port_writes_to_itself(
    rdma_world: World, files: dict[str, str], faults: list[str], causes: list[str], recommendation: str
) -> None:
    ports = [file.name for file in sorted((rdma_world.host.root / "sys/class/infiniband").iterdir())]
    for name, text in files.items():
        rdma_world.host.write_value(name, text.replace("FIRST", ports[0]).replace("SECOND", ports[1]))

    ended = rdma_world.run()

    record = rdma_world.record
    assert [line["device"] for line in ended.said("test: device")] == ports
    assert [row["reason"] for row in record["findings"]] == faults
    assert [row["cause"] for row in record["unobserved"]] == causes
    assert record["recommendation"] == recommendation
    assert statuses(rdma_world)[ROCE] == ("fail" if faults else "unknown" if causes else "pass")


SLOW = {
    4: ({"peer": "100", "d2h": "30"}, "GpuCopySlow", "to the machine's memory 30.0 GB/s, GPU 0000:10:1c.0 has 52.0; "),
    5: ({"fp32": "16"}, "GpuComputeSlow", "FP32 16.0 TFLOPS, GPU 0000:10:1c.0 has 60.0 and published are 19.2"),
    6: ({"bf16": "500"}, "GpuComputeSlow", "BF16 500.0 TFLOPS, GPU 0000:10:1c.0 has 930.0"),
}
"""Files, reason and detail of each slow GPU."""


def test_slow_gpus_are_watched_until_they_are_measured_again(world: World) -> None:
    files = [f"cuda/gpu{gpu}/{name}" for gpu, (values, *_) in SLOW.items() for name in values]
    for gpu, (values, *_) in SLOW.items():
        for name, value in values.items():
            world.host.write_value(f"cuda/gpu{gpu}/{name}", value)

    ended = world.run()

    record = world.record
    found = {finding["subject"]: finding for finding in record["findings"]}
    assert (ended.code, record["status"], record["recommendation"]) == (0, "warn", "return-to-service")
    assert len(record["findings"]) == len(SLOW)
    for gpu, (_, reason, detail) in SLOW.items():
        subject = f"gpu/{world.host.gpus[gpu].address}"
        assert (found[subject]["reason"], found[subject]["severity"]) == (reason, "MONITOR")
        assert found[subject]["detail"].startswith(detail)
        assert subject not in record["passed"][reason]
        assert f"{reason} on {subject}" in "; ".join(record["reasons"])
    assert len(record["passed"]["GpuComputeSlow"]) + len(record["passed"]["GpuCopySlow"]) == 13

    for name in files:  # the healthy twin
        (world.host.root / name).unlink()
    assert (world.run().code, world.record["status"], world.record["findings"]) == (0, "pass", [])
    assert len(json.dumps(world.record)) < 16_384


def test_a_slow_gpu_of_before_ends_by_its_measurement_alone(world: World) -> None:
    slow = {
        "reason": "GpuComputeSlow",
        "severity": "RESET",
        "subject": f"gpu/{world.host.gpus[5].address}",
        "about": {},
        "detail": "x",
        "first_seen": "2026-11-20T00:00:00Z",
        "last_seen": "2026-11-20T00:00:00Z",
        "count": 1,
        "check": "gpu-load",
        "nature": "event",
        "at": 1.0,
    }
    world.annotate(results=json.dumps({"schema": 1, "machine": "m", "boot_id": "b", "findings": [slow]}))
    for gpu in range(8):  # measured, and not comparable
        world.host.write_value(f"nvml/gpu{gpu}/name", f"NVIDIA Product {gpu}")
    assert (world.run().code, world.record["status"], world.record["recommendation"]) == (1, "pass", "reset")

    for gpu in range(8):
        world.host.write_value(f"nvml/gpu{gpu}/name", "NVIDIA A100-SXM4-40GB")
    world.host.write_value("fi_pingpong/fails", f"{world.host.efa_names[0]} memory")  # another test could not run
    assert (world.run().code, world.record["recommendation"]) == (2, "rerun")


def test_an_image_without_dcgm_proves_nothing(world: World) -> None:
    (world.host.root / "usr/bin/dcgmi").unlink()

    ended = world.run()

    assert (ended.code, world.record["status"], world.record["recommendation"]) == (2, "unknown", "rerun")
    assert [entry["cause"] for entry in world.record["unobserved"]] == ["DcgmAbsent"]
    assert statuses(world)[LEVEL_4] == "not-configured"


def test_a_node_without_efa_and_nccls_test_is_judged_by_level_4(world: World) -> None:
    """An invalid setting is logged, and its default is used."""
    (world.folder / "config").mkdir()
    (world.folder / "config/EFA_MIN_BW").write_text("fast")
    for device in (0, 1):
        world.host.remove_efa(device)
    (world.host.root / "opt/nccl-tests/build/all_reduce_perf").unlink()

    ended = world.run()
    assert (ended.code, "EFA_MIN_BW = 'fast'" in ended.log[0]["setting"]) == (0, True)
    absent = dict.fromkeys((LOOPBACK, ROCE, ALL_REDUCE), "not-configured")
    assert statuses(world) == {LEVEL_4: "pass", LOAD: "pass", **absent}
    assert passed_since(read_row(RunRecord, world.record)) is not None


def test_a_doubtful_failure_of_level_4_is_believed_when_it_comes_again(world: World) -> None:
    doubtful = answer(("diagnostic", 0), BANDWIDTH, tests=TESTS_OF_4)
    world.dcgm(answer_4=doubtful)

    assert world.run().code == 0
    assert world.levels == ["4", "diagnostic"]

    world.dcgm(answer=doubtful)
    assert world.run().code == 1
    assert [entry["reason"] for entry in world.record["findings"]] == ["DcgmDiagDiagnostic"]
    assert world.levels == ["4", "diagnostic"] * 2


class TestARefusalTestsNothingAndChangesNothing:
    def refused(self, world: World, *words: str) -> str:
        before = world.node
        ended = world.run(*words)
        assert (ended.code, world.levels, world.node) == (2, [], before)
        return str(ended.said("refused: nothing was tested")[0]["why"])

    def test_while_pods_hold_gpus(self, world: World) -> None:
        for name in ("train-0", "train-1"):
            world.add_gpu_pod(name)
        message = self.refused(world)
        assert "default/train-0 holds 8 nvidia.com/gpu, default/train-1 holds 8" in message
        assert "--force" in message

    def test_unless_a_person_wants_it_so(self, world: World) -> None:
        world.add_gpu_pod("train-0")
        assert (world.run("--force").code, world.record["status"]) == (0, "pass")

    def test_but_not_for_finished_pods_and_an_expired_run(self, world: World) -> None:
        world.add_gpu_pod("done", phase="Succeeded")
        world.add_gpu_pod("broken", phase="Failed")
        world.annotate(run=run_of("l2", -1))
        assert (world.run().code, world.marks) == (0, NOBODY)

    @pytest.mark.parametrize("kind", ["l2", "sweep"])
    def test_while_another_run_has_the_node(self, world: World, kind: str) -> None:
        world.annotate(run=run_of(kind, 10))
        assert f"a deep test ({kind}, somebody) owns the node until" in self.refused(world, "--force")

    def test_while_hyperpod_tests_the_node(self, world: World) -> None:
        label = {"sagemaker.amazonaws.com/deep-health-check-status": "InProgress"}
        world.stand_in.edit_node(NODE, {"metadata": {"labels": label}})
        assert self.refused(world) == "HyperPod tests the node"

    def test_for_a_node_that_is_not_there(self, world: World) -> None:
        world.stand_in.delete_node(NODE)
        assert (world.run().code, world.levels) == (2, [])


def test_a_pod_that_comes_between_the_look_and_the_taint_is_seen(world: World) -> None:
    """The first write waits while a pod is bound."""
    reached = world.stand_in.stop_at("PATCH", "/nodes/", done=True)
    with world.started() as process:
        assert reached.wait(GIVE_UP_SECONDS)
        world.add_gpu_pod("train-0")
        world.stand_in.recover()
        process.wait(GIVE_UP_SECONDS)

    assert (process.returncode, world.levels, world.marks, world.record) == (2, [], NOBODY, {})


class TestAgentsRecord:
    """By its record on the Node, with the same rules for its findings as the agent has."""

    def finding(
        self, severity: str, nature: str, seen: str = "2026-11-20T00:00:00Z", reason: str = "Xid79"
    ) -> dict[str, object]:
        return {
            "reason": reason,
            "severity": severity,
            "subject": "gpu/0000:10:1c.0",
            "about": {},
            "detail": "x",
            "first_seen": seen,
            "last_seen": seen,
            "count": 1,
            "check": "xid",
            "nature": nature,
            "at": 1.0,
        }

    def results(self, *findings: dict[str, object], **more: object) -> str:
        return json.dumps({"schema": 1, "machine": "m", "boot_id": "b", "findings": findings, **more})

    def recommended(self, world: World, results: str) -> tuple[int, str, str]:
        world.annotate(results=results)
        code = world.run().code
        return code, world.record["status"], world.record["recommendation"]

    def test_earlier_events_of_any_severity_are_ended_by_a_run_that_passes(self, world: World) -> None:
        """A check outside the run's tests that could not check, and the record's age, change nothing."""
        reasons = {"Xid54": "ISOLATE", "Xid79": "REBOOT", "Xid95": "RESET"}
        findings = [self.finding(severity, "event", reason=reason) for reason, severity in reasons.items()]
        old = timestamp(datetime.now(UTC) - timedelta(hours=9))
        result = self.recommended(world, self.results(*findings, unobserved=[BLIND], timestamp=old))
        assert result == (0, "pass", "return-to-service")

    def test_level_finding_is_not(self, world: World) -> None:
        assert self.recommended(world, self.results(self.finding("RESET", "level"))) == (1, "pass", "reset")

    def test_event_during_the_run_is_not(self, world: World) -> None:
        later = self.finding("REBOOT", "event", seen="2099-01-01T00:00:00Z")
        assert self.recommended(world, self.results(later)) == (1, "pass", "reboot")

    @pytest.mark.parametrize("garbage", ['{"findings": 7, "unobserved": "x"}', "x" * 100_000], ids=["shape", "no JSON"])
    def test_unreadable_record_is_skipped(self, world: World, garbage: str) -> None:
        assert self.recommended(world, garbage) == (0, "pass", "return-to-service")


def test_the_same_fault_after_the_nodes_return_is_why_it_is_replaced(world: World) -> None:
    world.host.write_value("nccl/fails", "nvlink")
    world.run()
    first = world.record
    world.run()
    again = world.record  # the node was not returned in between
    (world.host.root / "nccl/fails").unlink()
    world.run()
    passed = world.record
    world.host.write_value("nccl/fails", "nvlink")
    world.run()

    assert [entry["recommendation"] for entry in (first, again, passed, world.record)] == [
        "reset",
        "reset",
        "return-to-service",
        "replace",
    ]
    assert [row["returned"] for row in world.record["history"]] == [True, True]


@pytest.mark.parametrize(("words", "variables"), [(["--now"], {}), ([], {"LOG_LEVEL": "loud"})])
def test_wrong_usage_touches_nothing(world: World, words: list[str], variables: dict[str, str]) -> None:
    before = world.node
    assert (world.run(*words, **variables).code, world.node) == (3, before)
