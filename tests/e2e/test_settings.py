"""Settings of a cluster reach the judges of `gpu-healthcheck check`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_healthcheck.sim.node import SimulatedNode
from tests.console import typed


@pytest.mark.parametrize(("most", "reasons"), [("2", []), ("1", ["RetiredPagesLimit"])])
def test_check_goes_by_the_clusters_limit_of_retired_pages(tmp_path: Path, most: str, reasons: list[str]) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "MAX_RETIRED_PAGES_SBE").write_text(most)
    with SimulatedNode.create(tmp_path / "node", "g5.xlarge") as node:
        for name, value in (("retired_sbe", 2), ("retired_dbe", 0), ("retired_pending", 0)):
            node.write_value(f"nvml/gpu0/{name}", value)
        done = typed(["check", "--json", "--root", str(node.root)], {**os.environ, "CONFIG_DIR": str(config)})

    assert [finding["reason"] for finding in json.loads(done.stdout)["findings"]] == reasons


def test_check_uses_valid_values_beside_an_invalid_one_and_names_it(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "MAX_RETIRED_PAGES_SBE").write_text("1")
    (config / "CHECK_INTERVAL").write_text("5")
    environment = {**os.environ, "CONFIG_DIR": str(config)}
    with SimulatedNode.create(tmp_path / "node", "g5.xlarge") as node:
        for name, value in (("retired_sbe", 2), ("retired_dbe", 0), ("retired_pending", 0)):
            node.write_value(f"nvml/gpu0/{name}", value)
        done = typed(["check", "--json", "--root", str(node.root)], environment)
        refused = typed(["check", "--json", "--root", str(node.root)], {**environment, "MONITOR_TTL": "5"})

    assert [finding["reason"] for finding in json.loads(done.stdout)["findings"]] == ["RetiredPagesLimit"]
    message = f"{config}/CHECK_INTERVAL: CHECK_INTERVAL = '5': a whole number of seconds, 10 to 86400"
    assert f"{message}; its default is used" in done.stderr.decode()
    assert (refused.returncode, refused.stdout) == (3, b"")
    assert "environment: MONITOR_TTL = '5'" in refused.stderr.decode()
