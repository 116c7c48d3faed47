"""The kernels: an interpreter runs their PTX, and a lost bit is found."""

from __future__ import annotations

import re
import struct

import pytest

from gpu_healthcheck.healthcheck.probes.gpu_load.kernels import KERNELS, Kernel
from tests.probes.gpu_load.ptx import Thread, declared

ROUNDS = 3


def thread(kernel: Kernel, rounds: int = ROUNDS, number: int = 77) -> Thread:
    kind = "f" if kernel.name == "fp32" else "I"
    operands = dict(zip("abcd", struct.unpack(f"<4{kind}", kernel.operands), strict=True))
    share = rounds / kernel.rounds
    return Thread(kernel.ptx, {"results": 0, "rounds": rounds, "sum": kernel.sum * share, **operands}, number)


@pytest.mark.parametrize("kernel", KERNELS, ids=["fp32", "bf16", "bf16 of Hopper"])
class TestAKernel:
    def test_its_sums_are_as_expected_and_its_operations_are_counted(self, kernel: Kernel) -> None:
        one = thread(kernel)
        one.run()
        assert one.memory == {0: 0, 4: 1}
        assert one.operations == kernel.flops * ROUNDS // kernel.rounds

    @pytest.mark.parametrize("operand", ["a", "b", "c", "d"])
    def test_a_wrong_operand_is_found_in_every_sum(self, kernel: Kernel, operand: str) -> None:
        one = thread(kernel, rounds=1)
        one.parameters[operand] = 1 if kernel.name == "fp32" else 0x4080_3F80
        one.run()
        sums = len(re.findall(r"add.rn.f32 %s", kernel.ptx))
        assert one.memory == {0: sums, 4: 1}

    def test_sums_are_exact_in_fp32(self, kernel: Kernel) -> None:
        largest = 16 * 5 * (63 + 3)
        assert abs(kernel.sum) + largest + 255 + 128 < 1 << 24

    def test_every_register_is_declared_and_every_sum_is_used(self, kernel: Kernel) -> None:
        used = set(re.findall(r"%[a-z]+[0-9]*(?!<)\b", kernel.ptx)) - {"%tid", "%s"}
        assert used == declared(kernel.ptx)

    def test_it_is_ascii_and_has_one_entry(self, kernel: Kernel) -> None:
        assert kernel.ptx.isascii()
        assert re.findall(r"\.entry (\w+)\(", kernel.ptx) == [kernel.name]
