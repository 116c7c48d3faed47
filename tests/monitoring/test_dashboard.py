"""The dashboard: as Grafana's provisioning wants it, and each of its queries answered by a Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.healthcheck.checks.ecc_storm import MOST_DRAM
from gpu_healthcheck.healthcheck.text.moments import moment
from gpu_healthcheck.sim.api_objects import LEASES
from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer
from tests.agent.stories import beat, hold
from tests.agent.world import StandIn, World
from tests.monitoring.prometheus_server import PrometheusServer
from tests.monitoring.test_rules import EXPORTED, OVERLAY, RULES

FOLDER = Path(__file__).parents[2] / "charts" / "gpu-healthcheck" / "dashboard"
TEXT = (FOLDER / "gpu-healthcheck.json").read_text()
DASHBOARD: dict[str, Any] = json.loads(TEXT)
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
AVAILABILITY, ROW = (one for one in DASHBOARD["panels"] if one["type"] == "row")
FLEET = [*(one for one in DASHBOARD["panels"] if one["type"] != "row"), *AVAILABILITY["panels"]]
PANELS = [*FLEET, *ROW["panels"]]
QUERIES = [
    pytest.param(one["expr"], id=f"{panel['title']}-{one['refId']}") for panel in PANELS for one in panel["targets"]
]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def by_title(panel: dict[str, Any]) -> str:
    return f"{panel['id']}-{panel['title']}"


def test_it_is_provisioned_without_a_question() -> None:
    """`__inputs` are asked when a person imports a dashboard, and stay as they are where a file brings it."""
    assert "__inputs" not in TEXT
    assert "id" not in DASHBOARD
    assert DASHBOARD["uid"] == "gpu-healthcheck"
    assert list(VARIABLES) == ["datasource", "logs", "cluster", "pool_label", "pool", "type", "zone", "node"]


def test_the_whole_fleet_is_shown_and_a_node_only_when_it_is_chosen() -> None:
    """A row per node of a large fleet, all at once, is more than a browser and a Prometheus take."""
    assert (VARIABLES["cluster"]["includeAll"], VARIABLES["cluster"]["allValue"]) == (True, ".*")
    assert VARIABLES["node"]["includeAll"] is False
    assert (ROW["repeat"], ROW["collapsed"]) == ("node", True)
    assert ("repeat" in AVAILABILITY, AVAILABILITY["collapsed"]) == (False, True)
    assert [panel for panel in FLEET if "$node" in json.dumps(panel)] == []


@pytest.mark.parametrize("panel", PANELS, ids=by_title)
def test_a_panel_says_what_it_shows_in_which_unit_and_of_which_source(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert all((panel["title"], panel["description"], defaults["unit"], defaults["noValue"], panel["targets"]))
    assert [entry["datasource"] for entry in (panel, *panel["targets"])] == [SOURCE] * (1 + len(panel["targets"]))


def test_each_panel_has_a_number_and_a_place_of_its_own() -> None:
    assert len({panel["id"] for panel in (*PANELS, AVAILABILITY, ROW)}) == len(PANELS) + 2
    for panels in (FLEET, ROW["panels"]):
        cells = [set(cells_of(**panel["gridPos"])) for panel in panels]
        assert [both for both in combinations(cells, 2) if both[0] & both[1]] == []


def cells_of(x: int, y: int, w: int, h: int) -> Iterator[tuple[int, int]]:
    assert x + w <= 24
    return ((column, line) for column in range(x, x + w) for line in range(y, y + h))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_somebody_exports(query: str) -> None:
    known = {metric.name for metric in Telemetry().metrics} | EXPORTED
    known |= {rule["record"] for rule in RULES if "record" in rule}
    asked = {
        name.removesuffix("_bucket") for name in re.findall(r"[\w:]*\b(?:gpu_healthcheck[:_]|kube_|DCGM_)[\w:]+", query)
    }
    assert asked
    assert asked <= known
    assert query.count('cluster=~"$cluster"') == query.count("{")


def test_the_overlay_and_the_chart_read_the_one_file_where_grafanas_sidecar_finds_it() -> None:
    assert "../../../charts/gpu-healthcheck/dashboard" in (OVERLAY / "kustomization.yaml").read_text()
    (made,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["configMapGenerator"]
    assert (made["files"], made["options"]["labels"]["grafana_dashboard"]) == (["gpu-healthcheck.json"], "1")
    template = (FOLDER.parent / "templates" / "monitoring-dashboard.yaml").read_text()
    assert '.Files.Get "dashboard/gpu-healthcheck.json"' in template
    assert 'grafana_dashboard: "1"' in template


@pytest.mark.parametrize(
    "title", ["Findings", "Silent agents", "Faulty nodes without a taint", "Oldest deep diagnostics"]
)
def test_a_node_in_a_table_links_to_its_row_and_the_log_of_its_agent(title: str) -> None:
    for panel in (panel for panel in PANELS if panel["title"] == title):
        links = {
            link["title"]: link["url"]
            for override in panel["fieldConfig"]["overrides"]
            if override["matcher"]["options"] == "node"
            for entry in override["properties"]
            for link in entry["value"]
        }
        assert "var-node=${__data.fields.node}" in links["Row of this node"]
        assert links["Log of its agent"].startswith("/explore?")


@pytest.mark.parametrize("panel", [panel for panel in PANELS if panel["title"] == "Findings"], ids=by_title)
def test_a_reason_links_to_the_lower_case_anchor_of_its_heading(panel: dict[str, Any]) -> None:
    by_field = {override["matcher"]["options"]: override for override in panel["fieldConfig"]["overrides"]}
    (link,) = by_field["reason"]["properties"][0]["value"]
    assert link["url"].endswith("/docs/findings.md#${__data.fields.anchor}")
    lower_case = {"stringField": "anchor", "outputFormat": "Lower Case"}
    assert {"id": "formatString", "options": lower_case} in panel["transformations"]
    assert by_field["anchor"]["properties"] == [{"id": "custom.hidden", "value": True}]


_TYPE, _ZONE = "label_node_kubernetes_io_instance_type", "label_topology_kubernetes_io_zone"
EXPORTERS = f"""\
kube_node_labels{{node="gpu-node-1",{_TYPE}="p5.48xlarge",{_ZONE}="a"}} 1
kube_node_labels{{node="another-0",{_TYPE}="p4d.24xlarge",{_ZONE}="b"}} 1
DCGM_FI_DEV_GPU_TEMP{{Hostname="gpu-node-1",gpu="0",UUID="GPU-a"}} 40
DCGM_FI_DEV_POWER_USAGE{{Hostname="gpu-node-1",gpu="0",UUID="GPU-a"}} 90
DCGM_FI_DEV_GPU_UTIL{{Hostname="gpu-node-1",gpu="0",UUID="GPU-a"}} 7
"""


class KubeStateMetrics(LoopbackAnswers):
    """Its metrics of a cluster's heartbeats (docs/metrics/cluster/lease-metrics.md there), and other exporters'."""

    def __init__(self, world: World, *connection: Any) -> None:
        self._world = world
        super().__init__(*connection)

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server looks for
        leases, _ = self._world.api.store.find_all(LEASES, "gpu-healthcheck")
        renewed = {lease["metadata"]["name"]: moment(lease["spec"]["renewTime"]).timestamp() for lease in leases}
        message = 'kube_lease_renew_time{{lease="{}",namespace="gpu-healthcheck"}} {}\n'
        page = "".join(message.format(name, at) for name, at in renewed.items())
        self.answer(200, (page + EXPORTERS).encode(), {"Content-Type": "text/plain; version=0.0.4"})


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A node with a slow GPU that failed when all slots were in use, by nodes with long silent agents."""
    folder = tmp_path_factory.mktemp("dashboard")
    with ExitStack() as undo:
        prometheus = undo.enter_context(PrometheusServer(folder / "prometheus"))
        world = undo.enter_context(World(folder / "world", StandIn("gpu-node-1", "p5.48xlarge")))
        beat(world, 9)
        hold(world, 0, 1)
        world.host.write_value("nvml/gpu0/dram_corrected", 2 * MOST_DRAM)
        agent = world.start()
        world.wait_for_status("warn")
        states = LoopbackServer(partial(KubeStateMetrics, world))
        undo.callback(states.close)
        prometheus.scrape("gpu-node-1", agent.port, int(states.endpoint.rpartition(":")[2]))
        world.host.xid(3, 79, "GPU has fallen off the bus.")
        world.wait_for_status("fail")
        yield prometheus


