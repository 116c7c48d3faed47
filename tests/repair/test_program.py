"""`gpu-healthcheck reset-run` as a process: its steps, holders, answers of nvidia-smi, and record on its Node."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from gpu_healthcheck.healthcheck.deep.reset_command import ResetCommand, render, sign_of_life
from gpu_healthcheck.healthcheck.node.state import RESET_COMMAND
from gpu_healthcheck.healthcheck.probes.nvml.pause import is_paused
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.api_objects import PODS
from gpu_healthcheck.sim.device_plugin import DEPLOY as PLUGIN
from gpu_healthcheck.sim.device_plugin import PLUGIN as DAEMON_SET
from gpu_healthcheck.sim.node import LIBRARY_DIRECTORY, SimulatedNode
from tests.agent.deep.test_deep import answer
from tests.probes.dcgm.documents import FAULTY
from tests.quarantine.world import NODE, SPOT
from tests.repair.world import JOB, ResetWorld
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

NOBODY = ("", "", False)


def steps(world: ResetWorld) -> list[str]:
    return [row["step"] for row in world.record.get("steps", [])]


def test_a_gpu_is_reset_alone_and_the_command_returns_the_node(world: ResetWorld) -> None:
    world.host.want_recovery(2, 1)
    world.host.write_value("nvml/gpu2/remap_pending", 1)

    ended = world.reset(gpu=2)

    record, gpu = world.record, world.host.gpus[2]
    assert (ended.code, record["status"], record["scope"]) == (0, "pass", "one")
    assert record["gpus"] == [{"address": gpu.address, "uuid": gpu.uuid, "index": "2"}]  # persistence is restored
    assert steps(world) == ["plan", "free the GPUs", "reset", "verify", "level 2", "load"]
    assert ("running" in record, record["holder"], "reset_at" in record) == (False, JOB, True)
    assert world.asked == [
        f"nvidia-smi -i {gpu.uuid} -pm 0",
        f"nvidia-smi --gpu-reset -i {gpu.uuid}",
        f"nvidia-smi -i {gpu.uuid} -pm 1",
    ]
    assert (world.marks, world.node["spec"]["taints"]) == (NOBODY, [SPOT])
    assert not is_paused(world.state_dir, world.host.root)


@pytest.mark.parametrize(
    ("defect", "code", "status", "why"),
    [
        ("link_libraries", 0, "pass", "RuntimeError: a defect"),
        ("run_diagnostic", 0, "pass", "RuntimeError: a defect"),
        ("after_reset", 1, "fail", "step 'verify': the run itself failed: RuntimeError"),
        ("select", 2, "unknown", "step 'plan': the run itself failed: RuntimeError"),
    ],
)
def test_a_defect_of_ours_keeps_no_node(world: ResetWorld, defect: str, code: int, status: str, why: str) -> None:
    ended = world.reset(gpu=2, program="tests.repair.defective", DEFECT=defect)

    record = world.record
    assert (ended.code, record["status"], world.marks) == (code, status, NOBODY), ended.err
    causes = [f"{entry['cause']} {entry['detail']}" for entry in record["unobserved"]]
    assert why in "; ".join([*record["reasons"], *causes])
    assert is_paused(world.state_dir, world.host.root) is False


def test_a_link_in_a_circle_among_the_drivers_libraries_ends_no_test(world: ResetWorld) -> None:
    world.host.install_dcgmi()
    (world.host.root / LIBRARY_DIRECTORY / "libnvidia-c.so.1").symlink_to("libnvidia-c.so.1")

    assert (world.reset(gpu=3).code, world.record["status"]) == (0, "pass")

    assert world.record["steps"][-2]["detail"] == "passed"
    assert world.record["unobserved"] == []


def test_level_2_tests_only_these_gpus(world: ResetWorld) -> None:
    world.host.install_dcgmi()

    world.reset(gpu=3)

    asked = (world.host.root / "dcgm/asked").read_text()
    assert "what=2 host= only=3" in asked
    assert "LD_LIBRARY_PATH=/" in asked
    assert world.record["steps"][-2]["detail"] == "passed"


class TestTheLoad:
    def test_it_loads_only_these_gpus(self, world: ResetWorld) -> None:
        world.host.write_value("cuda/gpu2/fails", 214)
        assert (world.reset(gpu=3).code, world.record["status"]) == (0, "pass")
        assert world.record["steps"][-1]["detail"] == (
            "1 of 1 GPU: FP32 60.0 to 60.0 TFLOPS, BF16 930.0 to 930.0 TFLOPS, from the machine's memory "
            "52.0 to 52.0 GB/s, to the machine's memory 52.0 to 52.0 GB/s"
        )

    def test_a_gpu_that_fails_does_not_work(self, world: ResetWorld) -> None:
        """Other failures: tests/probes/gpu_load/test_load.py."""
        world.host.write_value("cuda/gpu3/fails", 719)

        ended = world.reset(gpu=3)

        record, subject = world.record, f"gpu/{world.host.gpus[3].address}"
        assert (ended.code, record["status"], "running" in record) == (1, "fail", False)
        assert [(finding["reason"], finding["subject"]) for finding in record["findings"]] == [
            ("GpuLoadFailed", subject)
        ]
        why = "fp32: cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719)"
        assert record["reasons"][0].startswith(f"{subject} fails under load: {why}")
        assert (record["steps"][-1]["step"], record["steps"][-1]["detail"]) == ("load", "failed")

    @pytest.mark.parametrize(
        ("file", "value", "why"),
        [
            ("cuda/error", 802, "the load test: cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"),
            ("cuda/gpu3/used", 30, "other processes use 30.0 GiB of its memory"),
            ("cuda/crash", "", "the load test was ended by SIGSEGV"),
        ],
    )
    def test_a_load_that_cannot_run_is_no_failure(self, world: ResetWorld, file: str, value: object, why: str) -> None:
        world.host.write_value(file, value)

        assert (world.reset(gpu=3).code, world.record["status"]) == (0, "pass")

        assert why in world.record["steps"][-1]["detail"]
        assert [entry["cause"] for entry in world.record["unobserved"] if entry["check"] == "10-gpu-load"] == [
            "GpuLoadNotRun"
        ]

    def test_a_slow_gpu_works(self, world: ResetWorld) -> None:
        world.host.write_value("cuda/gpu3/h2d", 1)
        assert (world.reset(gpu=3).code, world.record["findings"]) == (0, [])

    def test_level_2_failed_before(self, world: ResetWorld) -> None:
        world.host.install_dcgmi()
        world.host.write_value("dcgm/answer", answer(("memory", 3), FAULTY))
        assert (world.reset(gpu=3).code, steps(world)[-1]) == (1, "level 2")


def test_the_driver_containers_nvidia_smi_is_used_where_the_host_has_none(world: ResetWorld) -> None:
    (world.host.root / "usr/bin/nvidia-smi").unlink()
    world.host.install_nvidia_smi("run/nvidia/driver")

    assert (world.reset().code, world.record["status"]) == (0, "pass")


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("in-use", "in use: The following GPUs could not be reset"),
        ("not-supported", "not supported: Resetting GPU"),
        ("unknown-error", "failed: GPU"),
    ],
)
def test_the_answers_of_nvidia_smi_differ(world: ResetWorld, file: str, reason: str) -> None:
    world.host.write_value(f"nvidia-smi/{file}", "")

    ended = world.reset()

    record = world.record
    assert (ended.code, record["status"], "reset_at" in record) == (1, "fail", False)
    assert f"step 'reset': nvidia-smi --gpu-reset: {reason}" in record["reasons"][0]
    assert world.asked[-1].endswith("-pm 1")
    assert not is_paused(world.state_dir, world.host.root)


def test_a_gpu_that_still_asks_for_a_recovery_is_not_proven(world: ResetWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.host.want_recovery(0, 1)
    world.host.write_value("nvidia-smi/not-fixed", "")

    ended = world.reset(program="tests.repair.impatient")

    assert (ended.code, world.record["status"], "reset_at" in world.record) == (1, "fail", False)
    assert "recovery action 1" in world.record["reasons"][0]


class TestHolders:
    def test_pods_with_the_gpu_are_named_and_awaited(self, world: ResetWorld) -> None:
        uid = world.add_pod(1, "train-0", gpus=1)
        world.add_pod(2, "train-1", gpus=1)  # the kubelet does not answer, so it counts too
        world.run_process(5001, "python3", uid, gpu=0)
        with world.started(f"--gpu={world.host.gpus[0].uuid}", program="repair") as process:
            pods = eventually(lambda: world.record.get("pods"))
            assert (sorted(pods), world.record["running"]) == (["default/train-0", "default/train-1"], "free the GPUs")
            assert is_paused(world.state_dir, world.host.root)
            world.host.services.end_process(5001)
            for name in ("train-0", "train-1"):
                world.stand_in.store.delete(PODS, "default", name)
            process.wait(GIVE_UP_SECONDS)

        assert (process.returncode, world.record["status"], "pods" in world.record) == (0, "pass", False)

    def test_an_operand_is_named_too(self, world: ResetWorld) -> None:
        uid = world.add_pod(1, "exporter-x", labels={"app": "nvidia-dcgm-exporter"})
        world.run_process(5001, "dcgm-exporter", uid, gpu=0)
        with world.started(f"--gpu={world.host.gpus[0].uuid}", program="repair") as process:
            assert eventually(lambda: world.record.get("pods")) == ["default/exporter-x"]
            world.host.services.end_process(5001)
            process.wait(GIVE_UP_SECONDS)
        assert process.returncode == 0

    def test_operands_are_switched_off_after_the_last_pod_has_left(self, world: ResetWorld) -> None:
        world.stand_in.edit_node(NODE, {"metadata": {"labels": {PLUGIN: "true"}}})
        world.add_pod(1, "train-0", gpus=1)
        world.run_process(5001, "plugin", world.add_pod(2, "plugin-x", labels={"app": DAEMON_SET}), gpu=0)
        with world.started(f"--gpu={world.host.gpus[0].uuid}", program="repair") as process:
            assert eventually(lambda: world.record.get("pods")) == ["default/train-0"]
            assert world.record["running"] == "free the GPUs"
            world.stand_in.store.delete(PODS, "default", "train-0")
            eventually(lambda: world.record.get("running") == "operands")
            assert world.record["pods"] == ["default/plugin-x"]
            world.host.services.end_process(5001)
            eventually(lambda: "pods" not in world.record)
            assert world.record["running"] == "operands"  # the label is still on
            command = render(ResetCommand(JOB, {PLUGIN: "true"}, sign_of_life(datetime.now(UTC))))
            edit = {"labels": {PLUGIN: "false"}, "annotations": {RESET_COMMAND: command}}
            world.stand_in.edit_node(NODE, {"metadata": edit})
            process.wait(GIVE_UP_SECONDS)

        assert (process.returncode, world.record["status"]) == (0, "pass")
        assert steps(world)[:4] == ["plan", "free the GPUs", "operands", "reset"]
        assert world.record["steps"][2]["detail"] == f"the GPUs are free; switched off: {PLUGIN}"
        assert world.node["metadata"]["labels"][PLUGIN] == "true"

    @pytest.mark.parametrize("pod", ["", "watcher"])
    def test_anything_else_stops_it_and_is_named(self, world: ResetWorld, pod: str) -> None:
        uid = world.add_pod(1, pod) if pod else ""
        world.run_process(5001, "nvtop", uid, gpu=0)

        ended = world.reset(program="tests.repair.impatient")

        owner = " of pod default/watcher" if pod else ""
        assert (ended.code, world.record["status"]) == (2, "unknown")
        assert (
            f"in use by process nvtop (pid 5001){owner}: end that yourself, then run this again"
            in world.record["reasons"][0]
        )
        assert [line for line in world.asked if "reset" in line] == []
        assert world.asked[-1].endswith("-pm 1")

    def test_a_process_of_another_gpu_is_none(self, world: ResetWorld) -> None:
        world.run_process(5001, "nvtop", gpu=3)
        assert world.reset().code == 0

    def test_hidden_processes_prevent_a_reset(self, world: ResetWorld) -> None:
        world.host.hide_host_processes()
        assert (world.reset().code, world.record["status"]) == (2, "unknown")
        assert "not visible" in world.record["reasons"][0]

    def test_names_of_processes_are_printable(self, world: ResetWorld) -> None:
        world.run_process(5001, "x", gpu=0)
        (world.host.root / "proc/5001/comm").write_text("\x1b[31mred\nblue\n")
        world.reset(program="tests.repair.impatient")
        assert world.record["reasons"][0].isprintable()


class TestGpusTogether:
    def test_a100_with_nvswitches_all_without_the_fabric_manager(
        self, world: ResetWorld, make_node: Callable[[str], SimulatedNode]
    ) -> None:
        world.host = make_node("p4d.24xlarge")
        world.host.install_nvidia_smi()

        assert world.reset(gpu=1).code == 0

        assert (world.record["scope"], len(world.record["gpus"])) == ("all", 8)
        assert world.asked[8:11] == [
            "systemctl stop nvidia-fabricmanager",
            "nvidia-smi --gpu-reset",
            "systemctl start nvidia-fabricmanager",
        ]


class TestARefusalTouchesNoGpu:
    def refused(self, world: ResetWorld, *words: str) -> str:
        ended = world.run(*words, program="repair")
        assert (ended.code, [line for line in world.asked if "gpu-reset" in line]) == (2, [])
        said = ended.said("refused: nothing was reset") or ended.said("not reset")
        return str(said[0]["why"])

    def test_while_another_run_has_the_node(self, world: ResetWorld) -> None:
        until = timestamp(datetime.now(UTC) + timedelta(minutes=9))
        world.annotate(run=json.dumps({"kind": "quarantine", "holder": "x", "until": until}))
        assert "quarantine x uses it until" in self.refused(world, "--gpu=0")

    def test_for_a_gpu_of_a_virtual_machine(self, world: ResetWorld) -> None:
        address = world.host.gpus[1].address
        world.host.hand_gpu_to_a_virtual_machine(1)
        assert f"{address} belongs to a virtual machine" in self.refused(world, f"--gpu={address}")

    def test_for_an_unknown_gpu(self, world: ResetWorld) -> None:
        assert "the node has no GPU 9" in self.refused(world, "--gpu=9")

    def test_without_nvidia_smi(self, world: ResetWorld) -> None:
        (world.host.root / "usr/bin/nvidia-smi").unlink()
        assert "neither the host nor run/nvidia/driver" in self.refused(world, "--gpu=0")

    @pytest.mark.parametrize("gpu", ["", "GPU-x", "0;reboot", "-1", "0000:18:00.0\n"])
    def test_for_a_malformed_name(self, world: ResetWorld, gpu: str) -> None:
        assert world.run(f"--gpu={gpu}", program="repair").code == 3


def test_sigterm_before_the_reset_touches_no_gpu(world: ResetWorld) -> None:
    world.add_pod(1, "train-0", gpus=1)
    with world.started("--gpu=0", program="repair") as process:
        eventually(lambda: world.record.get("pods"))
        process.terminate()
        process.wait(GIVE_UP_SECONDS)
    assert (process.returncode, world.record["reasons"]) == (2, ["step 'free the GPUs': stopped before the reset"])
    assert [line.rpartition(" ")[2] for line in world.asked] == ["0", "1"]


def test_sigterm_during_the_reset_is_no_end_of_it(world: ResetWorld) -> None:
    world.host.write_value("nvidia-smi/seconds", 2)
    with world.started("--gpu=0", program="repair") as process:
        eventually(lambda: world.record.get("running") == "reset")
        process.terminate()
        process.wait(GIVE_UP_SECONDS)
    assert (process.returncode, world.record["status"]) == (0, "pass")


def test_the_commands_part_of_the_record_is_kept(world: ResetWorld) -> None:
    claim = {"step": "claim", "at": "2026-11-21T01:02:03Z", "detail": "x"}
    world.annotate(reset_result=json.dumps({"holder": JOB, "steps": [claim]}))

    world.reset()

    assert (steps(world)[:2], world.record["node"]) == (["claim", "plan"], NODE)
