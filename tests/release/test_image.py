"""Arguments of `buildah`."""

from __future__ import annotations

import re

import pytest

from tools.release.check import stages
from tools.release.image import TARGETS, build_arguments
from tools.release.origin import REPOSITORY, Origin

MADE_FROM = Origin("0.1.0", "c0ffee", 1_700_000_000, "https://example.com/sources")


@pytest.mark.parametrize("target", TARGETS)
def test_image_build_depends_on_no_clock_or_builder(target: str) -> None:
    words = build_arguments(target, MADE_FROM)

    assert {"--timestamp=1700000000", "--identity-label=false", "--build-arg=SOURCE_DATE_EPOCH=1700000000"} < set(words)
    assert f"--target={target}" in words
    assert target in stages((REPOSITORY / "Dockerfile").read_text())


def test_image_bytecode_ignores_the_time_of_its_source() -> None:
    """Such is different in each build, and stale once a builder sets all times: each start would compile it anew."""
    dockerfile = (REPOSITORY / "Dockerfile").read_text()

    compiling = re.findall(r"-m compileall (.*)", dockerfile)
    assert compiling
    assert [words for words in compiling if "--invalidation-mode unchecked-hash" not in words] == []
