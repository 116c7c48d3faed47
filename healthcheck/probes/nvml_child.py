"""The child that asks NVML: one line in, one line of JSON out. It imports as little as it can.

NVML is shut down after every look: an open handle on /dev/nvidia* would stand in the way of a GPU reset, a MIG
change and a driver upgrade. A hang or a crash in the driver is this process's alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, BinaryIO

SONAME = "libnvidia-ml.so.1"
_MOST_GPUS = 256
_MOST_INSTANCES = 64  # bounds what nonsense would cost
_NOT_FOUND = 6  # nvml.h
_LINUX_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
PLACES = (
    *_LINUX_DIRECTORIES,
    *(f"run/nvidia/driver/{directory}" for directory in _LINUX_DIRECTORIES),
    "home/kubernetes/bin/nvidia/lib64",
    "opt/nvidia/lib64",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "usr/local/glibc/usr/lib",
)
"""Where the driver's library lies under a host's root (hardware.md 3.5)."""


class Library:
    """The driver's library as this process has loaded it: once, for ever."""

    def __init__(self, root: str, use_loader: bool) -> None:
        self.path = _load(root, use_loader)
        self._file = _identity(self.path)

    def replaced(self) -> bool:
        """Another file lies there now: a new driver was installed, and we would see a mismatch for ever."""
        return _identity(self.path) != self._file


def resolve_inside(root: str, path: str) -> str:
    """Follow symbolic links as the host would, so that `/usr/lib/x` of a link means the host's, not ours."""
    seen = 0
    parts = path.strip("/").split("/")
    real = ""
    while parts:
        part = parts.pop(0)
        if part == "..":
            real = real.rpartition("/")[0]
            continue
        here = f"{real}/{part}"
        if part in ("", ".") or not os.path.islink(root + here):
            real = real if part in ("", ".") else here
            continue
        seen += 1
        if seen > 40:
            raise OSError(f"{root}/{path.strip('/')}: too many symbolic links")
        target = os.readlink(root + here)
        parts = target.strip("/").split("/") + parts
        if target.startswith("/"):
            real = ""
    return root + real


def _load(root: str, use_loader: bool) -> str:
    tried = []
    if use_loader:
        try:
            ctypes.CDLL(SONAME, mode=ctypes.RTLD_GLOBAL)
            return _mapped(SONAME)
        except OSError as error:
            tried.append(f"in the loader's own path: {error}")
    base = root.rstrip("/")
    refused: dict[str, str] = {}
    for place in PLACES:
        link = path = f"{base}/{place}/{SONAME}"
        try:
            # Every link on the way is the host's: an absolute one would lead us into our own tree.
            if not os.path.lexists(f"{resolve_inside(base, place)}/{SONAME}"):
                continue
            path = resolve_inside(base, f"{place}/{SONAME}")
            if path in refused:  # the same file again: on most hosts /lib64 is a link to /usr/lib64
                continue
            _refuse_foreign(path)
            # Its SONAME is then in the process, and pynvml's own load by name finds it.
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            refused[path] = _why(link, path, str(error))
        else:
            return path
    raise OSError("; ".join([*tried, *(refused.values() or [f"{SONAME} lies nowhere under {root}"])]))


def _refuse_foreign(path: str) -> None:
    """What the loader reports as a missing file, or would die of by SIGBUS. What is no ELF at all it says well."""
    if not os.path.isfile(path):
        return
    ours, theirs = _elf_header("/proc/self/exe"), _elf_header(path)
    if len(theirs) < 64 or theirs[:5] != ours[:5]:
        return
    if theirs[18:20] != ours[18:20]:
        raise OSError(f"{path}: built for {_machine(theirs)}, and this is {_machine(ours)}")
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


def _why(link: str, path: str, said: str) -> str:
    """The loader names a library that is missing, but not who wants it, nor the link that led there."""
    if path not in said:
        said = f"{path}: {said}"
    if "libc.musl" in said:
        said += " (built for musl; this is glibc)"
    return said if path == link else f"{link} leads to {said}"


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


