"""Origin of a process: the node itself, or a container, in which the user chooses the process name.

In a pod, users choose the name, program file and arguments of their processes. With their own user namespace, these
processes show every capability. Users do not choose the kubelet's control group for the pod. Without a privileged pod,
the processes have no capabilities in the host's user namespace.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from functools import cached_property

from gpu_healthcheck.healthcheck.host.opening import is_gone, open_file

_DRIVER_ROOT = b"/run/nvidia/driver"
"""Host path at which the GPU operator's driver container mounts its root (`mount --rbind / /run/nvidia/driver`)."""
_CONTAINER = re.compile(
    # Groups of the kubelet, by both cgroup drivers, below any cgroup root; also as observed from inside
    # (`/../../podUID`).
    rb"(?:^|[/-])kubepods(?:[-./ ]|$)|[/-]pod[0-9a-f]{8}[0-9a-f_-]{24,28}(?:\.slice)?(?:[/ ]|$)"
    # Groups of containerd, CRI-O, Docker and Podman have names of 64 digits. Then those of LXC, systemd and VMs.
    rb"|(?:^|[/-])[0-9a-f]{64}(?:\.scope)?(?:[/ ]|$)|/(?:lxc(?:\.payload\.[^/]*)?|machine\.slice)(?:/|$)",
    re.MULTILINE,
)
_LONGEST = 1 << 22
_SYS_ADMIN = 1 << 21
"""CAP_SYS_ADMIN (capability.h), which permits mounts. Over the host, a pod has it only by grant of the node's owner."""
_CAPABILITIES = re.compile(rb"^CapEff:\s*([0-9a-f]{1,16})$", re.MULTILINE)


class Origin(StrEnum):
    """Origin of a process: the node, a container or unknown."""

    HOST = "host"
    DRIVER = "driver container"
    """Privileged, and its root is the root that the GPU operator's driver container mounts on the host."""
    PRIVILEGED = "privileged container"
    """Privileged, or not known to be unprivileged. Users who may run such containers own the node."""
    CONTAINER = "container"


class Origins:
    """Origins of processes for one pass over /proc, given as an open folder.

    The methods raise OSError for errors other than a vanished or hidden file.
    """

    def __init__(self, proc: int) -> None:
        self._proc = proc

    def of(self, pid: str, cgroup: bytes) -> Origin:
        """Return the origin of a process. `cgroup` is the content of /proc/PID/cgroup.

        If it is empty, as in a captured tree, all processes count as the host's.
        """
        if not any(_CONTAINER.search(self._on_node(line)) for line in cgroup.splitlines()):
            return Origin.HOST
        if not self._is_privileged(pid):
            return Origin.CONTAINER
        shown = self._driver_root
        return Origin.DRIVER if shown and self._mounted(pid, b"/") == shown else Origin.PRIVILEGED

    def administers(self, pid: str) -> bool:
        """Whether the process has CAP_SYS_ADMIN over the host, or its capabilities can't be read."""
        may = self._capabilities(pid)
        return self._is_in_hosts_users(pid) and (may is None or bool(may & _SYS_ADMIN))

    def _on_node(self, line: bytes) -> bytes:
        """Return the part of a cgroup path below the node's own. In kind, the node itself is a container."""
        return next((line[len(own) :] for own in self._own if line == own or line.startswith(own + b"/")), line)

    def _is_privileged(self, pid: str) -> bool:
        """Whether the process has all capabilities of the first process, in the same user namespace.

        If its capabilities or namespace can't be read, they count as equal.
        """
        may = self._capabilities(pid)
        return self._is_in_hosts_users(pid) and (may is None or not (self._all_capabilities or 0) & ~may)

    def _is_in_hosts_users(self, pid: str) -> bool:
        users = self._link(f"{pid}/ns/user")
        return not users or not self._users or users == self._users

    @cached_property
    def _own(self) -> tuple[bytes, ...]:
        """Return the control groups of the node if the node is a container, by line."""
        lines = ((line, list(_CONTAINER.finditer(line))) for line in self._read("1/cgroup").splitlines())
        return tuple(line[: found[-1].end()].rstrip(b"/") for line, found in lines if found)

    @cached_property
    def _users(self) -> str:
        return self._link("1/ns/user")

    @cached_property
    def _all_capabilities(self) -> int | None:
        return self._capabilities("1")

    @cached_property
    def _driver_root(self) -> bytes:
        return self._mounted("1", _DRIVER_ROOT)

    def _capabilities(self, pid: str) -> int | None:
        found = _CAPABILITIES.search(self._read(f"{pid}/status"))
        return int(found[1], 16) if found else None

    def _mounted(self, pid: str, place: bytes) -> bytes:
        """Return the device number of the process's mount at that path; b"" without one (proc(5), mountinfo).

        The fields are: ID, parent, device, root, mount point, options. If there are several mounts, the last hides the
        others.
        """
        lines = (line.split(b" ", 5) for line in self._read(f"{pid}/mountinfo").splitlines())
        return next(reversed([line[2] for line in lines if len(line) > 5 and line[4] == place]), b"")

    def _read(self, path: str) -> bytes:
        """Return the whole content, up to the length of a mount list; nothing if it has vanished or is hidden."""
        try:
            file = open_file(path, os.O_RDONLY, self._proc)
        except OSError as error:
            if is_gone(error) or isinstance(error, PermissionError):
                return b""
            raise
        with os.fdopen(file, "rb") as whole:  # the kernel returns its lists in parts
            return whole.read(_LONGEST)

    def _link(self, path: str) -> str:
        try:
            return os.readlink(path, dir_fd=self._proc)
        except OSError:
            return ""
