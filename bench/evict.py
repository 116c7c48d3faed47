"""Program evict on a real API server: time from the finding on a Node to the requested evictions, and its load."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from bench import large_fleet
from bench.accounting import cpu_seconds, memory_mib
from bench.outcome import CouldNotMeasure, Outcome, Row, summary
from bench.program import Program
from bench.stage import Stage
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE
from gpu_healthcheck.healthcheck.node.state import RESULTS, SEVERITY, STATUS, TAINT
from gpu_healthcheck.sim.control_plane import MANIFESTS, ControlPlane

AIM_MS = 300.0
PERCENT, MASS_PERCENT, DELAY_SECONDS, PODS_PER_NODE, FAULTS_PER_SECOND = 20, 30, 10, 5, 2
_ACCOUNT = f"{NAMESPACE}-evict"
_SETTINGS = {"EVICT_SEVERITY": "REBOOT", "EVICT_DELAY": str(DELAY_SECONDS), "MAX_UNHEALTHY_PERCENT": str(PERCENT)}
_DEFAULT, _NODES = "/api/v1/namespaces/default", "/api/v1/nodes"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_GIVE_UP_SECONDS, _SETTLE_SECONDS, _ENDING_SECONDS, _POLL_SECONDS = 240.0, 3.0, 3.0, 1.0
_HEALTHY, _FAULTY = {STATUS: "pass", SEVERITY: "PASS"}, {STATUS: "fail", SEVERITY: "REBOOT"}
_FINDING = {"reason": "Xid79", "severity": "REBOOT", "subject": "gpu/0000:53:00.0", "about": {"uuid": "GPU-x"}}
_NOTES = (
    "evict: the API server and etcd share this machine; times are from its audit log; pods end at once, and",
    "       three seconds after their eviction in the mass failure",
)
Event = Mapping[str, Any]


def measure(stage: Stage) -> Outcome:
    with stage.separate_plane() as plane:  # its faulty nodes would disturb other measures
        fleet = _Fleet(plane, stage.length.nodes, stage.length.evictable_nodes)
        folder = stage.folder / "evict"
        (folder / "config").mkdir(parents=True)
        for key, setting in _SETTINGS.items():
            (folder / "config" / key).write_text(setting)
        variables = {"CONFIG_DIR": str(folder / "config"), "METRICS_PORT": "0"}
        variables["KUBECONFIG"] = str(plane.account_kubeconfig(_ACCOUNT))
        since, size = datetime.now(UTC), stage.length.evictable_nodes
        with Program(("-m", "evict"), stage.bare_environment | variables, folder) as program:
            while not any(event["verb"] == "watch" for event in fleet.requests(since)):
                time.sleep(_POLL_SECONDS)
                _check(program.started_ns / 1e9)
            rest = fleet.rest(program, since, stage.length.window_seconds / 5)
            calm = fleet.fail(program, size, pause=1 / FAULTS_PER_SECOND)
            burst = fleet.fail(program, size * PERCENT // 100)
            mass = fleet.fail(program, size * MASS_PERCENT // 100, grace_seconds=30)
    return _outcome(stage, rest, {"one by one": calm, "budget at once": burst, "30 % at once": mass})


def _outcome(stage: Stage, rest: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]]) -> Outcome:
    most = stage.length.evictable_nodes * PERCENT // 100
    rows = []
    for what, run in runs.items():
        ms, figure = run["beyond_delay_ms"], f"{run['requests']:.1f} requests, {run['cpu_ms']:.0f} ms of CPU"
        shown = f"p50 {ms['p50']:.0f}, p99 {ms['p99']:.0f}, max {ms['max']:.0f} ms"
        if run["grace_seconds"]:
            rows.append(stage.at_most(f"{what}: nodes with ending pods", most, "", run["nodes_at_once"]))
            rows.append(Row(f"{what}: until the last eviction", "", f"{run['seconds']:.1f} s"))
        else:
            pods = f"finding → eviction requested, beyond the delay, {ms['count']} pods"
            rows.append(stage.at_most(f"{what}: {pods}", AIM_MS, "ms", ms["p99"], shown))
        rows.append(Row(f"{what}: per faulty node", "", figure))
    start = f"{rest['start_requests']} requests, {rest['start_cpu_seconds']:.1f} s of CPU"
    rows.append(Row(f"evict at the start, {stage.length.nodes} nodes", "", start))
    rows.append(Row("evict at rest", "", f"{rest['rss']:.0f} MiB, {rest['requests']} requests"))
    return Outcome(tuple(rows), {"rest": rest, **runs}, _NOTES)


class _Fleet:
    """Nodes with agents' records, of which the first ones have heartbeats and GPU pods."""

    def __init__(self, plane: ControlPlane, size: int, evictable: int) -> None:
        self._plane, self._writer, now = plane, large_fleet.Writer(plane), datetime.now(UTC)
        self._names = [f"evict-{number}" for number in range(size)]
        bodies = [large_fleet.node(name, number, now) for number, name in enumerate(self._names)]
        self._record = json.loads(bodies[0]["metadata"]["annotations"][RESULTS])
        for body in bodies:
            body["metadata"]["labels"] |= _HEALTHY
        self._writer.create(_NODES, bodies)
        self._writer.create(_LEASES, (large_fleet.heartbeat(name, now) for name in self._names[:evictable]))
        plane.request("POST", f"{_DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
        plane.kubectl("apply", "-k", str(MANIFESTS.parent / "overlays/evict"))

    def requests(self, since: datetime, user: str = f"system:serviceaccount:{NAMESPACE}:{_ACCOUNT}") -> list[Event]:
        """Return the audit log's events about the program or another user."""
        return [event for event in self._plane.audit(since) if event["user"]["username"] == user]

    def rest(self, program: Program, since: datetime, seconds: float) -> dict[str, Any]:
        start, cpu = len(self.requests(since)), cpu_seconds(program.pid)
        time.sleep(seconds)
        figures = {"start_requests": start, "start_cpu_seconds": round(cpu, 2), "seconds": seconds}
        figures |= {"requests": len(self.requests(since)) - start, **memory_mib(program.pid)}
        return figures | {"cpu_seconds": round(cpu_seconds(program.pid) - cpu, 3)}

    def fail(self, program: Program, number: int, *, pause: float = 0.0, grace_seconds: int = 0) -> dict[str, Any]:
        """Write a finding on Nodes as their agents do, and wait for the evictions; then the Nodes are healthy again."""
        names = self._names[:number]
        places = [(at, place) for at in range(number) for place in range(PODS_PER_NODE)]
        self._writer.create(f"{_DEFAULT}/pods", (_pod(at, place, grace_seconds) for at, place in places))
        self._mark(names, is_faulty=False)
        time.sleep(_SETTLE_SECONDS)
        since, cpu, began, at_once = datetime.now(UTC), cpu_seconds(program.pid), time.monotonic(), 0
        for at, group in enumerate([[name] for name in names] if pause else [names]):
            time.sleep(max(began + at * pause - time.monotonic(), 0.0))
            self._mark(group, is_faulty=True)
        while left := self._end_pods():
            at_once = max(at_once, left["nodes with ending pods"])
            _check(began)
        time.sleep(_SETTLE_SECONDS)
        asked, used = self.requests(since), cpu_seconds(program.pid) - cpu
        written = {e["objectRef"]["name"]: _at(e) for e in self.requests(since, "admin") if e["verb"] == "patch"}
        # In reverse, so that the first request for a pod stays.
        evicted = {e["objectRef"]["name"]: _at(e) for e in reversed(asked) if _kind(e) == "create pods/eviction"}
        waits = [(at - written[f"evict-{pod.split('-')[1]}"]).total_seconds() for pod, at in evicted.items()]
        self._mark(names, is_faulty=False)
        time.sleep(_SETTLE_SECONDS)
        return {
            "beyond_delay_ms": summary([(wait - DELAY_SECONDS) * 1000 for wait in waits]),
            "grace_seconds": grace_seconds,
            "nodes_at_once": at_once,
            "seconds": round((max(evicted.values()) - min(written.values())).total_seconds(), 2),
            "requests": len(asked) / number,
            "requests_by_kind": dict(Counter(map(_kind, asked))),
            "cpu_ms": round(used * 1000 / number, 1),
        }

    def _mark(self, names: Iterable[str], *, is_faulty: bool) -> None:
        """Write labels, record and taint in one request, as the agent does."""
        labels, findings = (_FAULTY, [_FINDING]) if is_faulty else (_HEALTHY, [])
        record = json.dumps(
            self._record | {"status": labels[STATUS], "severity": labels[SEVERITY], "findings": findings}
        )
        taints = [TAINT] if is_faulty else None
        patch = {"metadata": {"labels": labels, "annotations": {RESULTS: record}}, "spec": {"taints": taints}}
        self._writer.patch((f"{_NODES}/{name}", patch) for name in names)

    def _end_pods(self) -> Counter[str]:
        """End the pods that were evicted some seconds ago, as kubelets do, and count what is left."""
        time.sleep(_POLL_SECONDS)
        left: Counter[str] = Counter()
        nodes = set()
        for pod in self._plane.request("GET", f"{_DEFAULT}/pods?resourceVersion=0").body["items"]:
            left["pods"] += 1
            if not (until := pod["metadata"].get("deletionTimestamp")):
                continue
            nodes.add(pod["spec"]["nodeName"])
            ended = datetime.fromisoformat(until).timestamp() - pod["metadata"]["deletionGracePeriodSeconds"]
            if time.time() - ended > _ENDING_SECONDS:
                path = f"{_DEFAULT}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0"
                self._plane.request("DELETE", path)
        left["nodes with ending pods"] = len(nodes)
        return +left


def _pod(number: int, place: int, grace_seconds: int) -> dict[str, Any]:
    """Return a pod with a GPU, as long as a real one."""
    pod = large_fleet.pod(f"evict-{number}", number, place)
    spec = {"serviceAccountName": "default", "terminationGracePeriodSeconds": grace_seconds}
    container = pod["spec"]["containers"][0] | {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return pod | {"spec": pod["spec"] | spec | {"containers": [container]}}


def _kind(event: Event) -> str:
    about = event["objectRef"]
    return " ".join((event["verb"], "/".join(filter(None, (about["resource"], about.get("subresource"))))))


def _at(event: Event) -> datetime:
    return datetime.fromisoformat(event["requestReceivedTimestamp"])


def _check(began: float) -> None:
    if time.monotonic() > began + _GIVE_UP_SECONDS:
        raise CouldNotMeasure(f"pods were not evicted within {_GIVE_UP_SECONDS:g} s")
