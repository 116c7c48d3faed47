"""Who holds GPUs by the kubelet: by its socket, and for claims (DRA) by the checkpoint that it keeps of them as well.

The socket tells of claims from Kubernetes 1.34 on, and of those that only an init container uses never. A pod that has
a GPU by such a claim and no process on it yet would be seen nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from healthcheck.host import host_files
from healthcheck.model import Host, ProbeError
from healthcheck.probes.pod_resources import DRA_DRIVER, SOCKETS, holds_gpus, read_pod_resources
from healthcheck.text.printable import printable

FILES = tuple(f"{Path(socket).parents[1]}/dra_manager_state" for socket in SOCKETS)
_LONGEST = 253


def read_gpu_holders(host: Host) -> list[tuple[str, str, int]]:
    """Who, by which resource and how many. Raises ProbeError: not to have looked is never to have found nobody."""
    pods = read_pod_resources(host)
    told = {(one.namespace, one.name) for pod in pods for container in pod.containers for one in container.claims}
    kept = [one for one in read_claims(host.root) if one[:2] not in told]
    return [*holds_gpus(pods), *((f"the claim {where}/{name}", DRA_DRIVER, number) for where, name, number in kept)]


def read_claims(root: Path) -> list[tuple[str, str, int]]:
    """Namespace and name of each claim of GPUs, and how many it has; those too that a driver still prepares.

    Raises ProbeError.
    """
    return [one for file in FILES for one in _claims(root, file)]


def are_claimed(root: Path) -> bool:
    """Whether NVIDIA's DRA driver gives out the GPUs of this machine: it has a folder beside the kubelet's own.

    Raises ProbeError where nobody can tell.
    """
    return any(host_files.is_there(root, f"{Path(file).parent}/plugins/{DRA_DRIVER}") for file in FILES)


def _claims(root: Path, file: str) -> Iterator[tuple[str, str, int]]:
    try:
        raw, _ = host_files.read(root, file)
    except (FileNotFoundError, NotADirectoryError):
        return  # a kubelet that knows no claims
    except OSError as error:
        raise ProbeError(f"{file}: {error.strerror}") from error
    try:
        for claim in _entries(json.loads(raw)):
            if (number := _gpus(claim)) is not None:
                yield _word(claim["Namespace"]), _word(claim["ClaimName"]), number
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ProbeError(f"{file} is no checkpoint that can be read: {type(error).__name__}: {error}") from error


def _entries(checkpoint: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """As 1.32 and newer write them, or those before it."""
    if "Data" in checkpoint:
        return json.loads(checkpoint["Data"])["ClaimInfoStateList"] or []
    if checkpoint["version"] != "v1":
        raise ValueError(f"version {_word(checkpoint['version'])}")
    return checkpoint.get("entries") or []


def _gpus(claim: Mapping[str, Any]) -> int | None:
    """None: it is not for GPUs. Before 1.31 a claim had one driver, and no devices by name."""
    drivers = claim.get("DriverState") or {claim["DriverName"]: {}}
    if DRA_DRIVER not in drivers:
        return None
    return len((drivers[DRA_DRIVER] or {}).get("Devices") or ()) or 1


def _word(text: object) -> str:
    return printable(str(text), _LONGEST)
