"""Facts as the probes return them to the checks, for a p5.48xlarge unless noted otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Check, Evidence, Judgement, Observation, Outcome, Probe, Unobserved
from gpu_healthcheck.healthcheck.probes.efa.infiniband import ERROR_COUNTERS, KEEP_ALIVES, RDMA, Rdma, RdmaDevice
from gpu_healthcheck.healthcheck.probes.mlx5 import HARDWARE_COUNTERS, MLX5, PORT_COUNTERS, Mlx5, Mlx5Device
from gpu_healthcheck.healthcheck.probes.nvml.answer import PARSERS
from gpu_healthcheck.healthcheck.probes.nvml.gpus import (
    READINGS,
    DriverReading,
    Fabric,
    Gpu,
    Gpus,
    Load,
    NvLink,
    PcieLink,
    RowRemap,
    Samples,
    SramUnique,
    Temperature,
    ThrottledTime,
)
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction

ADDRESSES = tuple(f"0000:{bus:02x}:00.0" for bus in (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA))
EFA_ADDRESSES = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x10, 0x40))
P5 = Expectation(InstanceProfile("p5.48xlarge", 8, 32, True, "efa"), "p5.48xlarge")
G6 = Expectation(InstanceProfile("g6.xlarge", 1, 0, False, ""), "g6.xlarge")
NO_GPUS = Expectation(InstanceProfile("m7i.large", 0, 0, False, ""), "m7i.large")
UNKNOWN_TYPE = Expectation(None, "x9.metal")

IDLE = Load(utilisation=Samples(71, 14_000_000, 0))
BUSY = Load(1980, 2619, 690_000, 0, 0, 0, Samples(71, 14_000_000, 7_029))


def judgements(check: Check, expected: Expectation, seen: dict[Probe[Any], Any]) -> list[Judgement]:
    return list(check.judge(Evidence(seen), expected))


def says_later(
    check: Check, seconds: float, before: dict[Probe[Any], Any], now: dict[Probe[Any], Any]
) -> list[Judgement]:
    """Return the judgements of a second cycle after so many seconds."""
    return list(check.judge(Evidence(now, 1000.0 + seconds, Evidence(before, 1000.0)), P5))


def finds(check: Check, expected: Expectation, seen: dict[Probe[Any], Any]) -> list[Judgement]:
    """Return the judgements without the line for people."""
    return [judgement for judgement in judgements(check, expected, seen) if not isinstance(judgement, Observation)]


def tells(check: Check, expected: Expectation, seen: dict[Probe[Any], Any]) -> list[Observation]:
    """The line for a person alone."""
    return [observation for observation in judgements(check, expected, seen) if isinstance(observation, Observation)]


def gpu_function(address: str, driver: str = "nvidia", **more: Any) -> PciFunction:
    return PciFunction(address, 0x10DE, 0x2330, more.pop("pci_class", 0x030200), driver, **more)


def functions(*addresses: str, driver: str = "nvidia") -> tuple[PciFunction, ...]:
    return tuple(gpu_function(address, driver) for address in addresses)


def gpu(index: int, address: str, error: int = 0) -> Gpu:
    return Gpu(index, error, address, f"GPU-{index}", f"165{index}", "NVIDIA H100 80GB HBM3")


_SHOWN_OTHERWISE = {"retired_pages", "row_remap", "throttled"}


def _healthy_readings() -> dict[str, Any]:
    """Return the readings whose healthy values are numbers, by their declaration."""
    declared = {name: [*row.healthy.values()] for name, row in READINGS.items() if name not in _SHOWN_OTHERWISE}
    return {
        name: PARSERS[name](numbers if len(numbers) > 1 else numbers[0])
        for name, numbers in declared.items()
        if numbers and all(isinstance(number, int) for number in numbers)
    }


_READINGS = _healthy_readings()


def healthy(index: int, **more: Any) -> Gpu:
    """A GPU of a p5.48xlarge with every reading that this GPU has, nothing wrong; `more` changes some."""
    return replace(
        gpu(index, ADDRESSES[index]),
        **{
            **_READINGS,
            "minor": index,
            "instances": (),
            "temperature": Temperature(34, None, 52, -2),
            "row_remap": RowRemap(0, 0, pending=False, failed=False),
            "exhausted_banks": 0,
            "processes": 0,
            "pcie": PcieLink(16, 16),
            "nvlinks": tuple(NvLink(link, active=True, version=6) for link in range(18)),
            "fabric": Fabric(3, 0, 0, "", 0, 1),
            "throttled": ThrottledTime(0, 0, 0, 0),
            "load": IDLE,
            "unrepairable_memory": False,
            "sram_unique": SramUnique(0, 0),
            **more,
        },
    )


def every(**more: Any) -> tuple[Gpu, ...]:
    """The eight of a p5.48xlarge, all with that difference."""
    return tuple(healthy(index, **more) for index in range(len(ADDRESSES)))


def driver_says(*gpus: Gpu) -> DriverReading:
    return DriverReading(Gpus("570.133.20", "/usr/lib64/libnvidia-ml.so.1", gpus))


def driver_is_silent(cause: Unobserved, *missed: float, stuck_pid: int | None = None) -> DriverReading:
    return DriverReading(cause, missed, 60.0, stuck_pid)


RAILS = tuple(f"0000:{bus:02x}:00.0" for bus in (0x18, 0x40, 0x4F, 0x5E, 0x9A, 0xC0, 0xD0, 0xDC))
HGX = Expectation(None, "hgx-h100")


def mlx5_device(index: int, **more: Any) -> Mlx5Device:
    """An NDR port of an HGX H100 with nothing wrong; `more` changes some."""
    device = Mlx5Device(f"mlx5_{index}", RAILS[index], 0x1021, "MT_0000000838", netdev=f"ibp{index}s0")
    port = {"state": "4: ACTIVE", "rate": 400.0, "link_layer": "InfiniBand", "has_gid": True}
    counters = dict.fromkeys((*PORT_COUNTERS, *HARDWARE_COUNTERS), 0)
    return replace(device, **{**port, "counters": counters, **more})


def storage_device(index: int, **more: Any) -> Mlx5Device:
    """A port of one of an HGX H100's two storage adapters, in a bond."""
    own = {"name": f"mlx5_{8 + index}", "address": f"0000:{index + 0x29:02x}:00.1", "board_id": "MT_0000000892"}
    return mlx5_device(0, **{**own, "link_layer": "Ethernet", "bonded": True, "rate": 200.0, **more})


