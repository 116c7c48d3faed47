"""Paths of the host, followed inside its root."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthcheck.probes.runtime.host_files import MOST_BYTES, is_executable, matches, read, resolve


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
def test_links_are_followed_as_the_host_would(path: str, real: str, tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "absolute").symlink_to("/opt")
    (tmp_path / "opt/relative").symlink_to("..")
    (tmp_path / "out").symlink_to("../../..")
    (tmp_path / "chain").symlink_to("absolute")

    assert resolve(tmp_path, path) == real


def test_a_loop_of_links_and_a_path_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(OSError, match="Too many levels"):
        resolve(tmp_path, "/a")
    with pytest.raises(OSError, match="Invalid argument"):
        resolve(tmp_path, "/a\0b")
    assert not is_executable(tmp_path, "/a")


@pytest.mark.parametrize(("size", "well"), [(MOST_BYTES, True), (MOST_BYTES + 1, False)])
def test_a_file_of_at_most_a_mebibyte_is_read(size: int, well: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)

    if well:
        assert len(read(tmp_path, "/file")[0]) == size
    else:
        with pytest.raises(OSError, match="more than 1 MiB"):
            read(tmp_path, "/file")


def test_a_pattern_goes_through_links_and_past_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/b.toml").touch()
    (tmp_path / "real/a.toml").touch()
    (tmp_path / "real/line\nbreak.toml").touch()
    (tmp_path / "link").symlink_to("/real")
    (tmp_path / "file").touch()

    assert matches(tmp_path, "/link/*.toml") == ["/link/a.toml", "/link/b.toml"]
    assert matches(tmp_path, "/*/a.toml") == ["/link/a.toml", "/real/a.toml"]
    assert matches(tmp_path, "/file/*") == []
