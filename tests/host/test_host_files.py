"""Paths of the host, followed inside its root."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host.host_files import (
    MOST_BYTES,
    is_executable,
    matches,
    read,
    read_whole,
    resolve,
    walk,
)


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/a/b", "/a/b"),
        ("/a/./b//c/", "/a/b/c"),
        ("/a/../../../b", "/b"),
        ("/absolute/x", "/opt/x"),
        ("/opt/relative/x", "/x"),
        ("/out/x", "/x"),
        ("/chain/x", "/opt/x"),
        ("", "/"),
    ],
)
def test_links_resolve_inside_the_root(path: str, real: str, tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "absolute").symlink_to("/opt")
    (tmp_path / "opt/relative").symlink_to("..")
    (tmp_path / "out").symlink_to("../../..")
    (tmp_path / "chain").symlink_to("absolute")

    assert resolve(tmp_path, path) == real


def test_loop_of_links_and_invalid_path_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(OSError, match="Too many levels"):
        resolve(tmp_path, "/a")
    with pytest.raises(OSError, match="Invalid argument"):
        resolve(tmp_path, "/a\0b")
    assert not is_executable(tmp_path, "/a")


@pytest.mark.parametrize(("size", "well"), [(MOST_BYTES, True), (MOST_BYTES + 1, False)])
def test_file_of_at_most_1_mib_is_read(size: int, well: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)

    if well:
        assert len(read(tmp_path, "/file")[0]) == size
    else:
        with pytest.raises(OSError, match="more than 1 MiB"):
            read(tmp_path, "/file")


def test_pattern_matches_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/b.toml").touch()
    (tmp_path / "real/a.toml").touch()
    (tmp_path / "real/line\nbreak.toml").touch()
    (tmp_path / "link").symlink_to("/real")
    (tmp_path / "file").touch()

    assert matches(tmp_path, "/link/*.toml") == ["/link/a.toml", "/link/b.toml"]
    assert matches(tmp_path, "/*/a.toml") == ["/link/a.toml", "/real/a.toml"]
    assert matches(tmp_path, "/file/*") == []


def test_walk_lists_files_by_name_without_following_links(tmp_path: Path) -> None:
    for name in ("d/b/2", "d/b/1", "d/a", "d/c\nd", "other/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "d/link").symlink_to("/other")
    (tmp_path / "d/loop").symlink_to(".")
    (tmp_path / "by-link").symlink_to("/d")
    (tmp_path / ("d" + "/e" * 20)).mkdir(parents=True)
    (tmp_path / ("d" + "/e" * 20) / "deep").touch()

    assert walk(tmp_path, "/d") == ["/d/a", "/d/b/1", "/d/b/2", "/d/link", "/d/loop"]
    assert walk(tmp_path, "/by-link/") == [f"/by-link{text[2:]}" for text in walk(tmp_path, "/d")]
    assert walk(tmp_path, "/nothing") == walk(tmp_path, "/d/a") == []


def test_walk_is_limited(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}").touch()

    assert walk(tmp_path, "/") == [f"/{number:03}" for number in range(256)]


def test_kernel_file_is_read_whole_or_up_to_its_limit(tmp_path: Path) -> None:
    """It gives them in parts of a page or so, and says that they have no bytes."""
    lines = read_whole(Path("/"), "/proc/self/smaps", 1 << 20)

    assert len(lines) > 1 << 13
    assert read_whole(Path("/"), "/proc/self/smaps", 100) == lines[:100]
    with pytest.raises(OSError, match="not a regular file"):
        read_whole(tmp_path, "/", 100)
