"""Permissions of the workflows, and the code that they run. zizmor checks more, in `make check`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tools.release.__main__ import app
from tools.release.origin import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))


def read(file: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(file.read_text())
    return found


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in read(file)["jobs"].values() for step in job["steps"]]


def test_workflows_use_one_version_of_an_action() -> None:
    used = {line for file in WORKFLOWS for line in re.findall(r"uses: (.*)", file.read_text())}
    assert len({line.partition("@")[0] for line in used}) == len(used)


def test_workflows_sign_in_two_jobs_and_only_read_for_pull_requests() -> None:
    rights = {(file.stem, name): job["permissions"] for file in WORKFLOWS for name, job in read(file)["jobs"].items()}

    assert [job for job, may in rights.items() if "id-token" in may] == [("release", "attest"), ("release", "publish")]
    environments = {job: of.get("environment") for job, of in read(WORKFLOWS[1])["jobs"].items()}
    assert [job for job, name in environments.items() if name == "release"] == ["attest", "publish"]
    assert {may for job, of in rights.items() if job[0] == "ci" for may in of.items()} == {("contents", "read")}


def test_workflows_call_all_release_steps() -> None:
    called = set(
        re.findall(r"python -m tools.release ([\w-]+)", (REPOSITORY / ".github/workflows/release.yml").read_text())
    )
    known = {
        command.name or command.callback.__name__.replace("_", "-")
        for command in app.registered_commands
        if command.callback
    }

    assert called == known
