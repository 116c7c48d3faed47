"""`gpu-healthcheck reset --reboot` on a real control plane: drain, reboot of the simulated host, and its return."""

from __future__ import annotations

import signal

import pytest

from tests.cli.reset_world import Workshop
from tests.cli.test_reset import asked
from tests.waiting import GIVE_UP_SECONDS, eventually

pytestmark = pytest.mark.cluster

REBOOT = "systemctl reboot"
OF_A_BOOT = {"DriverUnresponsive", "FabricManagerNotRunning", "FabricNotReady", "GpuCountLow", "GpuLost"}
"""Faults that a shutdown and a boot resemble: the agent makes no verdict of them."""


def steps(workshop: Workshop) -> list[str]:
    return [row["step"] for row in workshop.record.get("steps", [])]


def break_node(workshop: Workshop) -> None:
    """Let the driver log Xid 79 on a GPU, which only a reboot ends."""
    workshop.node.xid(2, 79, "GPU has fallen off the bus.")
    eventually(lambda: workshop.is_tainted("unhealthy"))


def test_reboot_follows_a_failed_reset_and_ends_the_finding(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    workshop.add_pod("train-5", gpu=5)
    workshop.break_gpu(2)
    workshop.node.write_value("nvidia-smi/unknown-error", "")
    boot_id = workshop.node.boot_id

    code, out = workshop.reset("--reboot")

    assert code == 0, out
    assert "with a reboot" in out
    assert workshop.node.boot_id != boot_id
    assert (workshop.pods(), workshop.allocatable, workshop.findings) == (set(), 8, [])
    assert (workshop.is_tainted("unhealthy"), workshop.is_untouched) == (False, True)
    record = workshop.record
    assert (record["status"], record["boot_id"], len(record["gpus"])) == ("pass", workshop.node.boot_id, 8)
    assert steps(workshop) == [
        *("claim", "plan", "free the GPUs", "operands", "reset"),
        *("drain the node", "reboot", "verify", "level 2", "load"),
    ]
    assert asked(workshop).count(REBOOT) == 1
    assert OF_A_BOOT.isdisjoint(event.split()[0] for event in workshop.events)
    eventually(lambda: workshop.reported == [*workshop.steps, "GpuResetDone"])
    assert any("GpuResetStep reset: failed: nvidia-smi --gpu-reset: failed" in event for event in workshop.events)


def test_reboot_ends_a_finding_that_no_reset_ends(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    break_node(workshop)

    code, out = workshop.reset()
    assert code == 2
    assert "no reset of a GPU ends Xid79 on gpu/" in out
    assert "but a reboot does: add --reboot" in out

    # The command that `status` recommends ends the finding.
    assert workshop.next_commands()[0] == f"gpu-healthcheck reset {workshop.name} --reboot"
    code, out = workshop.reset("--reboot")

    assert (code, workshop.findings, workshop.is_tainted("unhealthy")) == (0, [], False), out
    assert [line for line in asked(workshop) if "gpu-reset" in line] == []
    assert steps(workshop) == ["claim", "drain the node", "reboot", "verify", "level 2", "load"]


def test_recurrence_after_reset_and_reboot_escalates_on_its_gpu(workshop: Workshop) -> None:
    (workshop.folder / "config/ESCALATE_AFTER").write_text("2")
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    assert workshop.reset()[0] == 0
    workshop.break_gpu(2)
    workshop.node.write_value("nvidia-smi/unknown-error", "")
    assert workshop.reset("--reboot")[0] == 0

    workshop.break_gpu(5)
    assert workshop.severities == ["RESET"]
    workshop.break_gpu(2)
    eventually(lambda: workshop.severities == ["ISOLATE", "RESET"])
    (isolated,) = (row for row in workshop.rows if row["severity"] == "ISOLATE")
    assert isolated["subject"] == f"gpu/{workshop.node.gpus[2].address}"
    assert "recurred after 2 resets or reboots in 7 days" in isolated["detail"]
    assert workshop.next_commands()[0] == f"gpu-healthcheck quarantine {workshop.name}"


def test_reboot_dry_run_names_the_drain(workshop: Workshop) -> None:
    workshop.run_plugin(operator=False)
    workshop.add_pod("train-5", gpu=5)
    break_node(workshop)

    code, out = workshop.reset("--reboot", "--dry-run")

    assert code == 0, out
    assert "would drain and reboot the node: Xid79 on gpu/" in out
    assert "would evict default/train-5" in out
    assert (workshop.is_untouched, workshop.has_job(), workshop.pods()) == (True, False, {"train-5"})


def test_reboot_and_no_reboot_are_a_usage_error(workshop: Workshop) -> None:
    code, out = workshop.reset("--reboot", "--no-reboot")
    assert (code, "exclude each other" in out) == (3, True)


class TestCouldNot:
    def refused(self, workshop: Workshop, *words: str) -> str:
        """Run the command, which changes nothing except a Job that it deletes."""
        code, out = workshop.reset("--reboot", *words)
        assert (code, workshop.is_untouched, workshop.is_tainted("unhealthy")) == (2, True, True), out
        assert (workshop.pods(), REBOOT in asked(workshop)) == ({"other"}, False)
        return out

    def test_pods_that_need_a_permission_are_named_before_the_reset(self, workshop: Workshop) -> None:
        workshop.run_plugin(operator=False)
        workshop.add_pod("other", gpu=5, ownerReferences=[])
        workshop.break_gpu(2)

        assert "default/other: no controller recreates it (needs --force)" in self.refused(workshop)
        assert not workshop.has_job()

    def test_a_host_without_systemd_is_not_drained(self, workshop: Workshop) -> None:
        workshop.run_plugin(operator=False)
        workshop.add_pod("other", gpu=5)
        break_node(workshop)
        (workshop.node.root / "run/systemd/system").rmdir()

        out = self.refused(workshop)
        assert "The last reset changed nothing (step 'plan': the host does not run systemd" in out
        assert workshop.next_commands() == [f"kubectl drain {workshop.name} --ignore-daemonsets --delete-emptydir-data"]
        assert "REPAIR_CONDITIONS=GpuRebootRequired" in workshop.record["reasons"][0]


def test_reboot_refused_by_systemd_keeps_the_taint(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    break_node(workshop)
    workshop.node.write_value("systemd/refused", "Failed to connect to bus: No such file or directory")

    code, out = workshop.reset("--reboot")

    assert (code, workshop.record["status"], workshop.is_untouched) == (1, "fail", True), out
    assert "step 'reboot': systemd has not accepted the reboot: Failed to connect to bus" in out
    assert "It was drained, but not rebooted (step 'reboot': systemd has not accepted the reboot" in out
    assert "Reboot the machine (metal://a) in another way, or replace it; then" in out
    assert (f"gpu-healthcheck reset {workshop.name} --reboot" in out, workshop.next_commands()) == (False, [])
    assert (workshop.is_tainted("unhealthy"), workshop.findings) == (True, ["Xid79"])


def test_reboot_fails_if_a_gpu_does_not_return(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.run_plugin(operator=True)
    break_node(workshop)
    workshop.host.loses = 2

    code, out = workshop.reset("--reboot", "--timeout", "40s")

    assert (code, workshop.record["status"]) == (1, "fail"), out
    assert "after the reboot: the node has 7 of 8 GPUs" in out
    assert workshop.next_commands()[-1] == f"kubectl delete node {workshop.name}"


def test_reboot_that_never_happens_is_requested_again(workshop: Workshop) -> None:
    workshop.run_plugin(operator=True)
    break_node(workshop)
    workshop.node.write_value("systemd/ignored", "")

    code, out = workshop.reset("--reboot", "--timeout", "30s")

    assert code == 1, out
    assert "step 'reboot': its systemd has not returned it within 30 s: it still runs the boot" in out
    assert (workshop.record["running"], workshop.is_tainted("maintenance")) == ("reboot", True)

    (workshop.node.root / "systemd/ignored").unlink()
    workshop.kubelets.kill(workshop.name)
    eventually(workshop.has_ended_job)
    code, out = workshop.reset("--reboot")
    assert (code, workshop.findings, workshop.is_untouched) == (0, [], True), out


class TestCtrlC:
    def test_while_the_node_is_drained_undoes_all(self, workshop: Workshop) -> None:
        workshop.run_plugin(operator=True)
        workshop.add_pod("train-5", gpu=5, labels={"app": "train"})
        workshop.add_budget("train")
        break_node(workshop)
        process = workshop.start(workshop.name, "--reboot")
        eventually(lambda: workshop.record.get("running") == "drain the node")

        code, out = workshop.interrupt(process)

        assert (code, workshop.is_untouched, workshop.has_job(), workshop.pods()) == (130, True, False, {"train-5"}), (
            out
        )
        assert REBOOT not in asked(workshop)

    def test_during_the_reboot_the_node_is_returned_first(self, workshop: Workshop) -> None:
        workshop.run_plugin(operator=True)
        break_node(workshop)
        workshop.host.stays_down = True
        process = workshop.start(workshop.name, "--reboot")
        eventually(lambda: workshop.host.is_down)
        process.send_signal(signal.SIGINT)
        workshop.host.come_back()

        out, err = process.communicate(timeout=GIVE_UP_SECONDS)

        assert (process.returncode, workshop.findings, workshop.is_untouched) == (130, [], True), out + err
        assert "the reset has begun: waiting for its end" in out

    def test_twice_leaves_the_rest_to_another_run(self, workshop: Workshop) -> None:
        workshop.run_plugin(operator=True)
        break_node(workshop)
        workshop.host.stays_down = True
        process = workshop.start(workshop.name, "--reboot")
        eventually(lambda: workshop.host.is_down)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert any("waiting for its end" in line for line in process.stdout)
        code, out = workshop.interrupt(process)
        assert (code, workshop.record["running"], workshop.is_tainted("maintenance")) == (130, "reboot", True), out

        workshop.host.come_back()
        code, out = workshop.reset()

        assert (code, workshop.findings, workshop.is_untouched, workshop.allocatable) == (0, [], True, 8), out
        assert steps(workshop)[-4:] == ["reboot", "verify", "level 2", "load"]
        assert asked(workshop).count(REBOOT) == 1


def test_reboot_waits_for_a_program_that_follows_the_condition(workshop: Workshop) -> None:
    """The agent's condition requests the reboot once the node is drained; systemd is not asked."""
    (workshop.folder / "config/REPAIR_CONDITIONS").write_text("GpuRebootRequired")
    workshop.run_plugin(operator=True)
    workshop.break_gpu(2)
    workshop.node.write_value("nvidia-smi/not-supported", "")
    eventually(lambda: workshop.condition("GpuRebootRequired").get("status") == "False")
    process = workshop.start(workshop.name, "--reboot")
    eventually(lambda: workshop.condition("GpuRebootRequired").get("status") == "True")
    assert workshop.condition("GpuRebootRequired")["reason"] == "ResetAwaitsReboot"

    workshop.node.write_value("systemd/reboot", "")
    out, err = process.communicate(timeout=GIVE_UP_SECONDS)

    assert (process.returncode, workshop.findings, workshop.is_untouched) == (0, [], True), out + err
    assert "waiting until a program that follows the condition GpuRebootRequired has rebooted it" in out
    assert REBOOT not in asked(workshop)
    eventually(lambda: workshop.condition("GpuRebootRequired").get("status") == "False")


def test_reset_continues_after_kill_at_each_write(workshop: Workshop) -> None:
    workshop.run_plugin(operator=False)
    break_node(workshop)
    process = workshop.start(workshop.name, "--reboot", KILL_AT="never")
    out, _ = process.communicate(timeout=GIVE_UP_SECONDS)
    assert process.returncode == 0, out
    writes = [number for number, line in enumerate(written(out), 1) if "events" not in line]
    assert len(writes) >= 5

    for write in writes[1:]:  # the claim is the same as without a reboot
        break_node(workshop)
        process = workshop.start(workshop.name, "--reboot", KILL_AT=f"{write} after")
        process.communicate(timeout=GIVE_UP_SECONDS)
        code, said = workshop.reset("--reboot")
        # Killed after the node was returned, nothing is left to do.
        assert code == 0 or "no finding on it ends" in said, (write, said)
        eventually(lambda: not workshop.findings)
        assert workshop.is_untouched, (write, said)
        eventually(lambda: workshop.allocatable == 8)
        assert not workshop.is_tainted("unhealthy"), write


def written(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("WRITE")]
