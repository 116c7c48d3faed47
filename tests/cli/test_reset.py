"""`gpu-healthcheck reset` on a real control plane, with real agent and Job: the story, refusals, failures, Ctrl-C."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.text.moments import moment
from gpu_healthcheck.sim.device_plugin import DEPLOY
from gpu_healthcheck.sim.dra_plugin import XID_TAINT, DraPlugin
from tests.cli.cluster import P
from tests.cli.reset_world import PODS, Workshop
from tests.evicting import BUDGET_ANSWER, annotation, eviction
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

WITHOUT_TOLERATION = f"without a toleration, a device plugin starts only when the taint {P}/unhealthy is gone"


@pytest.mark.parametrize("operator", [True, False], ids=["operator", "plain device plugin"])
def test_reset_fixes_a_gpu_and_keeps_pods_of_others(workshop: Workshop, operator: bool) -> None:
    workshop.run_plugin(operator=operator)
    workshop.add_pod("train-2", gpu=2)
    workshop.add_pod("train-5", gpu=5)
    workshop.break_gpu(2)
    boot_id = workshop.node.boot_id
    assert workshop.next_commands()[0] == f"gpu-healthcheck reset {workshop.name}"

    code, out = workshop.reset()

    assert code == 0, out
    assert "without a reboot" in out
    assert (workshop.pods(), workshop.allocatable, workshop.findings) == ({"train-5"}, 8, [])
    assert (workshop.is_tainted("unhealthy"), workshop.is_untouched, workshop.node.boot_id) == (False, True, boot_id)
    record = workshop.record
    assert (record["status"], record["scope"], [gpu["index"] for gpu in record["gpus"]]) == ("pass", "one", ["2"])
    assert ("operands" in workshop.steps, len(workshop.steps)) == (operator, 7 + operator)
    eventually(lambda: workshop.reported == [*workshop.steps, "GpuResetDone"])
    assert "GpuResetDone the GPUs work again" in workshop.events


def test_reset_dry_run_changes_nothing(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-2", gpu=2)
    workshop.break_gpu(2)
    before = workshop.annotation("reset-result"), workshop.labels[DEPLOY]

    code, out = workshop.reset("--dry-run")

    assert code == 0, out
    assert f"would reset GPU {workshop.node.gpus[2].address} (Xid62)" in out
    assert f"would switch off until the reset has ended: {DEPLOY}" in out
    assert "default/train-2 holds 1 nvidia.com/gpu" in out
    assert ((workshop.annotation("reset-result"), workshop.labels[DEPLOY]), workshop.has_job()) == (before, False)


class TestRefused:
    def refused(self, workshop: Workshop, *words: str) -> str:
        code, out = workshop.reset(*words)
        assert (code, workshop.is_untouched, workshop.has_job()) == (2, True, False), out
        return out

    def test_reset_refuses_a_job_that_runs_elsewhere(self, workshop: Workshop) -> None:
        """It would report what another node's Job writes into its log."""
        workshop.run_plugin(operator=True)
        workshop.break_gpu(2)
        name = workshop.job("evil.example.internal", suspend=True)
        code, out = workshop.reset()
        assert (code, workshop.is_untouched, workshop.has_job()) == (2, True, True), out
        assert f"Job gpu-healthcheck/{name} is not a reset's; it is neither followed nor deleted" in out
        assert f"its pods may run on another node than {workshop.name}" in out

    def test_reset_refuses_without_a_finding_that_it_ends(self, workshop: Workshop) -> None:
        eventually(lambda: workshop.annotation("results"))
        assert "no finding on it ends with the reset of a GPU" in self.refused(workshop)
        assert "no finding on GPU 3 ends with a reset; --force" in self.refused(workshop, "--gpu", "3")

    def test_reset_refuses_where_resets_are_known_to_fail(self, workshop: Workshop) -> None:
        workshop.plane.create_node("ec2", labels={})
        process = workshop.start("ec2", "--gpu", "3", "--dry-run")
        out, _ = process.communicate(timeout=GIVE_UP_SECONDS)
        workshop.plane.request("DELETE", "/api/v1/nodes/ec2")
        assert process.returncode == 2
        assert "EC2's hypervisor refuses" in out
        assert "add --reboot to reboot it, or --force to try" in out

    def test_reset_refuses_a_missing_node(self, workshop: Workshop) -> None:
        process = workshop.start("nobody")
        assert (process.wait(GIVE_UP_SECONDS), "does not exist" in process.communicate()[0]) == (2, True)


