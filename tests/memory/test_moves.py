"""Findings follow their board: swapped slots, renumbered buses, a board that is gone or replaced."""

from __future__ import annotations

import pytest

from gpu_healthcheck.healthcheck.memory.exits import begin, gpus_answered
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding, Memory
from gpu_healthcheck.healthcheck.memory.kernel_events import after_kernel_log
from gpu_healthcheck.healthcheck.model import Nature, Outcome, Severity
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpu
from tests.examples import MACHINE, MONOTONIC, active_finding, fault, kernel_event, later, memory_with

ISOLATE, RESET = Severity.ISOLATE, Severity.RESET
A, B, C, D = "0000:53:00.0", "0000:64:00.0", "0000:75:00.0", "0000:86:00.0"


def gpu(address: str, serial: str, *, uuid: str | None = None, error: int = 0) -> Gpu:
    name = f"GPU-{serial}" if uuid is None else uuid
    return Gpu(0, error=error, address=address, serial=serial, uuid=name, recovery_action=0)


def answered(memory: Memory, *gpus: Gpu, at: float = 100.0) -> Memory:
    return gpus_answered(memory, gpus, at, later(at))


def known(*standing: ActiveFinding, of: tuple[Gpu, ...] = (gpu(A, "1"), gpu(B, "2"))) -> Memory:
    return gpus_answered(memory_with(*standing), of, MONOTONIC - 10, later(-10))


def rebooted(memory: Memory) -> Memory:
    return begin(memory, MACHINE, "boot-2", later(60))


def places(memory: Memory) -> list[tuple[str, str, str]]:
    return sorted(
        (finding.finding.reason, finding.finding.subject, finding.finding.about.get("serial", ""))
        for finding in memory.active
    )


def isolated(address: str = A, reason: str = "Xid54", part: str = "") -> ActiveFinding:
    return active_finding(fault(reason, ISOLATE, f"gpu/{address}{part}"))


class TestAfterAReboot:
    def test_two_boards_that_were_swapped_keep_their_findings(self) -> None:
        memory = rebooted(known(isolated(A), isolated(B, "Xid62")))

        memory = answered(memory, gpu(A, "2"), gpu(B, "1"))

        assert places(memory) == [("Xid54", f"gpu/{B}", "1"), ("Xid62", f"gpu/{A}", "2")]
        assert {at: about["serial"] for at, about in memory.gpus.items()} == {A: "2", B: "1"}

    def test_renumbered_buses_move_every_finding(self) -> None:
        memory = rebooted(known(isolated(A), isolated(B)))

        memory = answered(memory, gpu(C, "1"), gpu(D, "2"))

        assert places(memory) == [("Xid54", f"gpu/{C}", "1"), ("Xid54", f"gpu/{D}", "2")]
        assert set(memory.gpus) == {C, D}

    def test_a_chain_of_moves_mixes_no_two_boards(self) -> None:
        memory = rebooted(known(isolated(A), isolated(B)))

        memory = answered(memory, gpu(B, "1"), gpu(C, "2"))

        assert places(memory) == [("Xid54", f"gpu/{B}", "1"), ("Xid54", f"gpu/{C}", "2")]

    def test_replaced_board_keeps_its_finding(self) -> None:
        memory = answered(rebooted(known(isolated(A), isolated(B))), gpu(A, "9"), gpu(B, "2"))

        assert places(memory) == [("Xid54", f"gpu/{B}", "2")]

    def test_missing_board_keeps_its_finding_and_the_others_keep_theirs(self) -> None:
        """The board may be silent and not gone: the count is another check's, and a release accepts it."""
        memory = answered(rebooted(known(isolated(A), isolated(B))), gpu(A, "2"))

        assert places(memory) == [("Xid54", f"gpu/{A}", "2"), ("Xid54", "gpu/GPU-1", "1")]
        back = answered(memory, gpu(A, "2"), gpu(B, "1"), at=200.0)
        assert places(back) == [("Xid54", f"gpu/{A}", "2"), ("Xid54", f"gpu/{B}", "1")]

    def test_an_instance_moves_with_its_board(self) -> None:
        memory = answered(rebooted(known(isolated(A, part="/gi5"))), gpu(A, "2"), gpu(B, "1"))

        assert [finding.finding.subject for finding in memory.active] == [f"gpu/{B}/gi5"]

    def test_without_a_serial_the_uuid_decides(self) -> None:
        of = (gpu(A, "", uuid="GPU-a"), gpu(B, "", uuid="GPU-b"))
        memory = rebooted(known(isolated(A), of=of))

        memory = answered(memory, gpu(A, "", uuid="GPU-b"), gpu(B, "", uuid="GPU-a"))

        assert [finding.finding.subject for finding in memory.active] == [f"gpu/{B}"]

    def test_two_gpus_on_one_board_are_distinguished_by_uuid(self) -> None:
        of = (gpu(A, "7", uuid="GPU-a"), gpu(B, "7", uuid="GPU-b"))
        memory = rebooted(known(isolated(A), of=of))

        same = answered(memory, *of)
        swapped = answered(memory, gpu(A, "7", uuid="GPU-b"), gpu(B, "7", uuid="GPU-a"))

        assert [finding.finding.subject for finding in same.active] == [f"gpu/{A}"]
        assert [finding.finding.subject for finding in swapped.active] == [f"gpu/{B}"]

    def test_event_before_nvml_answered_gets_the_present_gpus_names(self) -> None:
        memory = rebooted(known(isolated(A)))
        new = kernel_event(fault("Xid62", RESET, f"gpu/{B}", seq=3, at=20.0))
        memory = after_kernel_log(memory, [Outcome("xid", "0", events=(new,))], later(61))

        memory = answered(memory, gpu(A, "2"), gpu(B, "1"))

        assert places(memory) == [("Xid54", f"gpu/{B}", "1"), ("Xid62", f"gpu/{B}", "1")]

    @pytest.mark.parametrize("nature", Nature)
    def test_a_board_in_its_place_keeps_everything(self, nature: Nature) -> None:
        memory = known(active_finding(fault("RowRemapFailed", ISOLATE, f"gpu/{A}"), nature))

        assert answered(rebooted(memory), gpu(A, "1"), gpu(B, "2")).active == rebooted(memory).active


def test_a_reset_of_another_board_in_its_place_ends_no_finding_of_a_silent_one() -> None:
    three = (gpu(A, "1"), gpu(B, "2"), gpu(C, "3"))
    memory = known(
        active_finding(fault("Xid54", ISOLATE, f"gpu/{A}")), active_finding(fault("Xid62", RESET, f"gpu/{A}")), of=three
    )

    replaced = answered(memory, gpu(A, "9"), gpu(B, "2"), at=MONOTONIC + 10)
    pending = Gpu(0, address=A, serial="9", uuid="GPU-9", recovery_action=1)
    after = answered(answered(replaced, pending, at=MONOTONIC + 20), gpu(A, "9"), at=MONOTONIC + 30)

    assert places(after) == [("Xid54", "gpu/GPU-1", "1"), ("Xid62", "gpu/GPU-1", "1")]
