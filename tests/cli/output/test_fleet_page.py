"""`gpu-healthcheck status -o html`: content of the page, without foreign markup."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.fleet import Fleet, FleetBudget, FleetRow, row_of_node
from cli.output import fleet_page
from healthcheck.cluster.leases import Heartbeat
from healthcheck.node.state import INSTANCE_TYPE, NodeState
from healthcheck.text.moments import timestamp
from sim.api_stand_in import ApiStandIn
from tests.cli.cluster import P, run_here
from tests.hostile import HOSTILE as UNSEEN
from tests.markup import HOSTILE, LIVE, Tags, parsed

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=3)
RUN = f"{P}/run"
OUR_TAINT = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}


def found(reason: str, severity: str, subject: str = "gpu/0000:18:00.0", **more: Any) -> dict[str, Any]:
    seen = {"first_seen": timestamp(EARLIER), "last_seen": timestamp(EARLIER), "count": 1, "nature": "event"}
    return {"reason": reason, "severity": severity, "subject": subject, "detail": "", "check": "xid", **seen, **more}


def node(name: str, status: str, severity: str = "PASS", **record: Any) -> NodeState:
    labels = {f"{P}/status": status, f"{P}/severity": severity, INSTANCE_TYPE: "p5.48xlarge"} if status else {}
    fields = {"schema": 1, "status": status, "severity": severity, **record}
    return NodeState(name, labels=labels, annotations={f"{P}/results": json.dumps(fields)} if status else {})


def row(state: NodeState, *, heard: float | None = 30) -> FleetRow:
    beat = None if heard is None else Heartbeat(NOW - timedelta(seconds=heard), 900)
    return row_of_node(state, beat, timedelta(0), NOW)


def page(*rows: FleetRow) -> str:
    return fleet_page.text(Fleet(FleetBudget(1, 2, len(rows)), list(rows), []), NOW)


def facts(*rows: FleetRow) -> list[list[str]]:
    """Return the cells of the last table, without markup."""
    table = page(*rows).partition('<table id="facts">')[2]
    lines = re.findall(r'<tr id="n\d+">(.*?)</tr>', table)
    return [
        [" ".join("".join(parsed(word).words).split()) for word in re.split(r"</t[hd]>", line)[:-1]] for line in lines
    ]


def titles(*rows: FleetRow) -> list[str]:
    return [str(value) for name, value in parsed(page(*rows)).attributes if name == "title"]


def test_a_node_that_failed_says_why_since_when_and_what_to_do() -> None:
    fleet_row = row(node("a", "fail", "REBOOT", findings=[found("Xid79", "REBOOT")], taint="withheld"))

    assert facts(fleet_row) == [
        [
            "ap5.48xlarge",
            "fail",
            "REBOOT",
            "Xid79 gpu/0000:18:00.0",
            "2026-11-21 09:00:00",
            "withheld",
            "30s ago",
            "Drain and reboot the node.gpu-healthcheck quarantine a",
        ]
    ]
    assert titles(fleet_row) == ["a: fail, REBOOT, Xid79, withheld"]


@pytest.mark.parametrize(
    ("state", "heard", "message", "next_step"),
    [
        (node("a", "pass"), 30, "a: pass", ""),
        (node("a", "pass"), 7200, "a: pass, its heartbeat is overdue", "Find out why its agent sends no heartbeat."),
        (node("a", ""), None, "a: no agent has reported", "No agent has reported on it."),
        (
            node("a", "unknown", unobserved=[{"check": "driver", "cause": "DriverBeingChanged"}]),
            30,
            "a: unknown, PASS, DriverBeingChanged",
            "A check could not run.gpu-healthcheck explain DriverBeingChanged",
        ),
        (
            node("a", "warn", "MONITOR", findings=[found("Xid13", "MONITOR")]),
            30,
            "a: warn, MONITOR, Xid13",
            "Nothing now.gpu-healthcheck explain Xid13",
        ),
        (
            node("a", "warn", "MONITOR", findings=[found("Xid13; reboot", "MONITOR")]),
            30,
            "a: warn, MONITOR, Xid13; reboot",
            "Nothing now.",
        ),
    ],
)
def test_a_square_says_what_its_node_says(state: NodeState, heard: float | None, message: str, next_step: str) -> None:
    fleet_row = row(state, heard=heard)

    assert titles(fleet_row) == [message]
    assert facts(fleet_row)[0][-1].startswith(next_step)
    assert bool(facts(fleet_row)[0][-1]) is bool(next_step)


def test_an_agent_without_heartbeat_is_silent_if_leases_are_visible() -> None:
    seen, unseen = (row_of_node(node("a", "pass"), None, timedelta(0), NOW, listed=listed) for listed in (True, False))

    assert (titles(seen, unseen), facts(seen)[0][6]) == (
        ["a: pass, its heartbeat is overdue", "a: pass"],
        "silent",
    )


@pytest.mark.parametrize(
    ("recommended", "ended", "machine", "step"),
    [
        ("reset", NOW, "m", "A quarantine run recommends reset."),
        ("reset", NOW, "another", "Drain"),
        ("reset", EARLIER - timedelta(hours=1), "m", "Drain"),
        ("dance", NOW, "m", "Drain"),
    ],
)
def test_what_a_quarantine_run_recommends_counts_until_something_comes_after_it(
    recommended: str, ended: datetime, machine: str, step: str
) -> None:
    state = node("a", "fail", "RESET", findings=[found("EccUncorrected", "RESET")])
    run = {"schema": 1, "timestamp": timestamp(ended), "recommendation": recommended, "machine": machine}
    annotations = {**state.annotations, f"{P}/quarantine-result": json.dumps(run)}
    fleet_row = row(NodeState("a", machine="m", labels=state.labels, annotations=annotations))

    assert facts(fleet_row)[0][-1].startswith(step)


def test_a_node_that_is_tested_now_is_left_to_its_test() -> None:
    state = node("a", "fail", "RESET", findings=[found("EccUncorrected", "RESET")])
    run = {"kind": "quarantine", "holder": "x", "until": timestamp(NOW + timedelta(hours=1))}
    fleet_row = row(NodeState("a", labels=state.labels, annotations={**state.annotations, RUN: json.dumps(run)}))

    assert facts(fleet_row)[0][-1] == "A deep run (quarantine) uses it until 2026-11-21T13:00:00Z."


def test_the_fleet_is_summed_up_by_status_and_by_reason_and_nothing_is_doubled() -> None:
    twice = [found("NvLinkDown", "RESET"), found("NvLinkDown", "RESET", "gpu/0000:2a:00.0"), found("Xid79", "REBOOT")]
    rows = [
        row(node("a", "fail", "REBOOT", findings=twice)),
        row(node("b", "fail", "RESET", findings=twice[:1])),
        row(node("c", "unknown", unobserved=[{"check": "driver", "cause": "DriverBeingChanged"}])),
        row(node("d", "pass"), heard=7200),
    ]
    words = " ".join("".join(parsed(page(*rows)).words).split())

    for message in ("4 GPU nodes", "1 fail: REBOOT", "1 fail: RESET", "1 striped: the heartbeat is overdue"):
        assert message.replace(" ", "") in words.replace(" ", "")
    reasons = words.partition("Where")[2].partition("Facts")[0]
    assert reasons.strip() == "Xid79REBOOT1a NvLinkDownRESET2a, b DriverBeingChangedcould not check1c"
    assert facts(*rows)[0][3] == "Xid79 gpu/0000:18:00.0NvLinkDown gpu/0000:18:00.0 and 1 more"


def test_a_node_without_a_record_has_the_reason_of_its_condition() -> None:
    condition = {"type": "GpuHealthy", "reason": "Xid79", "lastTransitionTime": timestamp(EARLIER)}
    labels = {f"{P}/status": "fail", f"{P}/severity": "REBOOT"}
    fleet_row = row(NodeState("a", labels=labels, conditions=[condition], taints=[OUR_TAINT]))

    assert facts(fleet_row)[0][1:6] == ["fail", "REBOOT", "Xid79", "2026-11-21 09:00:00", "yes"]


def strange(words: str) -> FleetRow:
    """Words of a stranger wherever a Node has some."""
    record = {"findings": [found(words, "REBOOT", words)], "unobserved": [{"check": words, "cause": words}]}
    state = node(words, "fail", "REBOOT", **record, taint=words, released={"by": words, "reason": words})
    condition = {"type": "GpuHealthy", "reason": words, "message": words, "lastTransitionTime": words}
    labels = {**state.labels, INSTANCE_TYPE: words}
    return row(
        NodeState(words, labels=labels, annotations=state.annotations, conditions=[condition], provider_id=words)
    )


def live(tags: Tags) -> list[str]:
    """Return the active elements and attributes, except links to a position on the page."""
    acting = [tag for tag in tags.tags if tag in LIVE and tag != "a"]
    named = [(name, value or "") for name, value in tags.attributes]
    acting += [name for name, _ in named if name.startswith("on") or name in ("src", "style", "action", "srcset")]
    places = re.compile(r"#(n\d+|table)\Z")
    return acting + [value for name, value in named if name == "href" and not places.match(value)]


@pytest.mark.parametrize("words", [*HOSTILE, *UNSEEN])
def test_no_word_of_a_node_is_markup_or_steers_the_text(words: str) -> None:
    calm = strange("word")
    fleet = Fleet(FleetBudget(None, None, None), [strange(words)], [words])
    tags = parsed(text := fleet_page.text(fleet, NOW))

    assert (live(tags), text.isascii()) == ([], True)
    assert tags.tags == parsed(fleet_page.text(Fleet(fleet.budget, [calm], ["word"]), NOW)).tags
    shown = [word for word in (*tags.words, *(value or "" for _, value in tags.attributes)) if word.strip()]
    assert [name for name in shown if not name.replace("\n", "").isprintable()] == []


def test_however_much_a_node_says_its_row_stays_short() -> None:
    findings = [found(f"{'x' * 300}{number}", "REBOOT") for number in range(40)]

    assert "and 34 more" in facts(row(node("a", "fail", "REBOOT", findings=findings)))[0][3]
    assert len(page(row(node("a", "fail", "REBOOT", findings=findings)))) < 20_000


def test_a_large_fleet_is_one_small_file() -> None:
    rows = [row(node(f"ip-10-0-{number}.us-west-2.compute.internal", "pass")) for number in range(5000)]

    text = page(*rows)

    assert text.count('<a class="square') == 5000
    assert len(text) < 3_000_000


def test_an_empty_fleet_says_so() -> None:
    assert "No GPU nodes." in page()


def test_the_page_needs_nothing_but_itself() -> None:
    text = page(row(node("a", "pass")))

    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "@import" not in text


def test_the_command_writes_it_worst_first(tmp_path: Path) -> None:
    fields = {"a": ("pass", "PASS"), "b": ("warn", "MONITOR"), "c": ("fail", "RESET"), "d": ("fail", "ISOLATE")}
    with ApiStandIn(*fields, "e") as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        for name, (status, severity) in fields.items():
            api.edit_node(name, {"metadata": {"labels": {f"{P}/status": status, f"{P}/severity": severity}}})
        done = run_here(kubeconfig, "status", "-o", "html")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<!DOCTYPE html>")
    shown = [str(value)[:1] for name, value in parsed(done.stdout).attributes if name == "title"]
    assert "".join(shown) == "dceba"


@pytest.mark.parametrize("word", ["--watch", "--allocation"])
def test_what_has_no_such_page_is_refused(tmp_path: Path, word: str) -> None:
    assert run_here(tmp_path / "none", "status", "-o", "html", word).returncode == 3
