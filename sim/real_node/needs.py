"""Requirements of a machine for a real node; it lists them, and installs only on request."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from gpu_healthcheck.sim.c_library import CompilerError, find_compiler
from gpu_healthcheck.sim.control_plane.build import cache_folder

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
    "buildah": "buildah",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
"""Required packages by program."""
CNI_PACKAGE, CNI_PROGRAM = "containernetworking-plugins", Path("/usr/lib/cni/bridge")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of all programs on the node: containerd finds its shim in PATH, which must be the distribution's."""
DEPS = "python -m sim.real_node deps"


def codename() -> str:
    """Return the name of this Debian release, such as bookworm; empty elsewhere."""
    release = platform.freedesktop_os_release()
    return release.get("VERSION_CODENAME", "") if release.get("ID") == "debian" else ""


def unsuited() -> str:
    """Return the reason why this machine cannot run a node; empty on Debian, as root, with namespaces."""
    if not codename():
        return "a real node needs Debian"
    if os.geteuid() != 0:
        return "a real node needs root"
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"a real node needs namespaces and mounts: {tried.stderr.strip()}" if tried.returncode else ""


def missing() -> str:
    """Return one line with the missing requirements; empty if a node can be started."""
    if reason := unsuited():
        return reason
    if packages := missing_packages():
        return f"a real node needs {', '.join(packages)}: `{DEPS}` installs them"
    if not all(cache_folder(programs).is_dir() for programs in ("control-plane", "kubelet")) and not shutil.which("go"):
        return "a real node needs Go to build Kubernetes (once)"
    try:
        find_compiler()
    except CompilerError as error:
        return f"a real node needs a C compiler: {error}"
    return ""


def missing_packages() -> list[str]:
    found = [package for program, package in PACKAGES.items() if not shutil.which(program, path=SEARCH_PATH)]
    return found if CNI_PROGRAM.exists() else [*found, CNI_PACKAGE]


def install() -> None:
    """Install the packages from the machine's sources, and stop services that Debian starts with them."""
    wanted = missing_packages()
    if not wanted:
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-yq", "--no-install-recommends", *wanted],
    ):
        subprocess.run(command, env=environment, check=True)
