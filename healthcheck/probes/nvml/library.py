"""The driver's library: its location under a host's root, and its loading into this process, once.

The process that reads NVML also loads this module, so it imports as few modules as possible.
"""

from __future__ import annotations

import ctypes
import os
import sys

SONAME = "libnvidia-ml.so.1"
_LINUX_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
_DRIVER_ROOT, _TREES = "run/nvidia/driver", "opt/nvidia"
"""Folder of the GPU operator's driver, and that of drivers side by side (EKS AL2023 AMI from v20260917).

The AMI has a tree of each driver, `lts` and `pb`. At boot it renames that of its GPUs to `current`, removes the other,
and mounts `current/usr/lib64` over /usr/lib64 or copies it there (amazon-eks-ami, resolve-nvidia-driver.sh). A
container may not see that mount.
"""
_MOST_TREES = 16
_OTHER_PLACES = (
    "home/kubernetes/bin/nvidia/lib64",
    "usr/local/nvidia/lib64",
    "opt/nvidia/lib64",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "usr/local/glibc/usr/lib",
)
PLACES = (
    *_LINUX_DIRECTORIES,
    *(f"{_DRIVER_ROOT}/{directory}" for directory in _LINUX_DIRECTORIES),
    f"{_TREES}/current/usr/lib64",
    *_OTHER_PLACES,
)
"""Folders of the driver's library under a host's root."""


class Library:
    """The driver's library, loaded once in the lifetime of this process."""

    def __init__(self, root: str, use_loader: bool) -> None:
        self.path = load(root, use_loader)
        self._file = _identity(self.path)

    def replaced(self) -> bool:
        """Whether another file replaced the library.

        A new driver was installed then, and a mismatch would persist forever.
        """
        return _identity(self.path) != self._file


def resolve_inside(root: str, path: str) -> str:
    """Follow symbolic links below the host's root: a target `/usr/lib/x` is the host's, not this container's."""
    links = 0
    parts = path.strip("/").split("/")
    real = ""
    while parts:
        part = parts.pop(0)
        if part == "..":
            real = real.rpartition("/")[0]
            continue
        real_path = f"{real}/{part}"
        if part in ("", ".") or not os.path.islink(root + real_path):
            real = real if part in ("", ".") else real_path
            continue
        links += 1
        if links > 40:
            raise OSError(f"{root}/{path.strip('/')}: too many symbolic links")
        target = os.readlink(root + real_path)
        parts = target.strip("/").split("/") + parts
        if target.startswith("/"):
            real = ""
    return root + real


def all_places(root: str) -> tuple[str, ...]:
    """Return PLACES, then those of the trees whose library has the version of the loaded kernel module."""
    base = root.rstrip("/")
    trees = _tree_places(base)
    version = _module_version(base) if trees else ""
    return (*PLACES, *(place for place in trees if _has_version(base, place, version)))


def places_by_version(root: str) -> list[str]:
    """Return all places, first those with a library of the loaded kernel module's version: NVML works with no other."""
    base = root.rstrip("/")
    version = _module_version(base)
    return sorted(all_places(root), key=lambda place: not _has_version(base, place, version))


def _tree_places(base: str) -> list[str]:
    try:
        trees = sorted(os.listdir(resolve_inside(base, _TREES)))[:_MOST_TREES]
    except OSError:
        return []
    places = [f"{_TREES}/{tree}/{directory}" for tree in trees for directory in _LINUX_DIRECTORIES]
    return [place for place in places if place not in PLACES]


def _module_version(base: str) -> str:
    try:
        with open(f"{base}/sys/module/nvidia/version", encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _has_version(base: str, place: str, version: str) -> bool:
    """Whether the file of the library there has this version in its name."""
    try:
        return bool(version) and resolve_inside(base, f"{place}/{SONAME}").endswith(f".so.{version}")
    except OSError:
        return False


def load(root: str, use_loader: bool, soname: str = SONAME) -> str:
    """Load a library of the driver into this process and return its path. Raises OSError."""
    tried = []
    if use_loader:
        try:
            ctypes.CDLL(soname, mode=ctypes.RTLD_GLOBAL)
            return _mapped(soname)
        except OSError as error:
            tried.append(f"in the loader's own path: {error}")
    base = root.rstrip("/")
    refused: dict[str, str] = {}
    for place in places_by_version(root):
        link = path = f"{base}/{place}/{soname}"
        try:
            # All links on the path are the host's. The kernel would resolve an absolute link in this container.
            if not os.path.lexists(f"{resolve_inside(base, place)}/{soname}"):
                continue
            path = resolve_inside(base, f"{place}/{soname}")
            if path in refused:  # already tried: on most hosts, /lib64 is a link to /usr/lib64
                continue
            _refuse_foreign(path)
            # The process then has a library with this SONAME, which pynvml finds by name.
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            refused[path] = _why(link, path, str(error))
        else:
            return path
    raise OSError("; ".join([*tried, *(refused.values() or [_not_found(root, soname)])]))


def _not_found(root: str, soname: str) -> str:
    """Return a text with all places where the library was searched."""
    base = root.rstrip("/")
    other_places = ", ".join(place for place in _tree_places(base) if os.path.lexists(f"{base}/{place}/{soname}"))
    unfit = f"; not of kernel module {_module_version(base) or '(none)'}: {other_places}" if other_places else ""
    return (
        f"{soname} was not found under {root}: not in {', '.join(_LINUX_DIRECTORIES)}, the same below {_DRIVER_ROOT} "
        f"and {_TREES}/*, nor in {', '.join(_OTHER_PLACES)}{unfit}"
    )


def _refuse_foreign(path: str) -> None:
    """Raise OSError for a library of another architecture, or for a truncated library.

    The loader would report the first as a missing file, and die by SIGBUS on the second. For a file that is not ELF,
    the loader's message is correct.
    """
    if not os.path.isfile(path):
        return
    ours, theirs = _elf_header("/proc/self/exe"), _elf_header(path)
    if len(theirs) < 64 or theirs[:5] != ours[:5]:
        return
    if theirs[18:20] != ours[18:20]:
        raise OSError(f"{path}: built for {_machine(theirs)}, but this machine is {_machine(ours)}")
    # Elf64_Ehdr: e_shoff at 40, e_shentsize at 58, e_shnum at 60; the section headers end the file.
    end = _number(theirs[40:48]) + _number(theirs[58:60]) * _number(theirs[60:62])
    if os.path.getsize(path) < end:
        raise OSError(f"{path}: cut off after {os.path.getsize(path)} of {end} bytes")


def _elf_header(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)


def _machine(header: bytes) -> str:
    code = _number(header[18:20])
    return {62: "x86_64", 183: "aarch64"}.get(code, f"ELF machine {code}")


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, sys.byteorder)


def _why(link: str, path: str, message: str) -> str:
    """Return the loader's message with the paths it omits.

    The loader names a missing library, but not the library that requires it, nor the link to the loaded file.
    """
    if path not in message:
        message = f"{path}: {message}"
    if "libc.musl" in message:
        message += " (built for musl; this is glibc)"
    return message if path == link else f"{link} leads to {message}"


def _mapped(soname: str) -> str:
    stem = soname.partition(".so")[0]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").rpartition(" ")[2]
            if os.path.basename(path).startswith(stem):
                return path
    return soname


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
