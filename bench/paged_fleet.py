"""Fleet too large for this machine's API server: a stand-in generates each page of a listing on request.

Nodes and pods are those of `large_fleet`, and each Node has an agent's record. The fleet never changes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from bench.large_fleet import PODS_PER_NODE, heartbeat, node, pod
from bench.stage import INSTANCE_TYPE
from healthcheck.cluster.names import BUDGET_NAMESPACE, NAMESPACE
from healthcheck.node.state import RESULTS, STATUS
from healthcheck.text.moments import timestamp
from healthcheck.verdict.inventory import Inventory
from healthcheck.verdict.record import AgentRecord, CheckRow, dump
from sim.control_plane import MANIFESTS
from sim.loopback import LoopbackAnswers, LoopbackServer

_NAME = "fleet-node-@@@@@"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_JOBS = "/apis/batch/v1/namespaces/{}/jobs"
_CRON_JOB = f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs/gpu-healthcheck-sweep-node"
_GROUPS = ("0-nvidia-smi", "2-efa-enumeration", "3-topology-check", "7-container-runtime", "8-hami")
_KINDS = 10
"""Period of the nodes: each equals the one ten before it."""


class PagedFleet:
    """Fleet: `with PagedFleet(50_000) as fleet:` answers at `fleet.endpoint`."""

    def __init__(self, size: int) -> None:
        self.size, now = size, datetime.now(UTC)
        self._nodes = [json.dumps(_judged(node(_NAME, kind, now), now)) for kind in range(_KINDS)]
        self._beats = [json.dumps(heartbeat(_NAME, now))]
        places = range(PODS_PER_NODE)
        self._pods = [json.dumps(pod(_NAME, kind, place)) for kind in range(_KINDS) for place in places]
        self._server = LoopbackServer(functools.partial(_Answers, self))

    def __enter__(self) -> str:
        return self._server.endpoint

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def page(self, path: str, query: Mapping[str, str]) -> str | None:
        """Return the answer; None if there is nothing at this path."""
        if path == "/api/v1/nodes":
            unjudged = f"!{STATUS}" in query.get("labelSelector", "")
            return self._listed(self._nodes, 0 if unjudged else self.size, query)
        if path == "/api/v1/pods":
            return self._listed(self._pods, self.size * PODS_PER_NODE, query)
        if path == _LEASES.format(NAMESPACE):
            return self._listed(self._beats, self.size, query)
        if path == _CRON_JOB:
            return _cron_job()
        empty = (_LEASES.format(BUDGET_NAMESPACE), _JOBS.format(NAMESPACE))
        return self._listed([], 0, query) if path in empty else None

    def _listed(self, kinds: list[str], size: int, query: Mapping[str, str]) -> str:
        start = int(query.get("continue") or 0)
        end = min(start + int(query["limit"]), size)
        more = {"continue": str(end), "remainingItemCount": size - end} if end < size else {}
        per_node = size // self.size or 1
        items = (
            kinds[number % len(kinds)].replace("@@@@@", f"{number // per_node:05d}") for number in range(start, end)
        )
        return f'{{"metadata":{json.dumps(more)},"items":[{",".join(items)}]}}'


class _Answers(LoopbackAnswers):
    def __init__(self, fleet: PagedFleet, *arguments: Any) -> None:
        self._fleet = fleet
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        url = urlsplit(self.path)
        page = self._fleet.page(url.path, dict(parse_qsl(url.query)))
        if page is None:
            self.answer(HTTPStatus.NOT_FOUND, b'{"kind":"Status","message":"not found"}')
        else:
            self.answer(HTTPStatus.OK, page.encode())


def _judged(entry: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Return the Node with the record of a healthy agent, and the API server's own fields."""
    metadata = entry["metadata"]
    metadata |= {"uid": _NAME, "resourceVersion": "1", "creationTimestamp": timestamp(now)}
    metadata["labels"]["nvidia.com/gpu.present"] = "true"
    record = AgentRecord(
        schema=1,
        timestamp=timestamp(now),
        hostname=_NAME,
        instance_type=INSTANCE_TYPE,
        status="pass",
        severity="PASS",
        checks=tuple(CheckRow(name, "pass", "PASS") for name in _GROUPS),
        findings=(),
        unobserved=(),
        agent_version="0.1.0",
        machine=_NAME,
        boot_id=_NAME,
        cursor=1000,
        inventory=Inventory(pci=8, nvml=8, driver="570.133.20"),
    )
    metadata["annotations"][RESULTS] = dump(record)
    return entry


@functools.cache
def _cron_job() -> str:
    documents = yaml.safe_load_all((MANIFESTS / "07-sweeper.yaml").read_text())
    name = _CRON_JOB.rpartition("/")[2]
    return json.dumps(
        next(
            document for document in documents if (document["kind"], document["metadata"]["name"]) == ("CronJob", name)
        )
    )
