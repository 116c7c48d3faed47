"""install.yaml: the manifests' objects with another image, in an order in which kubectl can apply them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpu_healthcheck.sim.control_plane import MANIFESTS
from tests.image.test_overlays import flat
from tools.chart.templates import IMAGE
from tools.install_yaml import install_yaml

ELSEWHERE = f"registry.example.com:5000/a/gpu-healthcheck@sha256:{'0' * 64}"


def plain() -> list[dict[str, Any]]:
    return [entry for file in sorted(MANIFESTS.glob("*.yaml")) for entry in yaml.safe_load_all(file.read_text())]


def test_install_yaml_has_all_objects_with_the_image() -> None:
    made = list(yaml.safe_load_all(install_yaml(ELSEWHERE)))
    expected = {
        path: value.replace(IMAGE, ELSEWHERE) if isinstance(value, str) else value
        for path, value in flat(plain()).items()
    }

    assert flat(made) == expected
    assert len(made) == len(plain())
    assert IMAGE not in install_yaml(ELSEWHERE)


def test_install_yaml_begins_with_namespaces_and_policies() -> None:
    kinds = [entry["kind"] for entry in yaml.safe_load_all(install_yaml(IMAGE))]
    turns = [2 - (kind == "Namespace") - kind.startswith(("Namespace", "ValidatingAdmissionPolicy")) for kind in kinds]

    assert turns == sorted(turns)
    assert set(turns) == {0, 1, 2}


@pytest.mark.parametrize(
    "image", ["", "gpu-healthcheck", "gpu-healthcheck@sha256:0", 'a:1"; true', "a:1\nkind: Pod", "-a:1", "a:1@sha256:0"]
)
def test_install_yaml_refuses_an_incomplete_image(image: str) -> None:
    with pytest.raises(ValueError, match="REPOSITORY:TAG"):
        install_yaml(image)
