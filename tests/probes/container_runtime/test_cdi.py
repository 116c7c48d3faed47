"""CDI specifications as they lie on a host."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.probes.container_runtime.cdi import read_specs
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CdiSpec

FOLDERS = ("/etc/cdi", "/var/run/cdi")
DEVICES = [{"name": "0"}, {"name": "all"}]


def put(root: Path, path: str, content: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def specs(root: Path, *files: tuple[str, Any]) -> tuple[CdiSpec, ...]:
    for path, spec in files:
        put(root, path, spec if isinstance(spec, str) else json.dumps(spec))
    return read_specs(root, FOLDERS)


def of(kind: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.6.0", "kind": kind, "devices": DEVICES, **more}


@pytest.mark.parametrize(
    ("name", "kind", "counts"),
    [
        ("nvidia.yaml", "nvidia.com/gpu", True),
        ("x.json", "k8s.device-plugin.nvidia.com/gpu", True),
        ("x.json", "nvidia.com/mig", True),
        ("management.nvidia.com-gpu.yaml", "management.nvidia.com/gpu", False),
        ("x.json", "notnvidia.com/gpu", False),
        ("x.json", "amd.com/gpu", False),
        ("nvidia.yml", "nvidia.com/gpu", False),
        ("nvidia.yaml.bak", "nvidia.com/gpu", False),
    ],
)
def test_those_of_nvidias_for_pods_count(name: str, kind: str, counts: bool, tmp_path: Path) -> None:
    path = f"/etc/cdi/{name}"
    found = specs(tmp_path, (path, of(kind)))
    assert found == ((CdiSpec(path, kind, ("0", "all")),) if counts else ())


def test_folders_are_listed_in_order(tmp_path: Path) -> None:
    found = specs(tmp_path, ("/var/run/cdi/b.json", of()), ("/etc/cdi/z.json", of()), ("/etc/other/c.json", of()))
    assert [spec.path for spec in found] == ["/etc/cdi/z.json", "/var/run/cdi/b.json"]


@pytest.mark.parametrize(("link", "path"), [(None, "/run/cdi/a.json"), ("../run", "/var/run/cdi/a.json")])
def test_a_tree_that_lacks_the_link_of_var_run_has_its_folder(link: str | None, path: str, tmp_path: Path) -> None:
    if link:
        (tmp_path / "var").mkdir()
        (tmp_path / "var/run").symlink_to(link)

    assert [spec.path for spec in specs(tmp_path, ("/run/cdi/a.json", of()))] == [path]


NODE, HOOK = {"path": "/dev/nvidia0"}, {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}
LIBRARY = {"hostPath": "/usr/lib/libcuda.so.570", "containerPath": "/usr/lib/libcuda.so.570"}


@pytest.mark.parametrize(
    ("edits", "needed"),
    [
        ({"deviceNodes": [NODE]}, ["/dev/nvidia0"]),
        ({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}, ["/dev/b"]),
        # A device with type and number is created, wherever it is missing.
        ({"deviceNodes": [{**NODE, "type": "c", "major": 195}]}, []),
        ({"deviceNodes": [{**NODE, "type": "c"}]}, ["/dev/nvidia0"]),
        ({"deviceNodes": [{**NODE, "type": "p"}]}, []),
        ({"hooks": [HOOK]}, ["/usr/bin/nvidia-cdi-hook"]),
        ({"hooks": [{**HOOK, "hookName": "startContainer"}]}, []),
        ({"mounts": [LIBRARY]}, ["/usr/lib/libcuda.so.570"]),
        ({"mounts": [{**LIBRARY, "type": "tmpfs"}]}, []),
        ({"mounts": [{"containerPath": "/x"}], "hooks": [7], "deviceNodes": "odd"}, []),
        ({"deviceNodes": [NODE, NODE], "mounts": [LIBRARY]}, ["/dev/nvidia0", "/usr/lib/libcuda.so.570"]),
    ],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_what_a_container_needs_of_the_host_is_missed(
    edits: dict[str, Any], needed: list[str], everywhere: bool, tmp_path: Path
) -> None:
    for path in ("/dev/null", "/usr/bin/env"):
        put(tmp_path, path)
    spec = of(containerEdits=edits) if everywhere else of(devices=[{"name": "0", "containerEdits": edits}])
    [found] = specs(tmp_path, ("/etc/cdi/nvidia.json", spec))
    assert found.missing == tuple(needed)

    for path in needed:
        put(tmp_path, path)
    assert read_specs(tmp_path, FOLDERS)[0].missing == ()


def test_links_are_followed_inside_the_root(tmp_path: Path) -> None:
    put(tmp_path, "/opt/nvidia/libcuda.so")
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/lib").symlink_to("/opt/nvidia")
    (tmp_path / "opt/nvidia/libcuda.so.1").symlink_to("/usr/lib/libcuda.so")
    (tmp_path / "opt/nvidia/libgone.so.1").symlink_to(__file__)
    mounts = [{"hostPath": f"/usr/lib/{name}"} for name in ("libcuda.so", "libcuda.so.1", "libgone.so.1")]

    [found] = specs(tmp_path, ("/etc/cdi/nvidia.json", of(containerEdits={"mounts": mounts})))

    assert found.missing == ("/usr/lib/libgone.so.1",)


def test_a_captured_tree_without_those_folders_tells_nothing(tmp_path: Path) -> None:
    edits = {"deviceNodes": [NODE], "hooks": [HOOK], "mounts": [LIBRARY]}
    (tmp_path / "dev").mkdir()
    [found] = specs(tmp_path, ("/etc/cdi/nvidia.json", of(containerEdits=edits)))
    assert found.missing == ()


@pytest.mark.parametrize(
    ("name", "text", "line", "message"),
    [
        ("nvidia.yaml", "kind: [nvidia.com/gpu\ndevices:\n", 2, "did not find expected"),
        ("nvidia.json", '{"kind": "nvidia.com/gpu",\n "devices"}', 2, "Expecting ':' delimiter"),
        ("nvidia.yaml", "devices: []\n", 0, "kind is not vendor/class"),
        ("nvidia.yaml", "kind: nvidia.com/gpu\n", 0, "it has no devices"),
        ("nvidia.yaml", "kind: nvidia.com/gpu\ndevices: [7]\n", 0, "a device has no name"),
        ("nvidia.yaml", "", 0, "kind is not vendor/class"),
        ("nvidia.yaml", "- kind", 1, "no mapping"),
        ("k8s.device-plugin.nvidia.com-gpu.json", "[" * 9 + "]", 1, "Expecting"),
    ],
)
def test_one_that_nobody_can_read_tells_why(name: str, text: str, line: int, message: str, tmp_path: Path) -> None:
    [found] = specs(tmp_path, (f"/etc/cdi/{name}", text))
    assert found.problem is not None
    assert (found.problem.file, found.problem.line) == (f"/etc/cdi/{name}", line)
    assert message in found.problem.message
    assert not found.problem.only_ours


@pytest.mark.parametrize("name", ["amd.yaml", "management.nvidia.com-gpu.yaml"])
def test_an_unreadable_annotation_is_attributed_by_its_name(name: str, tmp_path: Path) -> None:
    assert specs(tmp_path, (f"/etc/cdi/{name}", "kind: [")) == ()


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "{" * 200_000, "a: &a {k: v}\nb:\n  <<: [*a, *a]\n", " " * (1 << 20) + "x"]
)
@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_shortage_never_ends_a_check_cycle(name: str, text: str, tmp_path: Path) -> None:
    [found] = specs(tmp_path, (f"/etc/cdi/{name}", text))
    assert found.problem is not None


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "etc/cdi/nvidia.yaml").mkdir(parents=True)
    (tmp_path / "etc/cdi/loop-nvidia.yaml").symlink_to("loop-nvidia.yaml")
    os.mkfifo(tmp_path / "etc/cdi/nvidia.json")

    assert {spec.problem is not None and spec.problem.only_ours for spec in read_specs(tmp_path, FOLDERS)} == {True}


KEYS = ["kind", "devices", "containerEdits", "deviceNodes", "hooks", "mounts", "name", "path", "type"]
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("/dev/nvidia0"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kind", "devices", "containerEdits", "deviceNodes", "hooks", "mounts", "name", "path", "type"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(spec=_values, devices=_values, as_yaml=st.booleans())
def test_anything_is_read(spec: Any, devices: Any, as_yaml: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("any")
    whole = {**spec, "kind": "nvidia.com/gpu", "devices": devices} if isinstance(spec, dict) else spec
    name, text = ("nvidia.yaml", yaml.safe_dump(whole)) if as_yaml else ("nvidia.json", json.dumps(whole))
    for cdi_spec in specs(root, (f"/etc/cdi/{name}", text)):
        assert cdi_spec.path == f"/etc/cdi/{name}"
        assert (cdi_spec.problem is None) == bool(cdi_spec.kind)
