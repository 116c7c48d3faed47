"""Whose a process is: the node's own, or somebody's in a container, who may call it whatever he likes.

In a pod a user chooses the name, the file and the words of his processes, and with a user namespace of his own they
show every capability there is. He does not choose where the kubelet puts them among the host's control groups, and
without a privileged pod they have no capabilities in the host's user namespace.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from functools import cached_property

from healthcheck.host.kernel_files import is_gone
from healthcheck.host.opening import open_file

_DRIVER_ROOT = b"/run/nvidia/driver"
"""Where the GPU operator's driver container shows its root to the host (`mount --rbind / /run/nvidia/driver`)."""
_CONTAINER = re.compile(
    # The kubelet's, by both cgroup drivers, below any cgroup root; and seen from within them (`/../../podUID`).
    rb"(?:^|[/-])kubepods(?:[-./ ]|$)|[/-]pod[0-9a-f]{8}[0-9a-f_-]{24,28}(?:\.slice)?(?:[/ ]|$)"
    # containerd's, CRI-O's, Docker's and Podman's, which name theirs by 64 digits; then LXC's, systemd's and VMs.
    rb"|(?:^|[/-])[0-9a-f]{64}(?:\.scope)?(?:[/ ]|$)|/(?:lxc(?:\.payload\.[^/]*)?|machine\.slice)(?:/|$)",
    re.MULTILINE,
)
_LONGEST = 1 << 22
_SYS_ADMIN = 1 << 21
"""CAP_SYS_ADMIN (capability.h): mounts, and no pod has it over the host that was not given it by who owns the node."""
_CAPABILITIES = re.compile(rb"^CapEff:\s*([0-9a-f]{1,16})$", re.MULTILINE)


class Origin(StrEnum):
    HOST = "host"
    DRIVER = "driver container"
    """Privileged, and its root is the one that the GPU operator's driver container shows to the host."""
    PRIVILEGED = "privileged container"
    """Whoever may run these owns the node; or nobody can tell that it is none."""
    CONTAINER = "container"


class Origins:
    """For one pass over /proc, as an open folder. Asking raises OSError for what is neither gone nor hidden."""

    def __init__(self, proc: int) -> None:
        self._proc = proc

    def of(self, pid: str, cgroup: bytes) -> Origin:
        """`cgroup` is what /proc/PID/cgroup says; where it says nothing, as in a captured tree, all is the host's."""
        if not any(_CONTAINER.search(self._on_node(line)) for line in cgroup.splitlines()):
            return Origin.HOST
        if not self._is_privileged(pid):
            return Origin.CONTAINER
        shown = self._driver_root
        return Origin.DRIVER if shown and self._mounted(pid, b"/") == shown else Origin.PRIVILEGED

    def administers(self, pid: str) -> bool:
        """Whether it has CAP_SYS_ADMIN over the host. What is hidden is no proof against it."""
        may = self._capabilities(pid)
        return self._is_in_hosts_users(pid) and (may is None or bool(may & _SYS_ADMIN))

    def _on_node(self, line: bytes) -> bytes:
        """Where the node is a container itself, as in kind, the rest of the path says what is in one on the node."""
        return next((line[len(own) :] for own in self._own if line == own or line.startswith(own + b"/")), line)

    def _is_privileged(self, pid: str) -> bool:
        """It may do what the first process may, in the same user namespace. What is hidden is no proof against it."""
        may = self._capabilities(pid)
        return self._is_in_hosts_users(pid) and (may is None or not (self._all_capabilities or 0) & ~may)

    def _is_in_hosts_users(self, pid: str) -> bool:
        users = self._link(f"{pid}/ns/user")
        return not users or not self._users or users == self._users

    @cached_property
    def _own(self) -> tuple[bytes, ...]:
        """The control groups of the container that the node is, by line."""
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
        """The number of the device that it sees there, b"" where there is none (proc(5), mountinfo).

        Its fields: ID, parent, device, root, place, options. Of several, the last one hides the others.
        """
        lines = (line.split(b" ", 5) for line in self._read(f"{pid}/mountinfo").splitlines())
        return next(reversed([line[2] for line in lines if len(line) > 5 and line[4] == place]), b"")

    def _read(self, path: str) -> bytes:
        """All of it, of what is no longer than a list of mounts; nothing where it is gone, or hidden from us."""
        try:
            file = open_file(path, os.O_RDONLY, self._proc)
        except OSError as error:
            if is_gone(error) or isinstance(error, PermissionError):
                return b""
            raise
        with os.fdopen(file, "rb") as whole:  # the kernel gives its lists in parts
            return whole.read(_LONGEST)

    def _link(self, path: str) -> str:
        try:
            return os.readlink(path, dir_fd=self._proc)
        except OSError:
            return ""