def filled(query: str, kind: str = ".*") -> str:
    fields = {"$cluster": ".*", "$node": "gpu-node-1", "$__interval": "5m", "$__range": "1h"}
    fields |= {"$pool": ".*", "$type": kind, "$zone": ".*", "$pool_label": "label_karpenter_sh_nodepool"}
    return re.sub(r"\$[a-z_]\w*", lambda variable: fields[variable[0]], query)


@pytest.mark.cluster
@pytest.mark.parametrize("query", QUERIES)
def test_a_real_prometheus_answers_it(prometheus: PrometheusServer, query: str) -> None:
    assert prometheus.wait_for(filled(query), count=None)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("title", "number"),
    [
        ("Faulty, not tainted", 1),
        ("Checks that could not run", 0),
        ("Deep diagnostics overdue", 0),
        ("Agents silent", 9),
    ],
)
def test_a_number_is_that_of_the_cluster(prometheus: PrometheusServer, title: str, number: int) -> None:
    (target,) = next(entry for entry in FLEET if entry["title"] == title)["targets"]

    prometheus.wait_for(f"({filled(target['expr'])}) == {number}")


@pytest.mark.cluster
@pytest.mark.parametrize(("kind", "number"), [("p5.48xlarge", 8), ("p4d.24xlarge", 9), (".*", 9)])
def test_the_filters_leave_out_the_nodes_of_other_types_alone(
    prometheus: PrometheusServer, kind: str, number: int
) -> None:
    """Nodes of which kube-state-metrics exports no labels stay."""
    (target,) = next(entry for entry in FLEET if entry["title"] == "Agents silent")["targets"]

    prometheus.wait_for(f"({filled(target['expr'], kind)}) == {number}")


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["cluster", "node"])
def test_a_variable_has_values_wherever_its_label_is(prometheus: PrometheusServer, name: str) -> None:
    """Without the label `cluster`, which collectors of several clusters set, the only choice is all."""
    asked = re.fullmatch(r"label_values\((.*), (\w+)\)", VARIABLES[name]["query"]["query"])
    assert asked
    (series,) = prometheus.wait_for(asked[1].replace("$cluster", ".*"))

    assert (asked[2], series.get(name)) == (name, {"node": "gpu-node-1"}.get(name))
