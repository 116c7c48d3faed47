"""Existence test for the paths in a file: many paths in few folders, tested in each check cycle."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from healthcheck.host import host_files
from healthcheck.host.opening import entries_of, is_there
from healthcheck.model import ProbeError


def missing(root: Path, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that do not exist, in their order, each once.

    Paths below an empty or missing top-level folder are not reported: a captured tree has no /dev or /usr.
    """
    folders: dict[str, str] = {}
    shown: dict[str, bool] = {}
    return tuple(path for path in dict.fromkeys(paths) if _is_missing(root, path, folders, shown))


def _is_missing(root: Path, path: str, folders: dict[str, str], shown: dict[str, bool]) -> bool:
    if not path.startswith("/") or "\0" in path:
        return False
    top = path.split("/", 2)[1]
    if top not in shown:
        shown[top] = has_entries(root, top)
    if not shown[top]:
        return False
    folder, _, name = path.rpartition("/")
    if folder not in folders:
        folders[folder] = host_files.resolved(root, folder)
    # Links of a folder are followed once, even for hundreds of files in it.
    try:
        mode = os.lstat(f"{root}{folders[folder]}/{name}").st_mode
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return stat.S_ISLNK(mode) and _leads_nowhere(root, path)


def _leads_nowhere(root: Path, path: str) -> bool:
    try:
        return not is_there(host_files.below(root, path))
    except OSError:  # links in a circle
        return True
    except ProbeError:
        return False


def has_entries(root: Path, folder: str) -> bool:
    """Whether the folder exists and is not empty."""
    try:
        return next(entries_of(host_files.below(root, folder)), None) is not None
    except OSError:
        return False
