"""Check: the device files of NVIDIA's driver exist and have the kernel's device numbers.

NVIDIA's major number is 195. The minor number is 255 for nvidiactl and 254 for nvidia-modeset; NVML reports it for each
GPU. For nvidia-uvm and nvidia-caps, /proc/devices has the major number (NVIDIA/nvidia-modprobe,
nvidia-modprobe-utils.c and its header). A capability's minor number is in its name (MIG user guide, device nodes and
capabilities).

nvidia-uvm and its module are created when CUDA or a container first requests them (NVIDIA/enroot issue 106). If the
module is not loaded, there was no request yet. nvidia-uvm-tools, nvidia-modeset and the capabilities are judged only if
they exist: they are created on demand, for profilers, displays and MIG.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.gpu_runtime import together
from gpu_healthcheck.healthcheck.checks.per_gpu import DRIVER_GRACE, NVIDIA_DRIVER, answering, found, settled
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Judgement,
    NotConfigured,
    Observation,
    Reason,
    Severity,
    counted,
)
from gpu_healthcheck.healthcheck.probes import pci
from gpu_healthcheck.healthcheck.probes.driver_files import (
    CAPABILITIES,
    DEVICE_FILES,
    NVIDIA_MAJOR,
    UVM,
    DeviceFile,
    DeviceFiles,
)
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml

_SOURCE = "NVIDIA/nvidia-modprobe, nvidia-modprobe-utils.c"
MISSING = Reason(
    "DeviceFileMissing",
    Severity.MONITOR,
    "A device file of the driver is missing: it exists neither in the host's /dev nor in the driver container's. "
    "Pods that get it through CDI do not start, or CUDA finds no device in them.",
    "Run `nvidia-modprobe -c0 -u` on the node (`-c` with the GPU's minor number), or restart its driver container.",
    # The program that loads the driver creates the files a moment later.
    flickers=True,
    source=_SOURCE,
    grace=DRIVER_GRACE,
)
WRONG = Reason(
    "DeviceFileWrong",
    Severity.MONITOR,
    "A device file of the driver is wrong: it is not a character device, or has another driver's number. Programs "
    "can't open it.",
    "Remove it on the node, then run `nvidia-modprobe -c0 -u`; find its cause, such as a `mknod` at boot with a fixed "
    "number, or a hostPath volume that created a folder.",
    flickers=True,
    source=_SOURCE,
    grace=DRIVER_GRACE,
)
_CONTROL, _MODESET = 255, 254
_CAPABILITY = f"{CAPABILITIES}/nvidia-cap"
Number = tuple[int, int]
"""Major and minor device number."""


class _ExpectedFile(Struct, frozen=True):
    """An expected device file, by its name below /dev. If `must_be` is true, its absence is a fault."""

    name: str
    number: Number
    must_be: bool = True


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    files = evidence[DEVICE_FILES]
    if not files.folders:
        yield NotConfigured("this root is a copy of a host's tree, without device files")
        return
    gpus = yield from answering(evidence, "minor")
    if not any(function.is_gpu and function.driver == NVIDIA_DRIVER for function in evidence[pci.FUNCTIONS]):
        if gpus:  # GPUs of WSL and Tegra, which have other device files
            yield NotConfigured("no GPU on PCI is bound to the NVIDIA driver")
        return
    # If NVML fails, a missing control file may be the cause.
    control = list(_of_driver(files))
    of_gpus = [
        (gpu, _ExpectedFile(f"nvidia{gpu.minor}", (NVIDIA_MAJOR, gpu.minor))) for gpu in gpus if gpu.minor is not None
    ]
    lacks = [*together(reason.on("driver", detail) for reason, detail in _lacks(files, control))]
    lacks += [found(reason, gpu, detail) for gpu, file in of_gpus for reason, detail in _lacks(files, [file])]
    yield from (settled(finding, expected) for finding in lacks)
    if gpus:
        yield _seen(files, [*control, *(file for _, file in of_gpus)])


def _seen(files: DeviceFiles, wanted: list[_ExpectedFile]) -> Observation:
    right = len(wanted) - sum(1 for _ in _lacks(files, wanted))
    not_loaded = f", {UVM} not loaded yet" if files.majors is not None and UVM not in files.majors else ""
    return Observation(
        f"{counted(right, 'device file')} in {' and '.join(files.folders)}{not_loaded}", f"{len(wanted)}"
    )


def _of_driver(files: DeviceFiles) -> Iterator[_ExpectedFile]:
    """Yield the driver's device files that belong to no single GPU."""
    majors: Mapping[str, int] = files.majors or {}
    yield _ExpectedFile("nvidiactl", (NVIDIA_MAJOR, _CONTROL))
    present = {file.name for file in files.files}
    if UVM in majors:
        yield _ExpectedFile(UVM, (majors[UVM], 0))
    optional_numbers = {"nvidia-modeset": (NVIDIA_MAJOR, _MODESET)}
    optional_numbers |= {f"{UVM}-tools": (majors[UVM], 1)} if UVM in majors else {}
    if CAPABILITIES in majors:
        of_capabilities = (name.removeprefix(_CAPABILITY) for name in present if name.startswith(_CAPABILITY))
        optional_numbers |= {
            f"{_CAPABILITY}{capability}": (majors[CAPABILITIES], int(capability))
            for capability in of_capabilities
            if capability.isdecimal()
        }
    for name in sorted(present & optional_numbers.keys()):
        yield _ExpectedFile(name, optional_numbers[name], must_be=False)


def _lacks(device_files: DeviceFiles, wanted: Iterable[_ExpectedFile]) -> Iterator[tuple[Reason, str]]:
    """Yield the faults of these files.

    A file that is correct in one of the folders counts as correct, because containers get that file.
    """
    files: dict[str, list[DeviceFile]] = defaultdict(list)
    for device_file in device_files.files:
        files[device_file.name].append(device_file)
    for file in wanted:
        there = files[file.name]
        if not there and file.must_be:
            yield MISSING, f"no {' or '.join(f'{folder}/{file.name}' for folder in device_files.folders)}"
        elif there and not any(
            device_file.character and (device_file.major, device_file.minor) == file.number for device_file in there
        ):
            first, (major, minor) = there[0], file.number
            is_now = (
                f"the character device {first.major}:{first.minor}" if first.character else "not a character device"
            )
            yield WRONG, f"{first.path} is {is_now}, expected {major}:{minor}"


CHECK = Check("device-files", "0-nvidia-smi", (nvml.NVML, DEVICE_FILES, pci.FUNCTIONS), judge, (MISSING, WRONG))
