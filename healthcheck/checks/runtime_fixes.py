"""Fixes for a container runtime on each distribution, as commands that a user can paste.

The sources are the vendors' own pages:

- the GPU operator's toolkit variables (NVIDIA's guide "Getting Started"; for k0s, nvidia-container-toolkit pull 1016);
- `nvidia-ctk runtime configure --help` of 1.18;
- the pages on containerd of k3s, RKE2, MicroK8s, k0s, Canonical Kubernetes, Bottlerocket and nodeadm.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from msgspec import Struct

from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import (
    BOTTLEROCKET,
    CRIO_FOLDER,
    EKS_AL2023,
    GKE,
    K0S,
    K3S,
    K8S_SNAP,
    MICROK8S,
    RKE2,
    TALOS,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CRIO, DOCKER, ContainerRuntime

OPERATORS_FOLDER = "/usr/local/nvidia/"
"""Folder on the host where the GPU operator installs its toolkit (Helm value toolkit.installDir)."""
_HELM = "helm upgrade {release} nvidia/gpu-operator -n {namespace} --version {version} --reuse-values --set {values}"
_HELM_LIST = "\"$(helm list -n {} | awk '/gpu-operator-v[0-9]/ {{print ${}}}')\""
"""A column of the operator's line, by its chart: 1 the release, NF the version.

Without a version, Helm upgrades the operator and its drivers, too.
"""
_OPERATORS_POD = "delete this node's pod of nvidia-container-toolkit-daemonset: its replacement writes the file again"
_UNITS = {
    # A server node has the unit k3s, an agent node k3s-agent; systemctl accepts a pattern for both.
    K3S: "k3s*",
    RKE2: "rke2-*",
    K0S: "k0s*",
    MICROK8S: "snap.microk8s.daemon-containerd",
    K8S_SNAP: "snap.k8s.containerd",
}
"""Units for a runtime whose cgroup does not show the unit, as in a captured tree."""
_UNITS_OF_KINDS = {CRIO: "crio", DOCKER: "docker"}


def restart(runtime: ContainerRuntime) -> str:
    """Return the command that restarts the runtime, so that it reads its files again."""
    unit = runtime.unit.removesuffix(".service") or _UNITS.get(
        runtime.distribution, _UNITS_OF_KINDS.get(runtime.kind, "containerd")
    )
    if unit.startswith("snap."):
        return f"snap restart {shlex.quote(unit.removeprefix('snap.'))}"
    return f"systemctl restart {shlex.quote(unit)}"


def correct(runtime: ContainerRuntime, file: str = "") -> str:
    """Return the advice to edit a file, by default the runtime's own, so that the change persists.

    The advice contains no restart command: a restart before the edit would load the fault. If the running runtime must
    load the corrected file, the finding `RuntimeConfigNotLoaded` names the command.
    """
    file = file or runtime.path
    if runtime.distribution == BOTTLEROCKET:
        return "its files can't be changed: use `apiclient set`, or another variant of the image"
    if file == runtime.path and runtime.template:
        return f"correct {runtime.template}, the template of {file}, then restart the service that generates {file}"
    return f"correct {file}"


class _Ways(Struct, frozen=True):
    """Ways to add NVIDIA's handler: with the GPU operator, and with the toolkit on the host; '' if there is none."""

    operator: str
    host: str
    before: str = ""
    after: str = ""


def give_handler(runtime: ContainerRuntime, *, with_operator: bool = True) -> str:
    """Return the advice that adds NVIDIA's handler to this runtime.

    It uses the operator's toolkit if the node has it, otherwise it offers both toolkits, or that on the host alone.
    A toolkit on the host does not prove that the operator is absent.
    """
    ways = (_OF_KINDS.get(runtime.kind) or _OF_DISTRIBUTIONS.get(runtime.distribution, _standard))(runtime)
    named = [program.path for program in runtime.programs] + ([runtime.toolkit.path] if runtime.toolkit else [])
    named += [definition.binary for definition in runtime.definitions]
    if ways.operator and any(path.startswith(OPERATORS_FOLDER) for path in named):
        way = ways.operator
    elif ways.operator and with_operator:
        way = f"with the GPU operator {ways.operator}; with the toolkit on the host {ways.host}"
    else:
        way = ways.host
    return f"{ways.before}{way}{ways.after}"


def make_executable(path: str) -> str:
    return f"`chmod 0755 {shlex.quote(path)}`"


def set_mode(path: str) -> str:
    """Return the advice that sets the mode in the toolkit's configuration file.

    The GPU operator's file is rewritten by its DaemonSet.
    """
    if path.startswith(OPERATORS_FOLDER):
        return _OPERATORS_POD
    return f"`nvidia-ctk config --config={shlex.quote(path)} --set nvidia-container-runtime.mode=auto --in-place`"


def generate_spec(path: str) -> str:
    """Return the commands that generate a CDI specification.

    From 1.18 on the toolkit has a service for this, which writes to a default path.
    """
    if path.startswith(("/var/run/cdi/", "/run/cdi/")):
        return f"`systemctl restart nvidia-cdi-refresh` or `nvidia-ctk cdi generate --output={shlex.quote(path)}`"
    return f"`nvidia-ctk cdi generate --output={shlex.quote(path)}`"


