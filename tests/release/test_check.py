"""Conditions of a version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.release.check import refusals, section
from tools.release.origin import REPOSITORY, ReleaseError, version_of

PINNED = "ARG BASE=nvcr.io/dcgm:4@sha256:" + "a1" * 32 + "\nFROM ${BASE}\n"
CHANGELOG = """\
# Changelog

## Unreleased

## [1.2.0] - 2026-11-30

### Added

- One thing.

## 1.1.0

- Another.

## 1.0.0

"""


def sources(folder: Path, version: str = "1.2.0", dockerfile: str = PINNED, changelog: str = CHANGELOG) -> Path:
    (folder / "healthcheck").mkdir()
    (folder / "healthcheck/__init__.py").write_text(f'"""What it is."""\n\n__version__ = "{version}"\n')
    (folder / "Dockerfile").write_text(dockerfile)
    (folder / "CHANGELOG.md").write_text(changelog)
    return folder


def test_release_check_accepts_complete_sources(tmp_path: Path) -> None:
    assert refusals(sources(tmp_path), "v1.2.0") == []


@pytest.mark.parametrize(
    ("changed", "tag", "message"),
    [
        ({}, "v1.2.1", "the tag is v1.2.1, but the sources have v1.2.0"),
        ({}, "1.2.0", "the tag is 1.2.0, but the sources have v1.2.0"),
        ({"version": "1.3.0"}, "v1.3.0", "has no text of 1.3.0"),
        ({"version": "1.0.0"}, "v1.0.0", "has no text of 1.0.0"),
        (
            {"changelog": CHANGELOG.replace("eleased\n", "eleased\n\n- More.\n")},
            "v1.2.0",
            "entries below `## Unreleased`",
        ),
        ({"version": "1.2"}, "v1.2", "1.2 is not a version"),
        ({"version": "1.2.0; id"}, "v1.2.0; id", "1.2.0; id is not a version"),
        ({"dockerfile": "ARG BASE=nvcr.io/dcgm:4\nFROM ${BASE}\n"}, "v1.2.0", "BASE=nvcr.io/dcgm:4 has no digest"),
        ({"dockerfile": "FROM nvcr.io/dcgm:4\n"}, "v1.2.0", "the Dockerfile names no base by an argument"),
        ({"dockerfile": f"{PINNED}FROM debian:12\n"}, "v1.2.0", "names debian:12 directly"),
        ({"dockerfile": f"{PINNED}COPY --link --from=busybox:1 /bin/sh /\n"}, "v1.2.0", "names busybox:1 directly"),
    ],
)
def test_release_check_refuses_sources(tmp_path: Path, changed: dict[str, str], tag: str, message: str) -> None:
    found = refusals(sources(tmp_path, **changed), tag)

    assert any(message in line for line in found), found


def test_release_notes_are_the_section_of_the_version() -> None:
    assert section(CHANGELOG, "1.2.0") == "### Added\n\n- One thing.\n"
    assert section(CHANGELOG, "1.1.0") == "- Another.\n"
    with pytest.raises(ReleaseError, match=r"no text of 1\.2:"):
        section(CHANGELOG, "1.2")


def test_release_version_is_found_in_the_sources() -> None:
    assert version_of(REPOSITORY).count(".") == 2
