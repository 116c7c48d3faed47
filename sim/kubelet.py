"""Small stand-in for the kubelets of a fleet: scheduled pods run as processes on this machine.

A container's command starts with its variables, the token of its pod's account, `HOST_ROOT` of the simulated node, and
that node's programs first in its PATH; its output is a file. A container without a command represents any workload: it
runs until it is deleted, which kills it. Init containers, then one container per pod; no images, volumes, probes or
cgroups. A failed init container ends its pod.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpu_healthcheck.sim.control_plane import ControlPlane, ControlPlaneError
from gpu_healthcheck.sim.control_plane.files import write_kubeconfig
from gpu_healthcheck.sim.node import DCGM_PROGRAMS

_POLL_SECONDS = 0.1
_TOKEN_SECONDS = 7 * 86400
"""Lifetime of a pod's token: it is not renewed, and it ends with its pod."""
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]\Z")
_KILLED = 128 + signal.SIGTERM
_BOUND = "/api/v1/pods?fieldSelector=spec.nodeName!="
_GPU = "nvidia.com/gpu"
_BY_KEY = "application/strategic-merge-patch+json"
_NO_ANSWER = (OSError, ControlPlaneError, ValueError)
"""The API server does not answer, or the requested object is missing, such as a pod deleted before its token."""


def put_program(folder: Path, words: Sequence[str]) -> None:
    """Set this command as `gpu-healthcheck` of an image."""
    folder.mkdir(exist_ok=True)
    new = folder / "new"
    new.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
    new.chmod(0o755)
    new.rename(folder / "gpu-healthcheck")


