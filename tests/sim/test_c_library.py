"""Compiling the stage's C sources."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.sim import c_library

SOURCE = "int one(void) { return 1; }"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing was built before."""
    monkeypatch.setattr(c_library, "BUILD_DIRECTORY", tmp_path / "build")
    c_library.build.cache_clear()
    yield
    c_library.build.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "one.c"
    file.write_text(SOURCE)
    return file


def test_c_library_without_a_compiler_names_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(c_library.CompilerError, match="pip install ziglang"):
        c_library.find_compiler()


def test_c_library_is_built_once(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    first = c_library.build(source, "one")
    c_library.build.cache_clear()
    monkeypatch.setenv("CC", os.devnull)  # would fail if it were asked

    assert c_library.build(source, "one") == first


def test_c_library_has_a_file_per_source_and_flags(source: Path) -> None:
    first, other_flags = c_library.build(source, "one"), c_library.build(source, "one", "-g0")
    c_library.build.cache_clear()
    source.write_text("int one(void) { return 2; }")

    assert len({first, other_flags, c_library.build(source, "one")}) == 3


def test_c_library_reports_a_compiler_that_does_not_start(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    monkeypatch.setenv("CC", "/absent/compiler")

    with pytest.raises(c_library.CompilerError, match="cannot start"):
        c_library.build(source, "one")


@pytest.mark.parametrize("name", ["nvml.c", "cuda.c", "wall_clock.c", "kill_at.c"])
def test_c_library_sources_compile_without_warnings(name: str) -> None:
    """A user's compiler may warn of more: there, a warning does not stop the build."""
    assert c_library.build(Path(c_library.__file__).parent / name, "warned", "-Werror").is_file()
