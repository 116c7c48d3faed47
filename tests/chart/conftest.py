"""The real Helm, and the output of its templates."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests import tiers
from tools.chart import CHART
from tools.go_programs import helm as real_helm
from tools.go_programs.build import NoProgramError

Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> Helm:
    """Return a function that runs one Helm command, in the namespace that the chart requires."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    try:
        with capture.global_and_fixture_disabled():  # a first build takes minutes and prints a message
            program = real_helm.program()
    except NoProgramError as error:
        tiers.cannot_run(f"NOT TESTED with a real Helm: {error}")

    def call(*words: str, namespace: str = "gpu-healthcheck") -> subprocess.CompletedProcess[str]:
        command = [str(program), f"--namespace={namespace}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return call


def objects_of(text: str) -> Iterator[dict[str, Any]]:
    """Return the objects; a List is replaced by its items."""
    for entry in yaml.safe_load_all(text):
        if entry is not None:
            yield from entry["items"] if entry["kind"] == "List" else [entry]


def rendered(helm: Helm, *words: str) -> list[dict[str, Any]]:
    """Return the chart's objects for these values, in its order."""
    done = helm("template", "--no-hooks", "gpu-healthcheck", str(CHART), *words)
    assert done.returncode == 0, done.stderr
    return list(objects_of(done.stdout))
