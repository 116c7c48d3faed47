"""Settings by kubectl on a real API server, as documented: what a later apply keeps, also the first one from 0.3.0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_healthcheck.healthcheck.catalog.profiles import PROFILES_FILE
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, settings_of
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane, ControlPlaneError

pytestmark = pytest.mark.cluster

ROOT = MANIFESTS.parents[1]
SETTINGS, UPGRADING = ((ROOT / "docs" / name).read_text() for name in ("settings.md", "upgrading.md"))
CONFIG = "/api/v1/namespaces/gpu-healthcheck/configmaps/gpu-healthcheck-config"
MANIFEST = MANIFESTS / "03-config.yaml"


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    with ControlPlane() as own:
        own.kubectl("create", "namespace", "gpu-healthcheck")
        yield own


@pytest.fixture
def plane(cluster: ControlPlane) -> Iterator[ControlPlane]:
    yield cluster
    cluster.request("DELETE", CONFIG)


def data(plane: ControlPlane) -> dict[str, str]:
    found: dict[str, str] = plane.request("GET", CONFIG).body.get("data", {})
    return found


def typed(plane: ControlPlane, page: str, begins: str) -> None:
    """Run the only command of the page with this beginning."""
    (line,) = re.findall(rf"(?m)^\$ kubectl ({begins}.*)$", page)
    plane.kubectl(*(word.strip("'") for word in line.split()))


def version_0_3_0() -> str:
    """Return the ConfigMap as the manifests of 0.3.0 wrote it: with every key."""
    config = yaml.safe_load(MANIFEST.read_text())
    del config["metadata"]["annotations"]
    defaults = {key: setting.written_default for key, setting in settings_of(NodeSettings).items()}
    config["data"] = defaults | {PROFILES_FILE: (ROOT / "healthcheck" / PROFILES_FILE).read_text()}
    return yaml.safe_dump(config)


def next_version(folder: Path) -> Path:
    """Return a manifest with another text in the part that is no setting."""
    file = folder / "03-config.yaml"
    file.write_text(MANIFEST.read_text().replace("Settings of gpu-healthcheck.", "Settings, as of later."))
    return file


def test_an_edit_as_documented_outlives_the_apply_of_the_next_version(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.kubectl("apply", "-f", str(MANIFEST))
    assert data(plane) == {}

    block = re.search(r"```yaml\n(.*?)```", SETTINGS, re.DOTALL)
    assert block
    (tmp_path / "lines").write_text(block.group(1))
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncat {tmp_path}/lines >>"$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("KUBE_EDITOR", str(editor))
    typed(plane, SETTINGS, "edit configmap")
    assert data(plane) == {"CHECK_INTERVAL": "60"}

    file = next_version(tmp_path)
    plane.kubectl("apply", "-f", str(file))
    assert data(plane) == {"CHECK_INTERVAL": "60"}
    plane.kubectl("diff", "-f", str(file))
    plane.kubectl("apply", "-f", str(MANIFEST))
    assert data(plane) == {"CHECK_INTERVAL": "60"}


def test_the_documented_patches_set_a_key_and_return_to_its_default(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", str(MANIFEST))
    typed(plane, SETTINGS, "patch .*60")
    assert data(plane) == {"CHECK_INTERVAL": "60"}
    typed(plane, SETTINGS, "patch .*null")
    assert data(plane) == {}


def test_a_key_in_a_file_is_set_by_the_apply_and_goes_with_it(plane: ControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = MANIFEST.read_text().replace("data: {}", "data:").replace('#  MONITOR_TTL: "', '  MONITOR_TTL: "')
    file.write_text(text)
    plane.kubectl("apply", "-f", str(file))
    assert data(plane) == {"MONITOR_TTL": "86400"}
    plane.kubectl("apply", "-f", str(MANIFEST))
    assert data(plane) == {}


@pytest.mark.parametrize("is_kept", [True, False], ids=["with the documented command", "without it"])
def test_the_first_upgrade_from_0_3_0_keeps_edits_by_one_command_and_diff_shows_them_going(
    plane: ControlPlane, is_kept: bool
) -> None:
    plane.kubectl("apply", "-f", "-", input=version_0_3_0())
    plane.kubectl(
        "patch", "configmap", "-n=gpu-healthcheck", "gpu-healthcheck-config", '-p={"data":{"ENABLE_TAINT":"false"}}'
    )
    before = data(plane)
    if is_kept:
        typed(plane, UPGRADING, "annotate configmap")
    with pytest.raises(ControlPlaneError):
        plane.kubectl("diff", "-f", str(MANIFEST))

    plane.kubectl("apply", "-f", str(MANIFEST))
    assert data(plane) == (before if is_kept else {})
    plane.kubectl("apply", "-f", str(MANIFEST))
    assert data(plane).get("ENABLE_TAINT") == ("false" if is_kept else None)


def test_a_server_side_apply_keeps_edits_also_from_0_3_0(plane: ControlPlane) -> None:
    plane.kubectl("apply", "--server-side", "-f", "-", input=version_0_3_0())
    plane.kubectl(
        "patch", "configmap", "-n=gpu-healthcheck", "gpu-healthcheck-config", '-p={"data":{"ENABLE_TAINT":"false"}}'
    )

    plane.kubectl("apply", "--server-side", "-f", str(MANIFEST))
    assert data(plane) == {"ENABLE_TAINT": "false"}
