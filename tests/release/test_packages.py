"""The source archive: nothing of the machine that packed it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tools.release.packages import even_out


def an_sdist(path: Path, names: list[str], owner: str, time: int, mode: int) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(f"product-1/{name}")
            member.size, member.mtime, member.uname, member.uid, member.mode = 1, time, owner, time, mode
            tar.addfile(member, io.BytesIO(b"x"))
    return path


def test_source_archives_of_equal_files_are_identical(tmp_path: Path) -> None:
    path = an_sdist(tmp_path / "1.tar.gz", ["a", "b"], "anna", 5, 0o640)
    other = an_sdist(tmp_path / "2.tar.gz", ["b", "tests/test_a.py", "a"], "bob", 6, 0o664)

    for sdist in (path, other):
        even_out(sdist, 1_700_000_000)

    assert path.read_bytes() == other.read_bytes()
    with tarfile.open(path) as tar:
        assert [(member.name, member.mtime, member.mode) for member in tar] == [
            ("product-1/a", 1_700_000_000, 0o644),
            ("product-1/b", 1_700_000_000, 0o644),
        ]
