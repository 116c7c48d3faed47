"""Description of the measuring machine, on which the figures depend, without its names and paths."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).parents[1]
_MEASURED = ("agent", "cli", "diagnosis", "healthcheck", "sweeper", "sim", "bench", "kubernetes")


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "dependencies": _dependencies(),
    }


def describe_moment(folder: Path) -> dict[str, Any]:
    """Return the conditions that differ between runs: the code, the load of the machine, and the disk of the agent's
    memory.
    """
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain", "--", *_MEASURED)),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "filesystem": _filesystem(folder),
    }


def fingerprint() -> str:
    """Return a digest of the product's files, to detect changes during a run."""
    digest = hashlib.sha256()
    for package in ("agent", "cli", "diagnosis", "healthcheck", "sweeper"):
        for path in sorted((_ROOT / package).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.processor()


def _dependencies() -> dict[str, str]:
    """Return our direct dependencies as installed; optional extras do not run."""
    required = importlib.metadata.requires("gpu-healthcheck") or []
    names = [re.split(r"[^A-Za-z0-9._-]", text)[0] for text in required if "extra ==" not in text]
    return {name: importlib.metadata.version(name) for name in sorted(names, key=str.lower)}


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _filesystem(folder: Path) -> str:
    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[str(place)] for place in (folder, *folder.parents) if str(place) in mounts), "")
