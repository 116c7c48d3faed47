"""Fixes for a container runtime on each distribution, as commands that a user can paste.

The sources are the vendors' own pages:

- the GPU operator's toolkit variables (NVIDIA's guide "Getting Started"; for k0s, nvidia-container-toolkit pull 1016);
- `nvidia-ctk runtime configure --help` of 1.18;
- the pages on containerd of k3s, RKE2, MicroK8s, k0s, Canonical Kubernetes, Bottlerocket and nodeadm.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from healthcheck.probes.container_runtime.distributions import (
    BOTTLEROCKET,
    CRIO_FOLDER,
    EKS_AL2023,
    K0S,
    K3S,
    K8S_SNAP,
    MICROK8S,
    RKE2,
    TALOS,
)
from healthcheck.probes.container_runtime.facts import CRIO, DOCKER, ContainerRuntime

OPERATORS_FOLDER = "/usr/local/nvidia/"
"""Folder on the host where the GPU operator installs its toolkit (Helm value toolkit.installDir)."""
_HELM = 'helm upgrade "$(helm list -qn {0})" nvidia/gpu-operator -n {0} --reuse-values'
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


def give_handler(runtime: ContainerRuntime) -> str:
    """Return the advice that adds NVIDIA's handler to this runtime.

    It uses the toolkit that the node has, or offers both toolkits.
    """
    if runtime.kind in _OF_KINDS:
        return _OF_KINDS[runtime.kind](runtime)
    special = _OF_DISTRIBUTIONS.get(runtime.distribution)
    if special is not None:
        return special(runtime)
    return _with_either(runtime, _operators(runtime, {}), _hosts(runtime))


def make_executable(path: str) -> str:
    return f"`chmod 0755 {shlex.quote(path)}`"


def set_mode(path: str) -> str:
    """Return the advice that sets the mode in the toolkit's configuration file.

    The GPU operator's file is rewritten by its DaemonSet.
    """
    if path.startswith(OPERATORS_FOLDER):
        return "delete this node's pod of nvidia-container-toolkit-daemonset: its replacement rewrites the file"
    return f"`nvidia-ctk config --config={shlex.quote(path)} --set nvidia-container-runtime.mode=auto --in-place`"


def generate_spec(path: str) -> str:
    """Return the commands that generate a CDI specification.

    From 1.18 on the toolkit has a service for this, which writes to a default path.
    """
    if path.startswith(("/var/run/cdi/", "/run/cdi/")):
        return f"`systemctl restart nvidia-cdi-refresh` or `nvidia-ctk cdi generate --output={shlex.quote(path)}`"
    return f"`nvidia-ctk cdi generate --output={shlex.quote(path)}`"


def helm_values(values: Mapping[str, str], namespace: str = "gpu-operator") -> str:
    """Return a command that replaces the environment variables of the GPU operator's toolkit."""
    pairs = (
        f"toolkit.env[{place}].name={name},toolkit.env[{place}].value={_escaped(value)}"
        for place, (name, value) in enumerate(values.items())
    )
    return f"{_HELM.format(shlex.quote(namespace))} --set {shlex.quote(','.join(pairs))}"


def _escaped(value: str) -> str:
    """Escape the characters that Helm interprets: backslash, comma and brace."""
    return "".join(f"\\{letter}" if letter in "\\,{}" else letter for letter in value)


def _with_either(runtime: ContainerRuntime, operators: str, hosts: str) -> str:
    """Return the operator's advice if its toolkit is on the node, otherwise the advice for operator and host.

    The operator's toolkit has a separate folder. A toolkit on the host does not prove that the operator is absent.
    """
    named = [program.path for program in runtime.programs] + ([runtime.toolkit.path] if runtime.toolkit else [])
    named += [definition.binary for definition in runtime.definitions]
    if any(path.startswith(OPERATORS_FOLDER) for path in named):
        return operators
    return f"with the GPU operator {operators}; with the toolkit on the host {hosts}"


def _operators(runtime: ContainerRuntime, more: dict[str, str]) -> str:
    values = {"CONTAINERD_CONFIG": runtime.path, "CONTAINERD_SOCKET": runtime.socket, **more}
    return f"`{helm_values(values)}`"


