"""Steps for pods that name a handler which CRI-O or Docker does not have: neither reads containerd's files. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from gpu_healthcheck.diagnosis.facts.commands import command, in_namespace
from gpu_healthcheck.diagnosis.facts.components import version_of
from gpu_healthcheck.diagnosis.facts.node_services import distribution_of, runtime_kind
from gpu_healthcheck.diagnosis.facts.safe_steps import BARE, save_and_recreate
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import CRIO_FOLDER, CRIO_UNREAD, OPENSHIFT
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CRIO
from gpu_healthcheck.healthcheck.text.naming import named

_HOOKS = "oci/hooks.d"
_VERSION, _FIRST_WITH_HANDLERS = re.compile(r"v?1\.(\d{1,3})\."), 18
"""Minor version of the toolkit, and that since which it adds handlers by default: its pull request 1314."""
_MODE, _RUNTIME = "CRIO_CONFIG_MODE", "RUNTIME"
_DEPLOY = "nvidia.com/gpu.deploy.container-toolkit"
_TEMPLATED = ("deployment", "statefulset", "daemonset")
_REMOVE = json.dumps([{"op": "remove", "path": "/spec/template/spec/runtimeClassName"}])
_POD = {"spec": {"nodeName": None, "runtimeClassName": None, "overhead": None}}
"""Patch of a saved pod: it then has neither a node nor a class."""
_MOST_NAMED = 4


def variables_of(toolkit: Workload) -> dict[str, str]:
    """Return the variables of the toolkit's own containers."""
    containers = toolkit.spec.containers if toolkit.spec is not None else ()
    return {name: value for container in containers if not container.init for name, value in container.env.items()}


def hook_evidence(node: Node | None, toolkits: Sequence[Workload]) -> tuple[str, ...]:
    """Return signs that the node's CRI-O injects GPUs by NVIDIA's OCI hook, so that there is no handler; () if none."""
    if node is None or runtime_kind(node) != CRIO:
        return ()
    for toolkit in toolkits:
        if installs_hook(toolkit) is False or writes_for_containerd(toolkit):
            return ()
        does = "installs" if is_hook_certain(toolkits) else "before v1.18 installs"
        return (f"{toolkit.subject} {does} an OCI hook for CRI-O, no handler",)
    if distribution_of(node) == OPENSHIFT:
        return (f"{node.subject} runs OpenShift: NVIDIA's toolkit installs an OCI hook there, no handler, without CDI",)
    if not node.system:
        return (f"{node.subject} is not visible: before v1.18 NVIDIA's toolkit installs an OCI hook for CRI-O",)
    return ()


def installs_hook(toolkit: Workload) -> bool | None:
    """Whether the toolkit installs a hook instead of handlers, by its variable or its version; None if unknown.

    The operator sets the variable since 25.10: to `config`, or without CDI to `hook`.
    """
    mode = variables_of(toolkit).get(_MODE)
    version = _VERSION.match(version_of(toolkit.spec)) if toolkit.spec is not None else None
    if mode is not None or version is None:
        return None if mode is None else mode == "hook"
    return int(version[1]) < _FIRST_WITH_HANDLERS


def is_hook_certain(toolkits: Sequence[Workload]) -> bool:
    """Whether the toolkit itself shows that it installs a hook, not only the distribution."""
    return any(installs_hook(toolkit) for toolkit in toolkits)


def hooks_folder(toolkit: Workload | None) -> str:
    """Return the host's folder of hooks that the toolkit mounts; '' if it mounts none."""
    volumes = toolkit.spec.host_volumes.values() if toolkit is not None and toolkit.spec is not None else ()
    return next((path for path in volumes if path.rstrip("/").endswith(_HOOKS)), "")


def writes_for_containerd(toolkit: Workload) -> bool:
    """Whether the toolkit is set up for containerd."""
    env = variables_of(toolkit)
    if _RUNTIME in env:
        return env[_RUNTIME] == "containerd"
    volumes = toolkit.spec.host_volumes if toolkit.spec is not None else {}
    return "containerd-config" in volumes or "CONTAINERD_CONFIG" in env


def without_class(snapshot: Snapshot, pods: Sequence[Pod]) -> Iterator[str]:
    """Yield the steps that take runtimeClassName out of the objects that people wrote for these pods."""
    written = list(dict.fromkeys(snapshot.line(pod.meta)[-1] for pod in pods))
    yield f"Take the line runtimeClassName out of {named(written, _MOST_NAMED) or 'the pods'}"
    for subject in written[:_MOST_NAMED]:
        kind, _, path = subject.partition("/")
        namespace, _, name = path.rpartition("/")
        if kind in _TEMPLATED:
            patch = command("kubectl", *in_namespace(namespace), "patch", kind, name, "--type=json", "-p", _REMOVE)
            yield f"This also replaces its pods: {patch}"
        elif kind == "pod":
            yield from save_and_recreate(namespace, kind, [name], BARE, _POD)
        elif kind == "job":
            yield f"A Job's template can't be changed: delete {name} and create it from its manifest without the line"


def hook_steps(
    snapshot: Snapshot, node: Node, pods: Sequence[Pod], toolkit: Workload | None, by_hand: str
) -> Iterator[str]:
    """Yield the steps on a node whose CRI-O has NVIDIA's hook instead of a handler."""
    if toolkit is None or installs_hook(toolkit) is None:
        look = (
            "`crio config` on the node: it lists NVIDIA's handler, or a folder in hooks_dir with oci-nvidia-hook.json"
        )
        yield f"See which of two ways NVIDIA's toolkit has prepared, by {look}. With the hook, no pod needs a class:"
    yield from without_class(snapshot, pods)
    if distribution_of(node) != OPENSHIFT:
        folder = hooks_folder(toolkit) or "/run/containers/oci/hooks.d"
        yield (
            "If a container then has no GPU, CRI-O does not read the hook: `crio config` on the node must list "
            f"{folder} in hooks_dir; then `systemctl restart crio`"
        )
    if toolkit is None or installs_hook(toolkit) is None:
        yield "If it is to be a handler, as since v1.18 of the toolkit, leave the pods as they are:"
        yield from crio_steps(node, toolkit, "" if distribution_of(node) == OPENSHIFT else by_hand)


def crio_steps(node: Node | None, toolkit: Workload | None, by_hand: str) -> Iterator[str]:
    """Yield the steps that give a handler to a node's CRI-O."""
    if toolkit is not None and not writes_for_containerd(toolkit):
        log = command("kubectl", "-n", toolkit.meta.namespace, "logs", f"daemonset/{toolkit.meta.name}")
        yield f"Check in the toolkit's log that it wrote CRI-O's configuration: {log}"
    elif by_hand:
        if toolkit is not None and node is not None:
            off = command("kubectl", "label", "node", node.name, f"{_DEPLOY}=false", "--overwrite")
            yield f"The operator's toolkit is set up for containerd on all nodes; keep it off this one: {off}"
        yield by_hand
    restart = "`systemctl restart crio`"
    if node is not None and distribution_of(node) == OPENSHIFT:
        restart = command("oc", "debug", f"node/{node.name}", "--", "chroot", "/host", "systemctl", "restart", "crio")
    yield (
        f"On the node `crio config` must show the handler: CRI-O reads {CRIO_FOLDER}, not {CRIO_UNREAD}. Move NVIDIA's "
        f"file if it is there, then {restart}"
    )
