"""HAMi on a simulated node: its two processes, its files on the host, and those of pods."""

import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PLUGIN_PID, MONITOR_PID = 1201, 1202
POD = "5e1f0c1a-7a53-4b5b-9d0e-2f6a1c3b4d5e"
SOCKETS = "var/lib/kubelet/device-plugins"
_IMAGE = "k8s-vgpu/lib/nvidia"
_MOUNTS, _USERS_OF_HOST = "mnt:[4026532801]", "user:[4026531837]"
_SYS_ADMIN, _ALL = "0000000000200000", "000001ffffffffff"
_TICKS_PER_SECOND = 100
_SOCKET = "nvidia-gpu.sock"


@dataclass(frozen=True)
class Release:
    """Differences between releases on the host: library name, privileged plugin, and options of the monitor."""

    library: str
    plugin_capabilities: str = _SYS_ADMIN
    monitor: Mapping[str, str] | None = None


RELEASES = {
    "2.4": Release("libvgpu.so"),
    "2.5": Release("libvgpu.so.v2.5.3"),
    "2.7": Release("libvgpu.so.v2.7.1", _ALL),
    "2.10": Release("libvgpu.so.v2.10.0", _ALL, {"HAMI_RESYNC_INTERVAL": "5m"}),
}


class Hami:
    """HAMi of a simulated node."""

    def __init__(self, root: Path, write: Callable[[str, object], None]) -> None:
        self._root = root
        self._write = write
        self._folder = ""

    def install(self, release: str, hook: str = "/usr/local", age_seconds: float = 3000) -> None:
        """Install as the chart does with `global.gpuHookPath: HOOK`, healthy; files of an older release stay."""
        versions = RELEASES[release]
        self._folder = f"{hook}/vgpu".lstrip("/")
        self._write(f"{self._folder}/{versions.library}", "\x7fELF")
        self._write(f"{self._folder}/ld.so.preload", f"{hook}/vgpu/libvgpu.so")
        (self._root / self._folder / "containers").mkdir(exist_ok=True)
        (self._root / f"var/lib/kubelet/pods/{POD}").mkdir(parents=True, exist_ok=True)
        plugin, monitor = {"HOOK_PATH": hook}, {"HOOK_PATH": f"{hook}/vgpu", **(versions.monitor or {})}
        self._run(PLUGIN_PID, "nvidia-device-plugin", plugin, versions.plugin_capabilities, age_seconds)
        self._run(MONITOR_PID, "vGPUmonitor", monitor, _SYS_ADMIN, age_seconds)
        self._write(f"proc/{PLUGIN_PID}/root/{_IMAGE}/{versions.library}", "\x7fELF")
        for name in ("kubelet.sock", _SOCKET):
            self._make_socket(name)
        self.listen(_SOCKET)

    def listen(self, *names: str) -> None:
        """Show these listening sockets in the network of its pod."""
        rows = [
            f"0: 00000002 00000000 00010000 0001 01 {77801 + at} /{SOCKETS}/{text}" for at, text in enumerate(names)
        ]
        for pid in (PLUGIN_PID, MONITOR_PID):
            if (self._root / f"proc/{pid}").is_dir():
                self._write(
                    f"proc/{pid}/net/unix", "\n".join(["Num RefCount Protocol Flags Type St Inode Path", *rows])
                )

    def forget_socket(self) -> None:
        """Restart the kubelet, which empties its folder; the plugin does not re-register."""
        (self._root / f"proc/{PLUGIN_PID}/root/{SOCKETS}/{_SOCKET}").unlink()

    def put_folder(self, name: str) -> None:
        """Create a folder in place of a file, as a container runtime does for a missing mount source."""
        place = self._root / self._folder / name
        place.unlink(missing_ok=True)
        place.mkdir()

    def remove(self, name: str) -> None:
        (self._root / self._folder / name).unlink()

    def run_container(self, pod: str, *, age_seconds: float = 0.0, started: bool = True) -> None:
        """Allocate a share to a container of this age. A container that was not started has an empty folder."""
        (self._root / f"var/lib/kubelet/pods/{pod}").mkdir(parents=True, exist_ok=True)
        folder = self._root / self._folder / f"containers/{pod}_cuda"
        folder.mkdir()
        if started:
            (folder / "libvgpu.so").touch()
        long_ago = time.time() - age_seconds
        os.utime(folder, (long_ago, long_ago))

    def forget_pod(self, pod: str) -> None:
        """Remove the pod from the kubelet's state."""
        (self._root / f"var/lib/kubelet/pods/{pod}").rmdir()

    def lock_mig(self, age_seconds: float) -> None:
        path = self._root / "tmp/hami/hami-mig-apply.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        long_ago = time.time() - age_seconds
        os.utime(path, (long_ago, long_ago))

    def _make_socket(self, name: str) -> None:
        folder = self._root / f"proc/{PLUGIN_PID}/root/{SOCKETS}"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            os.mknod(folder / name, stat.S_IFSOCK | 0o755)

    def _run(self, pid: int, name: str, fields: Mapping[str, str], capabilities: str, age_seconds: float) -> None:
        uptime = float((self._root / "proc/uptime").read_text().split()[0])
        started, comm = int((uptime - age_seconds) * _TICKS_PER_SECOND), name[:15]
        self._write(f"proc/{pid}/comm", comm)
        self._write(f"proc/{pid}/stat", f"{pid} ({comm}) S 1 {pid} {pid} 0 -1 4194560 {'0 ' * 8}20 0 1 0 {started} 0")
        pod = f"kubepods-besteffort-pod{POD.replace('-', '_')}.slice"
        self._write(
            f"proc/{pid}/cgroup", f"0::/kubepods.slice/kubepods-besteffort.slice/{pod}/cri-containerd-{'ab' * 32}"
        )
        self._write(f"proc/{pid}/status", f"Name:\t{comm}\nCapEff:\t{capabilities}")
        words = {"PATH": "/k8s-vgpu/bin", "NODE_NAME": "node", **fields}
        (self._root / f"proc/{pid}/environ").write_text("".join(f"{key}={value}\0" for key, value in words.items()))
        for link, target in (("ns/mnt", _MOUNTS), ("ns/user", _USERS_OF_HOST)):
            place = self._root / f"proc/{pid}/{link}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.symlink_to(target)
