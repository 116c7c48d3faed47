"""Our reading of containerd's files beside that of a real containerd 1, which has it in `config dump`."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from healthcheck.probes.runtime.containerd import RUNC, read_configuration
from sim.container_runtime import NVIDIA_V2, RUNC_V2, V2, default, handler


def _is_containerd_1() -> bool:
    if shutil.which("containerd") is None:
        return False
    told = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=False).stdout
    return "github.com/containerd/containerd 1." in told


pytestmark = pytest.mark.skipif(not _is_containerd_1(), reason="needs containerd 1 (Debian 12: containerd)")

HEAD = "version = 2\n"
ACCEPTED = {
    "schema 1": {"config.toml": default("plugins.cri", "nvidia") + handler("plugins.cri", "nvidia", "/opt/n")},
    "schema 1 with the tables of 2": {"config.toml": NVIDIA_V2},
    "schema 2": {"config.toml": HEAD + default(V2, "nvidia") + RUNC_V2 + NVIDIA_V2},
    "a drop-in that loses the rest": {
        "config.toml": f"{HEAD}imports = ['FOLDER/conf.d/*.toml']\n{default(V2, 'crun')}{handler(V2, 'crun', '/c')}",
        "conf.d/a.toml": HEAD + NVIDIA_V2,
    },
    "a drop-in that has it all": {
        "config.toml": f"{HEAD}imports = ['FOLDER/conf.d/*.toml']\n{RUNC_V2}",
        "conf.d/a.toml": HEAD + default(V2, "nvidia") + RUNC_V2 + NVIDIA_V2,
    },
    "the last of two": {
        "config.toml": f"{HEAD}imports = ['b.toml', 'a.toml']\n{RUNC_V2}",
        "a.toml": HEAD + handler(V2, "a", "/a"),
        "b.toml": HEAD + handler(V2, "b", "/b"),
    },
    "breadth first": {
        "config.toml": f"{HEAD}imports = ['b.toml', 'a.toml']\n",
        "a.toml": HEAD + handler(V2, "a", "/a"),
        "b.toml": f"{HEAD}imports = ['c.toml']\n",
        "c.toml": HEAD + handler(V2, "c", "/c"),
    },
    "a drop-in without a version": {"config.toml": f"{HEAD}imports = ['a.toml']\n{RUNC_V2}", "a.toml": NVIDIA_V2},
    "an older drop-in": {
        "config.toml": f"{HEAD}imports = ['a.toml']\n{RUNC_V2}",
        "a.toml": "version = 1\n" + handler("plugins.cri", "nvidia", "/opt/n"),
    },
    "a loop": {
        "config.toml": f"{HEAD}imports = ['a.toml']\n{NVIDIA_V2}",
        "a.toml": f"{HEAD}imports = ['config.toml']\n",
    },
    "a default that nobody defines": {"config.toml": HEAD + default(V2, "nvidia") + RUNC_V2},
}
REFUSED = [
    ("a.toml", {"config.toml": f"{HEAD}imports = ['a.toml']\n"}),
    ("a.toml", {"config.toml": f"{HEAD}imports = ['a.toml']\n", "a.toml": "[plugins\n"}),
    ("config.toml", {"config.toml": f'{HEAD}a = "b\n'}),
    ("config.toml", {"config.toml": f"{HEAD}[plugins]\n[plugins]\n"}),
    ("config.toml", {"config.toml": f"{HEAD}plugins = 1\n"}),
    ("config.toml", {"config.toml": f"{HEAD}[{V2}.containerd]\nruntimes = 'x'\n"}),
]
"""The file at fault, and all of them."""


def put(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text.replace("FOLDER", str(folder)))
    return folder / "config.toml"


def dump(file: Path) -> subprocess.CompletedProcess[str]:
    program = ["containerd", "--config", str(file), "config", "dump"]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("files", ACCEPTED.values(), ids=ACCEPTED)
def test_what_it_accepts_we_read_as_it_does(files: dict[str, str], tmp_path: Path) -> None:
    file = put(tmp_path, files)
    theirs = tomllib.loads(dump(file).stdout)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]

    ours = read_configuration(Path("/"), str(file))

    # runc is its own where no file has the table; we name what the files have.
    programs = {name: table["options"].get("BinaryName", "") for name, table in theirs["runtimes"].items()}
    programs.pop(RUNC, None)
    assert ours.problem is None
    assert {one.name: one.binary for one in ours.handlers if one.name != RUNC} == programs
    assert ours.default == theirs["default_runtime_name"]


@pytest.mark.parametrize(("at_fault", "files"), REFUSED)
def test_what_it_refuses_so_do_we_and_name_the_file(at_fault: str, files: dict[str, str], tmp_path: Path) -> None:
    file = put(tmp_path, files)

    problem = read_configuration(Path("/"), str(file)).problem

    assert dump(file).returncode != 0
    assert problem is not None
    assert (problem.file, problem.only_ours) == (str(tmp_path / at_fault), False)
