"""Collect a cluster's state from its API: one paged listing for each kind, a few at a time.

A kind whose listing is forbidden or fails is not visible; other kinds are not affected.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.facts.components import Role, components, is_ready
from gpu_healthcheck.diagnosis.facts.efa import uses_efa
from gpu_healthcheck.diagnosis.facts.gpu_nodes import has_nvidia, offers_gpus
from gpu_healthcheck.diagnosis.facts.gpu_requests import gpu_pods
from gpu_healthcheck.diagnosis.hami.installation import config_maps, is_there
from gpu_healthcheck.diagnosis.snapshot import Builder, Snapshot
from gpu_healthcheck.diagnosis.snapshot.pods import Pod, read_pod
from gpu_healthcheck.diagnosis.sources.kinds import KINDS, OF_COMPONENTS, POD, SHARING, ApiKind, everywhere
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Endless, Forbidden, NotFound, Unavailable
from gpu_healthcheck.healthcheck.text.printable import printable

_AT_ONCE = 4
"""Parallel listings: few, because the API server serves the whole fleet."""
_MOST_LOGS, _MOST_OF_COMPONENTS, _MOST_WITH_EFA = 40, 15, 8
_MOST_LINES, _LONGEST_LINE = 200, 1024
_SHOW_HAMI = ("Node", "Pod", "Deployment", "DaemonSet", "MutatingWebhookConfiguration")
_USER = re.compile(r'is forbidden: User "([^"\s]{1,253})" cannot ')
ReadLog = Callable[[str, str, str, bool], str]
"""Read the log of namespace, pod and container; True: of its previous run. Raises ClusterError."""


class Keep(Protocol):
    """Callback that receives each object as the API returned it."""

    def __call__(self, kind: str, raw: Mapping[str, Any]) -> None: ...


Where = Callable[[ApiKind], Iterable[tuple[str, Mapping[str, str]]]]
"""Return the namespaces to list of a kind ('' for all), each with a query."""
Objects = Callable[[str, str, Mapping[str, str]], Iterator[Mapping[str, Any]]]
"""Yield the objects under a path, of a resource, for a query. Raises ClusterError."""


class Collector:
    """Collector of a cluster's objects. `listed` is called for each kind once it is listed, or can't be."""

    def __init__(
        self,
        objects: Objects,
        keep: Keep | None = None,
        listed: Callable[[ApiKind], None] = lambda _: None,
        kinds: Iterable[ApiKind] = KINDS,
    ) -> None:
        self._objects = objects
        self._keep = keep
        self._listed = listed
        self._kinds = tuple(kinds)
        self._builder = Builder()
        self._lock = threading.Lock()
        self._whole: set[str] = set()
        """Kinds that were listed completely, and are not listed again."""
        self.missing: dict[str, str] = {}
        self._denied: set[str] = set()
        self._user = self._only_in = ""

    def collect(self, where: Where = everywhere, namespace: str = "") -> Snapshot:
        """List all kinds, and return the snapshot. A second call adds to the first.

        `namespace`: the namespace to list if listing all namespaces is forbidden. Raises ClusterError if nothing at all
        could be listed.
        """
        now = datetime.now(UTC)
        with ThreadPoolExecutor(_AT_ONCE, "list") as pool:
            plain = [api_kind for api_kind in self._kinds if not api_kind.names and api_kind.kind not in self._whole]
            errors = list(pool.map(lambda kind: self._take(kind, where, namespace), plain))
        failed = {kind.kind: error for kind, error in zip(plain, errors, strict=True) if error is not None}
        if len(failed) == len(plain) and not self._whole:
            raise failed.get(POD.kind) or next(iter(failed.values()))
        seen = self._built(now)
        places, shared = _of_hami(seen), _of_sharing(seen)
        for kind in (api_kind for api_kind in self._kinds if api_kind.names):
            self._take(kind, lambda named: [*(where(named) if places is None else places), *shared], namespace)
        return seen if places == [] and not shared else self._built(now)

    def _built(self, now: datetime) -> Snapshot:
        for kind, why in self.missing.items():
            self._builder.lacks(kind, why)
        denied = frozenset(self._denied.intersection(self.missing))
        return replace(self._builder.build(now), denied=denied, user=self._user, only_in=self._only_in)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the present state of the pod; None if it does not exist. Raises ClusterError."""
        query = {"fieldSelector": f"metadata.name={name}"}
        found = (read_pod(entry) for entry in self._objects(POD.path(namespace), POD.resource, query))
        return next(found, None)

    def with_logs(self, snapshot: Snapshot, read: ReadLog, pod: str = "") -> Snapshot:
        """Return the snapshot with the last log lines of containers that fail repeatedly.

        A log that can't be read is left out. A kubelet that does not answer delays each request, so it is not asked
        again. Nodes that are not ready are never asked. `pod`: the subject of the diagnosed pod, whose running
        containers are read too; '' for all that fail.
        """
        silent = {node.name for node in snapshot.nodes if not node.ready}
        wanted = list(islice(_suspects(snapshot, pod, silent), _MOST_LOGS))
        with ThreadPoolExecutor(_AT_ONCE, "log") as pool:
            texts = pool.map(lambda entry: _log(read, silent, *entry), wanted)
            logs = {(pod.subject, name): text for (pod, name, _), text in zip(wanted, texts, strict=True) if text}
        return replace(snapshot, logs=logs)

    def _take(self, kind: ApiKind, where: Where, namespace: str) -> ClusterError | None:
        """List a kind, and return why it could not be listed; None if it was.

        A kind that the cluster does not have counts as listed.
        """
        self.missing.pop(kind.kind, None)
        try:
            error = self._list(kind, where(kind))
            if error is None and list(where(kind)) == list(everywhere(kind)):
                self._whole.add(kind.kind)
            if isinstance(error, Forbidden):
                self._denied.add(kind.kind)
                self._user = user[1] if (user := _USER.search(str(error))) else self._user
            if isinstance(error, Forbidden) and namespace and kind.namespaced:
                # Use the same queries: only ConfigMaps with our names are relevant.
                error = self._list(kind, [(namespace, query) for _, query in where(kind)])
                if error is None and kind.kind in OF_COMPONENTS:
                    self.missing[kind.kind] = f"only those of namespace {namespace} may be listed"
                if error is None and kind is POD:
                    self._only_in = namespace
        finally:
            self._listed(kind)
        if error is not None:
            is_denied = isinstance(error, Forbidden)
            self.missing[kind.kind] = f"the right to list {kind.resource} is missing" if is_denied else str(error)
        self._builder.listed(kind.kind)
        return error

    def _list(self, kind: ApiKind, places: Iterable[tuple[str, Mapping[str, str]]]) -> ClusterError | None:
        try:
            for namespace, query in places:
                for entry in self._found(kind, namespace, query):
                    with self._lock:
                        self._builder.add(kind.kind, entry)
                        if self._keep is not None:
                            self._keep(kind.kind, entry)
        except NotFound:
            return None
        except ClusterError as error:
            return error
        return None

    def _found(self, kind: ApiKind, namespace: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        """Yield the objects, using the newest API version that the cluster serves if the kind has several."""
        for version in kind.versions:
            served = replace(kind, group=kind.group.format(version))
            try:
                for entry in self._objects(served.path(namespace), kind.resource, query):
                    # The API server omits the version in the objects of a list.
                    yield entry if version == "" else {"apiVersion": served.group.removeprefix("apis/"), **entry}
            except NotFound:
                continue
            return


def _of_hami(seen: Snapshot) -> list[tuple[str, Mapping[str, str]]] | None:
    """Return the queries for HAMi's ConfigMaps, whatever the name of the release; none without HAMi.

    Return None if HAMi may exist but is not visible, or has no recognisable name. The default names of its chart are
    then used.
    """
    found = config_maps(seen)
    if not found and (is_there(seen) or not seen.sees(*_SHOW_HAMI)):
        return None
    return [(namespace, {"fieldSelector": f"metadata.name={name}"}) for namespace, name in found]


def _of_sharing(seen: Snapshot) -> list[tuple[str, Mapping[str, str]]]:
    """Return the queries for ConfigMaps of NVIDIA's device plugins, by the names in their documentation."""
    names = {*SHARING, *(policy.plugin_config for policy in seen.cluster_policies if policy.plugin_config)}
    plugins = {each.meta.namespace for each in components(seen) if each.role is Role.DEVICE_PLUGIN}
    return [(where, {"fieldSelector": f"metadata.name={name}"}) for where in sorted(plugins) for name in sorted(names)]


def _suspects(snapshot: Snapshot, pod: str, silent: set[str]) -> Iterator[tuple[Pod, str, bool]]:
    """Yield failed containers, components before GPU pods, and whether the previous run is the failed one.

    Pods on silent nodes are left out, so that they do not count towards the maximum.
    """
    every = (pod for component in components(snapshot) for pod in component.pods if pod.spec.node not in silent)
    yield from islice(_failed(pod for pod in every if not is_ready(pod) and not pod.over), _MOST_OF_COMPONENTS)
    yield from islice(_without_gpus(snapshot), _MOST_OF_COMPONENTS)
    yield from islice(_running(_imex_daemons(snapshot, silent)), _MOST_OF_COMPONENTS)
    asked = [one for one in gpu_pods(snapshot) if pod in ("", one.subject) and one.spec.node not in silent]
    yield from _failed(asked)
    yield from _running(asked if pod else islice(_with_efa(snapshot, asked), _MOST_WITH_EFA))


def _without_gpus(snapshot: Snapshot) -> Iterator[tuple[Pod, str, bool]]:
    """Yield device plugins on GPU nodes that offer nothing: only the log shows which GPUs they find."""
    for component in components(snapshot):
        for pod in component.pods if component.role in (Role.DEVICE_PLUGIN, Role.HAMI_PLUGIN) else ():
            node = snapshot.by_node.get(pod.spec.node)
            if node is not None and node.ready and is_ready(pod) and has_nvidia(node) and not offers_gpus(node):
                yield from ((pod, state.name, False) for state in pod.states if not state.init)


def _imex_daemons(snapshot: Snapshot, silent: set[str]) -> Iterator[Pod]:
    """Yield daemons of ComputeDomains that run without becoming ready: only their log shows why."""
    every = (
        pod for component in components(snapshot) if component.role is Role.DOMAIN_DAEMON for pod in component.pods
    )
    return (pod for pod in every if pod.spec.node not in silent and not is_ready(pod) and not pod.over)


def _with_efa(snapshot: Snapshot, pods: Iterable[Pod]) -> Iterable[Pod]:
    """Return one running pod of each workload with EFA: only its log shows that NCCL does not use EFA."""
    running = (pod for pod in pods if pod.phase == "Running" and uses_efa(snapshot, pod))
    return {snapshot.line(pod.meta)[-1]: pod for pod in running}.values()


def _failed(pods: Iterable[Pod]) -> Iterator[tuple[Pod, str, bool]]:
    for pod in pods:
        for state in pod.states:
            if state.ended is not None and state.ended.exit_code:
                yield pod, state.name, False
            elif state.last_ended is not None and state.last_ended.exit_code and not state.ready:
                yield pod, state.name, True


def _running(pods: Iterable[Pod]) -> Iterator[tuple[Pod, str, bool]]:
    """Yield running containers that have never ended: only their log may report a lost GPU."""
    for pod in pods:
        yield from (
            (pod, state.name, False)
            for state in pod.states
            if state.running and not state.init and not state.last_ended
        )


def _log(read: ReadLog, silent: set[str], pod: Pod, container: str, previous: bool) -> str:
    if pod.spec.node in silent:
        return ""
    try:
        lines = read(pod.meta.namespace, pod.meta.name, container, previous).splitlines()[-_MOST_LINES:]
    except (Unavailable, Endless):
        silent.add(pod.spec.node)
        return ""
    except ClusterError:
        return ""
    return "\n".join(printable(line, _LONGEST_LINE) for line in lines)