def test_reset_is_undone_if_a_pod_needs_force(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("lonely", gpu=2, ownerReferences=[])
    workshop.break_gpu(2)

    code, out = workshop.reset()

    assert (code, workshop.pods()) == (2, {"lonely"}), out
    assert "default/lonely: no controller recreates it (needs --force)" in out
    assert (workshop.is_untouched, workshop.has_job(), workshop.is_tainted("unhealthy")) == (True, False, True)

    assert workshop.reset("--force")[0] == 0
    assert (workshop.pods(), workshop.allocatable) == (set(), 8)


def test_reset_needs_force_for_a_job_that_an_eviction_fails(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    owner = workshop.add_job("train", backoffLimit=0)
    workshop.add_pod("train-2", gpu=2, ownerReferences=[owner])
    workshop.break_gpu(2)

    code, out = workshop.reset("--dry-run")
    assert (code, "default/train-2 holds 1 nvidia.com/gpu (this fails Job train: backoffLimit 0)" in out) == (
        0,
        True,
    ), out

    code, out = workshop.reset()
    assert (code, workshop.pods(), workshop.is_untouched) == (2, {"train-2"}, True), out
    lines = [line for line in out.splitlines() if "train-2" in line or "claimed" in line]
    assert "default/train-2 holds 1 nvidia.com/gpu, and is evicted if that is reset: this fails Job train" in lines[0]
    assert "default/train-2: this fails Job train: backoffLimit 0 (needs --force)" in lines[-1]

    code, out = workshop.reset("--force")
    assert (code, workshop.pods()) == (0, set()), out


def test_reset_stops_at_a_foreign_process(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    workshop.node.services.start("nvtop", 5)
    workshop.node.open_gpu(2, workshop.node.services.pid_of("nvtop"))

    code, out = workshop.reset()

    assert (code, workshop.record["status"], workshop.is_untouched) == (2, "unknown", True), out
    assert "in use by process nvtop" in out
    assert "Fix that before the next one." in out
    assert workshop.next_commands()[0] == f"gpu-healthcheck reset {workshop.name}"


def test_reset_that_fails_keeps_the_taint_and_restores_operands(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    workshop.node.write_value("nvidia-smi/unknown-error", "")

    code, out = workshop.reset()

    assert (code, workshop.record["status"], workshop.is_untouched) == (1, "fail", True), out
    assert "step 'reset': nvidia-smi --gpu-reset: failed" in out
    assert "A reset has not ended the fault (step 'reset': nvidia-smi --gpu-reset: failed" in out
    assert workshop.next_commands()[0] == f"gpu-healthcheck reset {workshop.name} --reboot"
    assert f"pods can request no GPU of 8 nvidia.com/gpu: {WITHOUT_TOLERATION}" in out
    assert (workshop.is_tainted("unhealthy"), workshop.findings) == (True, ["Xid62"])


def test_reset_names_a_device_plugin_kept_away_by_a_taint(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    workshop.break_gpu(5)

    code, out = workshop.reset("--gpu", "2")

    assert (code, workshop.record["status"], workshop.is_untouched) == (1, "pass", True), out
    assert "pods can request no GPU of 8 nvidia.com/gpu while the taint of other findings stays" in out
    assert workshop.next_commands()[0] == f"gpu-healthcheck reset {workshop.name}"

    assert workshop.reset()[0] == 0
    assert (workshop.findings, workshop.allocatable) == ([], 8)


def test_reset_does_not_continue_for_a_later_fault(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    assert workshop.reset()[0] == 0
    workshop.node.xid(2, 79, "GPU has fallen off the bus.")
    workshop.plugin.lost = 1
    eventually(lambda: workshop.is_tainted("unhealthy") and workshop.allocatable == 7)

    code, out = workshop.reset()

    assert (code, workshop.allocatable) == (2, 7), out
    assert "no reset of a GPU ends Xid79" in out


def test_reset_restarts_a_dra_plugin_that_keeps_its_taint(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    with DraPlugin(workshop.plane, workshop.name, [gpu.address for gpu in workshop.node.gpus]) as plugin:
        eventually(lambda: plugin.is_running)
        workshop.break_gpu(2)
        plugin.taint(2)

        code, out = workshop.reset()

        assert (code, plugin.taints, workshop.is_tainted("unhealthy")) == (0, [], False), out
        assert "restarted, because it does not offer all GPUs: default/dra-driver-nvidia-gpu-" in out

        workshop.break_gpu(2)
        plugin.taint(5)  # of a GPU that is not reset
        code, out = workshop.reset()

        assert (code, plugin.taints) == (0, [XID_TAINT]), out
        assert "restarted" not in out


@pytest.mark.parametrize(
    ("handshake", "left"),
    [
        ("Deleted_2026-11-25 10:00:00", None),
        ("Requesting_2026-07-16 10:08:42", "Requesting_2026-07-16 10:08:42"),  # normal from HAMi 2.8 on
    ],
)
def test_reset_removes_only_a_deleted_hami_handshake(workshop: Workshop, handshake: str, left: str | None) -> None:
    key, vendor = "hami.io/node-handshake", "hami.io/node-handshake-dcu"
    workshop.run_plugin(operator=False)
    workshop.break_gpu(2)
    workshop.patch({"metadata": {"annotations": {key: handshake, vendor: "Deleted_2026-11-25 10:00:00"}}})

    code, out = workshop.reset()

    annotations = workshop.object["metadata"]["annotations"]
    assert (code, annotations.get(key)) == (0, left), out
    assert annotations[vendor] == "Deleted_2026-11-25 10:00:00"
    assert ("HAMi's handshake removed" in out) == (left is None)


@pytest.mark.parametrize("options", [(), ("--reboot",)])
def test_reset_refuses_a_node_on_which_an_eviction_waits(workshop: Workshop, options: tuple[str, ...]) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-2", gpu=2)
    workshop.break_gpu(2)
    uid = workshop.plane.request("GET", f"{PODS}/train-2").body["metadata"]["uid"]
    why = BUDGET_ANSWER.format("train")
    refused = annotation(eviction("train-2", "refused", namespace="default", uid=uid, why=why))
    workshop.patch({"metadata": {"annotations": refused}})

    code, out = workshop.reset(*options)

    assert (code, workshop.is_untouched, workshop.has_job(), workshop.pods()) == (2, True, False, {"train-2"}), out
    assert "default/train-2: announced since " in out
    assert "refused by PodDisruptionBudget default/train: change it, or kubectl delete pod -n default train-2" in out
    if not options:
        workshop.patch({"metadata": {"annotations": dict.fromkeys(refused)}})
        code, out = workshop.reset()
        assert (code, workshop.pods()) == (0, set()), out


class TestCtrlC:
    def test_ctrl_c_before_the_reset_undoes_all(self, workshop: Workshop) -> None:
        workshop.run_plugin(operator=True)
        workshop.add_pod("train-2", gpu=2, labels={"app": "train"})
        workshop.add_budget("train")
        workshop.break_gpu(2)
        plugin = workshop.plugin_pod()
        process = workshop.start(workshop.name)
        eventually(lambda: workshop.record.get("pods"))
        assert workshop.labels[DEPLOY] == "true"

        code, out = workshop.interrupt(process)

        assert (code, workshop.is_untouched, workshop.has_job(), workshop.pods()) == (130, True, False, {"train-2"}), (
            out
        )
        assert ("undone: the node's labels and marks are as before" in out, "left: " in out) == (True, False)
        assert (workshop.plugin_pod(), workshop.allocatable) == (plugin, 7)
        assert [line for line in asked(workshop) if "gpu-reset" in line] == []
        eventually(lambda: workshop.reported == [*workshop.steps, "GpuResetFailed"])

    def test_ctrl_c_with_operands_off_names_what_is_left(self, workshop: Workshop) -> None:
        """The device plugin does not tolerate the taint of the finding."""
        workshop.run_plugin(operator=True)
        workshop.add_exporter(gpu=2)
        workshop.break_gpu(2)
        process = workshop.start(workshop.name)
        eventually(lambda: workshop.labels[DEPLOY] == "false" and workshop.allocatable == 0)

        code, out = workshop.interrupt(process)

        assert (code, workshop.is_untouched, workshop.has_job(), workshop.allocatable) == (130, True, False, 0), out
        left = f"pods can request no GPU of 8 nvidia.com/gpu: {WITHOUT_TOLERATION}"
        assert f"left: {left}" in out
        assert workshop.record["reasons"][-1].startswith(left)
        eventually(lambda: any(left in event for event in workshop.events if event.startswith("GpuResetFailed")))

        workshop.node.services.end_process(7001)
        assert workshop.next_commands()[0] == f"gpu-healthcheck reset {workshop.name}"
        code, out = workshop.reset()
        assert (code, workshop.allocatable, workshop.findings) == (0, 8, []), out

    def test_ctrl_c_with_a_tolerant_device_plugin_leaves_nothing(self, workshop: Workshop) -> None:
        workshop.plugin.tolerates = ("unhealthy", "maintenance")
        workshop.run_plugin(operator=True)
        workshop.add_exporter(gpu=2)
        workshop.break_gpu(2)
        process = workshop.start(workshop.name)
        eventually(lambda: workshop.labels[DEPLOY] == "false" and workshop.allocatable == 0)

        code, out = workshop.interrupt(process)

        assert (code, workshop.is_untouched, workshop.allocatable, "left: " in out) == (130, True, 8, False), out

    def test_ctrl_c_after_the_reset_began_returns_the_node_first(self, workshop: Workshop) -> None:
        workshop.run_plugin(operator=True)
        workshop.break_gpu(2)
        workshop.node.write_value("nvidia-smi/seconds", 3)
        process = workshop.start(workshop.name)
        eventually(lambda: workshop.record.get("running") == "reset")

        code, out = workshop.interrupt(process)

        assert (code, workshop.record["status"], workshop.is_untouched) == (130, "pass", True), out
        assert "the reset has begun: waiting for its end" in out
        assert (workshop.findings, workshop.is_tainted("unhealthy"), workshop.allocatable) == ([], False, 8)


def asked(workshop: Workshop) -> list[str]:
    file = workshop.node.root / "nvidia-smi/asked"
    return file.read_text().splitlines() if file.exists() else []


def test_reset_continues_after_kill_at_each_write(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    process = workshop.start(workshop.name, KILL_AT="never")
    out, _ = process.communicate(timeout=GIVE_UP_SECONDS)
    number = sum(line.startswith("WRITE") and "events" not in line for line in out.splitlines())
    assert process.returncode == 0, out

    for write in range(1, out.count("WRITE") + 1):
        workshop.break_gpu(2)
        process = workshop.start(workshop.name, KILL_AT=f"{write} after")
        process.communicate(timeout=GIVE_UP_SECONDS)
        code, said = workshop.reset()
        # Killed after the node was returned, nothing is left to do.
        assert code == 0 or "no finding on it ends with the reset of a GPU" in said, (write, said)
        eventually(lambda: not workshop.findings)
        assert workshop.is_untouched, (write, said)
        assert moment(workshop.record["started"]) is not None
        eventually(lambda: workshop.allocatable == 8)
        assert (workshop.allocatable, workshop.is_tainted("unhealthy")) == (8, False), write
    assert number >= 3  # the claim, the Job, and the release of the claim; the Job restores the labels
    assert f"{P}/mode" not in workshop.labels
