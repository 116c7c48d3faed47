"""Arguments of `buildah`, and the report on two builds that differ."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from tools.release.bases import stages
from tools.release.image import TARGETS, build_arguments
from tools.release.layout import Layout, differences
from tools.release.origin import REPOSITORY, Origin

MADE_FROM = Origin("0.1.0", "c0ffee", 1_700_000_000, "https://example.com/sources")


def a_layout(folder: Path, *layers: dict[str, str], time: int = 7, comment: str = "") -> Layout:
    """An image of these layers, each a table of files and their content."""
    (folder / "blobs/sha256").mkdir(parents=True)
    names = [_blob(folder, _tar(files, time)) for files in layers]
    manifest = {"layers": [{"digest": name} for name in names], "annotations": {"comment": comment}}
    index = {"manifests": [{"digest": _blob(folder, json.dumps(manifest).encode())}]}
    (folder / "index.json").write_text(json.dumps(index))
    return Layout(folder)


def _tar(files: dict[str, str], time: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), time
            tar.addfile(member, io.BytesIO(content.encode()))
    return buffer.getvalue()


def _blob(folder: Path, content: bytes) -> str:
    name = hashlib.sha256(content).hexdigest()
    (folder / "blobs/sha256" / name).write_bytes(content)
    return f"sha256:{name}"


@pytest.mark.parametrize("target", TARGETS)
def test_a_build_has_no_clock_and_no_name_of_its_builder(target: str) -> None:
    words = build_arguments(target, MADE_FROM)

    assert {"--timestamp=1700000000", "--identity-label=false", "--build-arg=SOURCE_DATE_EPOCH=1700000000"} < set(words)
    assert f"--target={target}" in words
    assert target in stages((REPOSITORY / "Dockerfile").read_text())


def test_no_bytecode_goes_by_the_time_of_its_source() -> None:
    """Such is different in each build, and stale once a builder sets all times: each start would compile it anew."""
    dockerfile = (REPOSITORY / "Dockerfile").read_text()

    compiling = re.findall(r"-m compileall (.*)", dockerfile)
    assert compiling
    assert [words for words in compiling if "--invalidation-mode unchecked-hash" not in words] == []


def test_what_two_builds_differ_in_is_named(tmp_path: Path) -> None:
    layout = a_layout(tmp_path / "1", {"etc/a": "same"}, {"usr/b": "one", "usr/gone": "", "usr/c": "same"})
    other = a_layout(tmp_path / "2", {"etc/a": "same"}, {"usr/b": "two", "usr/c": "same"})
    later = a_layout(tmp_path / "3", {"etc/a": "same"}, time=8)
    commented = a_layout(tmp_path / "4", {"etc/a": "same"}, time=8, comment="another")

    assert differences(layout, layout) == []
    assert "layer 2: usr/b" in differences(layout, other)
    assert "layer 2: usr/gone" in differences(layout, other)
    assert "layer 2: usr/c" not in differences(layout, other)
    assert differences(layout, later) == ["2 layers, 1 layers", "layer 1: etc/a"]
    assert differences(later, commented) == ["the configuration or the compression; the files are equal"]
