"""Simulated GPU node: a directory with the files and behaviour of a host's root, and its possible faults.

Production code runs unmodified with HOST_ROOT set to it; you may also change the files by hand.
"""

import os
import shutil
import stat
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from gpu_healthcheck.healthcheck.probes.driver_files import NVIDIA_MAJOR
from gpu_healthcheck.sim import cuda_library, nvml_library
from gpu_healthcheck.sim.container_runtime import ContainerRuntime
from gpu_healthcheck.sim.hami import Hami
from gpu_healthcheck.sim.host_services import HostServices
from gpu_healthcheck.sim.instance_types import FABRIC_MANAGER_RUNS_ON, IMEX_RUNS_ON, MACHINES, SHAPES
from gpu_healthcheck.sim.kernel_log import INFO, KernelRecord, SimulatedKernelLog, monotonic_us
from gpu_healthcheck.sim.new_files import write_new
from gpu_healthcheck.sim.pci_tree import DEVICE_COUNTERS, PciFunction, PciTree, efa_name
from gpu_healthcheck.sim.simulated_gpu import SimulatedGpu, healthy_values, invent_gpus, values_after_reboot

DRIVER_VERSION = "570.133.20"
CUDA_MAJOR = 12
LIBRARY_DIRECTORY = "usr/lib/x86_64-linux-gnu"
DRIVER_LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")
EFA_PROGRAMS = "opt/amazon/efa/bin"
CHROOT = Path(__file__).with_name("chroot.sh")
DCGM_PROGRAMS = "usr/bin"
NCCL_PROGRAMS = "opt/nccl-tests/build"
KERNEL_RELEASE = "6.8.0-1029-aws"
# Age at which no production code treats the driver as just loaded.
SETTLED_DRIVER_SECONDS = 3600
NVML_GPU_IS_LOST = 15
UVM_MAJOR = 510
FABRIC_MANAGER, IMEX = "nv-fabricmanager", "nvidia-imex"


def process_limits(locked_memory: str = "unlimited") -> str:
    """Return /proc/PID/limits with this limit in bytes; other limits are left out."""
    head = f"{'Limit':<26}{'Soft Limit':<21}{'Hard Limit':<21}Units     "
    return f"{head}\n{'Max locked memory':<26}{locked_memory:<21}{locked_memory:<21}bytes     "


