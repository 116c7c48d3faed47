"""RDMA devices of the driver mlx5 (ConnectX, BlueField), with their first port: InfiniBand or RoCE.

Formats: the kernel's Documentation/ABI/stable/sysfs-class-infiniband. A device that vanishes during the read is left
out, and one that does not answer has an error. Further ports are not read (docs/decisions/notes.md, 0057).
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.host.opening import is_folder, is_gone, names_in, names_there, read, want_folder
from gpu_healthcheck.healthcheck.model import Host, Probe, ProbeError, UnobservedCause
from gpu_healthcheck.healthcheck.probes.efa.infiniband import is_exclusive
from gpu_healthcheck.healthcheck.probes.pci import AMAZON, MELLANOX, MLX5_DRIVER
from gpu_healthcheck.healthcheck.text.printable import printable

ETHERNET = "Ethernet"
PORT_COUNTERS = (
    *("symbol_error", "link_error_recovery", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
"""Error counters of the port (`counters/`)."""
HARDWARE_COUNTERS = ("local_ack_timeout_err", "rnr_nak_retry_err", "roce_slow_restart")
"""Error counters of the driver (`hw_counters/`). Some firmware lacks the last one."""
CARRIER_CHANGES = "carrier_changes"
"""Counter of the net device: how often its link went up or down."""
_RECEIVED = "counters/port_rcv_packets"
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?) Gb/sec")
_ACTIVE = ("4", "5")
"""States ACTIVE and ACTIVE_DEFER (ib_port_state in the kernel's ib_verbs.h)."""
_BONDED = " bond"
_CONNECTX_7 = 0x1021
_MANAGES_NVLINK = b"SW_MNG"
"""Product data of the ConnectX-7 through which Fabric Manager programs NVLink 5 (bottlerocket, sysfs of its helper)."""
_HIGHEST = 2**64 - 1
_MOST, _MOST_NETDEVS, _MOST_UVERBS, _MOST_LAYERS, _MOST_HOLDERS = 1024, 16, 16, 4, 64
_LONGEST_ROUTES, _LONGEST_NAME = 1 << 16, 64
_PATIENCE_SECONDS = 20.0
"""Time limit for all ports. After it, the remaining ports are skipped.

To read a counter, the driver asks the firmware and waits up to 60 s (mlx5, lib/tout.c, MLX5_TO_CMD_MS).
"""


class Mlx5Device(Struct, frozen=True):
    """An RDMA device and its first port. A virtual function whose physical function is on this machine is left out."""

    name: str
    address: str
    """Address of its PCI function, with the number of the function: `0000:18:00.1`."""
    device: int = 0
    """PCI device ID."""
    board_id: str = ""
    """Model of the adapter (PSID), such as `MT_0000000838`; '' if the firmware does not report it."""
    bonded: bool = False
    """Whether its net device belongs to a bond."""
    other_purpose: bool = False
    """Whether it is shown not to be of the GPU fabric.

    It has the machine's default route, accelerates a virtual machine's network interface, switches virtual functions,
    or manages NVLink.
    """
    netdev: str = ""
    """Net device in the host's network namespace; '' without one."""
    state: str = ""
    """Logical state, such as `4: ACTIVE`."""
    phys_state: str = ""
    rate: float = 0.0
    """Speed of the link in Gb/s; 0 if unknown. It has no meaning without a link."""
    link_layer: str = ""
    has_gid: bool = False
    """Whether the table of GIDs has an entry, without which no program can use the port."""
    has_received: bool = False
    """Whether the port received packets since the driver was loaded. Read only if the port is not active."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Error counters, without those that the firmware lacks."""
    error: str = ""
    """First file that could not be read, with the kernel's error; '' if there is none."""

    @property
    def is_active(self) -> bool:
        return self.state.partition(":")[0] in _ACTIVE

    @property
    def was_active(self) -> bool:
        """Whether the port is active, or was active since the driver was loaded."""
        return self.is_active or self.has_received

    @property
    def is_in_a_pod(self) -> bool:
        """Whether its net device is in another network namespace: the state of a RoCE port is then DOWN here."""
        return self.link_layer == ETHERNET and not self.netdev and not self.is_active

    @property
    def kind(self) -> str:
        """Return model, link layer and bond. The ports of a GPU fabric have the same."""
        return f"{self.device:04x} {self.board_id} {self.link_layer}{_BONDED if self.bonded else ''}"

    def left_fabric(self, kind: str) -> bool:
        """Whether this device, once of that kind in the fabric, serves another purpose now, such as a new bond."""
        return self.other_purpose or (self.bonded and not kind.endswith(_BONDED))


class Mlx5(Struct, frozen=True, dict=True):
    """RDMA devices of the driver."""

    devices: tuple[Mlx5Device, ...]
    driver_loaded: bool = True
    holders: tuple[str, ...] | None = ()
    """Pods with devices other than GPUs; None: unknown. Read only if an RDMA device moves into its pod's namespace."""
    exclusive: bool = False

    @cached_property
    def fabric(self) -> tuple[Mlx5Device, ...]:
        """Return the devices of the GPU fabric: of the largest group, with its ports that are down.

        Storage and management adapters have another PCI device ID, link layer or bond, or are a slower model.
        """
        kinds, models = defaultdict(list), defaultdict(list)
        for device in self.devices:
            if not device.other_purpose:
                kinds[device.device, device.link_layer, device.bonded].append(device)
        for device in max(kinds.values(), key=_size, default=[]):
            models[device.board_id].append(device)
        active, rate = max(map(_size, models.values()), default=(0, 0.0))
        return tuple(device for model in models.values() if active and _size(model)[1] == rate for device in model)


def _size(devices: list[Mlx5Device]) -> tuple[int, float]:
    active = [device.rate for device in devices if device.is_active]
    return sum(device.was_active for device in devices), max(active, default=0.0)


class _Identity(Struct, frozen=True):
    """Facts about a device that do not change while it exists."""

    vendor: int
    address: str = ""
    device: int = 0
    board_id: str = ""
    manages_nvlink: bool = False


def read_mlx5(host: Host) -> Mlx5:
    """Return the devices; none if the kernel has no RDMA class. Raises ProbeError if /sys can't be read.

    On a node with EFA devices, mlx5 devices are not the GPU fabric and are not read.
    """
    want_folder(host.root / "sys/class")
    directory = f"{host.root}/sys/class/infiniband"
    identities: list[tuple[str, _Identity]] = []
    for name in names_there(directory)[:_MOST]:
        if (found := _identify(directory, name)) is None:
            continue
        if found.vendor == AMAZON:
            return Mlx5(())
        identities.append((name, found))
    patience_ends = time.monotonic() + _PATIENCE_SECONDS
    whole = _one_per_function(directory, identities)
    read_ports = (_device(directory, name, found, patience_ends) for name, found in whole)
    devices = tuple(device for device in read_ports if device is not None)
    if any(device.link_layer == ETHERNET and device.netdev and not device.bonded for device in devices):
        carriers = _carriers_of_default_route(host.root)
        devices = tuple(
            replace(device, other_purpose=True) if _has_route(device, carriers) else device for device in devices
        )
    exclusive = host.once(is_exclusive)
    holders = _holders(host) if exclusive else ()
    mlx5 = Mlx5(devices, is_folder(f"{host.root}/sys/module/{MLX5_DRIVER}"), holders, exclusive)
    counted = {device.name for device in mlx5.fabric}
    return replace(
        mlx5,
        devices=tuple(
            _with_counters(directory, device, patience_ends) if device.name in counted else device for device in devices
        ),
    )


def _has_route(device: Mlx5Device, netdevs: set[str]) -> bool:
    return device.link_layer == ETHERNET and device.netdev in netdevs


def _identify(directory: str, name: str) -> _Identity | None:
    """Return the identity of an mlx5 or EFA device; None for other devices. Raises ProbeError."""
    path = f"{directory}/{name}"
    try:
        return _identity(path, os.stat(path).st_ino)
    except ValueError:
        return None
    except OSError as error:
        if is_gone(error):
            return None
        raise ProbeError(f"{error.filename or path}: {error.strerror}") from error


@lru_cache(maxsize=_MOST)
def _identity(path: str, _inode: int) -> _Identity | None:
    """Return the identity of a device. The kernel gives a device that is created again another inode."""
    function = f"{path}/device"
    vendor = int(read(f"{function}/vendor", 16), 16)
    if vendor == AMAZON:
        return _Identity(vendor)
    if vendor != MELLANOX:
        return None
    address, driver = (os.path.basename(_link(link)) for link in (function, f"{function}/driver"))
    if not _FUNCTION.match(address) or driver not in ("", MLX5_DRIVER) or _link(f"{function}/physfn"):
        return None
    device = int(read(f"{function}/device", 16), 16)
    manages_nvlink = device == _CONNECTX_7 and _MANAGES_NVLINK in _product_data(function)
    return _Identity(vendor, address, device, _optional(f"{path}/board_id"), manages_nvlink)


def _product_data(function: str) -> bytes:
    """Return the vital product data (VPD) of a function; empty if it has none or does not answer."""
    try:
        return read(f"{function}/vpd", 4096)
    except OSError:
        return b""


def _one_per_function(directory: str, identities: Iterable[tuple[str, _Identity]]) -> Iterator[tuple[str, _Identity]]:
    """Yield the device of each function, without its parts.

    A multi-plane ConnectX-8 has a second device for subnet management (rdma-dev(8), type smi), which no program can
    open for data: it has no uverbs device.
    """
    by_function = defaultdict(list)
    for name, identity in identities:
        by_function[identity.address].append((name, identity))
    for devices in by_function.values():
        opened = _opened(f"{directory}/{devices[0][0]}/device/infiniband_verbs") if len(devices) > 1 else set()
        yield next((device for device in devices if device[0] in opened), devices[0])


def _opened(folder: str) -> set[str]:
    """Return the names of the RDMA devices that the uverbs devices of a function open."""
    try:
        return {_optional(f"{folder}/{name}/ibdev") for name in names_in(folder)[:_MOST_UVERBS]}
    except OSError:
        return set()


def _device(directory: str, name: str, identity: _Identity, patience_ends: float) -> Mlx5Device | None:
    """Return a device with its port; None if it vanished."""
    path = f"{directory}/{name}"
    device = Mlx5Device(printable(name, _LONGEST_NAME), identity.address, identity.device, identity.board_id)
    if time.monotonic() > patience_ends:
        return replace(device, error="not read: another device delayed the check cycle")
    port = f"{path}/ports/1"
    try:
        netdevs = _netdevs(path)
        state = _text(f"{port}/state")
        link_layer = _optional(f"{port}/link_layer")
        device = replace(
            device,
            bonded="bond" in name or any(_is_bonded(f"{path}/device/net/{netdev}") for netdev in netdevs),
            other_purpose=identity.manages_nvlink or (link_layer == ETHERNET and _serves_host(path, netdevs)),
            netdev=printable(netdevs[0], _LONGEST_NAME) if netdevs else "",
            state=state,
            link_layer=link_layer,
        )
        if device.is_active:
            found = _RATE.match(_optional(f"{port}/rate"))
            gid = _optional(f"{port}/gids/0")
            return replace(device, rate=float(found[1]) if found else 0.0, has_gid=gid.strip("0:") != "")
        received = _count(f"{port}/{_RECEIVED}")
        return replace(device, phys_state=_optional(f"{port}/phys_state"), has_received=bool(received))
    except OSError as error:
        if is_gone(error):
            return None
        return replace(device, error=f"{os.path.basename(error.filename or port)}: {error.strerror}")


def _with_counters(directory: str, device: Mlx5Device, patience_ends: float) -> Mlx5Device:
    """Return the device with its error counters. After one refusal, the remaining files would be refused too."""
    port = f"{directory}/{device.name}/ports/1"
    files = {name: f"{port}/counters/{name}" for name in PORT_COUNTERS}
    files |= {name: f"{port}/hw_counters/{name}" for name in HARDWARE_COUNTERS}
    if device.netdev:
        files[CARRIER_CHANGES] = f"{directory}/{device.name}/device/net/{device.netdev}/{CARRIER_CHANGES}"
    counters: dict[str, int] = {}
    for name, file in files.items():
        if device.error:
            break
        if time.monotonic() > patience_ends:
            device = replace(device, error="not read: another device delayed the check cycle")
            break
        try:
            if (count := _count(file)) is not None:
                counters[name] = count
        except OSError as error:
            device = replace(device, error=f"{name}: {error.strerror}")
    return replace(device, counters=counters)


def _count(file: str) -> int | None:
    """Return a counter; None if the firmware lacks it or the file holds no counter. Raises OSError."""
    try:
        text = read(file, 64).strip()
    except OSError as error:
        if is_gone(error):
            return None
        raise
    return count if text.isdigit() and (count := int(text)) <= _HIGHEST else None


def _netdevs(path: str) -> list[str]:
    """Return the net devices of the function that are in the host's network namespace. Raises OSError."""
    try:
        return names_in(f"{path}/device/net")[:_MOST_NETDEVS]
    except FileNotFoundError:
        return []


def _serves_host(path: str, netdevs: Iterable[str]) -> bool:
    """Whether an Ethernet device switches virtual functions, or accelerates a network interface. Raises OSError.

    In switchdev mode each port is a virtual function or an uplink, and none has RDMA (kernel, mlx5/ib_rep.c). Hyper-V
    and virtio take an accelerating function away at any time (kernel, netvsc_drv.c, net_failover.rst). Its net device
    has the interface as its master, which is a device itself, unlike a bond or a bridge.
    """
    if len(names_in(f"{path}/ports")) > 1:
        return True
    return any(_link(f"{path}/device/net/{netdev}/master/device") for netdev in netdevs)


def _is_bonded(netdev: str) -> bool:
    master = _link(f"{netdev}/master")
    return master != "" and (os.path.basename(master).startswith("bond") or is_folder(f"{netdev}/master/bonding"))


def _carriers_of_default_route(root: Path) -> set[str]:
    """Return the net devices below the default route: its device, and the members of its bond, bridge or VLAN."""
    try:
        lines = read(f"{root}/proc/1/net/route", _LONGEST_ROUTES).decode("ascii", "replace").splitlines()
    except OSError:
        return set()
    rows = (line.split() for line in lines[1:])
    layer = {row[0] for row in rows if len(row) > 7 and (row[1], row[7]) == ("00000000", "00000000")}
    carriers = set(layer)
    for _ in range(_MOST_LAYERS):
        layer = {lower for name in layer for lower in _lower(root, name)} - carriers
        carriers |= layer
    return carriers


def _lower(root: Path, netdev: str) -> Iterator[str]:
    if "/" in netdev:
        return
    try:
        names = names_in(f"{root}/sys/class/net/{netdev}")
    except OSError:
        return
    yield from (name.removeprefix("lower_") for name in names[:_MOST] if name.startswith("lower_"))


def _holders(host: Host) -> tuple[str, ...] | None:
    """Return the pods that hold claims or devices other than GPUs; None if the kubelet can't be asked."""
    from gpu_healthcheck.healthcheck.probes.pod_resources import is_gpu, is_kubelet_here, read_pod_resources  # noqa: PLC0415 - rare

    try:
        if not is_kubelet_here(host.root):
            return ()
        pods = read_pod_resources(host)
    except ProbeError:
        return None
    holding = (
        f"{pod.namespace}/{pod.name}"
        for pod in pods
        for container in pod.containers
        if container.claims or any(not is_gpu(devices.resource) for devices in container.devices)
    )
    return tuple(printable(name, _LONGEST_NAME) for name in dict.fromkeys(holding))[:_MOST_HOLDERS]


def _link(path: str) -> str:
    """Return the target of a link; '' if it is none or vanished."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _optional(file: str) -> str:
    """Return the text of a short file; '' if the kernel or the firmware lacks it. Raises OSError."""
    try:
        return _text(file)
    except OSError as error:
        if is_gone(error):
            return ""
        raise


def _text(file: str) -> str:
    try:
        return printable(read(file, 64).decode("ascii", "replace").strip(), _LONGEST_NAME)
    except OSError as error:
        error.filename = file  # a failed read of an open file names none
        raise


NOT_ANSWERING = UnobservedCause(
    "RdmaNotAnswering",
    "The port or the counters of an RDMA device could not be read.",
    "Read `dmesg | grep mlx5_core` on the node: the driver may have given up the device.",
)
IN_POD = UnobservedCause(
    "RdmaDeviceInPod",
    "An RDMA device is in the network namespace of a pod, where this program can't read it.",
    "No action: it is checked again when the pod ends.",
)
MLX5 = Probe("mlx5", read_mlx5, Mlx5, (NOT_ANSWERING, IN_POD))
