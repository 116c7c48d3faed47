"""Our reading of containerd's files compared with real releases: `config dump` and their log."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from healthcheck.probes.container_runtime.containerd import read_configuration
from healthcheck.probes.container_runtime.facts import RUNC, RuntimeConfiguration
from sim.container_runtime import DISTRIBUTIONS, NVIDIA_V2, NVIDIA_V3, RUNC_V2, RUNC_V3, V2, V3, default, handler

V1 = "plugins.cri"
DEBIANS = "1.6"
"""Debian 12's own; the others are built from Go modules."""
RELEASES = [DEBIANS, "1.7", "2.2", "2.4"]
CRI = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
SOCKET = "/run/containerd/containerd.sock"


def head(version: int, *imports: str, rest: str = "") -> str:
    message = f"version = {version}\n" if version else ""
    return f"{message}imports = {list(imports)}\n{rest}" if imports else f"{message}{rest}"


NVIDIA_V1 = handler(V1, "nvidia", "/opt/n")
TREES = {
    "nothing": {"config.toml": ""},
    "schema 1 without a version": {"config.toml": default(V1, "nvidia") + NVIDIA_V1},
    "schema 1 with the table of 2": {"config.toml": NVIDIA_V2},
    "schema 2": {"config.toml": head(2, rest=default(V2, "nvidia") + RUNC_V2 + NVIDIA_V2)},
    "schema 2 with the table of 3": {"config.toml": head(2, rest=NVIDIA_V3)},
    "schema 2 with an address": {"config.toml": head(2, rest="[grpc]\naddress = '/run/a.sock'\n")},
    "schema 3": {"config.toml": head(3, rest=default(V3, "nvidia") + NVIDIA_V3)},
    "schema 3 with the table of 2": {"config.toml": head(3, rest=NVIDIA_V2)},
    "schema 3 with both": {"config.toml": head(3, rest=handler(V2, "a", "/a") + NVIDIA_V3)},
    "schema 4": {"config.toml": head(4, rest=NVIDIA_V3)},
    "schema 4 with the table of 2": {"config.toml": head(4, rest=NVIDIA_V2)},
    "schema 5": {"config.toml": head(5, rest=NVIDIA_V3)},
    "a drop-in that loses the rest in 1.x": {
        "config.toml": head(2, "FOLDER/conf.d/*.toml", rest=default(V2, "crun") + handler(V2, "crun", "/c")),
        "conf.d/a.toml": head(2, rest=NVIDIA_V2),
    },
    "a drop-in that has it all": {
        "config.toml": head(2, "FOLDER/conf.d/*.toml", rest=RUNC_V2),
        "conf.d/a.toml": head(2, rest=default(V2, "nvidia") + RUNC_V2 + NVIDIA_V2),
    },
    "the order of two, breadth first": {
        "config.toml": head(2, "b.toml", "a.toml", rest=RUNC_V2),
        "a.toml": head(2, rest=handler(V2, "x", "/a")),
        "b.toml": head(2, "c.toml", rest=handler(V2, "x", "/b") + handler(V2, "y", "/b")),
        "c.toml": head(2, rest=handler(V2, "x", "/c")),
    },
    "a loop": {"config.toml": head(2, "a.toml", rest=NVIDIA_V2), "a.toml": head(2, "config.toml")},
    "a pattern that names nothing": {"config.toml": head(2, "FOLDER/*/a.toml", rest=NVIDIA_V2)},
    "2, then the table of 2 without a version": {"config.toml": head(2, "a.toml", rest=RUNC_V2), "a.toml": NVIDIA_V2},
    "2, then 3": {"config.toml": head(2, "a.toml", rest=RUNC_V2), "a.toml": head(3, rest=NVIDIA_V3)},
    "3, then 2": {"config.toml": head(3, "a.toml", rest=RUNC_V3), "a.toml": head(2, rest=NVIDIA_V2)},
    "3 without handlers, then 2": {"config.toml": head(3, "a.toml"), "a.toml": head(2, rest=NVIDIA_V2)},
    "3, then 4": {"config.toml": head(3, "a.toml", rest=RUNC_V3), "a.toml": head(4, rest=NVIDIA_V3)},
    "half a handler in each file": {
        "config.toml": head(3, "a.toml", rest=NVIDIA_V3),
        "a.toml": head(3, rest=f"[{V3}.containerd.runtimes.nvidia.options]\nBinaryName = '/opt/new'\n"),
    },
    "CDI off, then on": {
        "config.toml": head(2, "a.toml", rest=f"[{V2}]\nenable_cdi = false\ncdi_spec_dirs = ['/a', '/b']\n"),
        "a.toml": head(2, rest=f"[{V2}]\nenable_cdi = true\ncdi_spec_dirs = ['/c']\n"),
    },
    "runc without its type": {
        "config.toml": head(2, rest=f"[{V2}.containerd.runtimes.runc]\nprivileged_without_host_devices = true\n")
    },
    "inline": {
        "config.toml": head(2, rest=f"[{V2}.containerd]\nruntimes = {{n = {{options = {{BinaryName = '/n'}}}}}}\n")
    },
    "a default that nobody defines": {"config.toml": head(2, rest=default(V2, "nvidia") + RUNC_V2)},
    "the plugin off": {"config.toml": head(2, rest='disabled_plugins = ["io.containerd.grpc.v1.cri"]\n')},
    "Docker's file": {"config.toml": 'disabled_plugins = ["cri"]\n'},
    "no TOML": {"config.toml": head(2, rest="[plugins\n")},
    "a drop-in that is no TOML": {"config.toml": head(2, "a.toml"), "a.toml": 'a = "b\n'},
    "a table twice": {"config.toml": head(2, rest="[plugins]\n[plugins]\n")},
    **{
        f"another kind: {text}": {"config.toml": text.replace("V2", V2)}
        for text in (
            "version = '2'",
            "version = 2\nimports = 'a.toml'",
            "version = 2\ndisabled_plugins = 'cri'",
            "version = 2\n[V2]\ncontainerd = 1",
            "version = 2\n[V2.containerd]\nruntimes = 1",
            "version = 2\n[V2.containerd]\ndefault_runtime_name = 1",
            "version = 2\n[V2.containerd.runtimes]\nn = 1",
            "version = 2\n[V2.containerd.runtimes.n]\nruntime_type = 1",
            "version = 2\n[V2.containerd.runtimes.n]\noptions = 1",
        )
    },
}
"""Files of real nodes, and the mistakes in them that people make."""


