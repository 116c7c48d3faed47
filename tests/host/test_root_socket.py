"""A socket for root alone, in a folder of any length."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host import http_server


def reaches(path: Path, listener: socket.socket) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        listener.accept()[0].close()
    return True


def test_socket_is_for_its_owner(short_root: Path) -> None:
    with http_server.listen_for_root(short_root / "s") as listener:
        assert stat.S_IMODE((short_root / "s").lstat().st_mode) == 0o600
        assert reaches(short_root / "s", listener)
    assert [file.name for file in short_root.iterdir()] == ["s"]


def test_socket_path_may_be_long(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    with http_server.listen_for_root(folder / "s"):
        assert (folder / "s").is_socket()


def test_socket_replaces_an_earlier_socket_or_link(short_root: Path) -> None:
    target = short_root / "target"
    target.write_text("kept")
    for name in ("s", "s.new"):
        (short_root / name).symlink_to(target)
    with http_server.listen_for_root(short_root / "s"), http_server.listen_for_root(short_root / "s") as listener:
        assert reaches(short_root / "s", listener)
    assert target.read_text() == "kept"


def test_socket_in_a_linked_or_missing_folder_is_an_error(short_root: Path) -> None:
    (short_root / "link").symlink_to(".")
    (short_root / "s").mkdir()
    for path in (short_root / "link/x", short_root / "s", short_root / "none/s"):
        with pytest.raises(OSError, match=r".+"):
            http_server.listen_for_root(path)
