"""The mounted folder: recognised changes, and validity of an earlier read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gpu_healthcheck.healthcheck.settings.reading import read_settings, seen_in


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """As the kubelet mounts a ConfigMap."""
    publish(tmp_path, "..1", "77")
    (tmp_path / "CHECK_INTERVAL").symlink_to("..data/CHECK_INTERVAL")
    return tmp_path


def publish(folder: Path, version: str, interval: str) -> None:
    (folder / version).mkdir()
    (folder / version / "CHECK_INTERVAL").write_text(interval)
    (folder / "..data_tmp").symlink_to(version)
    (folder / "..data_tmp").rename(folder / "..data")


def swap(folder: Path) -> None:
    before = (folder / "..data/CHECK_INTERVAL").stat()
    publish(folder, "..2", "78")
    os.utime(folder / "..2/CHECK_INTERVAL", ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_in_place(folder: Path) -> None:
    """To the same length, and as some tools do, with the times as they were."""
    file = folder / "CHECK_INTERVAL"
    before = file.stat()
    file.write_text("78")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def lock_away(folder: Path) -> None:
    (folder / "CHECK_INTERVAL").chmod(0)


def add(folder: Path) -> None:
    (folder / "MONITOR_TTL").write_text("")


def take_away(folder: Path) -> None:
    (folder / "CHECK_INTERVAL").unlink()


def tear(folder: Path) -> None:
    (folder / "..data").unlink()


def rename(folder: Path) -> None:
    (folder / "CHECK_INTERVAL").rename(folder / "CHECK_INTERVALL")


@pytest.mark.parametrize("change", [swap, edit_in_place, lock_away, add, take_away, tear, rename])
def test_every_change_of_the_folder_is_seen(mounted: Path, change: Callable[[Path], None]) -> None:
    before = seen_in(mounted)
    assert seen_in(mounted) == before

    change(mounted)

    assert seen_in(mounted) != before


def test_a_folder_that_comes_and_goes_is_seen(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()

    assert seen_in(None) == seen_in(tmp_path / "nowhere") == seen_in(tmp_path / "config")
    (tmp_path / "config/MONITOR_TTL").write_text("120")
    assert seen_in(tmp_path / "config") != seen_in(tmp_path / "nowhere")
    assert seen_in(tmp_path / "config/MONITOR_TTL") != seen_in(tmp_path / "nowhere")


@pytest.mark.parametrize(("seconds", "kept"), [(0, False), (0.05, False), (0.2, True), (86400, True), (-86400, True)])
def test_what_was_written_just_now_may_be_written_again_unseen(
    mounted: Path, mocker: MockerFixture, seconds: float, kept: bool
) -> None:
    """A file system's clock may stand for some milliseconds: the same time, length and inode say nothing then."""
    written = (mounted / "CHECK_INTERVAL").stat().st_ctime_ns
    mocker.patch("time.time_ns", return_value=written + int(seconds * 10**9))

    assert read_settings(mounted).seen == (seen_in(mounted) if kept else None)


def test_a_link_to_another_folder_is_an_invalid_value(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("77")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/CHECK_INTERVAL").symlink_to(tmp_path / "elsewhere")

    settings = read_settings(tmp_path / "config")

    assert settings.values.check_interval_seconds == 300
    assert [(value.key, value.allowed) for value in settings.bad] == [("CHECK_INTERVAL", "a file of this folder")]