def helm_values(
    values: Mapping[str, str], namespace: str = "gpu-operator", release: str = "", version: str = ""
) -> str:
    """Return a command that replaces the environment variables of the GPU operator's toolkit.

    A release or version that is not known is read from Helm when the command runs.
    """
    place = shlex.quote(namespace)
    pairs = (
        f"toolkit.env[{index}].name={name},toolkit.env[{index}].value={_escaped(value)}"
        for index, (name, value) in enumerate(values.items())
    )
    return _HELM.format(
        release=shlex.quote(release) if release else _HELM_LIST.format(place, 1),
        namespace=place,
        version=shlex.quote(version) if version else _HELM_LIST.format(place, "NF"),
        values=shlex.quote(",".join(pairs)),
    )


def _escaped(value: str) -> str:
    """Escape the characters that Helm interprets: backslash, comma and brace."""
    return "".join(f"\\{letter}" if letter in "\\,{}" else letter for letter in value)


def _standard(runtime: ContainerRuntime) -> _Ways:
    return _Ways(_operators(runtime, {}), _hosts(runtime))


def _operators(runtime: ContainerRuntime, more: dict[str, str]) -> str:
    values = {"CONTAINERD_CONFIG": runtime.path, "CONTAINERD_SOCKET": runtime.socket, **more}
    return f"`{helm_values(values)}`"


def _hosts(runtime: ContainerRuntime, options: str = "") -> str:
    configure = f"nvidia-ctk runtime configure --runtime=containerd --config={shlex.quote(runtime.path)}{options}"
    return f"`{configure} && {restart(runtime)}`"


def _ranchers(runtime: ContainerRuntime) -> _Ways:
    """Return the advice for k3s and RKE2.

    Both detect the program when they start, and define the handler themselves.
    """
    made = f"it writes {runtime.path} at each start, so edits there are lost"
    template = f" (other changes: {runtime.template})" if runtime.template else ""
    operator = f"`{helm_values({'CONTAINERD_SOCKET': runtime.socket})}`"
    host = "install the package nvidia-container-toolkit on the node"
    return _Ways(operator, host, after=f"; then `{restart(runtime)}`: {made}{template}")


def _microk8s(runtime: ContainerRuntime) -> _Ways:
    template = runtime.template or "containerd-template.toml in the same folder"
    lost = f"; {runtime.path} is generated from {template}, so edits there are lost"
    return _Ways("", "`microk8s enable nvidia`", after=lost)


def _k8s_snap(runtime: ContainerRuntime) -> _Ways:
    drop_in = f"{runtime.path.rpartition('/')[0]}/conf.d/99-nvidia.toml"
    operators = _operators(runtime, {"RUNTIME_DROP_IN_CONFIG": drop_in})
    hosts = _hosts(runtime, f" --drop-in-config={shlex.quote(drop_in)}")
    return _Ways(operators, hosts, after=f"; {runtime.path} belongs to the snap, so edits there are lost")


def _k0s(runtime: ContainerRuntime) -> _Ways:
    drop_in = "/etc/k0s/containerd.d/nvidia.toml"
    values = {
        "RUNTIME_CONFIG": drop_in,
        "RUNTIME_SOCKET": runtime.socket,
        "RUNTIME_EXECUTABLE_PATH": "/var/lib/k0s/bin/containerd",
    }
    configure = f"nvidia-ctk runtime configure --runtime=containerd --config={drop_in} --config-source=file"
    return _Ways(f"`{helm_values(values)}`", f"`{configure} && {restart(runtime)}`")


def _eks(runtime: ContainerRuntime) -> _Ways:
    lost = f"; nodeadm rewrites {runtime.path} at each boot"
    return _Ways(_operators(runtime, {}), _hosts(runtime), "start the node from the EKS AMI for NVIDIA, or ", lost)


def _crio(runtime: ContainerRuntime) -> _Ways:
    # The operator detects CRI-O automatically and writes to its standard folder. CRI-O does not read the toolkit's
    # default path (toolkit releases 1.18 to 1.19.0).
    drop_in = f"--drop-in-config={CRIO_FOLDER}/99-nvidia.toml"
    return _Ways(_OPERATORS_POD, f"`nvidia-ctk runtime configure --runtime=crio {drop_in} && {restart(runtime)}`")


def _docker(runtime: ContainerRuntime) -> _Ways:
    return _Ways("", f"`nvidia-ctk runtime configure --runtime=docker --set-as-default && {restart(runtime)}`")


def _fixed(host: str) -> Callable[[ContainerRuntime], _Ways]:
    return lambda _: _Ways("", host)


_READ_ONLY = "its files can't be changed"
_OF_KINDS: dict[str, Callable[[ContainerRuntime], _Ways]] = {CRIO: _crio, DOCKER: _docker}
_OF_DISTRIBUTIONS: dict[str, Callable[[ContainerRuntime], _Ways]] = {
    K3S: _ranchers,
    RKE2: _ranchers,
    MICROK8S: _microk8s,
    K8S_SNAP: _k8s_snap,
    K0S: _k0s,
    EKS_AL2023: _eks,
    BOTTLEROCKET: _fixed(
        f"start the node from Bottlerocket's variant for NVIDIA (`aws-k8s-VERSION-nvidia`): {_READ_ONLY}"
    ),
    TALOS: _fixed(f"boot Talos with the extension nvidia-container-toolkit-production: {_READ_ONLY}"),
    GKE: _fixed(
        "GKE nodes have no such handler and need none: remove runtimeClassName from the pods; GKE's device plugin "
        "injects the GPU"
    ),
}
