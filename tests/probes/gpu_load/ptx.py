"""Interpreter of the kernels' PTX: one thread, whose warp computes the same.

All threads of its block have written their part of the shared memory at its barrier.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from typing import Any

from gpu_healthcheck.healthcheck.probes.gpu_load.kernels import THREADS

_LABEL = re.compile(r"(\w+):\Z")
_GUARD = re.compile(r"@(%\w+)\s+(.*)\Z", re.DOTALL)
_DECLARED = re.compile(r"\.reg \.\w+ ([^;]+);")


def fp32(value: float) -> float:
    """Round to FP32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def bf16(word: int) -> tuple[float, float]:
    low, high = (struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in (word & 0xFFFF, word >> 16))
    return low, high


def declared(ptx: str) -> set[str]:
    """Return the names of all declared registers."""
    names: set[str] = set()
    for group in _DECLARED.findall(ptx):
        for name in group.split(","):
            base, _, count = name.strip().rstrip(">").partition("<")
            names |= {f"{base}{number}" for number in range(int(count))} if count else {base}
    return names


@functools.cache
def _statements(ptx: str) -> list[str]:
    body = ptx[ptx.index("{") + 1 : ptx.rindex("}")]
    parts = re.split(r";|(?<=again:)", body)
    return [
        " ".join(part.split()) for part in parts if part.strip() and not part.strip().startswith((".reg", ".shared"))
    ]


def _offset(address: str) -> int:
    return int(address.strip("[]").partition("+")[2] or 0)


def _two(high: float, low: float) -> int:
    """Return two BF16 values in one word."""
    upper, lower = (struct.unpack("<I", struct.pack("<f", value))[0] for value in (high, low))
    assert (upper | lower) & 0xFFFF == 0, "the values are exact in BF16"
    word: int = upper | lower >> 16
    return word


_RESULTS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(["cvta.to.global.u64", "cvt.u64.u32", "mov.u32"], lambda value: value),
    "mov.b32": lambda word: struct.unpack("<f", struct.pack("<I", word))[0],
    "cvt.rn.f32.u32": fp32,
    "cvt.rn.bf16x2.f32": _two,
    "add.rn.f32": lambda one, other: fp32(one + other),
    "sub.rn.f32": lambda one, other: fp32(one - other),
    "fma.rn.f32": lambda one, other, third: fp32(one * other + third),
    "mad.lo.u32": lambda one, other, third: one * other + third,
    **dict.fromkeys(["add.s32", "add.u32", "add.u64"], lambda one, other: one + other),
    "and.b32": lambda one, other: one & other,
    "or.b64": lambda one, other: one | other,
    "shl.b32": lambda word, bits: word << bits & 0xFFFF_FFFF,
    **dict.fromkeys(["shr.u32", "shr.u64"], lambda word, bits: word >> bits),
    "setp.eq.u32": lambda one, other: one == other,
    **dict.fromkeys(["setp.ne.s32", "setp.ne.u32", "setp.neu.f32"], lambda one, other: one != other),
    **dict.fromkeys(["selp.u32", "selp.f32"], lambda one, other, predicate: one if predicate else other),
}
"""Results of the instructions, from their sources."""


class Thread:
    """One thread. `memory` are the counters of the results."""

    def __init__(self, ptx: str, parameters: dict[str, Any], number: int = 0) -> None:
        self.ptx = ptx
        self.statements = _statements(ptx)
        self.parameters = parameters
        self.number = number
        self.registers: dict[str, Any] = {}
        self.memory = {0: 0, 4: 0}
        self.operations = 0
        self.shared: dict[int, int] = {}
        """Words of the block's shared memory, by address."""

    def run(self, until: str = "ret") -> None:
        labels = {found[1]: place for place, text in enumerate(self.statements) if (found := _LABEL.match(text))}
        place = 0
        while (text := self.statements[place]) != until:
            place += 1
            if _LABEL.match(text):
                continue
            if guard := _GUARD.match(text):
                if not self.registers[guard[1]]:
                    continue
                text = guard[2]
            if text.startswith("bra "):
                place = labels[text.removeprefix("bra ")]
            else:
                self._execute(text)

    def _value(self, text: str) -> Any:
        if text.startswith("0f"):
            return struct.unpack(">f", bytes.fromhex(text[2:]))[0]
        if text == "%tid.x":
            return self.number
        if text == "matrices":
            return 0
        return self.registers[text] if text.startswith("%") else int(text)

    def _execute(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        target, *sources = (part.strip() for part in rest.split(","))
        if name.startswith("mma."):
            self._multiply(rest)
        elif name.startswith("wgmma.mma_async"):
            self._multiply_by_shared(rest)
        elif name == "bar.sync":
            self._let_the_block_write(text)
        elif name.startswith("ld.param"):
            self.registers[target] = self.parameters[sources[0].strip("[]")]
        elif name == "red.global.add.u32":
            self.memory[_offset(target)] += self._value(sources[0])
        elif name == "st.shared.b32":
            base = target.strip("[]").partition("+")[0]
            self.shared[self._value(base) + _offset(target)] = self._value(sources[0])
        elif not name.startswith(("wgmma.", "fence.")):
            self.registers[target] = _RESULTS[name](*(self._value(source) for source in sources))
            self.operations += 2 * (name == "fma.rn.f32" and target.startswith("%s"))

    def _let_the_block_write(self, barrier: str) -> None:
        for number in range(THREADS):
            other = Thread(self.ptx, self.parameters, number)
            other.run(until=barrier)
            self.shared |= other.shared

    def _multiply(self, rest: str) -> None:
        """Apply m16n8k16 to a warp whose lanes hold the same factors: 8 pairs of each row and column."""
        targets, first, second, sums = (
            [name.strip() for name in group.split(",")] for group in re.findall(r"{(.*?)}", rest)
        )
        assert (len(targets), len(first), len(second), len(set(first)), len(set(second))) == (4, 4, 2, 1, 1)
        (x, y), (u, v) = bf16(self._value(first[0])), bf16(self._value(second[0]))
        for target, old in zip(targets, sums, strict=True):
            self.registers[target] = fp32(self._value(old) + 8 * (x * u + y * v))
        self.operations += 2 * 16 * 8 * 16 // 32

    def _multiply_by_shared(self, rest: str) -> None:
        """Apply m64n256k16: the rows of the first factor are equal, the second one is in shared memory."""
        targets, first = ([name.strip() for name in group.split(",")] for group in re.findall(r"{(.*?)}", rest))
        descriptor, add, *flags = (part.strip() for part in rest.rpartition("}, ")[2].split(","))
        assert (len(targets), len(first), len(set(first)), self._value(add), flags) == (
            128,
            4,
            1,
            True,
            ["1", "1", "0"],
        )
        gains = self._gains(self._value(first[0]), self._value(descriptor))
        for index, target in enumerate(targets):
            column = 8 * (index // 4) + 2 * (self.number % 4) + index % 2  # PTX ISA, fragment D of wgmma.m64nNk16
            self.registers[target] = fp32(self.registers[target] + gains[column])
        self.operations += 2 * 64 * 256 * 16 // 128

    def _gains(self, word: int, descriptor: int) -> list[float]:
        """Return what each column gains. The second factor is in core matrices of 8 columns by 8 rows of BF16."""
        factors = bf16(word)
        start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
        gains = []
        for column in range(256):
            at = start + column // 8 * stride + column % 8 * 16
            words = [self.shared[at + group * leading + 4 * pair] for group in range(2) for pair in range(4)]
            gains.append(sum(x * y for word in words for x, y in zip(factors, bf16(word), strict=True)))
        return gains
