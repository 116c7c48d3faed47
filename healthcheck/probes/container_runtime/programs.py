"""A program on the host: where it lies, whether it can be run, for which machine it is, and of what Go made it.

Only heads and one section of a file are read, never a whole one: containerd has some 50 MB. An own reader of these few
fields of ELF (elf(5)) and of Go's build information (Go's package debug/buildinfo) instead of pyelftools, whose import
alone takes 5.5 MB of the agent's memory, and 0.2 s, for what struct does in a few lines.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from healthcheck.host import host_files
from healthcheck.host.opening import open_file
from healthcheck.probes.container_runtime import named_paths
from healthcheck.probes.container_runtime.facts import Program

SEARCHED = (
    "/usr/local/sbin/",
    "/usr/local/bin/",
    "/usr/sbin/",
    "/usr/bin/",
    "/sbin/",
    "/bin/",
    "/snap/bin/",
    "/snap/microk8s/current/usr/bin/",
)
"""Where a service looks for a program that is named without its folder (systemd's default PATH), and the snaps'."""
_MACHINES = {
    3: "i686",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
"""By e_machine, as uname says it; of POWER those that GPUs are in, which are little-endian."""
_ELF = b"\x7fELF"
_ELF_CLASS, _ELF_64 = 4, 2
_ELF_DATA, _BIG_ENDIAN = 5, 2
_HEAD_BYTES = 64
_SECTION_BYTES = 64
_MOST_SECTIONS = 256
_MOST_NAMES = 64 << 10
_MOST_INFO = 1 << 20
"""Of `.go.buildinfo`; that of a kubelet has 20 KiB."""
_INFO_SECTION = b".go.buildinfo"
_INFO_MAGIC = b"\xff Go buildinf:"
_INFO_HEAD_BYTES = 32
_STRINGS_INLINE = 2
"""The flag of Go 1.18 and later: the strings follow the head, each after its length as a varint."""
_LONGEST_VARINT = 10
_FARTHEST = 1 << 62
_FRAME_BYTES = 16
"""Around the list of modules, so that it is found in a core dump too."""


def find(root: Path, named: str) -> Program:
    """The program as a service finds it: by its path, or in the folders of its PATH the first that can be run."""
    paths = [named] if "/" in named else [f"{folder}{named}" for folder in SEARCHED]
    there = [path for path in paths if _is_file(root, path)]
    path = next((one for one in there if host_files.is_executable(root, one)), there[0] if there else "")
    if not path:
        return Program(named)
    return Program(named, path, host_files.is_executable(root, path), architecture(root, path))


def can_be_told(root: Path, named: str) -> bool:
    """Whether a program that is not found is missing. A captured tree has of the programs' folders none, or few.

    One with /sys is taken for whole, but for folders just below the root that are empty or not there.
    """
    folders = [named.rpartition("/")[0]] if "/" in named else SEARCHED
    if any(named_paths.has_entries(root, folder) for folder in folders):
        return True
    return (root / "sys").exists() and any(named_paths.has_entries(root, one.split("/")[1]) for one in folders)


def architecture(root: Path, path: str) -> str:
    """The machine that an ELF file is for, as uname says it; '' for another file and where it can't be read."""
    try:
        with _opened(host_files.below(root, path)) as file:
            head = os.pread(file, _HEAD_BYTES, 0)
    except OSError:
        return ""
    if not head.startswith(_ELF) or len(head) < _HEAD_BYTES:
        return ""
    (machine,) = struct.unpack_from(f"{_order(head)}H", head, 18)
    return _MACHINES.get(machine, "")


def go_version_of_module(root: Path, path: str, module: str) -> str:
    """The version of the Go module in the program, as `2.1.4` or `2.1.4-k3s1`; '' where it is not in it, or no Go.

    Of a build that tells no version, only the major one that the module's path ends with: `2`, `1` without one.
    """
    try:
        file = host_files.below(root, path)
        about = file.stat()
        return _version_of(_build_info(file, (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)), module)
    except OSError:
        return ""


def _version_of(build_info: str, module: str) -> str:
    """From what `go version -m` prints: of the main module, or of a dependency or what it was replaced with."""
    is_ours = re.compile(rf"{re.escape(module)}(?:/v(\d{{1,6}}))?").fullmatch
    given_by_linker = re.compile(rf"{re.escape(module)}(?:/v\d+)?/version\.Version=([\w.+~-]+)").search
    major = told = linked = above = ""
    for line in build_info.split("\n"):
        kind, name, version, *_ = [*line.split("\t"), "", ""]
        if kind in ("mod", "dep") and (found := is_ours(name)):
            major, told = found[1] or "1", version
        elif kind == "path" and (found := is_ours(name.partition("/cmd/")[0])):
            major = found[1] or "1"
        elif kind == "=>" and above in ("mod", "dep") and told:
            told = version
        elif kind == "build" and name.startswith("-ldflags=") and (found := given_by_linker(name)):
            linked = found[1]
        above = kind if kind not in ("mod", "dep") or is_ours(name) else ""
    version = next((one.removeprefix("v") for one in (told, linked) if _is_version(one)), major)
    return version.partition("+")[0] if major else ""


def _is_version(told: str) -> bool:
    """One that somebody gave: neither `(devel)` nor a commit that follows none."""
    return re.fullmatch(r"v?[1-9]\d{0,5}\.\d[\w.+~-]{0,60}", told) is not None


@functools.lru_cache(maxsize=32)
def _build_info(file: Path, seen_as: tuple[int, ...]) -> str:  # noqa: ARG001
    """What the linker wrote of the modules; '' where there is nothing of it. Raises OSError.

    Remembered as long as the file is the same: `seen_as` is its device, inode, time of its last change, and size.
    """
    with _opened(file) as number:
        section = _section(number, _INFO_SECTION)
    if not section.startswith(_INFO_MAGIC) or not section[len(_INFO_MAGIC) + 1] & _STRINGS_INLINE:
        return ""  # Go before 1.18 wrote pointers into the loaded program: no containerd that is still used
    _, rest = _varint_string(section[_INFO_HEAD_BYTES:])
    modules, _ = _varint_string(rest)
    return modules[_FRAME_BYTES:-_FRAME_BYTES].decode(errors="replace")


def _section(file: int, name: bytes) -> bytes:
    """The first MiB of the section; b"" where there is none, or it is no 64-bit ELF file."""
    head = os.pread(file, _HEAD_BYTES, 0)
    if len(head) < _HEAD_BYTES or not head.startswith(_ELF) or head[_ELF_CLASS] != _ELF_64:
        return b""
    (at,) = struct.unpack_from(f"{_order(head)}Q", head, 40)
    size, count, names = struct.unpack_from(f"{_order(head)}HHH", head, 58)
    if size != _SECTION_BYTES or not names < count <= _MOST_SECTIONS:
        return b""
    table = _pread(file, size * count, at)
    entries = list(struct.iter_unpack(f"{_order(head)}II8x8xQQ24x", table[: len(table) // size * size]))
    if len(entries) != count:
        return b""
    _, _, names_at, names_size = entries[names]
    text = _pread(file, min(names_size, _MOST_NAMES), names_at)
    for named, _, begin, length in entries:
        if text[named:].partition(b"\0")[0] == name:
            return _pread(file, min(length, _MOST_INFO), begin)
    return b""


def _varint_string(raw: bytes) -> tuple[bytes, bytes]:
    """A string after its length in Go's varint, and what follows; empty where it is cut off."""
    length = 0
    for place, byte in enumerate(raw[:_LONGEST_VARINT]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return raw[place + 1 : place + 1 + length], raw[place + 1 + length :]
    return b"", b""


def _pread(file: int, size: int, offset: int) -> bytes:
    """b"" at a place that no file has."""
    return os.pread(file, size, offset) if offset < _FARTHEST else b""


def _order(head: bytes) -> str:
    return ">" if head[_ELF_DATA] == _BIG_ENDIAN else "<"


def _is_file(root: Path, path: str) -> bool:
    try:
        return stat.S_ISREG(host_files.below(root, path).stat().st_mode)
    except OSError:
        return False


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    number = open_file(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "no plain file", str(file))
        yield number
    finally:
        os.close(number)
