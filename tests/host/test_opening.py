"""An absent file, and an inaccessible one: two answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.opening import is_folder, is_there, want_folder
from gpu_healthcheck.healthcheck.model import ProbeError
from tests.permissions import as_nobody


@pytest.fixture
def places(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "circle").symlink_to("circle")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "there", "folder"),
    [
        ("folder", True, True),
        ("link", True, True),
        ("file", True, False),
        ("missing", False, False),
        ("nowhere", False, False),
        ("file/below", False, False),
    ],
)
def test_path_exists_or_is_a_folder(places: Path, name: str, there: bool, folder: bool) -> None:
    assert (is_there(places / name), is_folder(str(places / name))) == (there, folder)
    assert host_files.is_there(places, f"/{name}") is there


@pytest.mark.parametrize("look", [is_there, is_folder, want_folder])
@pytest.mark.parametrize(
    ("name", "why"), [("circle", "Too many levels of symbolic links"), ("n" * 256, "File name too long")]
)
def test_path_that_cannot_be_checked_is_an_error(
    places: Path, look: Callable[[Path], object], name: str, why: str
) -> None:
    with pytest.raises(ProbeError, match=f"{places / name}: {why}"):
        look(places / name)
    with pytest.raises(ProbeError, match=why):
        host_files.is_there(places, f"/{name}")


def test_path_in_a_closed_folder_is_an_error(short_root: Path) -> None:
    (short_root / "closed").mkdir(mode=0)
    short_root.chmod(0o755)
    with as_nobody():
        assert not is_there(short_root / "one")
        with pytest.raises(ProbeError, match="closed/one: Permission denied"):
            is_there(short_root / "closed/one")


def test_wanted_folder_that_is_missing_is_an_error(places: Path) -> None:
    want_folder(places / "link")
    for name in ("file", "missing"):
        with pytest.raises(ProbeError, match=f"{places / name}: no such directory"):
            want_folder(places / name)
