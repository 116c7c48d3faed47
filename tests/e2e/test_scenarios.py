"""Every scenario, seen by the real console script on the simulated node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.scenarios import Scenario, scenarios

CODES = {"pass": 0, "warn": 0, "fail": 1, "unknown": 2}


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
def test_check_says_of_a_scenario_what_it_expects(scenario: Scenario, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "CHECK_TIMEOUT").write_text("2")
    with scenario.build(tmp_path / "node") as node:
        program = [sys.executable, "-m", "cli", "check", "--json"]
        done = subprocess.run(
            [*program, "--root", str(node.root), "--instance-type", scenario.instance_type],
            env={**os.environ, "CONFIG_DIR": str(config)},
            capture_output=True,
            text=True,
            check=False,
        )
    record = json.loads(done.stdout)
    seen = {
        "status": record["status"],
        "severity": record["severity"],
        "findings": [f"{finding['reason']} {finding['subject']}" for finding in record["findings"]],
        "unobserved": [row["cause"] for row in record["unobserved"]],
        "exit code": done.returncode,
    }
    expect = scenario.expect
    assert {
        "status": expect.status,
        "severity": expect.severity,
        "findings": expect.findings,
        "unobserved": expect.unobserved,
        "exit code": CODES[expect.status],
    } == seen
