"""Content that `python -m tools.krew` packs, the packed program's search for its Python, and the manifest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from zipfile import ZipFile

import pytest

from tools import krew
from tools.krew import PLATFORMS, manifest

ROOT = Path(__file__).parents[1]
LAUNCHER = krew.LAUNCHER


def test_krew_manifest_has_the_documented_fields() -> None:
    """https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/."""
    checksums = {platform: f"{number:064x}" for number, platform in enumerate(PLATFORMS)}
    written = manifest("1.2.3", "https://example.com", "https://example.com/v1.2.3/", checksums)

    spec = written["spec"]
    assert spec.keys() == {"version", "homepage", "shortDescription", "description", "caveats", "platforms"}
    assert (spec["version"], spec["homepage"]) == ("v1.2.3", "https://example.com")
    assert re.fullmatch(r"[^\n]{1,50}[^\n.]", spec["shortDescription"])
    assert spec["platforms"][1] == {
        "selector": {"matchLabels": {"os": "linux", "arch": "arm64"}},
        "uri": "https://example.com/v1.2.3/gpu-healthcheck_v1.2.3_linux_arm64.tar.gz",
        "sha256": f"{1:064x}",
        "bin": "kubectl-gpu_healthcheck",
    }


def test_krew_archive_has_locked_and_needed_wheels() -> None:
    locked = (ROOT / "requirements/product.txt").read_text()
    (of_the_image,) = re.findall(r"uninstall --yes --quiet \\\n(.*?) \\\n", (ROOT / "Dockerfile").read_text())

    names = {"==".join(entry) for entry in re.findall(r"^([\w-]+)==(\S+) \\$", locked, re.MULTILINE)}
    kept = krew.wanted(locked)
    assert set(of_the_image.split()) | {"grpcio", "protobuf"} == krew.LEFT_OUT
    assert {name.partition("==")[0] for name in names if f"{name} " not in kept} == krew.LEFT_OUT
    assert all("--hash=sha256:" in word for word in re.split(r"^(?=[\w-])", kept, flags=re.MULTILINE) if "==" in word)


def wheel(folder: Path, name: str, **members: str) -> Path:
    with ZipFile(folder / name, "w") as zipped:
        for member, content in members.items():
            zipped.writestr(member, content)
    return folder / name


def packed(*wheels: Path) -> dict[str, bytes]:
    return krew.files(wheels, LAUNCHER, ROOT / "LICENSE")


def test_krew_archive_has_modules_of_all_pythons(tmp_path: Path) -> None:
    ours = wheel(tmp_path, "ours.whl", **{"gpu_healthcheck/cli/app.py": "1", "gpu_healthcheck-1.dist-info/RECORD": "x"})
    shared = {"a/__init__.py": "", "a-1.dist-info/METADATA": "A"}
    two = (
        wheel(
            tmp_path, f"a-{python}.whl", **shared, **{f"a/b.cpython-{python}.so": python, "a-1.dist-info/WHEEL": python}
        )
        for python in ("311", "312")
    )

    assert {name.removeprefix("lib/") for name in packed(ours, *two)} == {
        *("kubectl-gpu_healthcheck", "LICENSE", "__main__.py", "gpu_healthcheck/cli/app.py"),
        *("a/__init__.py", "a/b.cpython-311.so", "a/b.cpython-312.so", "a-1.dist-info/METADATA"),
    }


def test_krew_refuses_wheels_with_different_files(tmp_path: Path) -> None:
    two = [wheel(tmp_path, f"{text}.whl", **{"a/b.py": text}) for text in ("1", "2")]

    with pytest.raises(krew.Clash, match=r"2\.whl: a/b\.py"):
        packed(*two)


def test_krew_archives_of_equal_files_are_identical(tmp_path: Path) -> None:
    held = packed(wheel(tmp_path, "a.whl", **{"a.py": "1", "b.py": "2"}))
    krew.write(tmp_path / "one.tar.gz", held, 1_700_000_000)
    krew.write(tmp_path / "other.tar.gz", dict(reversed(held.items())), 1_700_000_000)

    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "other.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        assert {tar_info.name: tar_info.mode for tar_info in tar if tar_info.mode != 0o644} == {krew.PROGRAM: 0o755}
        assert {(tar_info.uid, tar_info.gid, tar_info.mtime) for tar_info in tar} == {(0, 0, 1_700_000_000)}


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Unpacked as krew does it, with a program that says how it was called. Returns krew's link."""
    (tmp_path / "store/lib/pydantic_core").mkdir(parents=True)
    (tmp_path / "store/lib/pydantic_core" / f"_pydantic_core{EXTENSION_SUFFIXES[0]}").touch()
    (tmp_path / "store/lib/__main__.py").write_text("import sys; print(*sys.argv[1:], sep='|')")
    shutil.copy(LAUNCHER, tmp_path / "store")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / krew.PROGRAM
    link.symlink_to(f"../store/{krew.PROGRAM}")
    return link


def call(plugin: Path, pythons: dict[str, str | Path]) -> tuple[int, str, str]:
    """Run with exactly these Pythons on the PATH: a program, or a script of that name."""
    path = plugin.parent / "path"
    path.mkdir()
    for name in ("readlink", "dirname"):
        (path / name).symlink_to(str(shutil.which(name)))
    for name, python in pythons.items():
        script = python if isinstance(python, str) else f'exec {python} "$@"'
        (path / name).write_text(f"#!/bin/sh\n{script}\n")
        (path / name).chmod(0o755)
    done = subprocess.run([plugin, "a b", ""], env={"PATH": str(path)}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "pythons",
    [
        {"python3": Path(sys.executable)},
        {"python3": "echo .cpython-39-x86_64-linux-gnu.so", "python3.12": Path(sys.executable)},
        {"python3": "exit 1", "python3.14": "exit 127", "python3.11": Path(sys.executable)},
    ],
    ids=["python3", "python3-is-too-old", "shims-that-lead-nowhere"],
)
def test_krew_launcher_uses_the_first_suitable_python(plugin: Path, pythons: dict[str, str | Path]) -> None:
    assert call(plugin, pythons) == (0, "a b|\n", "")


@pytest.mark.parametrize("pythons", [{}, {"python3": "echo .cpython-39-x86_64-linux-gnu.so"}], ids=["none", "too-old"])
def test_krew_launcher_reports_a_missing_python(plugin: Path, pythons: dict[str, str | Path]) -> None:
    code, out, err = call(plugin, pythons)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "needs Python 3.11 to 3.14 on the PATH" in err


def test_krew_launcher_ignores_the_user_environment(plugin: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('another json')")
    (plugin.parents[1] / "store/lib/__main__.py").write_text("import json")
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}

    assert subprocess.run([plugin], env=variables, cwd=tmp_path, check=False).returncode == 0
