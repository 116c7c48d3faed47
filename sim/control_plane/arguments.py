"""The command lines of the control plane's programs; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NO_DEVICE_TAINT_RULES = "--runtime-config=resource.k8s.io/v1/devicetaintrules=false"
"""Argument of an API server that does not serve them, as by default up to 1.36."""
NO_DEVICE_TAINT_CONTROLLER = "--feature-gates=DRADeviceTaintRules=false"
"""Argument of a controller-manager without their controller."""
_BETA_POLICIES = (
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    "--feature-gates=MutatingAdmissionPolicy=true",
)
MUTATING_POLICIES = {"1.31": (), "1.32": (), "1.33": (), "1.34": _BETA_POLICIES, "1.35": _BETA_POLICIES}
"""Arguments of the API server for MutatingAdmissionPolicies by Kubernetes version: `v1beta1` with them, none without.

Later versions serve `v1`.
"""
_NO_ELECTION = ("--leader-elect=false", "--secure-port=0")


def etcd(folder: Path, client_port: int, peer_port: int) -> list[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in (client_port, peer_port))
    return [
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",  # the data need not survive a crash of the machine
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
    ]


def kube_apiserver(folder: Path, port: int, etcd_port: int) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        "--endpoint-reconciler-type=none",  # pods can't use a loopback address
        f"--cert-dir={folder / 'certificates'}",
        f"--service-account-key-file={folder / 'signing.key'}",
        f"--service-account-signing-key-file={folder / 'signing.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={folder / 'audit-policy.json'}",
        f"--audit-log-path={folder / 'audit.log'}",
        "--audit-log-maxsize=4000",  # MB: requests in a rotated log could not be counted
    ]


def kube_controller_manager(folder: Path, *, kubelets: bool = False) -> list[str]:
    """Return the arguments. `kubelets`: whether real kubelets renew the Nodes."""
    # Without kubelets, the lifecycle controller would set each Node to NotReady and evict its pods.
    controllers = "*" if kubelets else "*,-node-lifecycle-controller"
    return [
        f"--kubeconfig={folder / 'admin.kubeconfig'}",
        *_NO_ELECTION,
        "--use-service-account-credentials",
        f"--service-account-private-key-file={folder / 'signing.key'}",
        f"--root-ca-file={folder / 'certificates' / 'apiserver.crt'}",
        f"--controllers={controllers}",
    ]


def kube_scheduler(folder: Path) -> list[str]:
    return [f"--kubeconfig={folder / 'admin.kubeconfig'}", *_NO_ELECTION]
