"""Client that lists pods with GPUs or on a node, reads their logs, and evicts them.

Also controllers whose objects state how many failures their pods survive, and the listings for `diagnose`: objects of
any kind, and the end of a container's log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import urllib3

from gpu_healthcheck.healthcheck.cluster.connection import Requests, say
from gpu_healthcheck.healthcheck.cluster.errors import Endless, NotFound, Unavailable
from gpu_healthcheck.healthcheck.cluster.names import AGENT, COMPONENT, EVICT, NAMESPACE
from gpu_healthcheck.healthcheck.cluster.pages import pod_page
from gpu_healthcheck.healthcheck.deep.job import JobState
from gpu_healthcheck.healthcheck.node.gpu_resources import GpuPod, gpu_pod, unplaced_since
from gpu_healthcheck.healthcheck.node.pods import PodState, pod_state
from gpu_healthcheck.healthcheck.text.boundary import texts
from gpu_healthcheck.healthcheck.text.moments import timestamp
from gpu_healthcheck.healthcheck.text.printable import printable

_PATHS = {
    ("batch", "Job"): ("apis/batch/v1", "jobs"),
    ("jobset.x-k8s.io", "JobSet"): ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    ("kubeflow.org", "PyTorchJob"): ("apis/kubeflow.org/v1", "pytorchjobs"),
    ("kubeflow.org", "MPIJob"): ("apis/kubeflow.org/v2beta1", "mpijobs"),
}


class Workloads(Requests):
    """Reads Jobs, JobSets, PyTorchJobs and MPIJobs of any namespace as plain API objects."""

    def is_known(self, group: str, kind: str) -> bool:
        return (group, kind) in _PATHS

    def read(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return the object. Raises NotFound, Forbidden and other ClusterErrors; KeyError for another kind."""
        path, resource = _PATHS[group, kind]
        return self._json("get", f"/{path}/namespaces/{quote(namespace)}/{resource}/{quote(name)}", resource)


