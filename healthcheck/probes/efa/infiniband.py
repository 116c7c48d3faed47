"""RDMA devices in the kernel's list, /sys/class/infiniband."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from gpu_healthcheck.healthcheck.host.opening import is_folder, is_gone, names_there, read, want_folder
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, UnobservedCause
from gpu_healthcheck.healthcheck.probes.pci import AMAZON, normalise_address
from gpu_healthcheck.healthcheck.text.printable import printable

ERROR_COUNTERS = (
    *("rx_drops", "rdma_read_wr_err", "rdma_write_wr_err"),
    *("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"),
    *("retrans_pkts", "retrans_bytes"),
)
"""Error counters of an EFA device's only port. The last five exist since driver 2.17 (amzn-drivers, release notes)."""
KEEP_ALIVES = "keep_alive_rcvd"
"""Counter of the device: keep-alive messages that the driver received from it."""
_MOST = 4096
_HIGHEST = 2**64 - 1
"""Highest value of the kernel's 64-bit counters."""
_PATIENCE_SECONDS = 20.0
"""Time limit for the counters of all devices. After it, the remaining devices are skipped.

To read a port's counter, the driver asks the device and waits up to 30 s (amzn-drivers, efa_com.c,
ADMIN_CMD_TIMEOUT_US). With the limit, a dead device delays the check cycle by less than a minute.
"""


class RdmaDevice(Struct, frozen=True):
    """An RDMA device. `name` is udev's or the kernel's (`rdmap16s0`, `efa_0`).

    Only EFA devices matter; HGX hosts also have mlx5 devices. The fields after `address` are read only for EFA devices.
    """

    name: str
    is_efa: bool
    address: str = ""
    """Address of its PCI function, as `0000:4f:00.0`; '' if unknown."""
    uverbs: str = ""
    """Device file that programs open (`uverbs3`); '' if ib_uverbs created none."""
    p2p: str | None = None
    """Provider of memory that the EFA driver can access directly: `NVIDIA`, `NVIDIA peermem`, `NEURON`; '' for none.

    None if the driver does not report it, as the kernel's own driver.
    """
    counters: Mapping[str, int] = field(default_factory=dict)
    """Counters since the driver was loaded, without those that the driver lacks."""
    error: str = ""
    """First counter that could not be read, with the kernel's error; '' if there is none."""


class Rdma(Struct, frozen=True):
    """RDMA devices of the kernel, and the state of their driver."""

    devices: tuple[RdmaDevice, ...]
    efa_driver_loaded: bool
    efa_driver_version: str = ""
    """Version of the EFA driver; '' if it has none, as the kernel's own driver."""
    exclusive: bool = False
    """Whether an RDMA device belongs to one network namespace, and is invisible in the others."""

    @property
    def efa(self) -> tuple[RdmaDevice, ...]:
        return tuple(device for device in self.devices if device.is_efa)


def read_rdma(host: Host) -> Rdma:
    """Return the RDMA devices; none if the kernel has no RDMA class.

    Raises ProbeError if /sys can't be read.
    """
    want_folder(host.root / "sys/class")
    directory = f"{host.root}/sys/class/infiniband"
    names = names_there(directory)[:_MOST]
    patience_ends = time.monotonic() + _PATIENCE_SECONDS
    devices = tuple(_device(directory, name, patience_ends) for name in names)
    module = f"{host.root}/sys/module/efa"
    version = _word(f"{module}/version") or ""
    return Rdma(devices, is_folder(module), version, host.once(is_exclusive))


def is_exclusive(root: Path) -> bool:
    """Whether an RDMA device belongs to one network namespace: module parameter netns_mode (rdma-system(8))."""
    return _word(f"{root}/sys/module/ib_core/parameters/netns_mode") == "N"


def openable_efa(root: Path) -> tuple[str, ...]:
    """Return the names of the EFA devices that programs can open. Raises ProbeError if that is unknown."""
    directory = f"{root}/sys/class/infiniband"
    names = names_there(directory)[:_MOST]
    return tuple(name for name in names if _is_efa(f"{directory}/{name}") and _uverbs(f"{directory}/{name}"))


def _device(directory: str, name: str, patience_ends: float) -> RdmaDevice:
    path = f"{directory}/{name}"
    address = _address(path)
    name = printable(name)
    if not _is_efa(path):
        return RdmaDevice(name, False, address)
    if time.monotonic() < patience_ends:
        counters, error = _counters(path)
    else:
        counters, error = {}, "not read: another device delayed the check cycle"
    return RdmaDevice(name, True, address, _uverbs(path), _word(f"{path}/device/p2p"), counters, error)


def _is_efa(path: str) -> bool:
    """Whether the device is an EFA device, by its vendor. Name and port state are not evidence.

    False for devices that are not PCI functions or that vanished during the read. Raises ProbeError.
    """
    try:
        return _read(f"{path}/device/vendor") == f"0x{AMAZON:04x}".encode()
    except OSError as error:
        if is_gone(error):
            return False
        raise ProbeError(f"{path}/device/vendor: {error.strerror}") from error


def _address(path: str) -> str:
    try:
        function = os.path.basename(os.readlink(f"{path}/device"))
    except OSError:
        return ""
    return normalise_address(function) or ""


def _uverbs(path: str) -> str:
    """Return the name of the device file; '' if there is none. Raises ProbeError."""
    return next(iter(names_there(f"{path}/device/infiniband_verbs")), "")


def _counters(path: str) -> tuple[dict[str, int], str]:
    """Return the counters that were read, and the error that ended the read.

    After one refusal, the remaining files would be refused too.
    """
    found: dict[str, int] = {}
    # The driver counts keep-alives itself, without asking the device. Read them first, so that a dead device does not
    # hide them.
    files = {KEEP_ALIVES: f"{path}/hw_counters/{KEEP_ALIVES}"}
    files |= {name: f"{path}/ports/1/hw_counters/{name}" for name in ERROR_COUNTERS}
    for name, file in files.items():
        try:
            text = _read(file)
        except FileNotFoundError:
            continue
        except OSError as error:
            return found, f"{name}: {error.strerror}"
        if text.isdigit() and (count := int(text)) <= _HIGHEST:
            found[name] = count
    return found, ""


def _word(file: str) -> str | None:
    """Return the text of a short file; None if it can't be read."""
    try:
        return printable(_read(file).decode("ascii", "replace"))
    except OSError:
        return None


def _read(file: str) -> bytes:
    """Return the content of a file of /sys, without surrounding blanks."""
    return read(file, 64).strip()


NOT_ANSWERING = UnobservedCause(
    "EfaNotAnswering",
    "The counters of an EFA device could not be read.",
    "Read `dmesg | grep -i efa` on the node: the driver may have given up the device.",
)
RDMA = Probe("infiniband", read_rdma, Rdma, (NOT_ANSWERING,))
