"""Two kernels of the load test, as PTX that the driver compiles for its GPU.

Each thread adds products of small whole numbers, so every sum is exact in FP32 and known in advance. Operands stay in
registers and change with each instruction, so that the inputs of the arithmetic units toggle. They are parameters: a
compiler cannot replace the arithmetic by its result.

The kernels measure the arithmetic units at the clock that power and temperature allow, and no memory. Their figures are
not those of a matrix multiplication of a library: on Hopper and later, a library uses faster instructions of the tensor
cores (wgmma, tcgen05).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

THREADS = 256
"""Threads of a block."""
_HEAD = """\
.version 7.0
.target {target}
.address_size 64

.visible .entry {name}(
  .param .u64 results, .param .u32 rounds,
  .param .b32 a, .param .b32 b, .param .b32 c, .param .b32 d, .param .f32 sum)
{{
  .reg .pred %p;
  .reg .b64 %to;
  .reg .b32 %left, %wrong, %one;
  .reg .{kind} %a, %b, %c, %d;
  .reg .f32 %start, %sum, %diff, %s<{sums}>;
  ld.param.u64 %to, [results];
  cvta.to.global.u64 %to, %to;
  ld.param.u32 %left, [rounds];
  ld.param.{kind} %a, [a];
  ld.param.{kind} %b, [b];
  ld.param.{kind} %c, [c];
  ld.param.{kind} %d, [d];
  ld.param.f32 %sum, [sum];
  mov.u32 %one, %tid.x;
  cvt.rn.f32.u32 %start, %one;
"""
_TAIL = """\
  setp.ne.u32 %p, %wrong, 0;
  @%p red.global.add.u32 [%to], %wrong;
  mov.u32 %one, 1;
  red.global.add.u32 [%to+4], %one;
  ret;
}
"""


class Kernel(Struct, frozen=True):
    """One kernel and its launch. Two counters in its results: wrong sums, and threads that finished."""

    name: str
    ptx: str
    capability: int
    """Lowest major compute capability."""
    blocks_per_processor: int
    """Blocks for each multiprocessor: several waves, so that an uneven first one does not count."""
    rounds: int
    operands: bytes
    """The four operands of 32 bits: two factors, and the two factors of the next instruction."""
    sum: float
    """Value that each sum must have gained at the end."""
    flops: int
    """Operations of one thread in one launch."""

    def threads(self, processors: int) -> int:
        """Return the number of threads of one launch."""
        return THREADS * self.blocks_per_processor * processors


def _kernel(name: str, target: str, kind: str, sums: int, loop: Iterable[str]) -> str:
    # All sums start at different values: a compiler could compute equal ones once.
    first = {number: "0f" + struct.pack(">f", number).hex().upper() for number in range(sums)}
    started = [f"  add.rn.f32 %s{number}, %start, {value};" for number, value in first.items()]
    compared = [
        f"  sub.rn.f32 %diff, %s{number}, %start;\n"
        f"  sub.rn.f32 %diff, %diff, {value};\n"
        "  setp.neu.f32 %p, %diff, %sum;\n"
        "  selp.u32 %one, 1, 0, %p;\n"
        "  add.u32 %wrong, %wrong, %one;"
        for number, value in first.items()
    ]
    again = ["  add.s32 %left, %left, -1;", "  setp.ne.s32 %p, %left, 0;", "  @%p bra again;", "  mov.u32 %wrong, 0;"]
    head = _HEAD.format(name=name, target=target, kind=kind, sums=sums)
    return head + "\n".join([*started, "again:", *loop, *again, *compared, _TAIL])


def _fp32() -> Kernel:
    sums, pairs, rounds = 16, 8, 8192
    each = [
        f"  fma.rn.f32 %s{number}, {factors}, %s{number};" for factors in ("%a, %b", "%c, %d") for number in range(sums)
    ]
    return Kernel(
        "fp32",
        _kernel("fp32", "sm_70", "f32", sums, each * pairs),
        capability=7,
        blocks_per_processor=32,
        rounds=rounds,
        operands=struct.pack("<4f", 3, 5, -7, 2),
        sum=float(rounds * pairs * (3 * 5 - 7 * 2)),
        flops=rounds * pairs * sums * 2 * 2,
    )


def _bf16() -> Kernel:
    """Return the kernel with mma.m16n8k16: a warp multiplies 16 by 16 with 16 by 8 values, and adds 16 by 8 sums.

    All pairs of the first factor are equal, and all values of the second one. Each sum therefore gains 8 * (x + y) * b,
    whichever lane holds which value.
    """
    tiles, pairs, rounds, warp = 8, 4, 8192, 32
    each = []
    for first, second in (("%a", "%b"), ("%c", "%d")):
        for tile in range(tiles):
            own = ", ".join(f"%s{4 * tile + number}" for number in range(4))
            each.append(
                "  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
                f"    {{{own}}}, {{{', '.join([first] * 4)}}}, {{{second}, {second}}}, {{{own}}};"
            )
    return Kernel(
        "bf16",
        _kernel("bf16", "sm_80", "b32", 4 * tiles, each * pairs),
        capability=8,
        blocks_per_processor=16,
        rounds=rounds,
        operands=_two(3, -1) + _two(2, 2) + _two(-5, 4) + _two(3, 3),
        sum=float(rounds * pairs * 8 * ((3 - 1) * 2 + (-5 + 4) * 3)),
        flops=rounds * pairs * tiles * 2 * (2 * 16 * 8 * 16) // warp,
    )


def _two(low: float, high: float) -> bytes:
    """Return two BF16 values in one register: the upper halves of FP32 values."""
    return struct.pack("<f", low)[2:] + struct.pack("<f", high)[2:]


KERNELS = (_fp32(), _bf16())