def _hosts(runtime: ContainerRuntime) -> str:
    configure = f"nvidia-ctk runtime configure --runtime=containerd --config={shlex.quote(runtime.path)}"
    return f"`{configure} && {restart(runtime)}`"


def _ranchers(runtime: ContainerRuntime) -> str:
    """Return the advice for k3s and RKE2.

    Both detect the program when they start, and define the handler themselves.
    """
    made = f"it writes {runtime.path} at each start, so edits there are lost"
    template = f" (other changes: {runtime.template})" if runtime.template else ""
    socket = helm_values({"CONTAINERD_SOCKET": runtime.socket})
    install = f"install nvidia-container-toolkit on the host, or the GPU operator with `{socket}`"
    return f"{install}; then `{restart(runtime)}`: {made}{template}"


def _microk8s(runtime: ContainerRuntime) -> str:
    template = runtime.template or "containerd-template.toml in the same folder"
    return f"`microk8s enable nvidia`; {runtime.path} is generated from {template}, so edits there are lost"


def _k8s_snap(runtime: ContainerRuntime) -> str:
    drop_in = f"{runtime.path.rpartition('/')[0]}/conf.d/99-nvidia.toml"
    operators = _operators(runtime, {"RUNTIME_DROP_IN_CONFIG": drop_in})
    configure = f"nvidia-ctk runtime configure --runtime=containerd --config={shlex.quote(runtime.path)}"
    hosts = f"`{configure} --drop-in-config={shlex.quote(drop_in)} && {restart(runtime)}`"
    return f"{_with_either(runtime, operators, hosts)}; {runtime.path} belongs to the snap, so edits there are lost"


def _k0s(runtime: ContainerRuntime) -> str:
    drop_in = "/etc/k0s/containerd.d/nvidia.toml"
    values = {
        "RUNTIME_CONFIG": drop_in,
        "RUNTIME_SOCKET": runtime.socket,
        "RUNTIME_EXECUTABLE_PATH": "/var/lib/k0s/bin/containerd",
    }
    configure = f"nvidia-ctk runtime configure --runtime=containerd --config={drop_in} --config-source=file"
    return _with_either(runtime, f"`{helm_values(values)}`", f"`{configure} && {restart(runtime)}`")


def _bottlerocket(_: ContainerRuntime) -> str:
    return (
        "start the node from Bottlerocket's variant for NVIDIA (`aws-k8s-VERSION-nvidia`): its files can't be changed"
    )


def _eks(runtime: ContainerRuntime) -> str:
    either = _with_either(runtime, _operators(runtime, {}), _hosts(runtime))
    return f"start the node from the EKS AMI for NVIDIA, or {either}; nodeadm rewrites {runtime.path} at each boot"


def _talos(_: ContainerRuntime) -> str:
    return "boot Talos with the extension nvidia-container-toolkit-production: its files can't be changed"


def _crio(runtime: ContainerRuntime) -> str:
    # CRI-O does not read the toolkit's default path (toolkit releases 1.18 to 1.19.0).
    drop_in = f"--drop-in-config={CRIO_FOLDER}/99-nvidia.toml"
    hosts = f"`nvidia-ctk runtime configure --runtime=crio {drop_in} && {restart(runtime)}`"
    # The operator detects CRI-O automatically and writes to its standard folder.
    return _with_either(
        runtime, "`kubectl -n gpu-operator rollout restart ds/nvidia-container-toolkit-daemonset`", hosts
    )


_Advice = Callable[[ContainerRuntime], str]
_OF_KINDS: dict[str, _Advice] = {CRIO: _crio}
_OF_DISTRIBUTIONS: dict[str, _Advice] = {
    K3S: _ranchers,
    RKE2: _ranchers,
    MICROK8S: _microk8s,
    K8S_SNAP: _k8s_snap,
    K0S: _k0s,
    BOTTLEROCKET: _bottlerocket,
    EKS_AL2023: _eks,
    TALOS: _talos,
}
