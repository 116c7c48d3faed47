"""Files that define NVIDIA's handler, by what reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CONTAINERD, CRIO
from gpu_healthcheck.healthcheck.probes.container_runtime.nvidia_definitions import (
    definitions,
    files_of,
    hook_of,
    unread_files,
)
from gpu_healthcheck.sim.container_runtime import NVIDIA_V2, NVIDIA_V3, RUNC_V2

CONFIG = "/etc/containerd/config.toml"


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / name.lstrip("/")).write_text(text)
    return root


def test_imports_are_read_relative_to_the_file_and_a_missing_one_is_named(tmp_path: Path) -> None:
    imports = "imports = ['conf.d/*.toml', 'a.toml', '/etc/gone.toml', 7]\n"
    put(tmp_path, {CONFIG: imports, "/etc/containerd/a.toml": "", "/etc/containerd/conf.d/b.toml": ""})

    files, missing = files_of(tmp_path, CONFIG, CONTAINERD)

    assert files == [CONFIG, "/etc/containerd/conf.d/b.toml", "/etc/containerd/a.toml", "/etc/gone.toml"]
    assert missing == ["/etc/gone.toml"]


@pytest.mark.parametrize("text", ["", "imports = 7\n", "[[", "imports = ['conf.d/*.toml']\n"])
def test_a_file_without_imports_is_read_alone(text: str, tmp_path: Path) -> None:
    assert files_of(put(tmp_path, {CONFIG: text}), CONFIG, CONTAINERD) == ([CONFIG], [])


def test_drop_ins_that_no_file_imports_are_unread(tmp_path: Path) -> None:
    put(tmp_path, {CONFIG: "", "/etc/containerd/conf.d/99-nvidia.toml": NVIDIA_V2})

    assert unread_files(tmp_path, CONFIG, CONTAINERD, [CONFIG]) == ["/etc/containerd/conf.d/99-nvidia.toml"]
    assert unread_files(tmp_path, CONFIG, CONTAINERD, ["/etc/containerd/conf.d/99-nvidia.toml"]) == []


def test_cri_o_reads_its_folder_and_not_the_one_beside_it(tmp_path: Path) -> None:
    own, trap = "/etc/crio/crio.conf.d/10.conf", "/etc/crio/conf.d/99-nvidia.toml"
    put(tmp_path, {"/etc/crio/crio.conf": "", own: "", trap: ""})

    files, missing = files_of(tmp_path, "/etc/crio/crio.conf", CRIO)

    assert (files, missing) == (["/etc/crio/crio.conf", own], [])
    assert unread_files(tmp_path, "/etc/crio/crio.conf", CRIO, files) == [trap]


CRIO_FILE, CRIO_DROP_IN = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/00-default"
USUAL, OPERATORS = (
    "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
    "/run/containers/oci/hooks.d/oci-nvidia-hook.json",
)
READS_BOTH = "[crio.runtime]\nhooks_dir = ['/usr/share/containers/oci/hooks.d', '/run/containers/oci/hooks.d']\n"
HOOKS: list[tuple[dict[str, str], str, str]] = [
    ({CRIO_FILE: "", USUAL: "{}"}, CRIO, USUAL),
    ({CRIO_DROP_IN: READS_BOTH, OPERATORS: "{}"}, CRIO, OPERATORS),
    ({CRIO_FILE: READS_BOTH, CRIO_DROP_IN: "[crio.runtime]\nhooks_dir = ['/etc/x', 7]\n", OPERATORS: "{}"}, CRIO, ""),
    ({CRIO_FILE: "", OPERATORS: "{}"}, CRIO, ""),
    ({CRIO_FILE: "crio = 7\n", "/usr/share/containers/oci/hooks.d/other.json": "{}"}, CRIO, ""),
    ({CRIO_FILE: "[[", USUAL: "{}"}, CONTAINERD, ""),
]


@pytest.mark.parametrize(("files", "kind", "hook"), HOOKS)
def test_hook_counts_in_the_folders_that_cri_o_reads(
    files: dict[str, str], kind: str, hook: str, tmp_path: Path
) -> None:
    put(tmp_path, files)
    assert hook_of(tmp_path, [CRIO_FILE, CRIO_DROP_IN], kind) == hook


DEFINED = {
    "schema 2": (NVIDIA_V2, ["nvidia"]),
    "schema 3": (NVIDIA_V3, ["nvidia"]),
    "another name": (
        "[plugins.cri.containerd.runtimes.gpu.options]\nRuntime = '/x/nvidia-container-runtime'\n",
        ["gpu"],
    ),
    "CRI-O": ("[crio.runtime.runtimes.x]\nruntime_path = '/usr/bin/nvidia-container-runtime.cdi'\n", ["x"]),
    "runc alone": (RUNC_V2, []),
    "a name that is only similar": ("[a.runtimes.nvidia2]\n", []),
    "another kind of value": ("[a]\nruntimes = 3\n[b.runtimes]\nnvidia = 1\n", []),
    "malformed": ("[[", []),
}


@pytest.mark.parametrize(("text", "names"), DEFINED.values(), ids=DEFINED)
def test_a_table_of_handlers_defines_nvidias_by_name_or_program(text: str, names: list[str], tmp_path: Path) -> None:
    put(tmp_path, {CONFIG: text})
    found = list(definitions(tmp_path, [CONFIG, "/etc/gone.toml"], CONFIG, CONTAINERD))
    assert [(one.file, one.handler, one.config) for one in found] == [(CONFIG, name, CONFIG) for name in names]
