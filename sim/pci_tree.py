"""The PCI and InfiniBand part of a simulated /sys, with links as in a real kernel."""

import os
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from gpu_healthcheck.sim.mlx5_ports import Mlx5Function
from gpu_healthcheck.sim.new_files import write_new

MLX5_DRIVER = "mlx5_core"

PORT_COUNTERS = (
    *("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs"),
    *("rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes"),
    *("rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes"),
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events"),
    *("unresponsive_remote_events", "impaired_remote_conn_events"),
)
DEVICE_COUNTERS = ("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd")
_COUNTERS_AT_FIRST = {
    **dict.fromkeys((f"ports/1/hw_counters/{name}" for name in PORT_COUNTERS), 0),
    **dict.fromkeys((f"hw_counters/{name}" for name in DEVICE_COUNTERS), 0),
}


@dataclass(frozen=True)
class PciFunction:
    """PCI function of the simulated node."""

    address: str
    vendor: str
    device: str
    pci_class: str
    driver: str = ""
    switch: str = ""
    """Address of the bridge above it, which is added before it; '' at the root."""
    numa_node: int = -1


class PciTree:
    """PCI devices of a simulated node, as files in /sys."""

    def __init__(self, root: Path) -> None:
        self._sys = root / "sys"

    def plug(self, function: PciFunction) -> None:
        directory = self._directory(function.address)
        if function.switch:
            directory = self._directory(function.switch) / function.address
        about = {"vendor": function.vendor, "device": function.device, "class": function.pci_class}
        write_new(directory, {**about, "numa_node": function.numa_node})
        _link(self._sys / "bus/pci/devices" / function.address, directory)
        if function.driver:
            self._bind(directory, function.driver)

    def unplug(self, address: str) -> None:
        self.remove_infiniband(address)
        directory = self._directory(address)
        for netdev in (directory / "net").glob("*"):
            (self._sys / "class/net" / netdev.name).unlink()
        (self._sys / "bus/pci/devices" / address).unlink()
        shutil.rmtree(directory)

    def has(self, address: str) -> bool:
        return self._directory(address).exists()

    def move(self, address: str, switch: str, numa_node: int) -> None:
        """Move a function without a verbs device to another bridge or the root, as if a switch was replaced."""
        function, driver = self._directory(address), self.driver(address)
        vendor, device, pci_class = ((function / name).read_text().strip() for name in ("vendor", "device", "class"))
        self.unplug(address)
        self.plug(PciFunction(address, vendor, device, pci_class, driver, switch, numa_node))

    def driver(self, address: str) -> str:
        """Return the driver's name; empty without a driver."""
        link = self._directory(address) / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def bind(self, address: str, driver: str) -> None:
        """Bind a function to a driver, such as vfio-pci, and unbind its previous one."""
        self.unbind(address)
        self._bind(self._directory(address), driver)

    def unbind(self, address: str) -> None:
        (self._directory(address) / "driver").unlink(missing_ok=True)

    def add_infiniband(self, address: str, name: str, state: str = "4: ACTIVE") -> Path:
        """Add a verbs device of this function, listed in class/infiniband."""
        device = self._directory(address) / "infiniband" / name
        write_new(device, {"ports/1/state": state})
        (device / "device").symlink_to(f"../../../{address}")
        _link(self._sys / "class/infiniband" / name, device)
        return device

    def add_mlx5(self, function: Mlx5Function) -> None:
        """Add a function of the driver mlx5 with its RDMA device and its net device."""
        self.plug(PciFunction(function.address, "0x15b3", function.pci_device, function.pci_class, MLX5_DRIVER))
        directory = self._directory(function.address)
        write_new(self.add_infiniband(function.address, function.name, function.state), function.files)
        self.give_uverbs(function.address)
        netdev = directory / "net" / function.netdev
        write_new(netdev, {"carrier_changes": "2"})
        _link(self._sys / "class/net" / function.netdev, netdev)
        if function.physfn:
            (directory / "physfn").symlink_to(f"../{function.physfn}")
        if function.manages_nvlink:
            (directory / "vpd").write_bytes(b"\x82\x0c\x00NVLink bridge\x90\x0b\x00V0\x08SMDL=SW_MNG\x78")
        if function.interface:
            vmbus = self._sys / "devices/vmbus" / function.interface
            (vmbus / "net" / function.interface).mkdir(parents=True)
            _link(vmbus / "net" / function.interface / "device", vmbus)
            self._join(netdev, vmbus / "net" / function.interface)
        if function.smi:
            write_new(self.add_infiniband(function.address, function.smi, "2: INIT"), {"ports/2/state": "2: INIT"})
        if function.bond:
            bond = self._sys / "devices/virtual/net" / function.bond
            (bond / "bonding").mkdir(parents=True, exist_ok=True)
            self._join(netdev, bond)

    def _join(self, netdev: Path, master: Path) -> None:
        """Give a net device a master, such as a bond."""
        _link(netdev / "master", master)
        _link(master / f"lower_{netdev.name}", netdev)
        if not (self._sys / "class/net" / master.name).is_symlink():
            _link(self._sys / "class/net" / master.name, master)

    def remove_infiniband(self, address: str) -> None:
        """Remove the function's verbs devices; it stays on PCI."""
        self.take_uverbs(address)
        folder = self._directory(address) / "infiniband"
        for infiniband in folder.glob("*"):
            (self._sys / "class/infiniband" / infiniband.name).unlink()
        shutil.rmtree(folder, ignore_errors=True)

    def add_efa(self, address: str) -> None:
        """Add the verbs device of an EFA function, as AWS's driver creates it with NVIDIA's open driver."""
        device = self.add_infiniband(address, efa_name(address))
        self.give_uverbs(address)
        (self._directory(address) / "p2p").write_text("NVIDIA peermem\n")
        write_new(device, _COUNTERS_AT_FIRST)

    def give_uverbs(self, address: str) -> None:
        """Add the device by which programs access the function's verbs device."""
        listing = self._sys / "class/infiniband_verbs"
        listing.mkdir(parents=True, exist_ok=True)
        taken = {each.name for each in listing.iterdir()}
        name = next(name for number in count() if (name := f"uverbs{number}") not in taken)
        uverbs = self._directory(address) / "infiniband_verbs" / name
        infiniband = next((self._directory(address) / "infiniband").iterdir())
        write_new(uverbs, {"ibdev": infiniband.name})
        (listing / name).symlink_to(os.path.relpath(uverbs, listing))

    def take_uverbs(self, address: str) -> None:
        folder = self._directory(address) / "infiniband_verbs"
        for uverbs in folder.glob("*"):
            (self._sys / "class/infiniband_verbs" / uverbs.name).unlink()
        shutil.rmtree(folder, ignore_errors=True)

    def _bind(self, function: Path, driver: str) -> None:
        directory = self._sys / "bus/pci/drivers" / driver
        directory.mkdir(parents=True, exist_ok=True)
        _link(function / "driver", directory)

    def _directory(self, address: str) -> Path:
        """Return the function's path in the device tree by the kernel's link; at the root without one."""
        listing = f"{self._sys}/bus/pci/devices"
        try:
            link = os.readlink(f"{listing}/{address}")  # noqa: PTH115 - pathlib would triple the time
        except OSError:
            return self._sys / "devices/pci0000:00" / address
        return Path(os.path.normpath(f"{listing}/{link}"))


def _link(link: Path, target: Path) -> None:
    """Create a relative link, like all links of /sys."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def efa_name(address: str) -> str:
    """Return the name that udev gives to the EFA device of this function."""
    _, bus, slot = address.partition(".")[0].split(":")
    return f"rdmap{int(bus, 16)}s{int(slot, 16)}"
