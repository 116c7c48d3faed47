"""The alerting and recording rules against our metrics, docs/alerts.md, its own tests, and the overlay's objects.

`make check` has promtool check the rules and run rules_test.yaml and availability_test.yaml.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.exposition import choose_encoder

from gpu_healthcheck.agent.telemetry import DeepRun, Telemetry
from gpu_healthcheck.cli.fleet_faults import SLOW
from gpu_healthcheck.diagnosis.snapshot.gpu_use import IDLE
from gpu_healthcheck.evict.metrics import METRICS as OF_EVICT
from gpu_healthcheck.healthcheck.catalog.xid import xid_table
from gpu_healthcheck.healthcheck.memory.findings import ActiveFinding
from gpu_healthcheck.healthcheck.model import Finding, Nature, Severity, Status
from tests.tiers import cannot_run
from tools.rules import plain_rules

ROOT = Path(__file__).parents[2]
OVERLAY = ROOT / "kubernetes" / "overlays" / "monitoring"
TEXT = plain_rules()
GROUPS = yaml.safe_load(TEXT)["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
TESTED = Path(__file__).with_name("rules_test.yaml").read_text()
OVER_A_QUARTER = Path(__file__).with_name("availability_test.yaml").read_text()
DCGM = {
    *("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"),
    *("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"),
    *("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_MEMORY_UTIL_RATIO", "DCGM_FI_DEV_FB_USED_BYTES"),
    *("DCGM_FI_DEV_FB_FREE_BYTES", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
}
"""By the DCGM exporter by default: up to 4.8 (etc/default-counters.csv), and from 4.9.0 on by DCGM 4.7's names."""
EXPORTED = {
    *("kube_node_info", "kube_node_labels", "kube_node_status_condition"),
    *("kube_node_status_allocatable", "kube_node_status_capacity", "kube_lease_owner", "kube_lease_renew_time"),
    *("kube_daemonset_status_desired_number_scheduled", "kube_daemonset_status_number_ready"),
    *("kube_cronjob_created", "kube_cronjob_spec_suspend", "kube_cronjob_status_last_successful_time"),
}
"""By kube-state-metrics (docs/metrics) by default; the labels of Nodes only if its flag lists them."""
NAME = r"(?:\w+:)?\b(?:gpu_healthcheck:?|DCGM_|kube_)\w+(?::\w+)?|\bup\b|process_start_time_seconds"
RECORDED = {rule["record"] for rule in RULES if "record" in rule}


def by_name(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


@pytest.mark.parametrize("alert", ALERTS, ids=by_name)
def test_an_alert_says_what_it_is_and_where_the_runbook_has_it(alert: dict[str, Any]) -> None:
    result = alert["annotations"]
    assert set(result) == {"summary", "description", "runbook_url"}
    assert result["runbook_url"].endswith(f"/docs/alerts.md#{alert['alert'].lower()}")
    assert f"\n### {alert['alert']}\n" in (ROOT / "docs" / "alerts.md").read_text()
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}


@pytest.mark.parametrize("rule", RULES, ids=by_name)
def test_a_rule_is_tested(rule: dict[str, Any]) -> None:
    """A record is tested by the rules that use it, or by itself."""
    used = any(re.search(rf"(?<![\w:]){by_name(rule)}(?![\w:])", other["expr"]) for other in RULES if other != rule)
    assert used or re.search(rf"(?<![\w:]){by_name(rule)}(?!\w)", TESTED + OVER_A_QUARTER)


@pytest.mark.parametrize("alert", ALERTS, ids=by_name)
def test_an_alert_has_labels_of_the_subject_alone(alert: dict[str, Any]) -> None:
    """Names of agent pods, replicas and exporters come and go: as labels they would restart `for` and notify again."""
    by = {word for words in re.findall(r"by \(([^)]*)\)", alert["expr"]) for word in words.split(", ")}
    if "increase(" not in alert["expr"]:
        assert by.isdisjoint({"instance", "container", "endpoint", "prometheus_replica", "replica"})


