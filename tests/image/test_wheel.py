"""Content that `pip`, `uvx` and `pipx` install."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from gpu_healthcheck.sim.node import SimulatedNode

ROOT = Path(__file__).parents[2]
PROGRAMS = ("agent", "cli", "diagnosis", "evict", "healthcheck", "quarantine", "repair", "sweeper")
BUILD = "import sys; from setuptools.build_meta import *; to = sys.argv[1]; build_wheel(to); build_sdist(to)"

# As the console script that an installer writes: it names the function that entry_points.txt names.
SCRIPT = "import sys; sys.path.insert(0, {site!r}); from {module} import {function}; {function}()"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and source archive, built from a copy, as building leaves its own folder in the sources."""
    sources, dist = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in (*PROGRAMS, "sim", "gpu_healthcheck", "kubernetes"):
        shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    subprocess.run([sys.executable, "-c", BUILD, dist], cwd=sources, check=True, capture_output=True)
    return dist


@pytest.fixture(scope="module")
def wheel(dist: Path) -> ZipFile:
    (built,) = dist.glob("*.whl")
    return ZipFile(built)


def test_source_archive_has_code_and_generated_files(dist: Path) -> None:
    (built,) = dist.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {
        "pyproject.toml",
        "gpu_healthcheck/cli/index.json",
        "gpu_healthcheck/cli/gpu-healthcheck.1",
        "gpu_healthcheck/healthcheck/settings/reading.py",
    } <= names


@pytest.fixture(scope="module")
def site(wheel: ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has another's packages of our folders' names."""
    site = tmp_path_factory.mktemp("site")
    wheel.extractall(site)
    for name in (*PROGRAMS, "sim"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"raise ImportError('another {name}')\n")
    return site


def script(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (entry_points,) = site.glob("*.dist-info/entry_points.txt")
    targets = dict(re.findall(r"^(\S+) = (\S+)$", entry_points.read_text(), re.MULTILINE))
    assert set(targets) == {"gpu-healthcheck", "kubectl-gpu_healthcheck", "kubectl_complete-gpu_healthcheck"}
    target = targets["gpu-healthcheck"]
    module, _, function = target.partition(":")
    program = SCRIPT.format(site=str(site), module=module, function=function)
    argv = [sys.executable, "-c", program, *words]
    variables = {name: value for name, value in os.environ.items() if name != "NODE_NAME"}
    return subprocess.run(argv, cwd=site, env=variables, capture_output=True, text=True, check=False)


def test_wheel_installs_one_top_level_name(wheel: ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}

    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {"gpu_healthcheck"}


def test_wheel_has_a_man_page(wheel: ZipFile) -> None:
    (text,) = [name for name in wheel.namelist() if name.partition("/")[0].endswith(".data")]

    assert text.endswith(".data/data/share/man/man1/gpu-healthcheck.1")


def test_wheel_has_every_file_of_the_programs(wheel: ZipFile) -> None:
    files = {file.relative_to(ROOT) for name in PROGRAMS for file in (ROOT / name).rglob("*") if file.is_file()}
    sources = {f"gpu_healthcheck/{file}" for file in files if "__pycache__" not in file.parts}

    assert sources - set(wheel.namelist()) == set()


@pytest.mark.parametrize("program", ["agent", "sweep-run", "quarantine-run"])
def test_wheel_programs_start_beside_modules_of_the_same_name(site: Path, program: str) -> None:
    done = script(site, program)

    assert (done.returncode, done.stderr) == (3, f"gpu-healthcheck {program}: NODE_NAME is not set\n")


def test_wheel_gate_starts_beside_modules_of_the_same_name(site: Path) -> None:
    done = script(site, "gate", "--agent=127.0.0.1", "--port=1", "--pod=x", "--fail-closed")

    assert (done.returncode, done.stdout) == (69, "")
    assert "Connection refused; the pod ends (--fail-closed)" in done.stderr


def test_wheel_cycle_reads_nvml_beside_modules_of_the_same_name(site: Path, node: SimulatedNode) -> None:
    done = script(site, "check", "gpu-count", "--root", str(node.root), "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["status"] == "pass"
