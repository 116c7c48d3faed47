"""The example for Alertmanager: a configuration that Alertmanager accepts, and that inhibits alerts which exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.test_rules import ALERTS

FILE = Path(__file__).parents[2] / "kubernetes/alertmanager.yaml"
CONFIGURATION: dict[str, Any] = yaml.safe_load(FILE.read_text())
NAMES = {alert["alert"] for alert in ALERTS}
MATCHER = re.compile(r'([a-z_]+)(=~|=)"([^"]+)"')


def labels_of(alert: dict[str, Any]) -> set[str]:
    """The labels by which instances of an alert differ: those of its outermost aggregation or record."""
    return {"cluster"} | ({"node"} if "$labels.node" in alert["annotations"]["summary"] else set())


def matched(matchers: Iterable[str], alert: dict[str, Any]) -> bool:
    labels = {"alertname": alert["alert"], "severity": alert["labels"]["severity"]}
    for text in matchers:
        found = MATCHER.fullmatch(text)
        assert found, text
        name, operator, value = found.groups()
        pattern = value if operator == "=~" else re.escape(value)
        if not re.fullmatch(pattern, labels[name]):
            return False
    return True


@pytest.mark.parametrize("rule", CONFIGURATION["inhibit_rules"], ids=lambda rule: rule["source_matchers"][0])
def test_an_inhibition_is_of_alerts_that_exist_and_have_the_labels_that_must_be_equal(rule: dict[str, Any]) -> None:
    sources = [alert for alert in ALERTS if matched(rule["source_matchers"], alert)]
    targets = [alert for alert in ALERTS if matched(rule["target_matchers"], alert)]
    assert len(sources) == 1
    assert targets
    assert sources[0] not in targets
    for alert in (*sources, *targets):
        assert set(rule["equal"]) <= labels_of(alert), alert["alert"]


def test_each_word_of_an_inhibition_matches_an_alert() -> None:
    """A renamed alert would otherwise leave the inhibition without a message."""
    for rule in CONFIGURATION["inhibit_rules"]:
        for name in re.findall(r"[A-Z]\w+", " ".join((*rule["source_matchers"], *rule["target_matchers"]))):
            assert [alert for alert in NAMES if name in alert], name


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "page"), ("warning", "ticket"), ("info", "later")])
def test_every_alert_has_the_route_of_its_severity(severity: str, receiver: str) -> None:
    route = CONFIGURATION["route"]
    alerts = [alert for alert in ALERTS if alert["labels"]["severity"] == severity]
    assert alerts
    for alert in alerts:
        taken = next((one for one in route["routes"] if matched(one["matchers"], alert)), route)
        assert taken["receiver"] == receiver
    assert receiver in {one["name"] for one in CONFIGURATION["receivers"]}


def test_amtool_accepts_it() -> None:
    """Without amtool, at least the keys are those of Alertmanager's configuration."""
    assert set(CONFIGURATION) == {"route", "inhibit_rules", "receivers"}
    keys = {"receiver", "group_by", "group_wait", "group_interval", "repeat_interval", "routes", "matchers"}
    for route in (CONFIGURATION["route"], *CONFIGURATION["route"]["routes"]):
        assert set(route) <= keys
    for rule in CONFIGURATION["inhibit_rules"]:
        assert set(rule) == {"source_matchers", "target_matchers", "equal"}
    if (amtool := shutil.which("amtool")) is not None:
        subprocess.run([amtool, "check-config", str(FILE)], check=True, capture_output=True)