def test_the_xids_of_applications_are_those_after_which_nvidia_restarts_only_the_application() -> None:
    (degraded,) = (alert for alert in ALERTS if alert["alert"] == "GpuNodeDegraded")
    (listed,) = re.findall(r'reason!~"Xid\(([\d|]+)\)"', degraded["expr"])
    codes = {code for code, row in xid_table().items() if row.immediate_action == "RESTART_APP"}
    assert {int(code) for code in listed.split("|")} == codes | {45}


@pytest.mark.parametrize("rule", RULES, ids=by_name)
def test_a_rule_asks_for_what_somebody_exports(rule: dict[str, Any]) -> None:
    asked = set(re.findall(NAME, rule["expr"]))
    assert asked
    ours = {metric.name for metric in (*Telemetry().metrics, *OF_EVICT)}
    assert asked <= {"up"} | ours | EXPORTED | RECORDED | DCGM


def test_only_records_read_the_exporter_and_each_of_its_names_by_one_quantity() -> None:
    """Its releases differ in names and units, which these records hide from all that reads them."""
    readers = {by_name(rule): set(re.findall(r"DCGM_\w+", rule["expr"])) for rule in RULES}
    assert {name for name, series in readers.items() if series} == {
        "gpu_healthcheck:gpu_utilization:ratio",
        "gpu_healthcheck:gpu_memory_used:ratio",
        "gpu_healthcheck:gpu_temperature:celsius",
        "gpu_healthcheck:gpu_power:watts",
        "gpu_healthcheck:gpu_memory_busy:ratio",
    }
    assert sorted(name for series in readers.values() for name in series) == sorted(DCGM)


USE = "groups:\n" + TEXT[TEXT.index("  - name: gpu-healthcheck-use\n") :]
WRONG_UNITS = {
    "percent taken for a ratio": (r"\(DCGM_FI_DEV_GPU_UTIL\{GPU_I_ID=\"\"\} <= 100\) / 100", "DCGM_FI_DEV_GPU_UTIL"),
    "memory's percent taken for a ratio": (
        r"(DCGM_FI_DEV_MEM_COPY_UTIL\{GPU_I_ID=\"\"\}) <= 100\) / 100",
        r"\1 <= 100)",
    ),
    "a ratio taken for percent": (r"(DCGM_FI_DEV_GPU_UTIL_RATIO\{GPU_I_ID=\"\"\}) <= 1", r"\1 / 100"),
    "memory's ratio taken for percent": (r"(DCGM_FI_DEV_MEMORY_UTIL_RATIO\{GPU_I_ID=\"\"\}) <= 1", r"\1 / 100"),
    "bytes of MiB": (r"DCGM_FI_DEV_FB_USED_BYTES \+ DCGM_FI_DEV_FB_FREE_BYTES", "DCGM_FI_DEV_FB_USED_BYTES * 1048576"),
    "a limit in percent for a ratio": (r"ratio\{pod!=\"\"\} \* 100 < 10", 'ratio{pod!=""} < 10'),
    "a limit as a ratio for percent": (r"ratio\{pod!=\"\"\} \* 100 < 10", 'ratio{pod!=""} * 100 < 0.1'),
    "a limit of memory in percent": (r"gpu_memory_used:ratio > 0\.95", "gpu_memory_used:ratio > 95"),
    "degrees Fahrenheit": (r"DCGM_FI_DEV_GPU_TEMP_CELSIUS < 1000", "DCGM_FI_DEV_GPU_TEMP_CELSIUS * 1.8 + 32"),
    "milliwatts": (r"DCGM_FI_DEV_BOARD_POWER_WATTS < 1e6", "DCGM_FI_DEV_BOARD_POWER_WATTS / 1000"),
    "the label of 4.8.2 alone": (r'"Hostname", "exported_hostname", "hostname"', '"Hostname"'),
    "the label of 4.8.3 alone": (r'"exported_Hostname", "Hostname", "exported_hostname"', '"exported_hostname"'),
}