class SimulatedNode:
    """Simulated GPU node: its hardware, files and processes."""

    def __init__(self, root: Path, instance_type: str) -> None:
        self.root = root
        self.instance_type = instance_type
        self.shape = {**SHAPES, **MACHINES}[instance_type]
        self.installed_version = self.driver_version = ""
        self.gpus = tuple(invent_gpus(root.name, self.shape))
        self.pci = PciTree(root)
        self.services = HostServices(root, self.write_value)
        self.container_runtime = ContainerRuntime(root, self.write_value)
        self.hami = Hami(root, self.write_value)
        self.efa_names = tuple(efa_name(address) for address in self.shape.efa_addresses)
        (root / "dev").mkdir(parents=True)
        self.kernel_log = SimulatedKernelLog(root / "dev" / "kmsg")
        self._announced: set[int] = set()

    @classmethod
    def create(
        cls,
        path: Path,
        instance_type: str = "p5.48xlarge",
        *,
        driver_version: str = DRIVER_VERSION,
        driver_age_seconds: int = SETTLED_DRIVER_SECONDS,
    ) -> Self:
        """Create a healthy, booted node in a directory that is missing or empty."""
        node = cls(path, instance_type)
        node._write_identity()
        node._plug_devices()
        if instance_type in IMEX_RUNS_ON:
            node.services.enable(IMEX)
        for gpu in node.gpus:
            write_new(path / f"nvml/gpu{gpu.index}", healthy_values(gpu, node.shape.gpu_model))
        node.install_library(driver_version)
        node.container_runtime.install("eks-al2023")
        node._boot(driver_age_seconds)
        return node

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the kernel log; the directory stays."""
        self.kernel_log.close()

    @property
    def boot_id(self) -> str:
        return (self.root / "proc/sys/kernel/random/boot_id").read_text().strip()

    @property
    def present_gpus(self) -> tuple[SimulatedGpu, ...]:
        """Return the GPUs that are still on the PCI bus."""
        return tuple(gpu for gpu in self.gpus if self.pci.has(gpu.address))

    @property
    def library(self) -> Path:
        return self.root / LIBRARY_DIRECTORY / "libnvidia-ml.so.1"

    def write_value(self, path: str, value: object) -> None:
        """Write a file below the root atomically: a reader gets the old or the new text."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f".{file.name}.tmp")
        fresh.write_text(f"{value}\n")
        fresh.rename(file)

    # -- faults of the GPUs

    def lose_gpu(self, index: int) -> None:
        """Let the GPU fall off the bus: still counted, but without an NVML handle; a reboot restores it."""
        self.write_value(f"nvml/gpu{index}/error", NVML_GPU_IS_LOST)

    def want_recovery(self, index: int, action: int) -> None:
        """Set the GPU's recovery action (nvmlDeviceGpuRecoveryAction_t); 0: none."""
        self.write_value(f"nvml/gpu{index}/field/230", action)

    def divide_gpu(self, index: int, instances: Mapping[int, int]) -> None:
        """Enable MIG mode with these MIG devices: their indices and the ids of their GPU instances."""
        shutil.rmtree(self.root / f"nvml/gpu{index}/mig", ignore_errors=True)
        for mode in ("mig_current", "mig_pending"):
            self.write_value(f"nvml/gpu{index}/{mode}", 1)
        for device, instance in instances.items():
            self.write_value(f"nvml/gpu{index}/mig/{device}", instance)

    def mig_uuid(self, index: int, device: int) -> str:
        """Return the UUID of a MIG device of the GPU."""
        return f"MIG-{self.gpus[index].uuid[4:-2]}{device:02}"

    def work(self, indices: Sequence[int], mhz: int, watts: int) -> None:
        """Keep these GPUs busy at this clock and power, in all samples of the driver."""
        for index in indices:
            busy = {"samples/1": "120 166000 100", "samples/2": "120 166000 40"}
            values = {**busy, "samples/5": f"120 166000 {mhz}", "sm_clock": mhz}
            for name, value in {**values, "field/186": 1000 * watts}.items():
                self.write_value(f"nvml/gpu{index}/{name}", value)

    def poll(self, indices: Sequence[int]) -> None:
        """Let a kernel on these GPUs wait for its peers: always busy, without use of memory or energy."""
        for index in indices:
            for name, percent in {"samples/1": 100, "samples/2": 0}.items():
                self.write_value(f"nvml/gpu{index}/{name}", f"120 166000 {percent}")
            self.write_value(f"nvml/gpu{index}/field/186", 130_000)

    def stop_work(self, indices: Sequence[int]) -> None:
        """Let these GPUs idle, without a kernel."""
        for index in indices:
            for name in ("samples/1", "samples/2"):
                self.write_value(f"nvml/gpu{index}/{name}", "120 166000 0")

    def remove_gpu(self, index: int) -> None:
        """Remove the GPU from PCI and so from NVML; a reboot does not restore it."""
        self.pci.unplug(self.gpus[index].address)
        shutil.rmtree(self.root / f"nvml/gpu{index}")

    def xid(self, index: int, code: int, text: str, *, process: tuple[int, str] | None = None) -> KernelRecord:
        """Write the driver's kernel line, preceded by a line with the GPU's address if it is the first in this boot."""
        gpu = self.gpus[index]
        if index not in self._announced:
            self._announced.add(index)
            self.kernel_log.write(f"NVRM: GPU at PCI:{gpu.kernel_address}: {gpu.uuid}", level=INFO)
            self.kernel_log.write(f"NVRM: GPU Board Serial Number: {gpu.serial}", level=INFO)
        return self.kernel_log.write(
            f"NVRM: Xid (PCI:{gpu.kernel_address}): {code}, {self._process_words(process)}{text}"
        )

    def remove_efa(self, index: int) -> None:
        """Remove the index-th EFA function from PCI; a reboot does not restore it."""
        self.pci.unplug(self.shape.efa_addresses[index])

    def remove_rdma(self, index: int) -> None:
        """Remove the RDMA device of the index-th EFA function, which stays on PCI."""
        self.pci.remove_infiniband(self.shape.efa_addresses[index])

    def rdma_port(self, index: int, name: str, value: str) -> None:
        """Set a file of the port of the index-th mlx5 function, such as `state` or `counters/symbol_error`."""
        self.write_value(f"sys/class/infiniband/{self.shape.mlx5[index].name}/ports/1/{name}", value)

    def lose_rdma_link(self, index: int) -> None:
        """Take the link of the index-th mlx5 function down, after it had one."""
        self.rdma_port(index, "state", "1: DOWN")
        self.rdma_port(index, "phys_state", "2: Polling")
        self.rdma_port(index, "counters/port_rcv_packets", "91823")

    def remove_mlx5(self, index: int) -> None:
        """Remove the index-th mlx5 function from PCI."""
        self.pci.unplug(self.shape.mlx5[index].address)

    def move_rdma_to_a_pod(self, index: int) -> None:
        """Move the RDMA device of the index-th mlx5 function to another network namespace; it stays on PCI."""
        self.pci.remove_infiniband(self.shape.mlx5[index].address)

    def move_netdev_to_a_pod(self, index: int) -> None:
        """Move the net device of the index-th mlx5 function to another network namespace."""
        function = self.shape.mlx5[index]
        (self.root / f"sys/class/net/{function.netdev}").unlink()
        shutil.rmtree(self.root / f"sys/bus/pci/devices/{function.address}/net/{function.netdev}")

    def make_rdma_exclusive(self) -> None:
        """Let an RDMA device belong to one network namespace."""
        self.write_value("sys/module/ib_core/parameters/netns_mode", "N")

    def route_by(self, netdev: str) -> None:
        """Add a default route through this net device."""
        head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
        route = f"{netdev}\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0"
        self.write_value("proc/1/net/route", f"{head}\n{route}")

    def unload_efa(self) -> None:
        for address in self.shape.efa_addresses:
            self.pci.remove_infiniband(address)
            self.pci.unbind(address)
        shutil.rmtree(self.root / "sys/module/efa")

    def move_gpu(self, index: int, switch: str, numa_node: int) -> None:
        """Move the GPU to another PCI switch or NUMA node, at the same address."""
        self.pci.move(self.gpus[index].address, switch, numa_node)

    def remove_nvlink(self, index: int, link: int) -> None:
        """Remove an NVLink from the GPU, as the driver shows it."""
        shutil.rmtree(self.root / f"nvml/gpu{index}/nvlink/{link}")

    def break_p2p(self, index: int, status: int) -> None:
        """Disable P2P over NVLink from and to the GPU (nvmlGpuP2PStatus_t)."""
        for other in self.gpus:
            if other.index != index:
                self.write_value(f"nvml/gpu{index}/p2p_nvlink.{other.index}", status)
                self.write_value(f"nvml/gpu{other.index}/p2p_nvlink.{index}", status)

    def hand_efa_to_a_virtual_machine(self, index: int) -> None:
        """Bind the index-th EFA function to vfio-pci: it stays on PCI without the EFA driver."""
        self.remove_rdma(index)
        self.pci.bind(self.shape.efa_addresses[index], "vfio-pci")

    def remove_uverbs(self, index: int) -> None:
        """Remove the device file by which user space opens the index-th EFA device."""
        self.pci.take_uverbs(self.shape.efa_addresses[index])

    def efa_counter(self, index: int, name: str, value: int) -> None:
        """Set a counter of the index-th EFA device, of its port or of the device itself."""
        device = f"sys/class/infiniband/{self.efa_names[index]}"
        folder = "hw_counters" if name in DEVICE_COUNTERS else "ports/1/hw_counters"
        self.write_value(f"{device}/{folder}/{name}", value)

    def install_dcgmi(self, root: str = ".") -> Path:
        """Install DCGM's program in this root and return its folder. `sim/dcgmi.sh` lists the files that control it.

        The folder of the node's own root also has a `chroot` that runs the program as it is.
        """
        programs = self._install("dcgmi", f"{root}/{DCGM_PROGRAMS}", f"{root}/dcgm")
        if root != ".":
            (self.root / root / "nvml").symlink_to(self.root / "nvml")
        else:
            self._install("chroot", DCGM_PROGRAMS)
        return programs

    def install_perftest(self) -> Path:
        """Install perftest's program on the node and return its folder. The script lists the files that control it."""
        return self._install("ib_write_bw", DCGM_PROGRAMS, "ib_write_bw")

    def install_nvidia_smi(self, driver_root: str = "") -> Path:
        """Install nvidia-smi in this root of the driver, and return the folder of programs for a PATH.

        The folder has a `chroot` that runs the program as it is. The script lists the files that control nvidia-smi.
        """
        self._install("nvidia-smi", f"{driver_root}/{DCGM_PROGRAMS}".lstrip("/"), "nvidia-smi")
        self._install("systemctl", DCGM_PROGRAMS, "run/systemd/system", "systemd")
        return self._install("chroot", DCGM_PROGRAMS)

    def install_nccl_tests(self) -> Path:
        """Install NCCL's test on the node and return its folder. The script lists the files that control it."""
        return self._install("all_reduce_perf", NCCL_PROGRAMS)

    def _install(self, program: str, folder: str, *control_folders: str) -> Path:
        """Copy the script that stands for a program into a folder of the node, and return the folder."""
        for path in (folder, *control_folders):
            (self.root / path).mkdir(parents=True, exist_ok=True)
        script = Path(__file__).parent / f"{program.replace('-', '_')}.sh"
        shutil.copy(script, self.root / folder / program)
        return self.root / folder

    def open_gpu(self, index: int, pid: int) -> None:
        """Let the process have the GPU's device file open. Raises PermissionError without root."""
        self.services.open_device(pid, NVIDIA_MAJOR, index, f"nvidia{index}")

    def limit_locked_memory(self, limit: int) -> None:
        """Set the locked-memory limit of the container runtime, and so of every pod, in bytes."""
        self.write_value("proc/self/limits", process_limits(str(limit)))

    def set_p2p(self, text: str) -> None:
        """Set the peer memory that the EFA driver reports as reachable: one value for all devices."""
        for address in self.shape.efa_addresses:
            self.write_value(f"sys/bus/pci/devices/{address}/p2p", text)

    def hand_gpu_to_a_virtual_machine(self, index: int) -> None:
        """Bind the function to vfio-pci: it stays on PCI without the NVIDIA driver."""
        self.pci.unbind(self.gpus[index].address)
        self.pci.bind(self.gpus[index].address, "vfio-pci")
        shutil.rmtree(self.root / f"nvml/gpu{index}")

    def unbind_gpu(self, index: int) -> None:
        """Unbind the function: it stays on PCI, and NVML does not list it."""
        self.pci.unbind(self.gpus[index].address)
        shutil.rmtree(self.root / f"nvml/gpu{index}")

    def remove_nvswitch(self, index: int) -> None:
        """Remove the index-th NVSwitch from PCI."""
        self.pci.unplug(self.shape.nvswitch_addresses[index])

    def hand_nvswitch_to_a_virtual_machine(self, index: int) -> None:
        """Bind the NVSwitch to vfio-pci; it stays on PCI."""
        self.pci.bind(self.shape.nvswitch_addresses[index], "vfio-pci")

    # -- device files

    def make_device_files(self) -> None:
        """Replace plain files by real device files, like nvidia-modprobe. Raises PermissionError without root."""
        names = {f"nvidia{gpu.index}": (NVIDIA_MAJOR, gpu.index) for gpu in self.present_gpus}
        names |= {"null": (1, 3), "nvidiactl": (NVIDIA_MAJOR, 255)}
        names |= {"nvidia-uvm": (UVM_MAJOR, 0), "nvidia-uvm-tools": (UVM_MAJOR, 1)}
        for name, (major, minor) in names.items():
            (self.root / "dev" / name).unlink(missing_ok=True)
            os.mknod(self.root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        majors = f"  1 mem\n{NVIDIA_MAJOR} nvidia\n{UVM_MAJOR} nvidia-uvm"
        self.write_value("proc/devices", f"Character devices:\n{majors}\n\nBlock devices:\n259 blkext")

    def remove_device_file(self, name: str) -> None:
        (self.root / "dev" / name).unlink()

    # -- services on the host

    def start_fabric_manager(self, age_seconds: float = SETTLED_DRIVER_SECONDS, version: str = "") -> None:
        """Run the fabric manager, of the driver's or the given version, which it writes to its log."""
        version = version or self.driver_version
        self.services.log(
            "INFO", f"Fabric Manager version {version} is running with the following configuration options"
        )
        self.services.start(FABRIC_MANAGER, age_seconds)

    def stop_fabric_manager(self) -> None:
        self.services.stop(FABRIC_MANAGER)

    def start_wrong_fabric_manager(self, version: str) -> None:
        """Install a fabric manager of this version: it detects another driver, logs that and ends."""
        self.stop_fabric_manager()
        versions = f"interface version {version} don't match with driver version {self.driver_version}"
        text = f"fabric manager NVIDIA GPU driver {versions}. Please update with matching NVIDIA driver package."
        self.services.log("ERROR", text)

    def start_imex(self) -> None:
        self.services.start(IMEX, SETTLED_DRIVER_SECONDS)

    def stop_imex(self) -> None:
        self.services.stop(IMEX)

    def give_imex_to_pods(self) -> None:
        """Configure IMEX as for the DRA driver: disabled on the host, and running only while a job needs it."""
        self.services.stop(IMEX)
        self.services.disable(IMEX)

    def install_gdrcopy(self) -> None:
        """Install a unit that loads the module at boot, like NVIDIA's package."""
        self.services.enable("gdrcopy")
        self.write_value("sys/module/gdrdrv/initstate", "live")
        self.write_value("dev/gdrdrv", "")

    def unload_gdrdrv(self) -> None:
        shutil.rmtree(self.root / "sys/module/gdrdrv")
        self.remove_gdrdrv_device()

    def remove_gdrdrv_device(self) -> None:
        (self.root / "dev/gdrdrv").unlink()

    def hide_host_processes(self) -> None:
        """Hide the host's processes, as in a container with its own process namespace."""
        self.write_value("proc/2/comm", "sh")
        self.stop_fabric_manager()
        self.stop_imex()
        self.container_runtime.stop()

    # -- the container runtime

    def run_kubernetes(self, distribution: str) -> None:
        """Make this a healthy node of the distribution (sim/container_runtime.py)."""
        self.container_runtime.install(distribution)
        self.container_runtime.start(SETTLED_DRIVER_SECONDS)

    def put_file(self, path: str, text: str) -> None:
        """Write a file of the image, which every process has read."""
        self.container_runtime.put(path, text)

    def remove_file(self, path: str) -> None:
        (self.root / path).unlink()

    def put_program(self, path: str, architecture: str = "x86_64") -> None:
        """Write a program of this architecture, named as by uname."""
        self.container_runtime.put_program(path, architecture)

    def restart_kubernetes(self) -> None:
        """Restart kubelet and container runtime, which read their files at once."""
        self.container_runtime.start(0)

    def stop_kubernetes(self) -> None:
        """Stop kubelet and containerd."""
        self.container_runtime.stop()

    # -- HAMi

    def install_hami(self, release: str = "2.10", hook: str = "/usr/local", age_seconds: float = 3000) -> None:
        """Install HAMi, healthy, which shares the GPUs (sim/hami.py)."""
        self.hami.install(release, hook, age_seconds)

    def hami_folder_in_place_of(self, name: str) -> None:
        self.hami.put_folder(name)

    def hami_container(self, pod: str, age_seconds: float, gone: bool = False) -> None:
        """Allocate a share to a container of this age, whose pod is `gone` or still there."""
        self.hami.run_container(pod, age_seconds=age_seconds)
        if gone:
            self.hami.forget_pod(pod)

    def hami_listens(self, *sockets: str) -> None:
        self.hami.listen(*sockets)

    def lock_hami_mig(self, age_seconds: float) -> None:
        self.hami.lock_mig(age_seconds)

    # -- faults of the driver

    def load_nouveau(self) -> None:
        """Load nouveau too; NVIDIA's driver was first and keeps the GPUs."""
        self.write_value("sys/module/nouveau/initstate", "live")

    def hang(self, function: str = "") -> None:
        """Let every NVML call, or calls of the named function, hang."""
        self.write_value("nvml/hang", function)

    def unhang(self) -> None:
        """Let later calls return; calls that already hang stay until their process is killed."""
        (self.root / "nvml/hang").unlink()

    def crash(self, function: str = "") -> None:
        """Let every NVML call, or calls of the named function, end its process by SIGSEGV."""
        self.write_value("nvml/crash", function)

    def stop_crashing(self) -> None:
        (self.root / "nvml/crash").unlink()

    def driver_unload(self) -> None:
        self.stop_fabric_manager()  # it holds the driver open, which prevents an unload
        for gpu in self.present_gpus:
            if self.pci.driver(gpu.address) == "nvidia":
                self.pci.unbind(gpu.address)
        for device in (self.root / "dev").glob("nvidia*"):
            device.unlink()
        shutil.rmtree(self.root / "sys/module/nvidia", ignore_errors=True)

    def driver_load(self, version: str | None = None, *, driver_age_seconds: int = 0) -> None:
        """Load the given driver version, library included, or the installed one.

        A process that has loaded another version's library gets NVML error 18 from now on.
        """
        if version:
            self.install_library(version)
        self.driver_version = self.installed_version
        self.write_value("nvml/driver_version", self.driver_version)
        self.write_value("sys/module/nvidia/version", self.driver_version)
        loaded = time.time() - driver_age_seconds
        for path in ("sys/module/nvidia/version", "sys/module/nvidia"):
            os.utime(self.root / path, (loaded, loaded))
        (self.root / "dev/nvidiactl").touch()
        for gpu in self.present_gpus:
            (self.root / f"dev/nvidia{gpu.index}").touch()
            if not self.pci.driver(gpu.address):
                self.pci.bind(gpu.address, "nvidia")
        if self.instance_type in FABRIC_MANAGER_RUNS_ON:
            self.start_fabric_manager(driver_age_seconds)
        self.kernel_log.write(
            f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {self.driver_version}",
            level=INFO,
            timestamp_us=max(0, monotonic_us() - driver_age_seconds * 1_000_000),
        )

    def install_library(self, version: str) -> None:
        """Replace only the user-space part, like a package upgrade before the reload or reboot."""
        directory = self.root / LIBRARY_DIRECTORY
        directory.mkdir(parents=True, exist_ok=True)
        for name, library in {"libnvidia-ml.so": nvml_library.build(), "libcuda.so": cuda_library.build()}.items():
            for old in directory.glob(f"{name}*"):
                old.unlink()  # never overwritten: a process may have it mapped
            shutil.copyfile(library, directory / f"{name}.{version}")
            (directory / f"{name}.1").symlink_to(f"{name}.{version}")
            (directory / name).symlink_to(f"{name}.1")
        self.write_value("nvml/nvml_version", f"{CUDA_MAJOR}.{version}")
        self.installed_version = version

    def reboot(self, *, driver_age_seconds: int = SETTLED_DRIVER_SECONDS) -> None:
        """Reboot: a new boot id, an empty kernel ring, pending modes active, and no fault that a reboot fixes."""
        for fault in ("hang", "crash"):
            (self.root / "nvml" / fault).unlink(missing_ok=True)
        shutil.rmtree(self.root / "nvml/error", ignore_errors=True)
        for gpu in self.present_gpus:
            folder = self.root / f"nvml/gpu{gpu.index}"
            for passing in (*folder.glob("error*"), *folder.glob("nvlink/*/state")):
                passing.unlink()
            for value, healthy in values_after_reboot(gpu, self.shape.gpu_model).items():
                self.write_value(f"nvml/gpu{gpu.index}/{value}", healthy)
            for mode in ("ecc_mode", "mig"):
                if (pending := folder / f"{mode}_pending").exists():
                    self.write_value(f"nvml/gpu{gpu.index}/{mode}_current", pending.read_text().strip())
        self._announced.clear()
        self.kernel_log.clear()
        self._boot(driver_age_seconds)

    # -- parts of a healthy node

    def _boot(self, driver_age_seconds: int) -> None:
        self.write_value("proc/sys/kernel/random/boot_id", uuid.uuid4())
        self.services.boot(driver_age_seconds + 30)
        self.container_runtime.boot(driver_age_seconds)
        if self.instance_type in IMEX_RUNS_ON:
            self.start_imex()
        self.kernel_log.write(
            f"Linux version {KERNEL_RELEASE} (simulated)",
            level=5,
            timestamp_us=max(0, monotonic_us() - (driver_age_seconds + 30) * 1_000_000),
        )
        self.driver_load(driver_age_seconds=driver_age_seconds)

    def _write_identity(self) -> None:
        machine = uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.root.name}.simulated.invalid")
        for path, value in {
            "sys/class/dmi/id/sys_vendor": "Amazon EC2",
            "sys/class/dmi/id/product_name": self.instance_type,
            "sys/class/dmi/id/product_uuid": f"ec2{str(machine)[3:]}",
            "etc/machine-id": machine.hex,
            "proc/sys/kernel/osrelease": KERNEL_RELEASE,
            "proc/self/limits": process_limits(),
        }.items():
            self.write_value(path, value)

    def _plug_devices(self) -> None:
        shape = self.shape
        self.pci.plug(PciFunction("0000:00:04.0", "0x1d0f", "0x8061", "0x010802", "nvme"))  # EBS
        self.pci.plug(PciFunction("0000:00:05.0", "0x1d0f", "0xec20", "0x020000", "ena"))
        self.pci.plug(PciFunction("0000:00:1f.0", "0x1d0f", "0xcd01", "0x010802", "nvme"))  # instance storage
        for switch in shape.pci_switches:
            self.pci.plug(
                PciFunction(switch.address, "0x1000", "0xc030", "0x060400", "pcieport", numa_node=switch.numa_node)
            )
        for gpu in self.gpus:
            self._plug_below(PciFunction(gpu.address, "0x10de", shape.gpu_model.pci_device, "0x030200"))
        for address in shape.nvswitch_addresses:
            pci_device = shape.nvswitch_pci_device
            self.pci.plug(PciFunction(address, "0x10de", pci_device, "0x068000", "nvidia-nvswitch"))
        for index, address in enumerate(shape.mlx5_addresses):
            self.pci.plug(PciFunction(address, "0x15b3", "0x1021", "0x020700", "mlx5_core"))
            self.pci.add_infiniband(address, f"mlx5_{index}")
        for function in shape.mlx5:
            self.pci.add_mlx5(function)
        if shape.mlx5 or shape.mlx5_addresses:
            self.write_value("sys/module/mlx5_core/version", "24.10-1.1.4")
        for address in shape.efa_addresses:
            self._plug_below(PciFunction(address, "0x1d0f", shape.efa_pci_device, "0x020000", "efa"))
            self.pci.add_efa(address)
        if shape.efa_addresses:
            self.write_value("sys/module/efa/version", "2.17.2g")
            for program in ("fi_info", "fi_pingpong"):
                self._install(program, EFA_PROGRAMS)

    def _plug_below(self, function: PciFunction) -> None:
        """Add the function below its bridge in the instance type, if any."""
        switch = self.shape.switch_above(function.address)
        if switch:
            function = replace(function, switch=switch.address, numa_node=switch.numa_node)
        self.pci.plug(function)

    def _process_words(self, process: tuple[int, str] | None) -> str:
        if process:
            return f"pid={process[0]}, name={process[1]}, "
        # From R570 on, the driver omits these words.
        return "" if int(self.driver_version.split(".")[0]) >= 570 else "pid='<unknown>', name=<unknown>, "
