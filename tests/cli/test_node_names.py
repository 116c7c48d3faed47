"""Names of nodes on a command line become part of an address: invalid names are rejected first."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from gpu_healthcheck.cli.options import node_names
from tests.cli.cluster import run_here


def test_node_names_are_unique() -> None:
    names = ["ip-10-0-0-1.ec2.internal", "b", "ip-10-0-0-1.ec2.internal", "x" * 253]

    assert node_names(names) == [names[0], "b", "x" * 253]


@pytest.mark.parametrize("name", ["", "a/status", "..", "A", "a b", "a,b", "-a", "a.", "x" * 254, "a\n", "node/a"])
def test_node_names_must_be_valid(name: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a valid node name"):
        node_names(["good", name])


@pytest.mark.parametrize("command", [("quarantine",), ("release", "--reason", "x")])
def test_empty_node_name_is_a_usage_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = run_here(tmp_path / "kubeconfig", *command, "")

    assert (done.returncode, "'' is not a valid node name" in done.stderr) == (3, True)
