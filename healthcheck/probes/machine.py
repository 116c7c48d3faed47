"""Identity of this machine: from its firmware, and on EC2 from the instance metadata service."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.host.opening import read
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.text.printable import printable

_SECONDS = 1.0
_LONGEST = 128


def machine_id(root: Path) -> str:
    """Return the system UUID in lower case, as the kubelet reports it; else the OS's machine id; '' without both."""
    return _first_line(root / "sys/class/dmi/id/product_uuid").lower() or _first_line(root / "etc/machine-id")


def hostname(root: Path) -> str:
    """Return the hostname that the tree gives for its machine; '' if there is none."""
    for file in ("/etc/hostname", "/proc/sys/kernel/hostname"):
        try:
            name = host_files.read_whole(root, file, _LONGEST).decode("ascii", "replace").strip()
        except OSError:
            continue
        if name:
            return printable(name)
    return ""


def on_ec2(root: Path) -> bool:
    """Whether the firmware is Amazon's. Instance metadata is requested only on such machines."""
    vendor = _first_line(root / "sys/class/dmi/id/sys_vendor")
    hypervisor = _first_line(root / "sys/hypervisor/uuid")
    return vendor == "Amazon EC2" or hypervisor.startswith("ec2")


def instance_type(root: Path, endpoint: str) -> str:
    """Return the instance type from IMDSv2.

    Raises ProbeError on other machines, or without an answer in a second.
    """
    if not on_ec2(root):
        raise ProbeError("not an EC2 machine")
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _ask(f"{endpoint}/latest/api/token", "PUT", lifetime)
    answer = _ask(f"{endpoint}/latest/meta-data/instance-type", "GET", {"X-aws-ec2-metadata-token": token})
    if not answer or not answer.replace(".", "").replace("-", "").isalnum():
        raise ProbeError(f"instance metadata: {answer!r} is not an instance type")
    return answer


def _ask(url: str, method: str, headers: dict[str, str]) -> str:
    import urllib3  # noqa: PLC0415 - unused if the instance type is known

    # Ignore the environment's proxies: through a proxy, another machine's metadata would be returned.
    try:
        with urllib3.PoolManager(retries=False) as pool:
            answer = pool.request(method, url, headers=headers, timeout=_SECONDS, preload_content=False)
            text = answer.read(_LONGEST).decode("ascii", "replace").strip()
            answer.close()
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
        raise ProbeError(f"instance metadata: {error}") from error
    if answer.status != HTTPStatus.OK:
        raise ProbeError(f"instance metadata: HTTP {answer.status}")
    return text


def _first_line(path: Path) -> str:
    try:
        return printable(read(path, _LONGEST).decode("ascii", "replace").strip())
    except OSError:
        return ""
