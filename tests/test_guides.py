"""Guides: their code runs in a copy of the tree, and the files that they name exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_FOLDERS = (
    *("agent", "charts", "cli", "diagnosis", "docs", "evict", "gpu_healthcheck", "healthcheck", "kubernetes"),
    *("quarantine", "repair", "sim", "sweeper", "tests", "tools"),
)
_BLOCK = re.compile(r"^ *```((?:python|toml)(?: \w+)?)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_PATH = re.compile(r"`([a-z0-9_/-]+(?:\.(?:py|md|json|yaml))?)`")
_NAME = "gpu-model-different"
_TWIN = {"NVIDIA H200": "NVIDIA H100 80GB HBM3", '"GpuModelDifferent"': '""', '"warn"': '"pass"', "MONITOR": "PASS"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in _FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def blocks(guide: str) -> dict[str, str]:
    """Return the code blocks of a guide by kind, without their indentation."""
    found = _BLOCK.findall((ROOT / "docs" / guide).read_text())
    return {kind: textwrap.dedent(text) for kind, text in found}


def insert(file: Path, anchor: str, text: str, indent: int = 0) -> None:
    """Insert text after the only occurrence of an anchor."""
    before, found, after = file.read_text().partition(anchor)
    assert found
    assert anchor not in after
    file.write_text(before + anchor + textwrap.indent(text, " " * indent) + after)


def python(folder: Path, *words: str) -> str:
    """Run Python in a folder and return its standard output; the test fails with its output otherwise."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_scenario(root: Path, name: str, text: str) -> None:
    folder = root / "sim/scenarios" / name
    folder.mkdir()
    (folder / "scenario.toml").write_text(text)


def assert_clean(folder: Path, *files: str) -> None:
    """The linter's rules of `make check` hold for the files."""
    python(folder, "-m", "ruff", "check", *files)
    python(folder, "-m", "ruff", "format", "--check", *files)


def test_the_check_of_the_guide_finds_its_fault_and_passes_its_healthy_twin(copy: Path) -> None:
    code = blocks("adding-a-check.md")
    file, test = "healthcheck/checks/gpu_model.py", "tests/checks/test_gpu_model.py"
    (copy / file).write_text(code["python"])
    (copy / test).write_text(code["python test"])
    listed = copy / "healthcheck/checks/listed.py"
    text = listed.read_text().replace("    gpu_memory_held,\n", "    gpu_memory_held,\n    gpu_model,\n", 1)
    listed.write_text(
        text.replace("    gpu_memory_held.CHECK,\n", "    gpu_memory_held.CHECK,\n    gpu_model.CHECK,\n", 1)
    )
    twin = re.sub(r"findings = .*", "findings = []", code["toml"])
    for faulty, healthy in _TWIN.items():
        assert faulty in twin
        twin = twin.replace(faulty, healthy)
    write_scenario(copy, _NAME, code["toml"])
    write_scenario(copy, f"{_NAME}-twin", twin)

    assert_clean(copy, file, test, str(listed))
    words = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    assert passed(python(copy, *words, "tests/e2e/test_scenarios.py", "-k", _NAME)) >= 2
    assert passed(python(copy, *words, test, "tests/checks/test_no_false_fault.py")) > 2


def passed(output: str) -> int:
    """Return the number of tests that passed, from the output of pytest."""
    return int(re.findall(r"(\d+) passed", output)[0])


def test_the_cause_of_the_guide_is_found_and_ends_with_recovery(copy: Path) -> None:
    code = blocks("adding-a-cause.md")
    file, test = "diagnosis/causes/crashing_table.py", "tests/diagnosis/test_crashing.py"
    insert(copy / file, ", KERNEL_TIME, GPU_MEMORY),\n", f"{code['python row'].rstrip()},\n", 4)
    last_word = (copy / test).read_text().partition("\nWORDS = [\n")[2].partition("\n]\n")[0].rpartition("\n    (")[2]
    insert(copy / test, f"{last_word}\n", f"{code['python test'].rstrip()},\n", 4)

    assert_clean(copy, file, test)
    words = [
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "tests/diagnosis/test_crashing.py",
        "-k",
        "incompatibility",
    ]
    assert passed(python(copy, *words)) == 2


def test_the_setting_of_the_guide_reaches_configmap_chart_and_explain(copy: Path) -> None:
    insert(
        copy / "healthcheck/settings/declaration.py",
        ' = field(default=60, name="MAX_RETIRED_PAGES_SBE")\n',
        blocks("adding-a-setting.md")["python field"],
        4,
    )

    python(copy, "-m", "tools.docs")
    python(copy, "-m", "tools.manifests")

    meaning = "Highest temperature of a healthy GPU, in degrees Celsius; 0 disables the limit."
    config = (copy / "kubernetes/manifests/03-config.yaml").read_text()
    assert f'#  # {meaning} Allowed: 0 to 120.\n#  MAX_GPU_CELSIUS: "0"\n' in config
    schema = json.loads((copy / "charts/gpu-healthcheck/values.schema.json").read_text())
    declared = schema["properties"]["settings"]["properties"]["MAX_GPU_CELSIUS"]
    assert declared == {"description": meaning, "type": "integer", "minimum": 0, "maximum": 120}
    assert meaning in python(copy, "-m", "cli", "explain", "MAX_GPU_CELSIUS", "-o", "json")


def test_the_metric_of_the_guide_is_counted_and_documented(copy: Path) -> None:
    code = blocks("adding-a-metric.md")
    insert(
        copy / "agent/telemetry.py",
        "        counter, gauge = self._counter, self._gauge\n",
        code["python metric"],
        8,
    )

    python(copy, "-c", f"from gpu_healthcheck.agent.telemetry import Telemetry\n{code['python test']}")
    python(copy, "-m", "tools.docs")

    assert "| `gpu_healthcheck_driver_reloads_total` | counter |" in (copy / "docs/metrics.md").read_text()


@pytest.mark.parametrize(
    "guide", ["adding-a-cause.md", "adding-a-setting.md", "adding-a-metric.md", "adding-a-check.md"]
)
def test_the_files_that_a_guide_names_exist(guide: str) -> None:
    text = (ROOT / "docs" / guide).read_text()
    named = {
        path
        for path in re.findall(r"`([a-z0-9_/-]+/(?:[a-z0-9_-]+\.(?:py|yaml|md|c|toml))?)`", text)
        if _NAME not in path
    }
    assert named
    assert {path for path in named if not (ROOT / path).exists()} <= {
        "healthcheck/checks/gpu_model.py",
        "tests/checks/test_gpu_model.py",
    }


def test_the_files_that_a_change_touches_exist() -> None:
    table = (ROOT / "docs/architecture.md").read_text().partition("## To change X, touch Y")[2].partition("\n## ")[0]
    named = {path for row in _ROW.findall(table) for cell in row for path in _PATH.findall(cell)}
    assert len(named) > 40
    folders = ("", "healthcheck", "healthcheck/checks", "healthcheck/cluster", "kubernetes/manifests", "tests/checks")
    files = {Path(folder, path) for folder in folders for path in named}
    found = {file for file in files if (ROOT / file).exists() or (ROOT / f"{file}.py").exists()}
    assert {path for path in named if not any(Path(folder, path) in found for folder in folders)} == set()