def look(library: Library) -> dict[str, Any]:
    """One look at the driver: initialise, ask, shut down."""
    import pynvml  # noqa: PLC0415 - only after the right library is in the process

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"library": library.path, "error": error.value, "cause": str(error)}
    try:
        count = pynvml.nvmlDeviceGetCount()
        if count > _MOST_GPUS:
            return {"library": library.path, "error": None, "cause": f"NVML says that there are {count} GPUs"}
        return {
            "library": library.path,
            "driver_version": _text(pynvml.nvmlSystemGetDriverVersion()),
            "gpus": [_gpu(pynvml, index) for index in range(count)],
        }
    except pynvml.NVMLError as error:
        return {"library": library.path, "error": error.value, "cause": str(error)}
    finally:
        _shut_down(pynvml)


def _gpu(pynvml: Any, index: int) -> dict[str, Any]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return {"index": index, "error": error.value}
    gpu: dict[str, Any] = {"index": index, "error": 0}
    for key, ask in (
        ("bus_id", pynvml.nvmlDeviceGetPciInfo),
        ("uuid", pynvml.nvmlDeviceGetUUID),
        ("serial", pynvml.nvmlDeviceGetSerial),
        ("name", pynvml.nvmlDeviceGetName),
    ):
        try:
            value = ask(handle)
            gpu[key] = _text(value.busId if key == "bus_id" else value)
        except pynvml.NVMLError as error:
            gpu["error"] = gpu["error"] or _fault(error.value)
    return gpu | _recovery_action(pynvml, handle) | {"instances": _instances(pynvml, handle)}


def _recovery_action(pynvml: Any, handle: Any) -> dict[str, int]:
    """What the driver wants done with the GPU, or why it can't say; nothing where it knows no such field."""
    try:
        field = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
        code = field.nvmlReturn
    except pynvml.NVMLError as error:
        code = error.value
    if code == pynvml.NVML_SUCCESS:
        return {"recovery_action": field.value.uiVal}
    # A library older than the field may call its number an invalid argument.
    absent = code == pynvml.NVML_ERROR_INVALID_ARGUMENT or not _fault(code)
    return {} if absent else {"recovery_error": code}


def _instances(pynvml: Any, handle: Any) -> list[int] | None:
    """The MIG GPU instances of the MIG devices that exist; None where the GPU has no MIG or something failed.

    There is no cheaper way: listing GPU instances themselves takes a call for each profile that a GPU knows.
    """
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        if most > _MOST_INSTANCES:
            return None
        devices = [_mig_device(pynvml, handle, index) for index in range(most)]
        return sorted({pynvml.nvmlDeviceGetGpuInstanceId(device) for device in devices if device is not None})
    except pynvml.NVMLError:
        return None


def _mig_device(pynvml: Any, handle: Any, index: int) -> Any:
    """None: no MIG device has this index; the indices of those that exist have holes."""
    try:
        return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
    except pynvml.NVMLError as error:
        if error.value == _NOT_FOUND:
            return None
        raise


def _fault(code: int) -> int:
    """Absent features and permissions are no fault of the GPU (nvml.h: 3, 4, 13, 25)."""
    return 0 if code in (3, 4, 13, 25) else code


def _text(value: str | bytes) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return text[:128]


def _shut_down(pynvml: Any) -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        print(f"nvmlShutdown: {error}", file=sys.stderr)


def _answers(out: BinaryIO, root: str, use_loader: bool) -> None:
    library: Library | None = None
    for _ in sys.stdin:
        try:
            library = library or Library(root, use_loader)
            answer = {"changed": library.path} if library.replaced() else look(library)
        except OSError as error:
            answer = {"library": None, "error": None, "cause": str(error)[:1000]}
        except Exception as error:  # noqa: BLE001 - the boundary of the probe: nonsense from a driver is an answer too
            answer = {"library": library and library.path, "error": None, "cause": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()


def main() -> None:
    """`nvml_child ROOT loader|root-only`: answer until standard input ends."""
    root, mode = sys.argv[1:]
    # A library that prints must not write into our answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _answers(out, root, mode == "loader")


if __name__ == "__main__":
    main()