@pytest.mark.parametrize(("right", "wrong"), WRONG_UNITS.values(), ids=WRONG_UNITS)
def test_a_wrong_unit_or_label_of_the_exporter_fails_a_story(tmp_path: Path, right: str, wrong: str) -> None:
    rules, changed = re.subn(right, wrong, USE)
    assert changed
    assert not stories_hold(tmp_path, rules)


@pytest.mark.parametrize("page", ["availability.md", "requirements.md"])
def test_documented_query_is_tested(page: str) -> None:
    queries = re.findall(r"```promql\n(.+?)\n```|`(sum by [^`]+)`", (ROOT / "docs" / page).read_text(), re.DOTALL)
    (story,) = yaml.safe_load(OVER_A_QUARTER)["tests"]
    tested = {" ".join(row["expr"].split()) for row in story["promql_expr_test"]}
    assert queries
    assert {" ".join("".join(query).split()) for query in queries} <= tested


def test_the_query_for_idle_cards_is_tested() -> None:
    assert f"expr: {IDLE}\n" in TESTED


def test_the_stories_with_the_exporter_hold(tmp_path: Path) -> None:
    assert stories_hold(tmp_path, USE)


def stories_hold(folder: Path, rules: str) -> bool:
    """Whether promtool accepts the stories with the exporter's series; each has more than one unit or label."""
    promtool = shutil.which("promtool")
    if promtool is None:
        cannot_run("NOT TESTED by promtool (Debian: apt-get install prometheus)")
    document = yaml.safe_load(TESTED)
    document["tests"] = [story for story in document["tests"] if "DCGM_FI" in str(story["input_series"])]
    (folder / "rules.yaml").write_text(rules)
    (folder / "rules_test.yaml").write_text(yaml.safe_dump(document))
    story = subprocess.run([promtool, "test", "rules", "rules_test.yaml"], cwd=folder, capture_output=True, check=False)
    assert (story.returncode == 0) is (b"FAILED" not in story.stdout + story.stderr), story
    return story.returncode == 0


def test_the_overlay_scrapes_the_agents_by_the_names_that_the_manifests_give_them() -> None:
    daemon_set = yaml.safe_load((ROOT / "kubernetes" / "manifests" / "04-daemonset-agent.yaml").read_text())
    template = daemon_set["spec"]["template"]
    monitor = yaml.safe_load((OVERLAY / "pod-monitor.yaml").read_text())

    assert monitor["metadata"]["namespace"] == daemon_set["metadata"]["namespace"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} == ports


def test_promtool_finds_nothing_to_say_of_a_full_page() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        cannot_run("NOT TESTED by promtool (Debian: apt-get install prometheus)")
    telemetry = Telemetry()
    found = Finding("Xid79", Severity.REBOOT, "gpu/0000:18:00.0", "", {"index": "0", "uuid": "GPU-a"})
    at = datetime(2026, 11, 21, tzinfo=UTC)
    active = ActiveFinding(found, "xid", Nature.EVENT, at, at, 1, "boot", 0.0)
    telemetry.show_verdict(Severity.REBOOT, Status.FAIL, (active,), {"0-nvidia-smi": False})
    telemetry.show_driver(
        "580.1", 'a"b\\c', {("0", "GPU-a"): 87}, {("power_brake", "0", "GPU-a"): 1.0}, {("0", "GPU-a"): 9}
    )
    telemetry.show_runs({"sweep": DeepRun("pass", 1.0, 1.0)})
    telemetry.show_taint(tainted=True, slots=(1, 2))
    telemetry.show_efa_errors({("rdmap16s0", "rx_drops"): 1})
    telemetry.show_waiting({("0", "GPU-a", "ml", "train-0"): 900}, {("ml", "train-0"): 900})
    telemetry.xids.labels("79", "0", "GPU-a").inc()
    encode, _ = choose_encoder("")

    checked = subprocess.run(
        [promtool, "check", "metrics"], input=encode(telemetry.registry), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_rules_and_the_command_agree_on_slow_gpus() -> None:
    (rule,) = (rule for rule in RULES if rule.get("record") == "node:gpu_healthcheck_slow_gpus:count")

    assert re.findall(r'reason=~"([^"]+)"', rule["expr"]) == ["|".join(sorted(SLOW))]
