"""Content that `pip`, `uvx` and `pipx` install."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from gpu_healthcheck.sim.node import SimulatedNode
from tools import krew

ROOT = Path(__file__).parents[2]
PROGRAMS = ("agent", "cli", "diagnosis", "evict", "healthcheck", "quarantine", "repair", "sweeper")
BUILD = "import sys; from setuptools.build_meta import *; to = sys.argv[1]; build_wheel(to); build_sdist(to)"

PAGE = (ROOT / "gpu_healthcheck/README.md").read_text()
OURS = "https://github.com/aws-samples/gpu-healthcheck"
LOG = """\
[    1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20
[    2.000000] systemd[1]: Started Kubelet.
[    9.000000] NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.
"""
POD = """\
LAST SEEN   TYPE      REASON             OBJECT      MESSAGE
3m          Warning   FailedScheduling   pod/train   0/2 nodes are available: 2 Insufficient nvidia.com/gpu.
"""
STAGE = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
from gpu_healthcheck.sim import demo, impatient_agent
with demo.SimulatedNode.create(pathlib.Path(sys.argv[2])), demo.ApiStandIn("n"), demo.SimulatedImds("p5.48xlarge"):
    print(*(name for name, module in sys.modules.items() if not getattr(module, "__file__", "") and "sim" in name))
"""

# As the console script that an installer writes: it names the function that entry_points.txt names.
SCRIPT = "import sys; sys.path.insert(0, {site!r}); from {module} import {function}; {function}()"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and source archive, built from a copy, as building leaves its own folder in the sources."""
    sources, dist = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in (*PROGRAMS, "sim", "gpu_healthcheck", "kubernetes"):
        shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
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


def test_wheel_has_the_stage_of_the_demo(site: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-c", STAGE, str(site), str(tmp_path / "node")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_image_without_the_stage_names_the_way_to_the_demo(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "image", ignore=shutil.ignore_patterns("sim"))
    done = script(tmp_path / "image", "demo")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu-healthcheck demo: it is not in container images: pipx run gpu-healthcheck demo\n"


class TestPageOnPyPI:
    def test_its_answer_is_the_commands(self, site: Path) -> None:
        (site / "dmesg.txt").write_text(LOG)
        done = script(site, "replay", "dmesg.txt")

        shown = PAGE.partition("```\n$ uvx gpu-healthcheck replay dmesg.txt\n")[2].partition("```")[0]
        assert (done.returncode, done.stdout.strip()) == (1, shown.strip())

    def test_its_commands_for_files_work_from_the_wheel(self, site: Path) -> None:
        (site / "pod.txt").write_text(POD)
        asked = script(site, "diagnose", "--from", "pod.txt")
        explained = script(site, "explain", "Xid79")

        assert all(f"gpu-healthcheck {words}" in PAGE for words in ("diagnose --from pod.txt", "explain Xid79"))
        assert (asked.returncode, "Insufficient nvidia.com/gpu" in asked.stdout) == (1, True), asked.stdout
        assert (explained.returncode, "RESTART_BM" in explained.stdout) == (0, True)

    def test_each_command_exists(self, site: Path) -> None:
        named = set(re.findall(r"^\$ (?:uvx )?gpu-healthcheck ([a-z]+)", PAGE, re.MULTILINE))

        assert {"replay", "diagnose", "explain", "demo", "status", "verify"} == named
        assert [name for name in named if script(site, name, "-h").returncode] == []

    def test_its_links_are_absolute_and_lead_to_files(self) -> None:
        links = re.findall(r"\]\(([^)]+)\)", PAGE)

        assert [link for link in links if not link.startswith(OURS)] == []
        files = [link.removeprefix(f"{OURS}/blob/main/") for link in links if "/blob/" in link]
        assert [file for file in files if not (ROOT / file).is_file()] == []

    def test_metadata_names_project_pages_and_pythons(self, wheel: ZipFile) -> None:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(wheel.read(name))

        assert metadata["Description-Content-Type"] == "text/markdown"
        assert str(metadata.get_payload()).strip() == PAGE.strip()
        pages = dict(entry.split(", ") for entry in metadata.get_all("Project-URL", []))
        assert pages.keys() == {"Homepage", "Documentation", "Changelog", "Issues"}
        assert all(page.startswith(OURS) for page in pages.values())
        pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(metadata.get_all("Classifier", [])))
        assert pythons == [*krew.PYTHONS]
        assert metadata["Keywords"].count(",") >= 5