def hgx(*changed: Mlx5Device, without: int | None = None) -> dict[Probe[Any], Any]:
    """Facts of an HGX H100 with two storage adapters, and with these devices instead of healthy ones."""
    by_address = {device.address: device for device in (*map(mlx5_device, range(8)), *map(storage_device, range(2)))}
    by_address |= {device.address: device for device in changed}
    here = [device for device in by_address.values() if without is None or device.address != RAILS[without]]
    pci = tuple(PciFunction(device.address, 0x15B3, device.device, 0x020700, "mlx5_core") for device in here)
    return {FUNCTIONS: pci, RDMA: rdma(0), MLX5: Mlx5(tuple(here))}


def efa_device(index: int, **more: Any) -> RdmaDevice:
    """An EFA device with nothing wrong; `more` changes some."""
    device = RdmaDevice(
        f"rdmap{index + 16}s0",
        is_efa=True,
        address=EFA_ADDRESSES[index],
        uverbs=f"uverbs{index}",
        p2p="NVIDIA peermem",
        counters={KEEP_ALIVES: 1000, **dict.fromkeys(ERROR_COUNTERS, 0)},
    )
    return replace(device, **more)


def rdma(efa: int, mlx5: int = 0, *, loaded: bool = True, **more: Any) -> Rdma:
    """So many EFA devices, all with that difference, and mlx5 devices."""
    devices = [efa_device(index, **more) for index in range(efa)]
    devices += [RdmaDevice(f"mlx5_{number}", False) for number in range(mlx5)]
    return Rdma(tuple(devices), loaded, "2.17.2g" if loaded else "")


def efa_functions(count: int, driver: str = "efa") -> tuple[PciFunction, ...]:
    return tuple(PciFunction(address, 0x1D0F, 0xEFA2, 0x020000, driver) for address in EFA_ADDRESSES[:count])


def untimed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes without the duration of each judge."""
    return [replace(outcome, seconds=0.0) for outcome in outcomes]
