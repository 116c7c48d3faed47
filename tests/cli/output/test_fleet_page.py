"""`gpu-healthcheck status -o html`: content of the page, without foreign markup."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.cli.fleet import Fleet, FleetBudget, FleetRow, row_of_node
from gpu_healthcheck.cli.fleet_faults import fault_pattern
from gpu_healthcheck.cli.output import fleet_page
from gpu_healthcheck.healthcheck.cluster.leases import Heartbeat
from gpu_healthcheck.healthcheck.node.state import INSTANCE_TYPE, NodeState
from gpu_healthcheck.healthcheck.operations.next_step import NextStep
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from tests.cli.cluster import P, run_here
from tests.evicting import annotation, eviction
from tests.hostile import HOSTILE as UNSEEN
from tests.markup import HOSTILE, LIVE, Tags, parsed

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=3)
RUN = f"{P}/run"
ZONE = "topology.kubernetes.io/zone"
RACK = "topology.k8s.aws/network-node-layer-3"
PAGES = "https://github.com/aws-samples/gpu-healthcheck/blob/main/docs/"
OUR_TAINT = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}


def found(reason: str, severity: str, subject: str = "gpu/0000:18:00.0", **more: Any) -> dict[str, Any]:
    seen = {"first_seen": timestamp(EARLIER), "last_seen": timestamp(EARLIER), "count": 1, "nature": "event"}
    return {"reason": reason, "severity": severity, "subject": subject, "detail": "", "check": "xid", **seen, **more}


def node(
    name: str, status: str, severity: str = "PASS", *, labels: dict[str, str] | None = None, **record: Any
) -> NodeState:
    verdict = {f"{P}/status": status, f"{P}/severity": severity, INSTANCE_TYPE: "p5.48xlarge"} if status else {}
    labels = verdict | (labels or {})
    fields = {"schema": 1, "status": status, "severity": severity, **record}
    return NodeState(name, labels=labels, annotations={f"{P}/results": json.dumps(fields)} if status else {})


def row(state: NodeState, *, heard: float | None = 30) -> FleetRow:
    beat = None if heard is None else Heartbeat(NOW - timedelta(seconds=heard), 900)
    return row_of_node(state, beat, timedelta(0), NOW)


def page(*rows: FleetRow) -> str:
    return fleet_page.text(Fleet(FleetBudget(1, 2, len(rows)), list(rows), []), NOW)


def facts(*rows: FleetRow) -> list[list[str]]:
    """Return the cells of the table of facts, then those of the nodes that pass, without markup."""
    lines = re.findall(r'<tr id="n\d+"[^>]*>(.*?)</tr>', page(*rows))
    return [
        [" ".join("".join(parsed(word).words).split()) for word in re.split(r"</t[hd]>", line)[:-1]] for line in lines
    ]


def titles(*rows: FleetRow) -> list[str]:
    return [str(value) for name, value in parsed(page(*rows)).attributes if name == "title"]


def step(row: FleetRow) -> str:
    """Return the next step; a node that passes has none, and no cell for it."""
    cells = facts(row)[0]
    return cells[6] if len(cells) > 6 else ""


ACCEPTS = (
    "It accepts new work, because the limit of tainted nodes is reached. Cordon it; `kubectl uncordon` it when it is "
    "fixed."
)
COMMANDS = ("kubectl cordon a", "gpu-healthcheck reset a --reboot", "gpu-healthcheck quarantine a")
REFUSED = "If its host refuses the reboot, use another way to reboot the drained machine."


def test_page_shows_cordon_and_run_with_the_taint() -> None:
    until = timestamp(NOW + timedelta(minutes=10))
    claim = json.dumps({"kind": "reset", "holder": "x", "until": until})
    state = node("a", "fail", "RESET", findings=[found("Xid62", "RESET")])
    state = replace(state, cordoned=True, taints=(OUR_TAINT,), annotations={**state.annotations, RUN: claim})
    assert facts(row(state))[0][4] == "yes, cordoned, reset"


def test_page_shows_evictions_with_the_taint() -> None:
    pods = annotation(eviction("x", "announced"), eviction("y", "announced"), eviction("z", "refused"), now=NOW)
    state = node("a", "fail", "REBOOT", findings=[found("Xid79", "REBOOT")])
    state = replace(state, taints=(OUR_TAINT,), annotations={**state.annotations, **pods})

    assert facts(row(state))[0][4] == "yes, 2 evictions announced, 1 eviction refused"
    assert titles(row(state)) == ["a: fail, REBOOT, Xid79, tainted"]


def test_page_shows_reason_time_and_step_of_a_failed_node() -> None:
    fleet_row = row(node("a", "fail", "REBOOT", findings=[found("Xid79", "REBOOT")], taint="withheld"))

    assert facts(fleet_row) == [
        [
            "ap5.48xlarge",
            "fail REBOOT",
            "GPU 0000:18:00.0 fell off the bus Xid79 REBOOTgpu/0000:18:00.0",
            "2026-11-21 09:00:00",
            "none: limit reached",
            "30s ago",
            f"{ACCEPTS} Drain and reboot the node. {REFUSED}{' '.join(COMMANDS)}",
        ]
    ]
    assert titles(fleet_row) == ["a: fail, REBOOT, Xid79, no taint: limit reached"]


@pytest.mark.parametrize(
    ("state", "heard", "message", "next_step"),
    [
        (node("a", "pass"), 30, "a: pass", ""),
        (node("a", "pass"), 7200, "a: pass, its heartbeat is overdue", "Find out why its agent sends no heartbeat."),
        (node("a", ""), None, "a: no agent has reported", "No agent has reported on it."),
        (
            node("a", "unknown", unobserved=[{"check": "driver", "cause": "DriverBeingChanged"}]),
            30,
            "a: unknown, DriverBeingChanged",
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
def test_page_square_has_the_state_of_its_node(
    state: NodeState, heard: float | None, message: str, next_step: str
) -> None:
    fleet_row = row(state, heard=heard)

    assert titles(fleet_row) == [message]
    assert step(fleet_row).startswith(next_step)
    assert bool(step(fleet_row)) is bool(next_step)


def test_page_agent_without_a_heartbeat_is_silent_if_leases_are_visible() -> None:
    seen, unseen = (row_of_node(node("a", "pass"), None, timedelta(0), NOW, listed=listed) for listed in (True, False))

    assert (titles(seen, unseen), facts(seen)[0][5]) == (
        ["a: pass, its heartbeat is overdue", "a: pass"],
        "silent",
    )


@pytest.mark.parametrize(
    ("recommended", "ended", "machine", "expected"),
    [
        ("reset", NOW, "m", "A quarantine run recommends reset."),
        ("reset", NOW, "another", "Drain"),
        ("reset", EARLIER - timedelta(hours=1), "m", "Drain"),
        ("dance", NOW, "m", "Drain"),
    ],
)
def test_page_step_follows_a_quarantine_until_newer_findings(
    recommended: str, ended: datetime, machine: str, expected: str
) -> None:
    state = node("a", "fail", "RESET", findings=[found("EccUncorrected", "RESET")])
    run = {"schema": 1, "timestamp": timestamp(ended), "recommendation": recommended, "machine": machine}
    annotations = {**state.annotations, f"{P}/quarantine-result": json.dumps(run)}
    fleet_row = row(NodeState("a", machine="m", labels=state.labels, annotations=annotations))

    assert step(fleet_row).startswith(expected)


def test_page_step_of_a_tested_node_is_to_wait() -> None:
    state = node("a", "fail", "RESET", findings=[found("EccUncorrected", "RESET")])
    run = {"kind": "quarantine", "holder": "x", "until": timestamp(NOW + timedelta(hours=1))}
    fleet_row = row(NodeState("a", labels=state.labels, annotations={**state.annotations, RUN: json.dumps(run)}))

    assert step(fleet_row) == "Wait: a quarantine uses it, until 2026-11-21T13:00:00Z at most."


def test_page_counts_nodes_by_status_and_reason() -> None:
    twice = [found("NvLinkDown", "RESET"), found("NvLinkDown", "RESET", "gpu/0000:2a:00.0"), found("Xid79", "REBOOT")]
    rows = [
        row(node("a", "fail", "REBOOT", findings=twice)),
        row(node("b", "fail", "RESET", findings=twice[:1])),
        row(node("c", "unknown", unobserved=[{"check": "driver", "cause": "DriverBeingChanged"}])),
        row(node("d", "pass"), heard=7200),
    ]
    words = " ".join("".join(parsed(page(*rows)).words).split())

    for message in ("4 GPU nodes", "1 fail: REBOOT", "1 fail: RESET", "1 silent, dashed: the heartbeat is overdue"):
        assert message.replace(" ", "") in words.replace(" ", "")
    reasons = words.partition("Where")[2].partition("Facts")[0]
    assert reasons.strip() == "Xid79REBOOT1a NvLinkDownRESET2a, b DriverBeingChangedcould not check1c"
    assert facts(*rows)[0][2] == (
        "GPU 0000:18:00.0 fell off the bus Xid79 REBOOTgpu/0000:18:00.0 GPU 0000:18:00.0 has an inactive NVLink (and 1 "
        "other) NvLinkDown RESETgpu/0000:18:00.0 gpu/0000:2a:00.0"
    )


def test_page_shows_the_conditions_reason_without_a_record() -> None:
    condition = {"type": "GpuHealthy", "reason": "Xid79", "lastTransitionTime": timestamp(EARLIER)}
    labels = {f"{P}/status": "fail", f"{P}/severity": "REBOOT"}
    fleet_row = row(NodeState("a", labels=labels, conditions=[condition], taints=[OUR_TAINT]))

    assert facts(fleet_row)[0][1:5] == ["fail REBOOT", "Xid79 REBOOT", "2026-11-21 09:00:00", "yes"]


def strange(words: str) -> FleetRow:
    """Words of a stranger wherever a Node has some."""
    about = {"index": words, "uuid": words, "serial": words}
    record: dict[str, Any] = {
        "findings": [found(words, "REBOOT", words, about=about)],
        "unobserved": [{"check": words, "cause": words}],
    }
    state = node(words, "fail", "REBOOT", **record, taint=words, released={"by": words, "reason": words})
    condition = {"type": "GpuHealthy", "reason": words, "message": words, "lastTransitionTime": words}
    labels = {**state.labels, INSTANCE_TYPE: words, ZONE: words, "example.com/rack": words}
    return row(
        NodeState(words, labels=labels, annotations=state.annotations, conditions=[condition], provider_id=words)
    )


def live(tags: Tags) -> list[str]:
    """Return the active elements and attributes, except links to the page itself and to the runbook."""
    acting = [tag for tag in tags.tags if tag in LIVE and tag not in ("a", "script")]
    named = [(name, value or "") for name, value in tags.attributes]
    acting += [name for name, _ in named if name.startswith("on") or name in ("src", "style", "action", "srcset")]
    places = re.compile(rf"(?:#(?:n\d+|table)|{re.escape(PAGES)}(?:findings|could-not-check)\.md(?:#[a-z0-9-]+)?)\Z")
    return acting + [value for name, value in named if name == "href" and not places.match(value)]


def structure(tags: Tags) -> list[str]:
    """Return the elements but `span`, in which the page puts each word of a command and each part of a name."""
    return [tag for tag in tags.tags if tag != "span"]


@pytest.mark.parametrize("words", [*HOSTILE, *UNSEEN])
def test_page_escapes_texts_of_nodes(words: str) -> None:
    others = [row(node(name, "pass", labels={ZONE: "b"})) for name in "cd"]
    fleet, calm = (
        Fleet(FleetBudget(None, None, None), [strange(word)] * 2 + others, [word]) for word in (words, "word")
    )
    tags = parsed(text := fleet_page.text(fleet, NOW, words))

    assert (live(tags), tags.tags.count("script"), text.isascii()) == ([], 1, True)
    assert structure(tags) == structure(parsed(fleet_page.text(calm, NOW, "word")))
    shown = [word for word in (*tags.words, *(value or "" for _, value in tags.attributes)) if word.strip()]
    assert [name for name in shown if not name.replace("\n", "").isprintable()] == []


def test_page_limits_the_length_of_a_row() -> None:
    findings = [found(f"{'x' * 300}{number}", "REBOOT") for number in range(40)]

    assert "and 34 more" in facts(row(node("a", "fail", "REBOOT", findings=findings)))[0][2]
    assert len(page(row(node("a", "fail", "REBOOT", findings=findings)))) < 30_000


def fleet_with_a_bad_rack(number: int, per_rack: int = 8) -> list[FleetRow]:
    """Seven of the eight faulty nodes are in rack r1; worst first."""
    placed = [{RACK: f"r{place // per_rack}", ZONE: "ab"[place % 2]} for place in range(number)]
    faulty = {*range(per_rack, per_rack + 7), 0}
    finding = [found("Xid79", "REBOOT", about={"index": "3", "uuid": "GPU-1234", "serial": "165"})]
    rows = [
        row(node(f"n{place}", "fail", "REBOOT", labels=labels, findings=finding))
        if place in faulty
        else row(node(f"n{place}", "pass", labels=labels))
        for place, labels in enumerate(placed)
    ]
    return sorted(rows, key=lambda each: each.status)


def test_page_names_a_rack_with_most_faults() -> None:
    text = page(*fleet_with_a_bad_rack(32))
    words = " ".join(" ".join(parsed(text).words).split())

    where = "7 of 8 faulty nodes are in rack r1 , which has 8 of the 32 nodes."
    assert where in words
    assert "have one reason" not in words
    assert re.findall(r'<label for="g\d">(.*?)</label>', text) == ["rack", "zone", "nothing"]
    assert re.findall(r"<h3>(r\d) ", text) == ["r1", "r0", "r2", "r3"]
    assert text.count("marked") == 2  # the style, and the group
    assert text.count('<a class="square') == 3 * 32


def test_fault_pattern_of_network_faults_has_no_command() -> None:
    step = NextStep(("gpu-healthcheck explain RdmaFabricDown",))
    pattern = fault_pattern([replace(each, next_step=step) for each in fleet_with_a_bad_rack(32)])
    assert pattern is not None
    assert (pattern.command, pattern.where) == ("", "7 of 8 faulty nodes are in rack r1")


def test_page_names_the_common_reason_of_a_rack() -> None:
    same = [replace(each, reason="Xid79") for each in fleet_with_a_bad_rack(32)]
    mixed = [replace(each, reason=f"Xid{place}") for place, each in enumerate(same)]
    texts = [" ".join(" ".join(parsed(page(*rows)).words).split()) for rows in (same, mixed)]

    assert ["All 7 have one reason: Xid79." in text for text in texts] == [True, False]


def test_page_counts_silent_nodes_apart() -> None:
    rows = [row(node("a", "fail", "RESET"), heard=7200), row(node("b", "pass"), heard=7200), row(node("c", "pass"))]
    words = "".join("".join(parsed(page(*rows)).words).split())

    for number in ("1fail:RESET", "1pass", "1silent,dashed", "1of3nodeshavealiveagent"):
        assert number in words
    assert [cells[1] for cells in facts(*rows)[:2]] == ["fail RESET", "silent, last pass"]


def test_page_shows_the_time_of_a_finding_older_than_its_severity() -> None:
    condition = {"type": "GpuHealthy", "status": "False", "reason": "Xid13", "lastTransitionTime": timestamp(NOW)}
    state = node("a", "fail", "RESET", findings=[found("Xid13", "RESET")])
    raised = NodeState("a", labels=state.labels, annotations=state.annotations, conditions=[condition])

    words = "GPU 0000:18:00.0: a program's kernel did something illegal Xid13 RESETgpu/0000:18:00.0"
    assert facts(row(raised))[0][2:4] == [f"{words} first 2026-11-21 09:00:00", "2026-11-21 12:00:00"]
    assert facts(row(state))[0][2:4] == [words, "2026-11-21 09:00:00"]


def test_page_without_topology_labels_has_one_view() -> None:
    text = page(row(node("a", "pass")), row(node("b", "pass")))

    assert ("<label for=" in text.replace('<label for="filter">', ""), text.count('class="view"')) == (False, 1)


def test_page_folds_many_groups_without_a_fault() -> None:
    text = page(*fleet_with_a_bad_rack(320))

    assert "38 more, in which no node is faulty, unknown or silent" in text


def test_page_folds_nodes_that_pass_unless_silent() -> None:
    rows = [row(node("a", "warn", "MONITOR")), row(node("b", "pass"), heard=7200), row(node("c", "pass"))]
    text = page(*rows)

    assert "1 node passes, and nothing is to be done" in text
    assert '<tr id="n2"' in text.partition('<details id="passing">')[2]
    assert [len(cells) for cells in facts(*rows)] == [7, 7, 5]


def test_page_finding_names_the_gpu_and_links_to_the_runbook() -> None:
    rows = fleet_with_a_bad_rack(32)

    assert facts(*rows)[0][2] == "GPU 3 fell off the bus Xid79 REBOOTGPU 3 at 0000:18:00.0 serial 165 GPU-1234"
    links = {str(value) for name, value in parsed(page(*rows)).attributes if name == "href"}
    assert {link for link in links if link.startswith("http")} == {f"{PAGES}findings.md#xid"}


@pytest.mark.parametrize(
    ("reason", "address"),
    [
        ("Xid79", "findings.md#xid"),
        ("Xid13Repeated", "findings.md#xid"),
        ("SXid20034", "findings.md#sxid"),
        ("RowRemapFailed", "findings.md#rowremapfailed"),
        ("DeepDiagnosticFailed", "findings.md#deepdiagnosticfailed"),
        ("DriverBeingChanged", "could-not-check.md"),
        ("Xid79/../../x", None),
        ("Unheard", None),
    ],
)
def test_page_link_leads_to_the_heading_of_the_reason(reason: str, address: str | None) -> None:
    text = page(row(node("a", "fail", "RESET", findings=[found(reason, "RESET")])))

    assert re.findall(rf'href="{re.escape(PAGES)}([^"]*)"', text) == ([address] * 2 if address else [])
    if address:
        file, _, anchor = address.partition("#")
        headings = re.findall(r"^#+ (.*)", (Path(__file__).parents[3] / "docs" / file).read_text(), re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("context", "title"),
    [
        ("training", "training: GPU fleet, 0 of 1 nodes faulty"),
        ("arn:aws:eks:eu-central-1:111122223333:cluster/training", "training: GPU fleet, 0 of 1 nodes faulty"),
        ("", "GPU fleet, 0 of 1 nodes faulty"),
    ],
)
def test_page_title_names_the_cluster(context: str, title: str) -> None:
    text = fleet_page.text(Fleet(FleetBudget(1, 2, 1), [row(node("a", "pass"))], []), NOW, context)

    assert f"<title>{title}</title>" in text
    assert f"<h1>GPU fleet{f' <small>{context}</small>' if context else ''}</h1>" in text


def test_page_policy_allows_only_its_script() -> None:
    text = page(row(node("a", "pass")))
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()

    assert f"script-src 'sha256-{digest}';" in text
    assert "unsafe" not in text.replace("style-src 'unsafe-inline'", "")


def test_page_of_a_large_fleet_is_small() -> None:
    rows = [
        row(node(f"ip-10-0-{number}.us-west-2.compute.internal", "pass", labels={ZONE: "abc"[number % 3]}))
        for number in range(5000)
    ]

    text = page(*rows)

    assert (text.count('<a class="square'), text.count("<li class=p>")) == (5000, 5000)
    assert len(text) < 3_000_000


def test_page_of_an_empty_fleet() -> None:
    assert "No GPU nodes." in page()


def test_page_needs_no_other_file() -> None:
    text = page(row(node("a", "pass")))

    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "").replace(PAGES, "")
    assert "url(" not in text
    assert "@import" not in text


def test_status_html_is_worst_first(tmp_path: Path) -> None:
    fields = {"a": ("pass", "PASS"), "b": ("warn", "MONITOR"), "c": ("fail", "RESET"), "d": ("fail", "ISOLATE")}
    with ApiStandIn(*fields, "e") as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        for name, (status, severity) in fields.items():
            api.edit_node(name, {"metadata": {"labels": {f"{P}/status": status, f"{P}/severity": severity}}})
        done = run_here(kubeconfig, "status", "-o", "html")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert "<title>stand-in: GPU fleet, 2 of 5 nodes faulty</title>" in done.stdout
    shown = [str(value)[:1] for name, value in parsed(done.stdout).attributes if name == "title"]
    assert "".join(shown) == "dceba"
