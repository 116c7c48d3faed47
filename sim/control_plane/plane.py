"""A real etcd and kube-apiserver on loopback: the environment of the product in tests and bench."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import subprocess
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import urllib3

from gpu_healthcheck.sim import cluster_objects
from gpu_healthcheck.sim.control_plane import arguments
from gpu_healthcheck.sim.control_plane.build import ControlPlaneError, binaries, minor_of
from gpu_healthcheck.sim.control_plane.daemon import AfterUs, Daemon
from gpu_healthcheck.sim.control_plane.files import (
    AUDIT_POLICY,
    free_ports,
    limited_admission,
    write_kubeconfig,
    write_signing_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from kubernetes.client import ApiClient

READY_SECONDS = 600
_FIELD_MANAGER = "gpu-healthcheck"
ANSWER_SECONDS = 180.0
"""Deadline of a request, longer than any response on a busy machine; only a hanging server exceeds it."""
MERGE_PATCH = "application/merge-patch+json"
_CONNECTIONS = 16
"""Connections that are kept for further requests of as many threads."""
_RETRIES = urllib3.Retry(1, connect=0, redirect=0, other=0, allowed_methods={"GET"}, respect_retry_after_header=False)
"""A read is sent again if the server has closed the kept connection."""


@dataclass(frozen=True)
class Answer:
    """Answer of the API server to one request."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """Return the message of a rejection."""
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)


class ControlPlane:
    """Empty cluster: `with ControlPlane() as plane:` starts it and removes everything at the end."""

    def __init__(
        self, *, controllers: bool = False, scheduler: bool = False, limited_priorities: Sequence[str] = ()
    ) -> None:
        """Set the options. `limited_priorities`: PriorityClasses whose pods need a ResourceQuota, as on GKE."""
        self._controllers = controllers
        self._scheduler = scheduler
        self._limited_priorities = limited_priorities
        self._bin = binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-healthcheck-control-plane-"))
        self._after_us = AfterUs(self.folder)
        self._daemons: dict[str, Daemon] = {}
        self.admin_token = secrets.token_hex(16)
        self._api_port, self._etcd_port, self._peer_port = free_ports(3)
        self.url = f"https://127.0.0.1:{self._api_port}"
        self.ca_file = self.folder / "certificates" / "apiserver.crt"
        self._pools: dict[int, urllib3.PoolManager] = {}
        """Connections by process: a forked one must not use those of its parent."""
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.audit_log = self.folder / "audit.log"

    # --- start and end

    def __enter__(self) -> Self:
        try:
            self._write_files()
            self._start("etcd", arguments.etcd(self.folder, self._etcd_port, self._peer_port))
            self._serve()
            if self._controllers:
                self.start_controllers()
            if self._scheduler:
                self._start("kube-scheduler", arguments.kube_scheduler(self.folder))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill every program and remove the folder; calling it again does nothing."""
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
        self._daemons.clear()
        self._after_us.finish()

    def _serve(self, *more: str) -> None:
        api = arguments.kube_apiserver(self.folder, self._api_port, self._etcd_port)
        api += arguments.MUTATING_POLICIES.get(minor_of(self._bin), ())
        if self._limited_priorities:
            api.append(f"--admission-control-config-file={self.folder / 'admission.json'}")
        self._start("kube-apiserver", [*api, *more])
        self._wait_until_served("/readyz")

    def serve_device_taints(self, *, served: bool) -> None:
        """Restart the API server on the same port, with or without DeviceTaintRules."""
        self._daemons.pop("kube-apiserver").kill()
        self._serve(*(() if served else (arguments.NO_DEVICE_TAINT_RULES,)))

    def control_device_taints(self, *, controlled: bool) -> None:
        """Restart the controller-manager, with or without its controller of DeviceTaintRules."""
        self._daemons.pop("kube-controller-manager").kill()
        gates = () if controlled else (arguments.NO_DEVICE_TAINT_CONTROLLER,)
        self._start("kube-controller-manager", [*arguments.kube_controller_manager(self.folder), *gates])

    def start_controllers(self) -> None:
        """Start the controller-manager and wait until pods can be created; assets of setup-envtest have none."""
        self._start("kube-controller-manager", arguments.kube_controller_manager(self.folder))
        self._wait_until_served(cluster_objects.DEFAULT_ACCOUNT)

    @property
    def has_device_taints(self) -> bool:
        """Whether the cluster serves DeviceTaintRules: Kubernetes 1.37 or newer."""
        return self.request("GET", cluster_objects.DEVICE_TAINT_RULES).status == http.client.OK

    @property
    def mutating_policies(self) -> str:
        """Return the version of MutatingAdmissionPolicies that the cluster serves: `v1`, `v1beta1` or ''."""
        flags = arguments.MUTATING_POLICIES.get(minor_of(self._bin))
        return "v1" if flags is None else "v1beta1" if flags else ""

    @property
    def has_dra(self) -> bool:
        """Whether our manifests' claims of devices work: Kubernetes 1.34 or newer."""
        return self.request("GET", "/apis/resource.k8s.io/v1").status == http.client.OK

    @property
    def has_controllers(self) -> bool:
        """Whether a controller-manager can be started here."""
        return (self._bin / "kube-controller-manager").is_file()

    # --- requests

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        content_type: str = MERGE_PATCH,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """Send one raw request, as admin without a token; status and message stay visible.

        A watch needs timeoutSeconds in its path and returns the list of its events. A write with a token uses our field
        manager unless the path names another.
        """
        if token and method in ("POST", "PATCH", "PUT") and "fieldManager=" not in path:
            path += f"{'&' if '?' in path else '?'}fieldManager={_FIELD_MANAGER}"
        headers = {"Authorization": f"Bearer {token or self.admin_token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type if method == "PATCH" else "application/json"
        text = None if body is None else json.dumps(body)
        try:
            reply = self._connections().request(
                method, f"{self.url}{path}", body=text, headers=headers, timeout=seconds
            )
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(str(error)) from error
        message = reply.data.decode()
        is_json = reply.headers.get("Content-Type", "").startswith("application/json")
        if "watch=true" in path and reply.status == http.client.OK:
            return Answer(reply.status, [json.loads(line) for line in message.splitlines()])
        return Answer(reply.status, json.loads(message) if is_json else message)

    def _connections(self) -> urllib3.PoolManager:
        if (pid := os.getpid()) not in self._pools:
            self._pools[pid] = urllib3.PoolManager(maxsize=_CONNECTIONS, ca_certs=str(self.ca_file), retries=_RETRIES)
        return self._pools[pid]

    def kubectl(self, *words: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess calls it
        """Return the standard output of kubectl as admin; an error contains its standard error."""
        command = [str(self._bin / "kubectl"), f"--kubeconfig={self.kubeconfig}", *words]
        # Ignore the caller's kubectl preferences and cache.
        environment = os.environ | {"KUBERC": "off", "KUBECACHEDIR": str(self.folder / "kubectl-cache")}
        done = subprocess.run(command, input=input, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ControlPlaneError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def api(self, kubeconfig: Path | None = None) -> ApiClient:
        """Return a client of the Python package for the admin or the given kubeconfig."""
        from kubernetes import config  # noqa: PLC0415 - loading takes 0.4 s, and build and kubectl do not need it

        connect = cast("Callable[..., ApiClient]", config.new_client_from_config)  # the package leaves it untyped
        return connect(config_file=str(kubeconfig or self.kubeconfig))

    def audit(self, since: datetime | None = None) -> Iterator[dict[str, Any]]:
        """Yield one event per request in the order of their responses; for a watch, at its start."""
        seen: set[str] = set()
        with self.audit_log.open() as log:
            for line in log:
                if not line.endswith("\n"):  # still being written
                    return
                event: dict[str, Any] = json.loads(line)
                if since is not None and datetime.fromisoformat(event["requestReceivedTimestamp"]) < since:
                    continue
                if event["auditID"] not in seen:
                    seen.add(event["auditID"])
                    yield event

    # --- objects of the cluster

    def create_node(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        instance_type: str = "p5.48xlarge",
        taints: Sequence[Mapping[str, str]] = (),
        devices: Mapping[str, str] | None = None,
        provider_id: str | None = None,
    ) -> dict[str, Any]:
        """Create a Ready Node as a kubelet registers it, by default of EC2."""
        node = cluster_objects.node(name, labels or {}, instance_type, datetime.now(UTC), devices or {})
        if provider_id is not None:
            node["spec"]["providerID"] = provider_id
        self._expect("POST", "/api/v1/nodes", node)
        # Admission gives every new Node the taint not-ready; the controller that lifts it does not run here.
        return self._expect("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": list(taints)}})

    def agent_token(self, node_name: str, *, seconds: int = 3600) -> str:
        """Return a token as the node's kubelet issues it to the agent; it expires when the pod is deleted."""
        pods = f"/api/v1/namespaces/{cluster_objects.NAMESPACE}/pods"
        pod = cluster_objects.agent_pod(node_name)
        answer = self.request("POST", pods, pod)
        if answer.status == http.client.CONFLICT:
            answer = self.request("GET", f"{pods}/{pod['metadata']['name']}")
        _must_succeed("POST", pods, answer)
        return self.pod_token(answer.body, seconds=seconds)

    def pod_token(self, pod: Mapping[str, Any], *, seconds: int = 3600) -> str:
        """Return a token as the kubelet issues it to this pod."""
        account, namespace = pod["spec"].get("serviceAccountName", "default"), pod["metadata"]["namespace"]
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self._expect("POST", path, cluster_objects.token_request(pod, seconds))["status"]["token"])

    def account_kubeconfig(self, account: str) -> Path:
        """Write a kubeconfig with a token of our account without a pod."""
        token = self.kubectl("create", "token", account, f"--namespace={cluster_objects.NAMESPACE}").strip()
        path = self.folder / f"account-{account}.kubeconfig"
        return write_kubeconfig(path, url=self.url, ca_file=self.ca_file, token=token)

    def agent_kubeconfig(self, node_name: str, *, seconds: int = 3600) -> Path:
        """Write a kubeconfig with the agent's token; the manifests must be applied before."""
        token = self.agent_token(node_name, seconds=seconds)
        path = self.folder / f"agent-{node_name}.kubeconfig"
        return write_kubeconfig(path, url=self.url, ca_file=self.ca_file, token=token)

    # --- outages

    def pause(self) -> None:
        """Let the API server hang: the kernel accepts connections, and no answer is sent."""
        self._daemons["kube-apiserver"].pause()

    def resume(self) -> None:
        self._daemons["kube-apiserver"].resume()

    def stop_api(self) -> None:
        """Stop the API server: connections are refused. etcd keeps the data."""
        self._daemons["kube-apiserver"].kill()

    def start_api(self, *, new_certificate: bool = False) -> None:
        """Start the API server on the same port with the same data, optionally with another authority."""
        self.stop_api()
        clients = [daemon for name, daemon in self._daemons.items() if name not in _CORE]
        if new_certificate:
            for file in self.ca_file.parent.iterdir():
                file.unlink()
            for daemon in clients:  # they have read the old authority
                daemon.kill()
        self._daemons["kube-apiserver"].start()
        self._wait_until_served("/readyz")
        for daemon in clients:  # in a cluster, programs that ended in the outage are restarted
            daemon.start()

    # --- inside

    def _write_files(self) -> None:
        write_signing_key(self.folder / "signing.key")
        (self.folder / "tokens.csv").write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        (self.folder / "tokens.csv").chmod(0o600)
        (self.folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
        (self.folder / "admission.json").write_text(json.dumps(limited_admission(self._limited_priorities)))
        write_kubeconfig(self.kubeconfig, url=self.url, ca_file=self.ca_file, token=self.admin_token)

    def _start(self, name: str, flags: Sequence[str]) -> None:
        program = self._bin / name
        if not program.is_file():
            raise ControlPlaneError(f"{self._bin} has no {name}; our own build, without KUBEBUILDER_ASSETS, has it")
        if name not in self._daemons:
            self._daemons[name] = Daemon(name, [str(program), *flags], self.folder)
        self._daemons[name].start()

    def _wait_until_served(self, path: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and all(self._daemons[name].is_running for name in _CORE):
            try:
                if self.request("GET", path).status == http.client.OK:
                    return
            except OSError:  # no certificate yet, or no listener
                pass
            time.sleep(0.05)
        tails = "\n".join(daemon.tail() for daemon in self._daemons.values())
        raise ControlPlaneError(f"the control plane did not become ready\n{tails}")

    def _expect(self, method: str, path: str, body: Any) -> dict[str, Any]:
        answer = self.request(method, path, body)
        _must_succeed(method, path, answer)
        assert isinstance(answer.body, dict)
        return answer.body


_CORE = ("etcd", "kube-apiserver")


def _must_succeed(method: str, path: str, answer: Answer) -> None:
    if answer.status >= http.client.BAD_REQUEST:
        raise ControlPlaneError(f"{method} {path}: {answer.status} {answer.message}")
