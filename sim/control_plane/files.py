"""Input files of a control plane: key, tokens, audit policy, kubeconfig; and free ports."""

from __future__ import annotations

import base64
import json
import random
import secrets
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # User, request and status are enough to count requests; bodies only cost time.
    "rules": [{"level": "Metadata"}],
    "omitStages": ["RequestReceived"],
}

_API_SERVER = "apiserver.config.k8s.io/v1"


def limited_admission(priority_classes: Sequence[str]) -> dict[str, Any]:
    """Return an API server's admission configuration that limits pods of these PriorityClasses to covering quotas."""
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": list(priority_classes)}
    limited = [{"resource": "pods", "matchScopes": [scope]}]
    quota = {"apiVersion": _API_SERVER, "kind": "ResourceQuotaConfiguration", "limitedResources": limited}
    plugins = [{"name": "ResourceQuota", "configuration": quota}]
    return {"apiVersion": _API_SERVER, "kind": "AdmissionConfiguration", "plugins": plugins}


# SEC1 of an EC key on P-256 without its public half, which the reader computes (RFC 5915):
# SEQUENCE { INTEGER 1, OCTET STRING (32 bytes), [0] OID prime256v1 }
_EC_HEAD = bytes.fromhex("303102010104 20")
_EC_TAIL = bytes.fromhex("a00a06082a8648ce3d030107")


def write_signing_key(path: Path) -> None:
    """Write a new key for ServiceAccount tokens, so that none is committed and openssl is not needed."""
    # The leading zero keeps the number below the order of the curve.
    number = b"\0" + secrets.token_bytes(31)
    encoded = base64.encodebytes(_EC_HEAD + number + _EC_TAIL).decode()
    path.write_text(f"-----BEGIN EC PRIVATE KEY-----\n{encoded}-----END EC PRIVATE KEY-----\n")
    path.chmod(0o600)


def write_kubeconfig(path: Path, *, url: str, ca_file: Path, token: str) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "sim",
        "clusters": [{"name": "sim", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "sim", "user": {"token": token}}],
        "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim"}}],
    }
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    return path


def free_ports(count: int) -> list[int]:
    """Return loopback ports below the kernel's ephemeral range.

    While our server is stopped, any connection may use a port of that range as its *source* port; the server could
    then not restart on the same port.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randint(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
