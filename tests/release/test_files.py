"""The files of a release: every image by its digest, and checksums for `sha256sum`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from tools.install_yaml import install_yaml
from tools.release.files import other_images, values_by_digest, write_checksums
from tools.release.origin import REPOSITORY, ReleaseError

DIGEST = "sha256:" + "a1" * 32
IMAGE = f"registry.example.com/gpu-healthcheck@{DIGEST}"


@pytest.mark.parametrize(
    ("image", "reference", "refused"),
    [
        (IMAGE, IMAGE, False),
        ("busybox:1", IMAGE, True),
        ("gpu-healthcheck:1.2.3", IMAGE, True),
        ("gpu-healthcheck:1.2.3", "gpu-healthcheck:0.1.0", True),
        (f"{IMAGE}0", f"{IMAGE}0", True),
    ],
)
def test_install_file_has_only_the_released_image(image: str, reference: str, refused: bool) -> None:
    text = f"kind: List\nitems:\n  - spec:\n      initContainers:\n        - image: {image}\n---\n"

    assert other_images(text, reference) == ({image} if refused else set())


def test_install_file_of_our_manifests_has_no_other_image() -> None:
    assert other_images(install_yaml(IMAGE), IMAGE) == set()


def test_released_chart_values_name_images_by_digest() -> None:
    text = values_by_digest(
        (REPOSITORY / "charts/gpu-healthcheck/values.yaml").read_text(), "r/ours", DIGEST, "sha256:b2"
    )
    values = yaml.safe_load(text)

    assert values["image"] | {"pullPolicy": ""} == {
        "repository": "r/ours",
        "tag": "",
        "digest": DIGEST,
        "pullPolicy": "",
    }
    assert values["slim"]["digest"] == "sha256:b2"
    with pytest.raises(ReleaseError, match="the chart's values have no"):
        values_by_digest(text, "r/ours", DIGEST, "sha256:b2")


def test_release_checksums_cover_every_file(tmp_path: Path) -> None:
    files = {"a.whl": b"one", "install.yaml": b"other"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    for _ in range(2):
        listed = write_checksums(tmp_path)

    expected = [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in files.items()]
    assert listed.read_text().splitlines() == expected
