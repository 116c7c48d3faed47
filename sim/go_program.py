"""A program as Go's linker makes it, as far as anybody reads: an ELF head, and the section of its build information."""

from __future__ import annotations

import struct

_FRAME = b"\x30\x77\xaf\x0c\x92\x74\x08\x02\x41\xe1\xc1\x07\xe6\xd6\x18\xe6"
_END = b"\xf9\x32\x43\x31\x86\x18\x20\x72\x00\x82\x42\x10\x41\x16\xd8\xf2"
_HEAD_BYTES = 64
X86_64, AARCH64 = 62, 183


def go_program(*lines: str, machine: int = X86_64) -> bytes:
    """`lines` are those that `go version -m` prints, their words apart by a tab."""
    modules = _FRAME + "".join(f"{line}\n" for line in lines).encode() + _END
    info = b"\xff Go buildinf:" + b"\x08\x02" + bytes(16) + _string(b"go1.24.5") + _string(modules)
    names = b"\0.shstrtab\0.go.buildinfo\0"
    sections = _section(0, 0, 0) + _section(1, _HEAD_BYTES, len(names))
    sections += _section(11, _HEAD_BYTES + len(names), len(info))
    table_at = _HEAD_BYTES + len(names) + len(info)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    rest = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, table_at, 0, _HEAD_BYTES, 0, 0, 64, 3, 1)
    return ident + rest + names + info + sections


def containerd(version: str) -> bytes:
    """The upstream's own build of a release, such as 2.1.4."""
    module = "github.com/containerd/containerd" + ("/v2" if version.startswith("2.") else "")
    return go_program(f"path\t{module}/cmd/containerd", f"mod\t{module}\tv{version}\t")


def _string(raw: bytes) -> bytes:
    return _varint(len(raw)) + raw


def _varint(number: int) -> bytes:
    """As Go's encoding/binary has it."""
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + _varint(number >> 7)


def _section(name: int, offset: int, size: int) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)
