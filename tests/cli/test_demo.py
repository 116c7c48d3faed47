"""`gpu-healthcheck demo` where it cannot run. That it runs is tested by `make demo`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from gpu_healthcheck.cli.demo import demo

ROOT = Path(__file__).parents[2]


def test_demo_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    environment = {**os.environ, "CC": "/absent/cc", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "cli", "demo"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu-healthcheck demo: cannot start the C compiler `/absent/cc ")


def test_demo_without_a_writable_cache_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file")}
    command = [sys.executable, "-m", "cli", "demo"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot write the simulated driver to {tmp_path}/file/gpu-healthcheck" in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_elsewhere_than_on_linux_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(typer.Exit) as ended:
        demo()

    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "gpu-healthcheck demo: it needs Linux, like the agent that it starts\n"
