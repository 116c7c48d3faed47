"""GPU allocations that the kubelet knows, from its socket and, for claims (DRA), from its checkpoint.

The socket reports claims since Kubernetes 1.34, and never reports claims that only an init container uses. A pod with a
GPU from such a claim, and without a process on this GPU yet, would otherwise not be visible. The checkpoint is read in
the format of Kubernetes 1.32, the first version that NVIDIA's DRA driver supports.
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
    """Return owner, resource and count of GPU allocations.

    Raises ProbeError: failure to check never means that there are none.
    """
    pods = read_pod_resources(host)
    entries = {
        (claim.namespace, claim.name) for pod in pods for container in pod.containers for claim in container.claims
    }
    kept = [claim for claim in read_claims(host.root) if claim[:2] not in entries]
    return [*holds_gpus(pods), *((f"the claim {where}/{name}", DRA_DRIVER, count) for where, name, count in kept)]


def read_claims(root: Path) -> list[tuple[str, str, int]]:
    """Return namespace, name and number of GPUs of each claim, also of claims that a driver still prepares.

    Raises ProbeError.
    """
    return [claim for file in FILES for claim in _claims(root, file)]


def are_claimed(root: Path) -> bool:
    """Whether NVIDIA's DRA driver manages this machine's GPUs.

    The driver then has a folder next to the kubelet's folder. Raises ProbeError if that is unknown.
    """
    return any(host_files.is_there(root, f"{Path(file).parent}/plugins/{DRA_DRIVER}") for file in FILES)


def _claims(root: Path, file: str) -> Iterator[tuple[str, str, int]]:
    try:
        raw, _ = host_files.read(root, file)
    except (FileNotFoundError, NotADirectoryError):
        return  # a kubelet without claims
    except OSError as error:
        raise ProbeError(f"{file}: {error.strerror}") from error
    try:
        for claim in json.loads(json.loads(raw)["Data"])["ClaimInfoStateList"] or []:
            if (count := _gpus(claim)) is not None:
                yield _word(claim["Namespace"]), _word(claim["ClaimName"]), count
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ProbeError(f"{file} is not a readable checkpoint: {type(error).__name__}: {error}") from error


def _gpus(claim: Mapping[str, Any]) -> int | None:
    """Return the number of GPUs of a claim; None if it is not for GPUs."""
    drivers = claim["DriverState"]
    if DRA_DRIVER not in drivers:
        return None
    return len((drivers[DRA_DRIVER] or {}).get("Devices") or ()) or 1


def _word(text: object) -> str:
    return printable(str(text), _LONGEST)
