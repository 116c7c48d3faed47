"""What is read out of a Dockerfile before an image is built; no node, no root."""

from __future__ import annotations

from sim.real_node import images

DOCKERFILE = """\
ARG BASE=docker.io/library/python:3.12-slim
ARG OTHER=nvcr.io/dcgm:4
ARG FLAVOUR=plain
FROM ${BASE} AS build
FROM --platform=linux/amd64 $OTHER AS efa-plain
FROM efa-${FLAVOUR} AS efa
FROM scratch AS nothing
FROM ${BASE} AS slim
"""


def test_the_bases_are_the_images_that_no_stage_makes() -> None:
    assert images.bases(DOCKERFILE) == ["docker.io/library/python:3.12-slim", "nvcr.io/dcgm:4"]


def test_our_dockerfile_has_both_targets() -> None:
    stages = images.stages((images.REPOSITORY / "Dockerfile").read_text())

    assert {images.SLIM, images.FULL} <= set(stages)
