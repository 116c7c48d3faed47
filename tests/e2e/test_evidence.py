"""Output of `check --save-evidence` gets the same judgement by `replay`, on any machine."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from gpu_healthcheck.cli.app import app
from gpu_healthcheck.healthcheck.captures import evidence_file
from gpu_healthcheck.healthcheck.probes.nvml import driver
from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.scenarios import Scenario, scenarios
from tests.device_files import buildable
from tests.e2e.judged_again import is_judged_again

OTHERWISE_SEEN = [scenario for scenario in scenarios() if scenario.from_within or not scenario.is_seen_by_check]
"""The others are judged again where it is tested what `check` says of them (test_scenarios.py)."""


def run(*words: str | Path, config: Path | str = "/nowhere") -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"CONFIG_DIR": str(config)})


def record_of(result: Result) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(result.stdout)
    return record


@pytest.fixture
def saved(node: SimulatedNode, tmp_path: Path) -> Path:
    """Of a p5.48xlarge with a lost GPU and an Xid."""
    node.lose_gpu(3)
    node.xid(3, 79, "GPU has fallen off the bus.")
    path = tmp_path / "evidence.json"
    run("check", "--root", node.root, "--instance-type", "p5.48xlarge", "--save-evidence", path)
    return path


@pytest.mark.parametrize("scenario", buildable(OTHERWISE_SEEN), ids=lambda scenario: scenario.name)
def test_scenario_is_judged_again_as_it_was(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evidence.json"
    monkeypatch.setitem(vars(driver), "DEADLINE_SECONDS", 2.0)
    looking = ("--json", "--save-evidence", path, "--instance-type", scenario.instance_type)
    with scenario.build(tmp_path / "node") as node:
        there = run("check", *looking, "--root", node.root)

    assert is_judged_again(path, record_of(there), there.exit_code)


def test_console_script_judges_evidence(saved: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "cli", "replay", "--json"]
    done = subprocess.run(
        [*program, str(saved)], cwd=tmp_path, capture_output=True, check=False, env={"CONFIG_DIR": "/nowhere"}
    )

    assert (done.returncode, done.stderr) == (1, b"")
    entries = {(row["reason"], row["rule"]) for row in json.loads(done.stdout)["findings"]}
    assert entries == {("GpuLost", "gpu-count"), ("Xid79", "xid.csv:79")}


def test_settings_are_those_of_the_node(node: SimulatedNode, tmp_path: Path) -> None:
    there, here, path = tmp_path / "there", tmp_path / "here", tmp_path / "evidence.json"
    for config, severity in ((there, "MONITOR"), (here, "ISOLATE")):
        config.mkdir()
        (config / "severity-overrides").write_text(f"GpuLost = {severity}\n")
    node.lose_gpu(3)
    run("check", "0", "--root", node.root, "--save-evidence", path, config=there)

    assert record_of(run("replay", "--json", path, config=here))["severity"] == "MONITOR"


def test_instance_type_option_replaces_the_saved_profile(node: SimulatedNode, tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    run("check", "--root", node.root, "--instance-type", "p5.48xlarge", "--save-evidence", path)
    record = record_of(run("replay", "--json", "--instance-type", "p6-b300.48xlarge", path))

    assert record["instance_type"] == "p6-b300.48xlarge"
    assert record_of(run("replay", "--json", path))["status"] == "pass"


def test_evidence_is_recognised_by_its_content(saved: Path, tmp_path: Path) -> None:
    packed, short = tmp_path / "packed", tmp_path / "short"
    packed.write_bytes(gzip.compress(saved.read_bytes()))
    short.write_text(json.dumps(json.loads(saved.read_text())))
    program = [sys.executable, "-m", "cli", "replay"]
    piped = subprocess.run([*program, "-"], input=packed.read_bytes(), capture_output=True, check=False)

    assert [run("replay", path).exit_code for path in (saved, packed, short)] == [1, 1, 1]
    assert run("replay", "--as", "evidence", saved).exit_code == 1
    assert (piped.returncode, b"GpuLost REBOOT on gpu/0000:86:00.0" in piped.stdout) == (1, True)


def test_named_pipe_is_read_once(saved: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["cp", str(saved), str(pipe)])

    assert run("replay", pipe).exit_code == 1
    assert writer.wait() == 0


@pytest.mark.parametrize("name", ["driver-messages", "nouveau"])
def test_driver_age_follows_from_this_machines_kernel_log(name: str, tmp_path: Path) -> None:
    """Graces count on it. A directory given with --root may be any machine's: its log's clock is not ours."""
    path, boot = tmp_path / "evidence.json", time.monotonic()
    with SimulatedNode.create(tmp_path / "node", driver_age_seconds=int(boot) - 5) as node:
        node.driver_load(driver_age_seconds=3)
        result = CliRunner().invoke(
            app,
            ["check", name, "--instance-type", "p5.48xlarge", "--save-evidence", str(path)],
            env={"CONFIG_DIR": "/nowhere", "HOST_ROOT": str(node.root)},
        )
        run("check", name, "--root", node.root, "--save-evidence", tmp_path / "elsewhere")
    here, elsewhere = (evidence_file.read(one.read_bytes()) for one in (path, tmp_path / "elsewhere"))

    assert result.exit_code == 0
    assert 3 <= here.expected.driver_age_seconds < 3 + time.monotonic() - boot + 1
    assert elsewhere.expected.driver_age_seconds == math.inf


def test_driver_age_without_a_log_line_is_that_of_the_boot(node: SimulatedNode, tmp_path: Path) -> None:
    node.kernel_log.clear()
    began, path = time.monotonic(), tmp_path / "evidence.json"
    CliRunner().invoke(
        app,
        ["check", "nouveau", "--instance-type", "p5.48xlarge", "--save-evidence", str(path)],
        env={"CONFIG_DIR": "/nowhere", "HOST_ROOT": str(node.root)},
    )

    age = evidence_file.read(path.read_bytes()).expected.driver_age_seconds
    assert began <= age <= time.monotonic()


def test_evidence_with_another_file_is_refused(saved: Path) -> None:
    result = run("replay", saved, saved)

    assert (result.exit_code, "pass no other file with it" in result.stderr) == (3, True)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"format": "gpu-healthcheck evidence"', "not JSON: "),
        (b"[    1.000000] NVRM: Xid (PCI:0000:05:00): 79, x\n", "not JSON: "),
        (b'{"format": "gpu-healthcheck evidence", "schema": 7}', "schema 7; this version reads 1"),
        (b'{"format": "gpu-healthcheck evidence", "schema": 1}', "Object missing required field agent_version"),
        (b'{"format": "gpu-healthcheck evidence", "x": ' + b"[" * 700 + b"]" * 700 + b"}", "nested deeper than 64"),
    ],
)
def test_invalid_evidence_is_refused_with_its_file(raw: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_bytes(raw)
    result = run("replay", "--json", "--as", "evidence", path)

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"gpu-healthcheck replay: {path}: {why}")


def objects_in(value: Any) -> list[dict[str, Any]]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] * isinstance(value, dict) + [entry for part in inner for entry in objects_in(part)]


def test_duplicate_key_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    keys = {key for entry in objects_in(json.loads(whole)) for key in entry}
    assert len(keys) > 50
    for wanted in keys:
        document = json.loads(whole)
        next(entry for entry in objects_in(document) if wanted in entry)["@twice@"] = None
        saved.write_text(json.dumps(document).replace('"@twice@"', json.dumps(wanted)))
        with pytest.raises(evidence_file.EvidenceError) as refused:
            evidence_file.read(saved.read_bytes())
        assert str(refused.value) == f"the key {wanted[:40]!r} occurs twice"

    result = run("replay", saved)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"gpu-healthcheck replay: {saved}: the key ")


@pytest.mark.parametrize("name", ["-", "missing/evidence.json", ".", "/dev/null"])
def test_path_that_cannot_be_written_is_a_usage_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    path = name if name == "-" else tmp_path / name
    result = run("check", "--root", tmp_path, "--save-evidence", path)

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("gpu-healthcheck check: --save-evidence: ")


def test_record_is_all_of_standard_output(node: SimulatedNode, tmp_path: Path) -> None:
    result = run("check", "-v", "--json", "--root", node.root, "--save-evidence", tmp_path / "evidence.json")

    assert record_of(result)["status"] == "pass"
    assert "nvml" in result.stderr


# For any changed file: a verdict, or an error about it.


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value in it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, entry in inside for place in places(entry, (*path, key)))]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63, 2**64, 10**30, 10**400, 1e300, -1e300, 1e308]),
    st.text(max_size=20),
    st.sampled_from(["", "\x1b[2J", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "nvml", "[red]x[/red]"]),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3),
)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A whole one, with something of everything."""
    folder = tmp_path_factory.mktemp("evidence")
    with SimulatedNode.create(folder / "node", "p5.48xlarge") as node:
        node.lose_gpu(3)
        node.remove_rdma(2)
        node.xid(5, 31, "MMU Fault", process=(7, "python"))
        looking = ("--root", node.root, "--instance-type", "p5.48xlarge", "--save-evidence", folder / "evidence.json")
        run("check", *looking)
    fields: dict[str, Any] = json.loads((folder / "evidence.json").read_text())
    fields["before"] = {**fields["look"], "at": fields["look"]["at"] - 300.0}
    return fields


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed") / "evidence.json"


@settings(max_examples=50)
@given(st.data())
def test_changed_evidence_gives_a_verdict_or_an_error(
    document: dict[str, Any], path: Path, data: st.DataObject
) -> None:
    changed = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        *above, last = data.draw(st.sampled_from(places(changed)[1:]))
        place = changed
        for key in above:
            place = place[key]
        if data.draw(st.booleans()):
            place[last] = data.draw(VALUES)
        else:
            del place[last]
    path.write_text(json.dumps(changed))
    how = data.draw(st.sampled_from([("--json",), ("-v",), ()]))
    result = run("replay", *how, "--as", "evidence", path)

    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code in (0, 1, 2, 3)
    assert (result.exit_code == 3) == result.stderr.startswith(f"gpu-healthcheck replay: {path}: ")
