"""The kubelet: its process, the socket of its runtime, and its cgroup driver.

A flag outranks the file of --config and its drop-ins. Drop-ins are all files `*.conf` below --config-dir, merged in the
order of their names. Kubernetes: kubelet-config-file, and mergeKubeletConfigurations of cmd/kubelet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from gpu_healthcheck.healthcheck.host import host_files
from gpu_healthcheck.healthcheck.probes.container_runtime import distributions, processes
from gpu_healthcheck.healthcheck.probes.container_runtime.origins import Origin
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import (
    K0S,
    K3S,
    KUBELET,
    KUBELITE,
    RKE2,
    Process,
    flag_of,
)
from gpu_healthcheck.healthcheck.text import documents
from gpu_healthcheck.healthcheck.text.documents import MalformedError, Table
from gpu_healthcheck.healthcheck.text.printable import printable

_PROGRAMS = (KUBELET, KUBELITE, K3S, RKE2, K0S)
"""Programs that are or contain the kubelet, the likeliest first. RKE2 and k0s start it as a separate process."""
_ROLES = ("server", "agent", "worker", "controller")
"""Roles of k3s, RKE2 and k0s. Without a role, the process is a short-lived command of a person."""
_ENDPOINT, _CGROUP_DRIVER = "containerRuntimeEndpoint", "cgroupDriver"
_SYSTEMD = "systemd"
_DROP_IN = ".conf"
_LONGEST = 1024


class KubeletSettings(Struct, frozen=True):
    """Settings of a kubelet. `endpoint` is the path of a socket on the host, `endpoint_source` where it is set.

    - `config` is the kubelet's file; '' without a file.
    - `systemd_cgroup`: whether the kubelet's cgroup driver is systemd; None if it is not set.
    - `is_default`: whether the endpoint is the default.
    """

    endpoint: str
    endpoint_source: str
    config: str = ""
    systemd_cgroup: bool | None = None
    is_default: bool = False


def choose(root: Path, found: Sequence[Process]) -> Process | None:
    """Return the host's kubelet. Other kubelets may run in containers, as in kind."""
    known = [process for process in found if _program(process) in _PROGRAMS and _stays(process)]
    ranks = {
        process.pid: (
            process.origin is not Origin.HOST or processes.is_elsewhere(root, process),
            _PROGRAMS.index(_program(process)),
            process.pid,
        )
        for process in known
    }
    return min(known, key=lambda process: ranks[process.pid], default=None)


def settings_of(root: Path, kubelet: Process) -> KubeletSettings:
    """Return the settings of the running kubelet."""
    layout = distributions.layout_of(distributions.by_kubelet(kubelet))
    own = processes.root_of(root, kubelet)
    arguments = kubelet.arguments
    config = flag_of(arguments, "config")
    options, files = _options(
        own, config, flag_of(arguments, "config-dir") or (layout.kubelet_folder if layout else "")
    )
    is_default = False
    if endpoint := flag_of(arguments, "container-runtime-endpoint"):
        source = f"--container-runtime-endpoint of {kubelet.name}"
    elif endpoint := _text(options, _ENDPOINT):
        source = f"{_ENDPOINT} in {files[_ENDPOINT]}"
    else:
        endpoint, source = layout.socket if layout else distributions.STANDARD_SOCKET, f"default of {kubelet.name}"
        is_default = True
    driver = flag_of(arguments, "cgroup-driver") or _text(options, _CGROUP_DRIVER)
    socket = printable(processes.socket_path(own, endpoint), _LONGEST)
    return KubeletSettings(
        socket, printable(source, _LONGEST), config, driver == _SYSTEMD if driver else None, is_default
    )


def _options(root: Path, config: str, folder: str) -> tuple[Table, dict[str, str]]:
    """Return the effective options of the file and its drop-ins, and the file of each. Unreadable files are skipped."""
    drop_ins = [path for path in host_files.walk(root, folder) if path.endswith(_DROP_IN)] if folder else []
    options: Table = {}
    files: dict[str, str] = {}
    for file in filter(None, (config, *drop_ins)):
        try:
            table = documents.yaml_object(host_files.read(root, file)[0])
        except (OSError, MalformedError):
            continue
        for key in {_ENDPOINT, _CGROUP_DRIVER} & table.keys():
            options[key], files[key] = table[key], file
    return options, files


def _program(process: Process) -> str:
    """Return the name of the program. k3s appends its role to the process name: `k3s-server`."""
    return K3S if process.name.startswith(f"{K3S}-") else process.name


def _stays(process: Process) -> bool:
    if process.name in (K3S, RKE2, K0S):
        return any(word in _ROLES for word in " ".join(process.arguments).split())
    return True


def _text(table: Table, key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""
