"""Kernels of the load test, as PTX that the driver compiles for its GPU.

Each thread adds products of small whole numbers, so every sum is exact in FP32 and known in advance. Operands stay in
registers or in shared memory and change with each instruction, so that the inputs of the arithmetic units toggle. They
are parameters: a compiler cannot replace the arithmetic by its result.

The kernels measure the arithmetic units at the clock that power and temperature allow, and no memory of the GPU. Only
on Blackwell do libraries have faster instructions for BF16 (tcgen05).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

THREADS = 256
"""Threads of a block."""
_NEWEST = 100
"""Bound of the major compute capabilities."""
_HOPPER = "sm_90a"
"""Target of instructions that only compute capability 9.0 has."""
_HEAD = """\
.version {version}
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
    capabilities: frozenset[int]
    """Major compute capabilities of its GPUs."""
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


def _ptx(name: str, target: str, kind: str, sums: int, loop: Iterable[str], before: str = "") -> str:
    # All sums start at different values: a compiler could compute equal ones once.
    constants = {index: "0f" + struct.pack(">f", index).hex().upper() for index in range(sums)}
    started = [f"  add.rn.f32 %s{index}, %start, {constant};" for index, constant in constants.items()]
    compared = [
        f"  sub.rn.f32 %diff, %s{index}, %start;\n"
        f"  sub.rn.f32 %diff, %diff, {constant};\n"
        "  setp.neu.f32 %p, %diff, %sum;\n"
        "  selp.u32 %one, 1, 0, %p;\n"
        "  add.u32 %wrong, %wrong, %one;"
        for index, constant in constants.items()
    ]
    again = ["  add.s32 %left, %left, -1;", "  setp.ne.s32 %p, %left, 0;", "  @%p bra again;", "  mov.u32 %wrong, 0;"]
    version = "8.0" if target == _HOPPER else "7.0"  # the first version with the instructions
    head = _HEAD.format(version=version, name=name, target=target, kind=kind, sums=sums)
    return head + "\n".join([before, *started, "again:", *loop, *again, *compared, _TAIL])


def _fp32() -> Kernel:
    sums, pairs, rounds = 16, 8, 8192
    instructions = [
        f"  fma.rn.f32 %s{index}, {factors}, %s{index};" for factors in ("%a, %b", "%c, %d") for index in range(sums)
    ]
    return Kernel(
        "fp32",
        _ptx("fp32", "sm_70", "f32", sums, instructions * pairs),
        capabilities=frozenset(range(7, _NEWEST)),
        blocks_per_processor=32,
        rounds=rounds,
        operands=struct.pack("<4f", 3, 5, -7, 2),
        sum=float(rounds * pairs * (3 * 5 - 7 * 2)),
        flops=rounds * pairs * sums * 2 * 2,
    )


def _bf16_of_warps() -> Kernel:
    """Return the kernel with mma.m16n8k16: a warp multiplies 16 by 16 with 16 by 8 values, and adds 16 by 8 sums.

    All pairs of the first factor are equal, and all values of the second one. Each sum therefore gains 8 * (x + y) * b,
    whichever lane holds which value.
    """
    tiles, pairs, rounds, warp = 8, 4, 8192, 32
    instructions = []
    for first, second in (("%a", "%b"), ("%c", "%d")):
        for tile in range(tiles):
            own = ", ".join(f"%s{4 * tile + index}" for index in range(4))
            instructions.append(
                "  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32\n"
                f"    {{{own}}}, {{{', '.join([first] * 4)}}}, {{{second}, {second}}}, {{{own}}};"
            )
    return Kernel(
        "bf16",
        _ptx("bf16", "sm_80", "b32", 4 * tiles, instructions * pairs),
        capabilities=frozenset(range(8, _NEWEST)) - {9},
        blocks_per_processor=16,
        rounds=rounds,
        operands=_BF16_OPERANDS,
        sum=float(rounds * pairs * _BF16_GAIN),
        flops=rounds * pairs * tiles * 2 * (2 * 16 * 8 * 16) // warp,
    )


