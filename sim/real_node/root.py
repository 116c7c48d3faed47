"""The node's `/`: this machine's files below a writable layer, with the paths of a simulated GPU host.

All of it happens inside the node's namespaces and ends with them.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from gpu_healthcheck.healthcheck.probes.driver_files import NVIDIA_MAJOR
from gpu_healthcheck.sim.node import DRIVER_LIBRARIES, LIBRARY_DIRECTORY
from gpu_healthcheck.sim.real_node import arguments, nvidia_runtime

HARDWARE = "opt/simulated-node"
"""Path of the simulated node's directory on the node; the driver's usual paths are links to it."""

_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
    "kmsg": (1, 11),
}
"""Devices that pods need; a privileged pod must not find this machine's disks."""
_OWN_STORE = ("var/lib/containerd", "var/lib/kubelet")
"""Folders on the real file system, because they contain overlays or are measured: both fail on an overlay."""
_FROM_HARDWARE = {
    "class": ("infiniband", "dmi"),
    "bus/pci": ("devices", "drivers"),
    "module": ("nvidia", "efa"),
}
"""Parts of /sys from the simulated hardware, by the directory that gets another layer."""


def make(folder: Path, name: str, hardware: Path, *readable: Path) -> None:
    """Make the node's root the `/` of this process. `readable`: folders that may be on other file systems."""
    root = folder / "root"
    for layer in ("root", "upper", "work", "layers"):
        (folder / layer).mkdir()
    _mount(
        "-t", "overlay", "overlay", root, options=f"lowerdir=/,upperdir={folder / 'upper'},workdir={folder / 'work'}"
    )
    for path, mode in (("tmp", "1777"), ("run", "755"), ("dev", "755")):
        _mount("-t", "tmpfs", "tmpfs", root / path, options=f"mode={mode}")
    _mount("-t", "proc", "proc", root / "proc")
    _mount("-t", "sysfs", "sysfs", root / "sys")
    _mount("--rbind", "/sys/fs/cgroup", root / "sys/fs/cgroup")
    _fill_dev(root / "dev")
    for tree in readable:
        place = root / tree.relative_to("/")
        _bind(tree, place)
        _mount(place, options="remount,bind,ro")
    _bind(folder, root / folder.relative_to("/"))
    for path in _OWN_STORE:
        store = folder / "stores" / path
        store.mkdir(parents=True)
        _bind(store, root / path)
    _plug(root, folder / "layers", hardware)
    _configure(root, folder, name, (hardware / "etc/machine-id").read_text())
    _enter(root)


def _plug(root: Path, layers: Path, hardware: Path) -> None:
    """Bind the hardware instead of copying it: later changes of the simulated node apply here, too."""
    _bind(hardware, root / HARDWARE)
    for directory, names in _FROM_HARDWARE.items():
        _mount("-t", "tmpfs", "tmpfs", _made(layers / directory))
        upper, work = _made(layers / directory / "upper"), _made(layers / directory / "work")
        for name in names:
            up = "../" * (directory.count("/") + 2)
            (upper / name).symlink_to(f"{up}{HARDWARE}/sys/{directory}/{name}")
        place = root / "sys" / directory
        _mount("-t", "overlay", "overlay", place, options=f"lowerdir={place},upperdir={upper},workdir={work}")
    for name in DRIVER_LIBRARIES:
        library = _made(root / LIBRARY_DIRECTORY) / name
        library.unlink(missing_ok=True)
        library.symlink_to(f"/{HARDWARE}/{LIBRARY_DIRECTORY}/{name}")
    _mount("--bind", hardware / "dev/kmsg", root / "dev/kmsg")
    for file in (hardware / "dev").glob("nvidia*"):
        minor = 255 if file.name == "nvidiactl" else int(file.name.removeprefix("nvidia"))
        os.mknod(root / "dev" / file.name, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, minor))
    # Bind the folder, because the boot id is replaced by a rename.
    _mount("--bind", hardware / "proc/sys/kernel/random", root / "proc/sys/kernel/random")


def _fill_dev(dev: Path) -> None:
    for name, (major, minor) in _DEVICES.items():
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (dev / name).chmod(0o600 if name == "kmsg" else 0o666)
    for name, target in {
        "fd": "/proc/self/fd",
        "stdin": "fd/0",
        "stdout": "fd/1",
        "stderr": "fd/2",
        "ptmx": "pts/ptmx",
    }.items():
        (dev / name).symlink_to(target)
    _mount("-t", "devpts", "devpts", _made(dev / "pts"), options="newinstance,ptmxmode=0666,mode=620")
    _mount("-t", "tmpfs", "tmpfs", _made(dev / "shm"), options="mode=1777")
    _made(dev / "mqueue")


def _configure(root: Path, folder: Path, name: str, machine_id: str) -> None:
    for path, text in {
        "etc/hostname": f"{name}\n",
        "etc/hosts": f"127.0.0.1 localhost\n{arguments.NODE_ADDRESS} {name}\n",
        "etc/resolv.conf": "",
        "etc/machine-id": machine_id,
        "etc/containerd/config.toml": arguments.CONTAINERD_CONFIGURATION,
        "etc/cni/net.d/10-node.conflist": arguments.CNI_CONFIGURATION,
    }.items():
        file = root / path
        _made(file.parent)
        file.unlink(missing_ok=True)
        file.write_text(text)
    runtime = root / nvidia_runtime.PROGRAM.lstrip("/")
    runtime.unlink(missing_ok=True)
    runtime.write_text(nvidia_runtime.script(HARDWARE))
    runtime.chmod(0o755)
    for key, value in arguments.LOOK_ALIKES.items():
        file = _made(folder / "sysctl") / key.replace("/", ".")
        file.write_text(f"{value}\n")
        _mount("--bind", file, root / "proc/sys" / key)


def _enter(root: Path) -> None:
    old = root / "mnt"
    _run("pivot_root", root, old)
    os.chdir("/")
    _run("umount", "--lazy", "/mnt")
    # Mounts of pods propagate, as on any node; the peer group ends with the namespace.
    _mount("--make-rshared", "/")


def bring_up_network(name: str) -> None:
    """Set local addresses: the API server's on the loopback, the node's on a bridge without ports."""
    _run("hostname", name)
    for command in (
        "link set lo up",
        f"address add {arguments.API_ADDRESS}/32 dev lo",
        "link add node0 type bridge",
        f"address add {arguments.NODE_ADDRESS}/24 dev node0",
        "link set node0 up",
    ):
        _run("ip", *command.split())
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def power_off_pods() -> None:
    """Remove the mounts of pods and empty /run, as a reboot does."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4] for line in lines]
    for place in reversed(places):
        if place.startswith(("/run", "/var/lib/kubelet/")):
            _run("umount", "--lazy", place)
    _mount("-t", "tmpfs", "tmpfs", "/run", options="mode=755")


def _bind(source: Path, place: Path) -> None:
    _mount("--bind", source, _made(place))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _mount(*words: object, options: str = "") -> None:
    _run("mount", *(("-o", options) if options else ()), *words)


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)
