"""The one door to Kubernetes. Knows the API's paths and failures; decides nothing."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote

import tenacity
import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException

from healthcheck.cluster.errors import ClusterError, Conflict, Forbidden, NotFound, Refused, Unavailable, Unreadable
from healthcheck.cluster.kubeconfig import Access, KubeconfigError, choose
from healthcheck.cluster.pages import node_page, pod_page
from healthcheck.deep.job import COMPONENT_LABEL, SHOWN, TESTED_NODE, JobState, account_of
from healthcheck.model import PREFIX
from healthcheck.node.gpu_resources import GpuPod, gpu_pod, offered, whole_quantity
from healthcheck.node.pods import PodState, pod_state
from healthcheck.node.state import (
    CONDITION,
    EFA_RESOURCE,
    FIELD_MANAGER,
    STATUS,
    NodeState,
    PatchFor,
    SelectiveClass,
    managers_of_cordon,
    managers_of_label,
    managers_of_mark,
)
from healthcheck.text.moments import is_future, moment
from healthcheck.text.printable import printable
from healthcheck.verdict.budget import Slot, former_holder_label, holder_label
from healthcheck.verdict.events import Event

T = TypeVar("T")
_FASTER_SECONDS, _MOST_CONFLICTS = 0.1, 16
Parse = Callable[[bytes], Any]

NAMESPACE, BUDGET_NAMESPACE = "gpu-healthcheck", "gpu-healthcheck-budget"
COMPONENT = "gpu-healthcheck"
CONFIG_MAP = "gpu-healthcheck-config"
_CONNECT_SECONDS, _READ_SECONDS = 3.0, 10.0
_SILENCE_SECONDS = 150.0
"""A watch hears a bookmark about once a minute; this long without a word, the server is gone."""
_WATCH_SECONDS = (3300, 3900)
_LONGEST_LINE = 8 << 20
_LONGEST_MESSAGE = 500
_PAGE = 500
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""How the API server says, as an error of its own (500), that the store never takes so large an object."""
_MOST_CLASSES = 1000
LONGEST_BEAT_SECONDS = 3 * 86400
"""Three of the longest intervals that an agent can be told to look in."""
_ODD = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""What reading an object raises whose shape or values nobody thought of."""
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_JOBS = "/apis/batch/v1/namespaces/{}/jobs"
JOB_LABEL, _JOB_UID_LABEL = "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"
_MOST_LOG_BYTES = 1 << 20
_AT_WORK = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Pods that have a node and have not finished: those that hold what they asked for."""
_HOLDER = f"{PREFIX}/holder"
_METHODS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}
_NO_CONFIGURATION = (config.ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
"""What the client raises for a kubeconfig, token or certificate that is missing, garbage, or being written."""

_NO_TOKEN = (config.ConfigException, ValueError)
"""The same of a token that is read anew before a request: it is empty, garbage, or nothing that a header may hold."""


@dataclass(frozen=True, slots=True)
class Right:
    """What a person or program may do. `resource` has its subresource behind a slash; namespace '' is all of them."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group} in {self.namespace or 'the whole cluster'}"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """When an agent last looked, and for how many seconds that is good."""

    renewed: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Workload:
    """A pod, or what runs pods. `kind` as kubectl takes it: `daemonsets`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def connect(access: Access | None = None) -> ApiClient:
    """A client of the cluster that is meant; `access` is what a person asked for. Raises ClusterError."""
    configuration = Configuration()
    try:
        chosen = choose(access)
        if chosen is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(os.pathsep.join(chosen.files), chosen.context, configuration)
        configuration.retries = False  # the caller holds the newest verdict: it decides when to try again
        client = ApiClient(configuration)  # reads the certificates
    except KubeconfigError as error:
        raise ClusterError(f"no cluster to talk to: {error}") from error
    except _NO_CONFIGURATION as error:
        raise ClusterError(f"no cluster to talk to: {_say(error)}") from error
    client.user_agent = COMPONENT
    return client


def refuse_to_read(what: str) -> None:
    """Of whoever has no use for a listing with a gap."""
    raise ClusterError(f"an object that nobody can read: {what}")


class Cluster:
    """Requests, each with a deadline, raising ClusterError. Safe to use from several threads.

    `pass_over` is told which object of a listing nobody can read, and why; without it, a listing with one is an error.
    """

    def __init__(
        self, connector: Callable[[], ApiClient] = connect, pass_over: Callable[[str], None] = refuse_to_read
    ) -> None:
        self._connector = connector
        self._pass_over = pass_over
        self._client = connector()

    def read_node(self, name: str) -> NodeState:
        return _read_node(self._json("get", f"/api/v1/nodes/{quote(name)}", "nodes"))

    def patch_node(self, name: str, patch: Mapping[str, Any]) -> NodeState:
        """One merge patch. Its `metadata.resourceVersion` makes a lost race a Conflict."""
        return _read_node(self._json("patch", f"/api/v1/nodes/{quote(name)}", "nodes", patch, merge="merge"))

    def update_node(self, name: str, change: PatchFor) -> NodeState | None:
        """Write what the Node as it is now needs, made anew where somebody was faster. None: it needed nothing.

        Raises Conflict where others were faster each time.
        """

        def once() -> NodeState | None:
            patch = change(self.read_node(name))
            return None if patch is None else self.patch_node(name, patch)

        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Conflict),
            wait=tenacity.wait_random(0, _FASTER_SECONDS),
            stop=tenacity.stop_after_attempt(_MOST_CONFLICTS),
            reraise=True,
        )
        return again(once)

    def patch_condition(self, name: str, condition: Mapping[str, Any]) -> NodeState:
        """Our condition alone: the server merges conditions by their type."""
        body = {"status": {"conditions": [condition]}}
        path = f"/api/v1/nodes/{quote(name)}/status"
        return _read_node(self._json("patch", path, "nodes/status", body, merge="strategic-merge"))

    def remove_condition(self, name: str) -> NodeState:
        """Our condition alone, whatever it says. Where it is not there, nothing is changed."""
        return self.patch_condition(name, {"type": CONDITION, "$patch": "delete"})

    def create_event(self, node: NodeState, event: Event, now: datetime) -> None:
        """Tell an Event about the Node. The same one told twice is one."""
        at = _rfc3339(now)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "source": {"component": COMPONENT, "host": node.name},
            "reportingComponent": COMPONENT,
            "reportingInstance": node.name,
        }
        try:
            self._json("create", "/api/v1/namespaces/default/events", "events", body)
        except Conflict:
            return

    def beat(self, node: NodeState, now: datetime, duration_seconds: float) -> None:
        """Renew the node's heartbeat Lease; make it when it is gone. It is owned by the Node as it is now."""
        path = _LEASES.format(NAMESPACE)
        times = {"leaseDurationSeconds": max(int(duration_seconds), 1), "renewTime": _rfc3339(now, micro=True)}
        body = _lease(node.name, NAMESPACE, node, times)
        try:
            self._json("patch", f"{path}/{quote(node.name)}", "leases", body, merge="merge")
        except NotFound:
            self._create_lease(path, body)

    def list_runtime_classes(self) -> list[SelectiveClass]:
        """Every RuntimeClass, in pages; a cluster has a handful, and of more than 1,000 the rest is left out."""
        pages = self._pages("/apis/node.k8s.io/v1/runtimeclasses", "runtimeclasses", {})
        return [_selective_class(one) for one in islice(pages, _MOST_CLASSES)]

    def read_config(self) -> dict[str, str]:
        """The keys of the ConfigMap that the agents read."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"
        return self._json("get", path, "configmaps").get("data") or {}

    def count_heartbeats(self) -> int:
        """How many nodes have an agent."""
        return self._count(NAMESPACE)

    def count_slots(self) -> int:
        """How many places in the fleet budget are taken."""
        return self._count(BUDGET_NAMESPACE)

    def list_slots(self, node_name: str = "") -> Iterator[Slot]:
        """The places that are taken, all or by that node, in pages."""
        marks = f"{holder_label(node_name)},{former_holder_label(node_name)}"
        selector = f"{_HOLDER} in ({marks})" if node_name else ""
        leases = self._pages(_LEASES.format(BUDGET_NAMESPACE), "leases", {"labelSelector": selector})
        for slot in self._each("leases", leases, _slot):
            if node_name in ("", slot.holder):
                yield slot

    def read_slot(self, name: str) -> Slot:
        return _slot(self._json("get", f"{_LEASES.format(BUDGET_NAMESPACE)}/{quote(name)}", "leases"))

    def create_slot(self, name: str, node: NodeState) -> Slot:
        """Take this place for the node. Conflict: somebody has it."""
        body = _lease(name, BUDGET_NAMESPACE, node, {}, {_HOLDER: holder_label(node.name)})
        return _slot(self._create_lease(_LEASES.format(BUDGET_NAMESPACE), body))

    def delete_slot(self, slot: Slot) -> None:
        """Free this place. Conflict: another has taken it since."""
        path = f"{_LEASES.format(BUDGET_NAMESPACE)}/{quote(slot.name)}"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": slot.uid}}
        self._json("delete", path, "leases", options)

    def _count(self, namespace: str) -> int:
        """All of a namespace's Leases, by asking for one of them."""
        page = self._json("list", _LEASES.format(namespace), "leases", query={"limit": "1"})
        return len(page.get("items") or []) + int(page.get("metadata", {}).get("remainingItemCount") or 0)

    def _create_lease(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._json("create", path, "leases", body)
        except NotFound as error:
            raise Refused(f"{error}; is the namespace {body['metadata']['namespace']} there?") from error

    def watch_node(self, name: str, seconds: int = 0) -> Iterator[NodeState | None]:
        """The Node now and at each change; None when it is gone. Ends when the server ends the watch, or after that."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds or random.randint(*_WATCH_SECONDS)),  # noqa: S311 - spreads reconnects
        }
        for kind, node in self._watch("/api/v1/nodes", "nodes", query):
            yield _read_node(node) if kind != "DELETED" else None

    def watch_jobs(self, namespace: str, selector: str, since: str, seconds: int) -> Iterator[tuple[JobState, bool]]:
        """Each change of those Jobs after the listing `since`, and whether the Job is still there; so long at most."""
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(seconds, 1)),
        }
        for kind, job in self._watch(_JOBS.format(namespace), "jobs", query):
            yield _job(job), kind != "DELETED"

    def _watch(self, path: str, resource: str, query: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        response = self._request("watch", path, resource, query=query, read_seconds=_SILENCE_SECONDS)
        try:
            for line in _lines(response):
                event = json.loads(line)
                if event.get("type") == "ERROR":
                    raise Unavailable(f"watch {resource}: {str(event.get('object'))[:_LONGEST_MESSAGE]}")
                if event.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                    yield event["type"], event["object"]
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"watch {resource}: {_say(error)}") from error
        except (ValueError, KeyError) as error:
            raise Unavailable(f"watch {resource}: an answer that is no watch event: {error!r}") from error
        finally:
            response.close()

    def list_nodes(self, label_selector: str = "") -> Iterator[NodeState]:
        """Every node that the selector allows, in pages; who wrote its labels is not among what is read."""
        nodes = self._pages("/api/v1/nodes", "nodes", {"labelSelector": label_selector}, node_page().validate_json)
        yield from self._each("nodes", nodes, node_state)

    def list_heartbeats(self, now: datetime) -> dict[str, Heartbeat]:
        """The heartbeat of each node's agent, by node name; one that nobody can have beaten by now is passed over."""
        leases = self._pages(_LEASES.format(NAMESPACE), "leases", {})
        beats = self._each("leases", leases, lambda lease: _heartbeat(lease, now))
        return {name: beat for name, beat in beats if beat is not None}

    def list_gpu_pods(self, node_name: str = "") -> Iterator[GpuPod]:
        """The pods of all namespaces that hold GPUs on a node, or on that one, in pages."""
        at_work = f"{_AT_WORK},spec.nodeName={node_name}" if node_name else _AT_WORK
        pods = self._pages("/api/v1/pods", "pods", {"fieldSelector": at_work}, pod_page().validate_json)
        for held in self._each("pods", pods, gpu_pod):
            if held is not None:
                yield held

    def list_unplaced(self, namespace: str, selector: str) -> set[str]:
        """The names of the Jobs that have a pod which no scheduler has found a place for."""
        query = {"labelSelector": selector, "fieldSelector": "spec.nodeName="}
        pods = self._pages(f"/api/v1/namespaces/{namespace}/pods", "pods", query)
        return {str((pod["metadata"].get("labels") or {}).get(JOB_LABEL, "")) for pod in pods}

    def list_workloads(self, selector: str) -> Iterator[Workload]:
        """What of that, in all namespaces, runs pods or is one. What has ended or is suspended is left out."""
        for path, resource, has_ended in _WORKLOADS:
            for one in self._pages(path, resource, {"labelSelector": selector}):
                if not has_ended(one):
                    yield Workload(resource, one["metadata"]["namespace"], one["metadata"]["name"])

    def read_job_template(self, cron_job: str) -> dict[str, Any]:
        """What a CronJob of ours makes its Jobs from."""
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs/{quote(cron_job)}"
        template = (self._json("get", path, "cronjobs").get("spec") or {}).get("jobTemplate")
        return template if isinstance(template, dict) else {}

    def list_jobs(self, namespace: str, selector: str) -> tuple[list[JobState], str]:
        """Those Jobs, and since when a watch has to begin so that it misses no change of them."""
        jobs: list[JobState] = []
        version = ""
        for page in self._listing(_JOBS.format(namespace), "jobs", {"labelSelector": selector}):
            jobs += self._each("jobs", page.get("items") or [], _job)
            version = str(page.get("metadata", {}).get("resourceVersion", ""))
        return jobs, version

    def read_job(self, namespace: str, name: str) -> JobState:
        return _job(self._json("get", f"{_JOBS.format(namespace)}/{quote(name)}", "jobs"))

    def create_job(self, job: Mapping[str, Any]) -> JobState:
        """Conflict: a Job of this name is there."""
        return _job(self._json("create", _JOBS.format(job["metadata"]["namespace"]), "jobs", job))

    def note_job_shown(self, job: JobState, now: datetime) -> None:
        """Note on it that its result was shown. Conflict: another has its name since."""
        patch = {"metadata": {"uid": job.uid, "annotations": {SHOWN: _rfc3339(now)}}}
        self._json("patch", f"{_JOBS.format(job.namespace)}/{quote(job.name)}", "jobs", patch, merge="merge")

    def delete_job(self, job: JobState) -> None:
        """It stays to be seen until its pods have ended. Conflict: another has its name since."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": job.uid},
        }
        self._json("delete", f"{_JOBS.format(job.namespace)}/{quote(job.name)}", "jobs", options)

    def is_allowed(self, right: Right) -> bool:
        """Whether whoever asks has this right."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": right.namespace,
        }
        body = {"spec": {"resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._json("create", path, "selfsubjectaccessreviews", body)
        return (answer.get("status") or {}).get("allowed") is True

    def list_pods_on(self, node_name: str) -> list[dict[str, Any]]:
        """Every pod that is bound to the node, finished ones too, as plain API objects."""
        return list(self._pages("/api/v1/pods", "pods", {"fieldSelector": f"spec.nodeName={node_name}"}))

    def list_pods_of(self, job: JobState) -> list[PodState]:
        """The Job's pods, the newest last."""
        # Not by its name: a pod of an earlier Job that had it may still be there.
        query = {"labelSelector": f"{_JOB_UID_LABEL}={job.uid}"}
        pods = [pod_state(pod) for pod in self._pages(f"/api/v1/namespaces/{job.namespace}/pods", "pods", query)]
        return sorted(pods, key=lambda pod: pod.created)

    def list_budgets(self, namespace: str) -> list[dict[str, Any]]:
        """The disruption budgets of a namespace, as plain API objects."""
        path = f"/apis/policy/v1/namespaces/{quote(namespace)}/poddisruptionbudgets"
        return list(self._pages(path, "poddisruptionbudgets", {}))

    def list_warnings(self, namespace: str, uid: str) -> list[str]:
        """What the Events about that object warn of, each as `reason: message`, the newest last."""
        query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning"}
        warnings = list(self._pages(f"/api/v1/namespaces/{namespace}/events", "events", query))
        warnings.sort(key=_last_seen)
        return [printable(f"{one.get('reason', '')}: {one.get('message', '')}") for one in warnings]

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Ask this pod to go. Unavailable (429): a disruption budget holds it, and the message names it.

        NotFound: it is gone. Conflict: another has its name.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}/eviction"
        self._json("create", path, "pods/eviction", body)

    def read_pod_log(self, pod: PodState, since: datetime | None) -> str:
        """What the pod's first container has said from that second on, 1 MiB at most, a time before each line."""
        query = {
            "container": pod.container,
            "timestamps": "true",
            "sinceTime": _rfc3339(since) if since else "",
            "limitBytes": str(_MOST_LOG_BYTES),
        }
        path = f"/api/v1/namespaces/{quote(pod.namespace)}/pods/{quote(pod.name)}/log"
        response = self._request("get", path, "pods/log", query=query)
        try:
            return response.data.decode("utf-8", "replace")
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"get pods/log: {_say(error)}") from error

    def _each(self, resource: str, objects: Iterable[Mapping[str, Any]], read: Callable[[Any], T]) -> Iterator[T]:
        """All that can be read: one object that somebody wrote oddly must not hide the others."""
        for one in objects:
            try:
                told = read(one)
            except _ODD as error:
                self._pass_over(_named(resource, one, error))
            else:
                yield told

    def _pages(
        self, path: str, resource: str, query: Mapping[str, str], parse: Parse = json.loads
    ) -> Iterator[dict[str, Any]]:
        for page in self._listing(path, resource, query, parse):
            yield from page.get("items") or []

    def _listing(
        self, path: str, resource: str, query: Mapping[str, str], parse: Parse = json.loads
    ) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            asked = {**query, "limit": str(_PAGE), "continue": token}
            page = _read(self._request("list", path, resource, query=asked), f"list {resource}", parse)
            yield page
            token = page.get("metadata", {}).get("continue") or ""
            if not token:
                return

    def _json(
        self,
        verb: str,
        path: str,
        resource: str,
        body: Mapping[str, Any] | None = None,
        *,
        merge: str = "",
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return _read(self._request(verb, path, resource, body, merge=merge, query=query), f"{verb} {resource}")

    def _request(
        self,
        verb: str,
        path: str,
        resource: str,
        body: Mapping[str, Any] | None = None,
        *,
        merge: str = "",
        query: Mapping[str, str] | None = None,
        read_seconds: float = _READ_SECONDS,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = f"application/{merge}-patch+json" if merge else "application/json"
        method = _METHODS[verb]
        parameters = dict(query or {})
        if method in ("POST", "PATCH"):
            parameters["fieldManager"] = FIELD_MANAGER
        try:
            call = self._client.param_serialize(  # reads the token
                method,
                path,
                query_params=[(key, value) for key, value in parameters.items() if value],
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._client.call_api(*call, _request_timeout=(_CONNECT_SECONDS, read_seconds))
        except (urllib3.exceptions.HTTPError, OSError, ApiException, *_NO_TOKEN) as error:
            self._connect_anew()  # a changed certificate is only read by a new client
            raise Unavailable(f"{verb} {resource}: {_say(error)}") from error
        response: urllib3.BaseHTTPResponse = answer.response
        if response.status >= 400:
            self._raise(response, verb, resource)
        return response

    def _connect_anew(self) -> None:
        """Where that can't be done now, as without a file descriptor or a kubeconfig, the client stays as it is."""
        with suppress(ClusterError, *_NO_CONFIGURATION):
            self._client = self._connector()

    def _raise(self, response: urllib3.BaseHTTPResponse, verb: str, resource: str) -> None:
        message = f"{verb} {resource}: {response.status}: {_message(response)}"
        match response.status:
            case 401:
                self._connect_anew()
                raise Unavailable(message)
            case 403:
                raise Forbidden(message, verb, resource)
            case 404:
                raise NotFound(message)
            case 409:
                raise Conflict(message)
            case 429:
                raise Unavailable(message, _retry_after(response))
            case 500 if any(word in message for word in _TOO_LARGE):
                raise Refused(message)
            case status if status >= 500 or status == 410:
                raise Unavailable(message, _retry_after(response))
        raise Refused(message)


def _read_node(node: Mapping[str, Any]) -> NodeState:
    """Raises Unreadable."""
    try:
        return node_state(node)
    except _ODD as error:
        raise Unreadable(_named("nodes", node, error)) from error


def node_state(node: Mapping[str, Any]) -> NodeState:
    """What of an API Node the plan needs."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    return NodeState(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        machine=(status.get("nodeInfo") or {}).get("systemUUID", ""),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        taints=spec.get("taints") or (),
        conditions=[_shown(one) for one in status.get("conditions") or ()],
        status_managers=managers_of_label(metadata.get("managedFields"), STATUS),
        efa_allocatable=whole_quantity((status.get("allocatable") or {}).get(EFA_RESOURCE)),
        gpus=offered(status.get("allocatable")),
        cordoned=spec.get("unschedulable") is True,
        cordon_managers=managers_of_cordon(metadata.get("managedFields")),
        mark_managers=managers_of_mark(metadata.get("managedFields")),
        provider_id=str(spec.get("providerID") or ""),
        created=_created(metadata),
    )


def _shown(condition: Mapping[str, Any]) -> dict[str, Any]:
    return {key: printable(value) if isinstance(value, str) else value for key, value in condition.items()}


def _created(metadata: Mapping[str, Any]) -> datetime | None:
    text = metadata.get("creationTimestamp")
    return moment(text) if text else None


def _named(resource: str, one: Any, error: Exception) -> str:
    """Which object it is that nobody can read, as far as it says so, and why."""
    metadata = one.get("metadata") if isinstance(one, dict) else None
    known = metadata if isinstance(metadata, dict) else {}
    name = "/".join(str(known[key]) for key in ("namespace", "name") if known.get(key))
    return f"{resource} {name}: {_say(error)}"


def _heartbeat(lease: Mapping[str, Any], now: datetime) -> tuple[str, Heartbeat | None]:
    """None of one that was never renewed. Raises ValueError for one that would keep its agent alive for ever."""
    name, spec = str(lease["metadata"]["name"]), lease.get("spec") or {}
    if not spec.get("renewTime"):
        return name, None
    renewed, seconds = moment(spec["renewTime"]), spec.get("leaseDurationSeconds") or 0
    if is_future(renewed, now):
        raise ValueError(f"renewTime {spec['renewTime']} is later than now")
    if not isinstance(seconds, int) or not 0 <= seconds <= LONGEST_BEAT_SECONDS:
        raise ValueError(f"leaseDurationSeconds {seconds!r}: at most {LONGEST_BEAT_SECONDS} are a heartbeat")
    return name, Heartbeat(renewed, seconds)


def _job(job: Mapping[str, Any]) -> JobState:
    metadata = job["metadata"]
    ended = {one.get("type"): one for one in (job.get("status") or {}).get("conditions") or () if _is_true(one)}
    failed = ended.get("Failed")
    return JobState(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        node=str((metadata.get("annotations") or {}).get(TESTED_NODE, "")),
        created=_created(metadata) or datetime.now(UTC),
        outcome=printable(str(failed.get("reason") or "Failed"))
        if failed
        else "Complete"
        if "Complete" in ended
        else "",
        leaving="deletionTimestamp" in metadata,
        suspended=(job.get("spec") or {}).get("suspend") is True,
        unshown=(metadata.get("annotations") or {}).get(SHOWN) == "",
        component=str((metadata.get("labels") or {}).get(COMPONENT_LABEL, "")),
        account=account_of(job),
    )


def _last_seen(event: Mapping[str, Any]) -> str:
    """Of an Event, whichever API it was written by: one time of each kind is always there."""
    series = event.get("series") or {}
    told = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in told if time), "")


def _selective_class(one: Mapping[str, Any]) -> SelectiveClass:
    selector = (one.get("scheduling") or {}).get("nodeSelector") or {}
    return SelectiveClass(one["metadata"]["name"], one["handler"], selector)


def _is_suspended(cron_job: Mapping[str, Any]) -> bool:
    return (cron_job.get("spec") or {}).get("suspend") is True


def _pod_has_ended(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


_WORKLOADS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("/apis/apps/v1/daemonsets", "daemonsets", lambda _: False),
    ("/apis/batch/v1/cronjobs", "cronjobs", _is_suspended),
    ("/apis/batch/v1/jobs", "jobs", lambda job: bool(_job(job).outcome)),
    ("/api/v1/pods", "pods", _pod_has_ended),
)
"""What of ours runs pods, and the pods: where they are listed, and which of them do no more."""


def _is_true(condition: Mapping[str, Any]) -> bool:
    return condition.get("status") == "True"


def _lease(
    name: str, namespace: str, node: NodeState, times: Mapping[str, Any], labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A Lease that goes when its Node goes."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner]}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**metadata, "labels": dict(labels)} if labels else metadata,
        "spec": {"holderIdentity": node.name, **times},
    }


def _slot(lease: Mapping[str, Any]) -> Slot:
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    owners = [one.get("uid", "") for one in metadata.get("ownerReferences") or () if one.get("kind") == "Node"]
    version = str(metadata.get("resourceVersion", ""))
    return Slot(
        name=metadata["name"],
        holder=spec.get("holderIdentity") or "",
        node_uid=next(iter(owners), ""),
        uid=metadata.get("uid", ""),
        made=int(version) if version.isdecimal() else 0,
        created=_created(metadata),
    )


def _read(response: urllib3.BaseHTTPResponse, what: str, parse: Parse = json.loads) -> dict[str, Any]:
    try:
        answer = parse(response.data)
    except (ValueError, urllib3.exceptions.HTTPError) as error:
        raise Unavailable(f"{what}: an answer that is no JSON, or of another shape: {_say(error)}") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"{what}: an answer that is no object")
    return answer


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=None, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)
        if len(rest) > _LONGEST_LINE:
            raise ValueError(f"a line of more than {_LONGEST_LINE} bytes")


def _message(response: urllib3.BaseHTTPResponse) -> str:
    try:
        raw = response.data
    except urllib3.exceptions.HTTPError as error:
        return _say(error)
    try:
        status = json.loads(raw)
        return " ".join([str(status["message"]), *_budgets(status)])[:_LONGEST_MESSAGE]
    except (ValueError, KeyError, TypeError):
        return raw[:_LONGEST_MESSAGE].decode("utf-8", "backslashreplace")


def _budgets(status: Mapping[str, Any]) -> list[str]:
    """The disruption budgets that hold a pod: the message itself names none of them."""
    details = status.get("details")
    causes = (details.get("causes") or ()) if isinstance(details, dict) else ()
    return [str(one.get("message", "")) for one in causes if one.get("reason") == "DisruptionBudget"]


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    """None also for a date, and for what is no number: who waits for that long does not wait at all."""
    try:
        seconds = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), 600.0)


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]


def _rfc3339(at: datetime, *, micro: bool = False) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