def _bf16_of_hopper() -> Kernel:
    """Return the kernel with wgmma.m64n256k16: four warps multiply 64 by 16 with 16 by 256 values, and add the sums.

    The first factor is in registers, and the second one in shared memory: one matrix of 8 KiB with each operand. Its
    values differ, so that more inputs toggle, but the mean of eight values in 16 bytes is the operand. Each column
    consists of such groups, in whatever order the descriptor (PTX ISA, "Matrix Descriptor Format") reads them.
    """
    sums, pairs, rounds, matrix, threads = 128, 8, 4096, 8192, 128
    written = [
        f"  mad.lo.u32 %other, %half, 5, {17 * index};\n"
        "  and.b32 %other, %other, 63;\n"
        "  cvt.rn.f32.u32 %diff, %other;\n"
        f"  fma.rn.f32 %diff, %diff, %sign, {'%first' if index < matrix // (4 * THREADS) else '%second'};\n"
        "  cvt.rn.bf16x2.f32 %other, %diff, %diff;\n"
        f"  st.shared.b32 [%own+{4 * THREADS * index}], %other;"
        for index in range(2 * matrix // (4 * THREADS))
    ]
    before = "\n".join(
        [
            f"  .shared .align 128 .b8 matrices[{2 * matrix}];",
            "  .reg .b32 %own, %half, %other;",
            "  .reg .f32 %sign, %first, %second;",
            "  .reg .b64 %even, %odd;",
            "  .reg .pred %add;",
            "  mov.u32 %own, matrices;",
            "  cvt.u64.u32 %even, %own;",
            "  and.b32 %other, %one, 1;",
            "  setp.ne.u32 %p, %other, 0;",
            "  selp.f32 %sign, 0fBF800000, 0f3F800000, %p;",
            "  shr.u32 %half, %one, 1;",
            "  shl.b32 %other, %b, 16;",
            "  mov.b32 %first, %other;",
            "  shl.b32 %other, %d, 16;",
            "  mov.b32 %second, %other;",
            "  shl.b32 %one, %one, 2;",
            "  add.u32 %own, %own, %one;",
            *written,
            "  shr.u64 %even, %even, 4;",
            # Core matrices of 8 by 16 bytes: 128 bytes apart in one direction, and 256 in the other.
            f"  or.b64 %even, %even, {256 // 16 << 32 | 128 // 16 << 16};",
            f"  add.u64 %odd, %even, {matrix // 16};",
            "  setp.eq.u32 %add, 0, 0;",
            "  fence.proxy.async.shared::cta;",
            "  bar.sync 0;",
        ]
    )
    own = ", ".join(f"%s{index}" for index in range(sums))
    instructions = [
        f"  wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16\n"
        f"    {{{own}}}, {{{', '.join([first] * 4)}}}, {second}, %add, 1, 1, 0;"
        for first, second in (("%a", "%even"), ("%c", "%odd"))
    ]
    waited = ["  wgmma.commit_group.sync.aligned;", "  wgmma.wait_group.sync.aligned 0;"]
    return Kernel(
        "bf16",
        _ptx("bf16", _HOPPER, "b32", sums, ["  wgmma.fence.sync.aligned;", *instructions * pairs, *waited], before),
        capabilities=frozenset({9}),
        blocks_per_processor=8,
        rounds=rounds,
        operands=_BF16_OPERANDS,
        sum=float(rounds * pairs * _BF16_GAIN),
        flops=rounds * pairs * 2 * (2 * 64 * 256 * 16) // threads,
    )


def _two(low: float, high: float) -> bytes:
    """Return two BF16 values in one register: the upper halves of FP32 values."""
    return struct.pack("<f", low)[2:] + struct.pack("<f", high)[2:]


_BF16_OPERANDS = _two(3, -1) + _two(2, 2) + _two(-5, 4) + _two(3, 3)
_BF16_GAIN = 8 * ((3 - 1) * 2 + (-5 + 4) * 3)
"""Gain of each sum by two instructions, which multiply 16 pairs of values."""
KERNELS = (_fp32(), _bf16_of_warps(), _bf16_of_hopper())