JOB_LABEL, _JOB_UID_LABEL = "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"
_PODS = "/api/v1/namespaces/{}/pods"
_AGENTS = f"app.kubernetes.io/name={COMPONENT},app.kubernetes.io/component=agent"
_LONGEST_REFUSAL = 200
_MOST_LOG_BYTES = 1 << 20
_AT_WORK = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that are scheduled and not finished, so they hold their requests."""


class Pods(Requests):
    """Reads pods and their logs, and evicts, creates and deletes pods."""

    def list_with_gpus(self, node_name: str = "") -> Iterator[GpuPod]:
        """Yield the pods of all namespaces that hold GPUs on any node, or on the named node; read in pages."""
        at_work = f"{_AT_WORK},spec.nodeName={node_name}" if node_name else _AT_WORK
        pods = self._pages("/api/v1/pods", "pods", {"fieldSelector": at_work}, pod_page().decode)
        for held in self._each("pods", pods, gpu_pod):
            if held is not None:
                yield held

    def list_unplaced_since(self) -> Iterator[datetime]:
        """Yield, for each unscheduled pod that requests GPUs, the time since which it is unschedulable."""
        pods = self._pages("/api/v1/pods", "pods", {"fieldSelector": "spec.nodeName="})
        for since in self._each("pods", pods, unplaced_since):
            if since is not None:
                yield since

    def list_unplaced(self, namespace: str, selector: str) -> set[str]:
        """Return the names of the Jobs with a pod that no scheduler has placed."""
        query = {"labelSelector": selector, "fieldSelector": "spec.nodeName="}
        pods = self._pages(f"/api/v1/namespaces/{namespace}/pods", "pods", query)
        return {str((pod["metadata"].get("labels") or {}).get(JOB_LABEL, "")) for pod in pods}

    def list_refused(self, namespace: str, selector: str) -> dict[str, str]:
        """Return the reasons why kubelets refused scheduled pods, by the name of each pod's Job."""
        query = {"labelSelector": selector, "fieldSelector": "status.phase=Failed"}
        refused = {}
        for pod in self._pages(f"/api/v1/namespaces/{namespace}/pods", "pods", query):
            status = pod.get("status") or {}
            if status.get("reason") == "UnexpectedAdmissionError":
                job = str((pod["metadata"].get("labels") or {}).get(JOB_LABEL, ""))
                refused[job] = printable(str(status.get("message", "")), _LONGEST_REFUSAL)
        return refused

    def list_on(self, node_name: str) -> list[dict[str, Any]]:
        """Return all pods bound to the node, including finished ones, as plain API objects."""
        return list(self._pages("/api/v1/pods", "pods", {"fieldSelector": f"spec.nodeName={node_name}"}))

    def list_of(self, job: JobState) -> list[PodState]:
        """Return the Job's pods, newest last."""
        # The selector uses the UID, because pods of an earlier Job with this name may still exist.
        query = {"labelSelector": f"{_JOB_UID_LABEL}={job.uid}"}
        pods = [pod_state(pod) for pod in self._pages(f"/api/v1/namespaces/{job.namespace}/pods", "pods", query)]
        return sorted(pods, key=lambda pod: pod.created)

    def read_namespace_annotations(self, namespace: str) -> dict[str, str]:
        metadata = self._json("get", f"/api/v1/namespaces/{namespace}", "namespaces")["metadata"]
        return texts(metadata.get("annotations") or {})

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict this pod.

        Raises Unavailable (429) if a disruption budget blocks it, with the budget in the message, NotFound if it is
        gone, and Conflict if another pod has its name.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}/eviction"
        self._json("create", path, "pods/eviction", body)

    def read_agent_daemon_set(self) -> dict[str, Any]:
        """Return the agent's DaemonSet. Raises NotFound if there is none."""
        return self._json("get", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{AGENT}", "daemonsets")

    def has_evict(self) -> bool:
        """Whether the Deployment of evict exists."""
        try:
            self._json("get", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{EVICT}", "deployments")
        except NotFound:
            return False
        return True

    def list_agents(self) -> list[dict[str, Any]]:
        """Return the pods of the agent's DaemonSet as plain API objects."""
        return list(self._pages(_PODS.format(NAMESPACE), "pods", {"labelSelector": _AGENTS}))

    def create(self, pod: Mapping[str, Any]) -> None:
        """Create the pod. Raises Forbidden without permission, or if pod security or another admission rejects it."""
        self._json("create", _PODS.format(quote(pod["metadata"]["namespace"])), "pods", pod)

    def read(self, namespace: str, name: str) -> dict[str, Any]:
        """Return a pod as a plain API object."""
        return self._json("get", f"{_PODS.format(quote(namespace))}/{quote(name)}", "pods")

    def list_labelled(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the pods with these labels as plain API objects."""
        return list(self._pages(_PODS.format(quote(namespace)), "pods", {"labelSelector": selector}))

    def delete(self, namespace: str, name: str, grace_seconds: int | None = None) -> None:
        """Delete a pod with its default grace period, or with `grace_seconds`. Raises NotFound if it is gone.

        With 0 seconds the deletion does not wait for the kubelet.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        self._json("delete", f"{_PODS.format(quote(namespace))}/{quote(name)}", "pods", options)

    def read_log_of(self, pod: PodState, since: datetime | None, is_over: Callable[[], bool] = lambda: False) -> str:
        """Return the log of the pod's first container since a time, with a timestamp on each line.

        It is at most 1 MiB long. Raises Endless if the kubelet does not send all of it in time, or if `is_over`
        becomes true before.
        """
        query = {
            "container": pod.container,
            "timestamps": "true",
            "sinceTime": timestamp(since) if since else "",
        }
        return self._log(pod.namespace, pod.name, query, is_over)

    def execute(
        self, namespace: str, pod: str, container: str, words: Sequence[str], seconds: float, longest: int
    ) -> bytes:
        """Run a command in a container, and return its output as far as it came within `seconds`, cut after `longest`.

        Raises Forbidden without get and create of pods/exec, and Refused if the command fails without an output.
        """
        query = [("container", container), ("stdout", "true"), *(("command", word) for word in words)]
        return self._connection.execute(f"{_PODS.format(quote(namespace))}/{quote(pod)}/exec", query, seconds, longest)

    def _log(
        self, namespace: str, pod: str, query: Mapping[str, str], is_over: Callable[[], bool] = lambda: False
    ) -> str:
        """Return a log, or its first MiB. The kubelet may be hostile: it may ignore the limit, or never end."""
        seconds = self._connection.kubelet_seconds
        ends_at, content = time.monotonic() + seconds, bytearray()
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log"
        limited = {**query, "limitBytes": str(_MOST_LOG_BYTES)}
        response = self._connection.request("get", path, "pods/log", query=limited, by_kubelet=True)
        try:
            while len(content) < _MOST_LOG_BYTES and (chunk := response.read1(_MOST_LOG_BYTES - len(content))):
                content += chunk
                if is_over():
                    raise Endless("get pods/log: interrupted before its end")
                if time.monotonic() > ends_at:
                    sent = f"the kubelet sent {len(content)} bytes in {seconds:g} s, without an end"
                    raise Endless(f"get pods/log: {sent}")
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"get pods/log: {say(error)}") from error
        finally:
            response.close()  # a log that has not ended would keep its connection
        return content.decode("utf-8", "replace")


_TAIL_LINES = 200


class Listings(Pods):
    """A connection that only reads; a pod that it tries is never stored."""

    def objects(self, path: str, resource: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the objects below an API path, in pages, as plain API objects."""
        return self._pages(path, resource, query)

    def try_pod(self, namespace: str, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a pod as a dry run and return the pod as admission would change it.

        Raises Refused or Forbidden if the pod would not be created.
        """
        path = f"/api/v1/namespaces/{quote(namespace)}/pods"
        return self._json("create", path, "pods", pod, query={"dryRun": "All"})

    def read_log(self, namespace: str, pod: str, container: str, previous: bool) -> str:
        """Return the last lines of a container's log, or of its previous run if `previous` is set."""
        query = {"container": container, "previous": "true" if previous else "", "tailLines": str(_TAIL_LINES)}
        return self._log(namespace, pod, query)
