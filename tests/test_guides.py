"""The guides work: their code runs in a copy of the tree, and the files that they name exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/adding-a-check.md").read_text()
_BLOCK = re.compile(r"^ *```(python|toml)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_PATH = re.compile(r"`([a-z0-9_/-]+(?:\.(?:py|md|json|yaml))?)`")
_NAME = "gpu-model-different"
_TWIN = {"NVIDIA H200": "NVIDIA H100 80GB HBM3", '"GpuModelDifferent"': '""', '"warn"': '"pass"', "MONITOR": "PASS"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in ("agent", "cli", "diagnosis", "healthcheck", "kubernetes", "quarantine", "sim", "sweeper", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def write_scenario(root: Path, name: str, text: str) -> None:
    folder = root / "sim/scenarios" / name
    folder.mkdir()
    (folder / "scenario.toml").write_text(text)


def test_the_check_of_the_guide_finds_its_fault_and_passes_its_healthy_twin(copy: Path) -> None:
    blocks = {kind: textwrap.dedent(text) for kind, text in _BLOCK.findall(GUIDE)}
    (copy / "healthcheck/checks/gpu_model.py").write_text(blocks["python"])
    listed = copy / "healthcheck/checks/listed.py"
    text = listed.read_text().replace("    gpu_memory_held,\n", "    gpu_memory_held,\n    gpu_model,\n", 1)
    listed.write_text(
        text.replace("    gpu_memory_held.CHECK,\n", "    gpu_memory_held.CHECK,\n    gpu_model.CHECK,\n", 1)
    )
    twin = re.sub(r"findings = .*", "findings = []", blocks["toml"])
    for faulty, healthy in _TWIN.items():
        assert faulty in twin
        twin = twin.replace(faulty, healthy)
    write_scenario(copy, _NAME, blocks["toml"])
    write_scenario(copy, f"{_NAME}-twin", twin)

    words = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "tests/e2e/test_scenarios.py", "-k", _NAME]
    done = subprocess.run([sys.executable, *words], cwd=copy, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 2


def test_the_files_that_a_change_touches_exist() -> None:
    table = (ROOT / "docs/architecture.md").read_text().partition("## To change X, touch Y")[2].partition("\n## ")[0]
    named = {path for row in _ROW.findall(table) for cell in row for path in _PATH.findall(cell)}
    assert len(named) > 40
    folders = ("", "healthcheck", "healthcheck/checks", "healthcheck/cluster", "kubernetes/manifests", "tests/checks")
    files = {Path(folder, path) for folder in folders for path in named}
    found = {file for file in files if (ROOT / file).exists() or (ROOT / f"{file}.py").exists()}
    assert {path for path in named if not any(Path(folder, path) in found for folder in folders)} == set()