@dataclass
class _Pod:
    """Pod started here. `process` None: a workload without a command."""

    object: dict[str, Any]
    process: subprocess.Popen[bytes] | None
    inits: list[dict[str, Any]] = field(default_factory=list)
    """Init containers that have not ended; the first of them runs."""
    killed_at: float = 0.0
    ended: bool = False
    unreported: dict[str, Any] = field(default_factory=dict)
    """Latest status that is not yet written to the API server."""

    @property
    def node(self) -> str:
        return str(self.object["spec"]["nodeName"])

    @property
    def path(self) -> str:
        metadata = self.object["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    @property
    def gpus(self) -> int:
        container = self.object["spec"]["containers"][0]
        return int((container.get("resources") or {}).get("requests", {}).get(_GPU, 0))


@dataclass
class Kubelets:
    """Kubelets of all Nodes: `with Kubelets(plane, folder):` runs the pods. `roots`: HOST_ROOT by node name."""

    plane: ControlPlane
    folder: Path
    roots: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every container in addition to those of its pod."""
    programs: Path | None = None
    """Image: a folder whose programs take precedence over this machine's."""
    most_gpus: Counter[str] = field(default_factory=Counter)
    """Maximum number of GPUs that containers held at the same time, by node name."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Value of `status.hostIP` by node name."""
    refuses: dict[str, str] = field(default_factory=dict)
    """Message with which a device plugin rejects each pod, by node name."""
    stuck: set[str] = field(default_factory=set)
    """Nodes on which no container is started, for example because of pending volumes."""

    def __enter__(self) -> Self:
        self._pods: dict[str, _Pod] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        for pod in self._pods.values():
            if pod.process is not None and pod.process.poll() is None:
                os.killpg(pod.process.pid, signal.SIGKILL)
                pod.process.wait()

    def held_on(self, node: str) -> list[tuple[str, str, int]]:
        """Return the pods with GPUs on the node: namespace, name and number."""
        pods = [pod for pod in list(self._pods.values()) if pod.node == node and pod.gpus and not pod.ended]
        names = [pod.object["metadata"] for pod in pods]
        return [(about["namespace"], about["name"], pod.gpus) for pod, about in zip(pods, names, strict=True)]

    def kill_on(self, node: str, word: str) -> None:
        """End the containers on the node whose command has this word, as the kernel does when memory is short."""
        for pod in list(self._pods.values()):
            words = pod.object["spec"]["containers"][0].get("command", ())
            if pod.node == node and word in words and pod.process is not None:
                os.killpg(pod.process.pid, signal.SIGKILL)

    def log(self, pod_name: str) -> str:
        return (self.folder / f"{pod_name}.log").read_text()

    def kill(self, node: str) -> None:
        """Send SIGKILL to all processes of this Node, as an out-of-memory killer does."""
        for pod in list(self._pods.values()):
            if pod.node == node and pod.process is not None and not pod.ended:
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.killpg(pod.process.pid, signal.SIGKILL)

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            try:
                listed = self.plane.request("GET", _BOUND)
                if listed.status == http.client.OK:
                    self._synchronize({pod["metadata"]["uid"]: pod for pod in listed.body["items"]})
            except _NO_ANSWER:
                continue  # real kubelets continue too

    def _synchronize(self, present: Mapping[str, dict[str, Any]]) -> None:
        for uid, pod in present.items():
            if uid in self._pods:
                self._pods[uid].object = pod
            elif self._is_to_start(pod):
                self._pods[uid] = self._started(pod)
        for known in self._pods.values():
            self._advance(known)
        held: Counter[str] = Counter()
        for known in self._pods.values():
            held[known.node] += 0 if known.ended else known.gpus
        self.most_gpus |= held
        self._report_pods(present)

    def _report_pods(self, present: Mapping[str, dict[str, Any]]) -> None:
        """Report the pods.

        A failed report is repeated in the next round, because a Job waits for the end of its pod.
        """
        for uid, known in list(self._pods.items()):
            if uid not in present and known.ended:
                del self._pods[uid]
            elif known.unreported and self._is_reported(known):
                known.unreported = {}
        # A pod that was never started, such as one created only for its token, is removed too.
        for uid, pod in present.items():
            started = self._pods.get(uid)
            if _is_leaving(pod) and (started is None or (started.ended and not started.unreported)):
                self._remove(pod)

    def _is_to_start(self, pod: Mapping[str, Any]) -> bool:
        is_pending = pod.get("status", {}).get("phase") == "Pending" and not _is_leaving(pod)
        return is_pending and pod["spec"]["nodeName"] not in self.stuck

    def _started(self, pod: dict[str, Any]) -> _Pod:
        if why := self.refuses.get(pod["spec"]["nodeName"]):
            refusal = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": why}
            return _Pod(pod, None, ended=True, unreported=refusal)
        inits = list(pod["spec"].get("initContainers", []))
        container = (inits or pod["spec"]["containers"])[0]
        process, now = self._run_container(pod, container), _now()
        if inits:
            return _Pod(pod, process, inits, unreported={"phase": "Pending", "startTime": now})
        return _Pod(
            pod, process, unreported=_status(pod, "Running", {"running": {"startedAt": now}}) | {"startTime": now}
        )

    def _run_container(self, pod: Mapping[str, Any], container: Mapping[str, Any]) -> subprocess.Popen[bytes] | None:
        words = [*container.get("command", []), *container.get("args", [])]
        if not words:
            return None
        with (self.folder / f"{pod['metadata']['name']}.log").open("ab") as log:
            return subprocess.Popen(
                words,
                cwd=self.folder,
                env=self._environment(pod, container),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self, pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
        node, kubeconfig = pod["spec"]["nodeName"], self.folder / f"{pod['metadata']['name']}.kubeconfig"
        token = self.plane.pod_token(pod, seconds=_TOKEN_SECONDS)
        write_kubeconfig(kubeconfig, url=self.plane.url, ca_file=self.plane.ca_file, token=token)
        own = {
            entry["name"]: self._field(pod, entry["valueFrom"]["fieldRef"]["fieldPath"])
            if entry.get("valueFrom")
            else entry.get("value", "")
            for entry in container.get("env", [])
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        path = f"{self.programs}:{path}" if self.programs else path
        root = {}
        if node in self.roots:
            path = f"{self.roots[node] / DCGM_PROGRAMS}:{path}"
            root = {"HOST_ROOT": str(self.roots[node])}
        state = {"STATE_DIR": str(self.folder / f"{pod['metadata']['name']}.state")}  # not this machine's folder
        return {"PATH": path, "KUBECONFIG": str(kubeconfig), **state, **self.environment, **own, **root}

    def _field(self, pod: Mapping[str, Any], path: str) -> str:
        """Return a field of the pod for a variable, such as the completion index of an indexed Job's pod."""
        metadata = pod["metadata"]
        if keyed := _KEYED.match(path):
            return str(metadata.get(keyed[1], {}).get(keyed[2], ""))
        return {
            "spec.nodeName": str(pod["spec"]["nodeName"]),
            "metadata.name": str(metadata["name"]),
            "metadata.namespace": str(metadata["namespace"]),
            "metadata.uid": str(metadata["uid"]),
            "status.hostIP": self.addresses.get(pod["spec"]["nodeName"], "127.0.0.1"),
        }[path]

    def _advance(self, pod: _Pod) -> None:
        """End a deleted pod, by force after its grace period, and report its end."""
        if pod.ended:
            return
        code = pod.process.poll() if pod.process else None
        if _is_leaving(pod.object):
            grace = float(pod.object["metadata"].get("deletionGracePeriodSeconds") or 0)
            if pod.process is None:
                code = _KILLED
            elif code is None and not pod.killed_at:
                pod.killed_at = time.monotonic()
                os.killpg(pod.process.pid, signal.SIGTERM)
            elif code is None and time.monotonic() - pod.killed_at > grace:
                os.killpg(pod.process.pid, signal.SIGKILL)
        if code == 0 and pod.inits and not _is_leaving(pod.object):
            del pod.inits[0]
            pod.process = self._run_container(pod.object, (pod.inits or pod.object["spec"]["containers"])[0])
            if not pod.inits:
                pod.unreported |= _status(pod.object, "Running", {"running": {"startedAt": _now()}})
        elif code is not None:
            pod.ended = True
            exit_code = code if code >= 0 else 128 - code
            state = {"terminated": {"exitCode": exit_code, "finishedAt": _now(), "reason": "Error" if code else "Done"}}
            pod.unreported |= _status(pod.object, "Failed" if code else "Succeeded", state, pod.inits)

    def _is_reported(self, pod: _Pod) -> bool:
        # Conditions of others stay, such as the one that an eviction sets.
        answer = self.plane.request("PATCH", f"{pod.path}/status", {"status": pod.unreported}, content_type=_BY_KEY)
        return answer.status in (http.client.OK, http.client.NOT_FOUND)

    def _remove(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}?gracePeriodSeconds=0"
        self.plane.request("DELETE", path)


def _status(
    pod: Mapping[str, Any], phase: str, state: Mapping[str, Any], inits: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the pod's status; `state` is that of the first of these init containers, or of its container."""
    spec, ready = pod["spec"], "running" in state
    container = (inits or spec["containers"])[0]
    entry = {"name": container["name"], "image": "", "imageID": "", "ready": ready, "restartCount": 0, "state": state}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": _now()}
    if not inits:
        return {"phase": phase, "containerStatuses": [entry], "conditions": [condition]}
    waits = {"waiting": {"reason": "PodInitializing"}}
    main = {**entry, "name": spec["containers"][0]["name"], "ready": False, "state": waits}
    return {"phase": phase, "initContainerStatuses": [entry], "containerStatuses": [main], "conditions": [condition]}


def _is_leaving(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
