"""Facts read from a Dockerfile before an image is built."""

from __future__ import annotations

import pytest

from tools.release.check import bases, stages, unnamed, unpinned
from tools.release.origin import REPOSITORY

DIGEST = "sha256:" + "a1" * 32
DOCKERFILE = f"""\
ARG BASE=docker.io/library/python:3.12-slim
ARG OTHER=nvcr.io/dcgm:4@{DIGEST}
ARG FLAVOUR=plain
FROM ${{BASE}} AS build
FROM --platform=linux/amd64 $OTHER AS efa-plain
FROM efa-${{FLAVOUR}} AS efa
FROM scratch AS nothing
FROM ${{BASE}} AS slim
"""


def test_dockerfile_bases_are_the_images_of_no_stage() -> None:
    assert bases(DOCKERFILE) == {"BASE": "docker.io/library/python:3.12-slim", "OTHER": f"nvcr.io/dcgm:4@{DIGEST}"}
    assert stages(DOCKERFILE) == ["build", "efa-plain", "efa", "nothing", "slim"]


@pytest.mark.parametrize(
    ("image", "refused"),
    [
        (f"nvcr.io/dcgm:4@{DIGEST}", False),
        ("nvcr.io/dcgm:4", True),
        (f"nvcr.io/dcgm:4@{DIGEST[:-1]}", True),
        (f"nvcr.io/dcgm:4@{DIGEST}0", True),
        ("nvcr.io/dcgm:4@sha512:" + "a1" * 32, True),
        (f"nvcr.io/dcgm@{DIGEST}", False),
    ],
)
def test_dockerfile_base_without_a_digest_is_unpinned(image: str, refused: bool) -> None:
    found = unpinned(f"ARG BASE={image}\nFROM ${{BASE}}\n")

    assert found == ({"BASE": image} if refused else {})


def test_dockerfile_names_its_bases_by_arguments() -> None:
    found = bases((REPOSITORY / "Dockerfile").read_text())

    assert sorted(found) == ["DCGM_IMAGE", "PYTHON_IMAGE"]
    assert unnamed((REPOSITORY / "Dockerfile").read_text()) == []
    assert "PYTHON_IMAGE" not in unpinned((REPOSITORY / "Dockerfile").read_text())
