"""Interpreter of the kernels' PTX: one thread, whose warp computes the same."""

from __future__ import annotations

import re
import struct
from typing import Any

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


def statements(ptx: str) -> list[str]:
    body = ptx[ptx.index("{") + 1 : ptx.rindex("}")]
    parts = re.split(r";|(?<=again:)", body)
    return [" ".join(part.split()) for part in parts if part.strip() and not part.strip().startswith(".reg")]


class Thread:
    """One thread. `memory` are the counters of the results."""

    def __init__(self, ptx: str, parameters: dict[str, Any], number: int = 0) -> None:
        self.statements = statements(ptx)
        self.parameters = parameters
        self.number = number
        self.registers: dict[str, Any] = {}
        self.memory = {0: 0, 4: 0}
        self.operations = 0

    def run(self) -> None:
        labels = {found[1]: place for place, text in enumerate(self.statements) if (found := _LABEL.match(text))}
        place = 0
        while (text := self.statements[place]) != "ret":
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
        return self.registers[text] if text.startswith("%") else int(text)

    def _execute(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name.startswith("mma."):
            return self._multiply(rest)
        target, *sources = (part.strip() for part in rest.split(","))
        if name.startswith("ld.param"):
            self.registers[target] = self.parameters[sources[0].strip("[]")]
            return None
        if name == "red.global.add.u32":
            offset = int(target.strip("[]").partition("+")[2] or 0)
            self.memory[offset] += self._value(sources[0])
            return None
        values = [self._value(source) for source in sources]
        match name:
            case "cvta.to.global.u64" | "mov.u32" | "mov.f32":
                result = values[0]
            case "cvt.rn.f32.u32":
                result = fp32(values[0])
            case "add.rn.f32":
                result = fp32(values[0] + values[1])
            case "sub.rn.f32":
                result = fp32(values[0] - values[1])
            case "fma.rn.f32":
                result = fp32(values[0] * values[1] + values[2])
                self.operations += 2
            case "add.s32" | "add.u32":
                result = values[0] + values[1]
            case "setp.ne.s32" | "setp.ne.u32" | "setp.neu.f32":
                result = values[0] != values[1]
            case "selp.u32":
                result = values[0] if values[2] else values[1]
            case _:
                raise ValueError(name)
        self.registers[target] = result
        return None

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