@pytest.fixture(scope="module", params=RELEASES)
def program(request: pytest.FixtureRequest, real_containerd: Callable[[str], Path]) -> Path:
    if request.param != DEBIANS:
        return real_containerd(request.param)
    found = shutil.which("containerd")
    if found is None or not _version_of(found).startswith(f"containerd github.com/containerd/containerd {DEBIANS}"):
        pytest.skip(f"NOT TESTED against Debian 12's own containerd {DEBIANS}: it is not installed")
    return Path(found)


@cache
def _version_of(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout


def _version(program: Path) -> str:
    """As it tells its version over the CRI too."""
    found = re.search(r" v?(\d+\.\d+\.\S+)", _version_of(str(program)))
    return found[1] if found else ""


def put(folder: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text.replace("FOLDER", str(folder)))
    return folder / "config.toml"


def read(program: Path, file: Path) -> RuntimeConfiguration:
    return read_configuration(Path("/"), str(file), _version(program))


def dumped(program: Path, file: Path) -> dict[str, Any] | None:
    """Return its configuration of the file; None if it does not start with it."""
    done = subprocess.run([program, "--config", file, "config", "dump"], capture_output=True, text=True, check=False)
    return None if done.returncode else tomllib.loads(done.stdout)


def agrees(ours: RuntimeConfiguration, theirs: Mapping[str, Any]) -> None:
    cri = next((theirs["plugins"][name] for name in CRI if "containerd" in theirs["plugins"].get(name, {})), None)
    # containerd 2 still has the tables of a plugin that is switched off by its older name.
    is_off = cri is None or (theirs["version"] > 2 and "io.containerd.grpc.v1.cri" in theirs["disabled_plugins"])
    assert bool(ours.disabled_in) == is_off
    if cri is None:
        return
    runtimes = cri["containerd"]["runtimes"]
    handlers = {handler.name: handler for handler in ours.handlers}
    assert {*handlers, *ours.built_in} == set(runtimes)
    for name, configured in handlers.items():
        table = runtimes[name]
        assert configured.binary == table.get("options", {}).get("BinaryName", "")
        assert bool(configured.systemd_cgroup) == table.get("options", {}).get("SystemdCgroup", False)
        assert configured.privileged_without_host_devices == table["privileged_without_host_devices"]
        assert configured.runtime_type == table["runtime_type"] or (name == RUNC and not configured.runtime_type)
    assert ours.default == cri["containerd"]["default_runtime_name"]
    if ours.version.startswith(("1.7", "2.2")):
        assert ours.cdi == cri["enable_cdi"]
    if "cdi_spec_dirs" in cri:
        assert list(ours.cdi_folders) == cri["cdi_spec_dirs"]
    server = theirs["plugins"]["io.containerd.server.v1.grpc"] if theirs["version"] > 3 else theirs["grpc"]
    assert (ours.address or SOCKET) == server["address"]


@pytest.mark.parametrize("files", TREES.values(), ids=TREES)
def test_what_it_accepts_we_read_as_it_does_and_what_it_refuses_we_refuse(
    files: dict[str, str], program: Path, tmp_path: Path
) -> None:
    file = put(tmp_path, files)
    ours = read(program, file)
    theirs = dumped(program, file)

    assert (ours.problem is None) == (theirs is not None), ours.problem
    if theirs is not None:
        agrees(ours, theirs)
    if ours.problem is not None:
        assert not ours.problem.only_ours


def distributions_files() -> Iterator[tuple[str, str]]:
    for name, distribution in DISTRIBUTIONS.items():
        for path in distribution.files:
            if path.endswith(("containerd/config.toml", "args/containerd.toml")):
                yield name, path


@pytest.mark.parametrize(("distribution", "path"), list(distributions_files()))
def test_every_distributions_files_are_read_as_it_does(
    distribution: str, path: str, program: Path, tmp_path: Path
) -> None:
    for name, text in DISTRIBUTIONS[distribution].files.items():
        inside = re.sub(r"(?<=[\"'])/(?=[^\n]*\.toml)", f"{tmp_path}/", text)
        put(tmp_path, {name: inside if name.endswith(".toml") else text})
    file = tmp_path / path
    theirs = dumped(program, file)

    ours = read(program, file)

    assert (ours.problem is None) == (theirs is not None), ours.problem
    if theirs is not None:
        agrees(ours, theirs)


PLACED = {
    "no TOML": ("config.toml", 2, {"config.toml": head(2, rest="[plugins\n")}),
    "no TOML in a drop-in": ("a.toml", 3, {"config.toml": head(2, "a.toml"), "a.toml": "\n\na = \n"}),
    "another kind": ("config.toml", 3, {"config.toml": "version = 2\n\ndisabled_plugins = 'cri'\n"}),
    "another kind in a drop-in": ("a.toml", 3, {"config.toml": head(2, "a.toml"), "a.toml": "\n[grpc]\naddress = 1\n"}),
}


@pytest.mark.parametrize(("at_fault", "line", "files"), PLACED.values(), ids=PLACED)
def test_where_it_names_a_place_we_name_the_same(
    at_fault: str, line: int, files: dict[str, str], program: Path, tmp_path: Path
) -> None:
    file = put(tmp_path, files)
    done = subprocess.run([program, "--config", file, "config", "dump"], capture_output=True, text=True, check=False)

    problem = read(program, file).problem

    assert problem is not None
    assert (problem.file, problem.line) == (str(tmp_path / at_fault), line)
    match = re.search(r"at row (\d+)|\((\d+), \d+\)", done.stderr)
    assert match is not None
    # go-toml 1 reports the line of the table for an error inside it, and the next line for a truncated file.
    assert abs(int(match[1] or match[2]) - line) <= (1 if "/v2" not in _version_of(str(program)) else 0)


def started(program: Path, file: Path) -> list[str | Path]:
    """Return the command line for the file, with nothing of the machine's own."""
    folder = file.parent
    aside = {"--root": folder / "root", "--state": folder / "state", "--address": folder / "containerd.sock"}
    return [program, "--config", file, *(word for pair in aside.items() for word in pair), "--log-level", "info"]


def test_without_a_file_that_is_imported_it_does_not_start(program: Path, tmp_path: Path) -> None:
    """Its `config dump` is no witness: containerd 2 takes that for a first file that is not there."""
    file = put(tmp_path, {"config.toml": head(2, "a.toml", rest=NVIDIA_V2)})
    done = subprocess.run(started(program, file), capture_output=True, text=True, check=False)

    problem = read(program, file).problem

    assert done.returncode
    assert "a.toml: no such file or directory" in done.stderr
    assert problem is not None
    assert problem.file == str(tmp_path / "a.toml")


# What only the plugin of containerd 1 itself refuses, when it starts.

RUNNING = {
    "one without runc": handler(V1, "nvidia", "/n"),
    "one that is the default": default(V1, "nvidia") + handler(V1, "nvidia", "/n"),
    "a default that nobody defines": default(V1, "nvidia") + handler(V1, "runc"),
    "systemd_cgroup with runc": "[plugins.cri]\nsystemd_cgroup = true\n",
}
ASIDE = """disabled_plugins = ["aufs", "btrfs", "devmapper", "opt", "restart", "zfs"]
[plugins.cri.cni]
conf_dir = "FOLDER/cni"
bin_dir = "FOLDER/cni"
"""
"""It writes nothing outside of the test's folder."""


def loads(program: Path, file: Path) -> bool:
    """Whether its CRI plugin starts with the file."""
    with subprocess.Popen(started(program, file), stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            for line in running.stderr:
                if "failed to load plugin io.containerd.grpc.v1.cri" in line:
                    return False
                if "Start cri plugin with config" in line:
                    return True
        finally:
            running.terminate()
            running.stderr.read()
    raise AssertionError("it ended before its CRI plugin was loaded")


@pytest.mark.skipif(os.geteuid() != 0, reason="containerd starts as root alone")
@pytest.mark.parametrize("text", RUNNING.values(), ids=RUNNING)
@pytest.mark.parametrize("program", [DEBIANS, "1.7"], indirect=True)
def test_its_plugin_starts_with_the_files_in_which_we_find_no_fault(text: str, program: Path, tmp_path: Path) -> None:
    file = put(tmp_path, {"config.toml": ASIDE + text})

    ours = read(program, file)

    names = {*(handler.name for handler in ours.handlers), *ours.built_in}
    assert (ours.problem is None and ours.default in names) == loads(program, file)
