"""Every command that a finding on a container runtime prints, run unchanged against a real containerd.

The node is no worse afterwards. containerd starts, serves the CRI, and gives a pod its GPU in every earlier way. There
is no new finding.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.model import Finding
from gpu_healthcheck.healthcheck.model.node_facts import PodRuntimeClass
from gpu_healthcheck.healthcheck.probes.container_runtime import host_paths, nvidia_definitions, processes
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.cri import RuntimeStatus
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import AKS, EKS_AL2023, K3S, K8S_SNAP, RKE2
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    CONTAINERD,
    ContainerRuntime,
    Kubelet,
    RuntimeAnswer,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.loader import Loader
from gpu_healthcheck.sim.container_runtime import V2, V3, default, handler
from gpu_healthcheck.sim.containerd import RELEASES, RunningContainerd
from gpu_healthcheck.sim.real_node import nvidia_toolkit
from tests import tiers
from tests.checks.evidence import P5, finds
from tools.go_programs.build import NoProgramError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containerd and mount namespaces are root's alone")

SOCKET, MAIN, FOLDER = "/run/containerd/containerd.sock", "config.toml", "/etc/containerd"
PROGRAM, PACKAGES = f"{FOLDER}/bin/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime"
"""NVIDIA's, as the node's files name it, and as `nvidia-ctk` does."""
GROUP = [check for check in CHECKS if check.group == "7-container-runtime"]
EXPECTED = replace(P5, runtime_classes=(PodRuntimeClass("nvidia", "nvidia", for_this_node=True),))
RELEASES_OWN = {"1.7": (2, V2), "2.2": (3, V3), "2.3": (4, V3), "2.4": (4, V3)}
OPERATORS = """#!/bin/bash
# What the GPU operator's toolkit does on the node with the variables that a person gives it by Helm.
[ "$1" = list ] && echo "NAME NAMESPACE REVISION UPDATED STATUS CHART APP" &&
    echo "gpus gpu-operator 3 2026-11-22 12:00 deployed gpu-operator-v25.3.0 v25.3.0" &&
    echo "nics gpu-operator 1 2026-11-22 12:00 deployed network-operator-25.4.0 v25.4.0" && exit
[[ "$*" = "upgrade gpus nvidia/gpu-operator -n gpu-operator --version v25.3.0 --reuse-values"* ]] || exit 1
[[ "$*" =~ (CONTAINERD|RUNTIME)_SOCKET ]] || exit 1
[[ "$*" =~ (CONTAINERD|RUNTIME)_CONFIG,toolkit.env.[0-9]..value=([^,]+) ]] && file=${BASH_REMATCH[2]}
[[ "$*" =~ RUNTIME_DROP_IN_CONFIG,toolkit.env.[0-9]..value=([^,]+) ]] && drop_in=${BASH_REMATCH[1]}
nvidia-ctk runtime configure --runtime=containerd --config="${file:-/etc/containerd/config.toml}" \
    --drop-in-config="${drop_in:-/etc/containerd/conf.d/99-nvidia.toml}" && systemctl restart containerd
"""
_COMMAND = re.compile(r"`([^`]+)`")

Files = dict[str, str]


class Release(Struct, frozen=True):
    """Its newest schema, and the plugin with the table of handlers."""

    schema: int
    section: str

    def file(self, *tables: str, head: str = "") -> str:
        return f"{head}version = {self.schema}\n{''.join(tables)}"

    def runc(self, *, systemd_cgroup: bool = True) -> str:
        return default(self.section, "runc") + handler(self.section, "runc", systemd_cgroup=systemd_cgroup)

    def nvidia(self, *, systemd_cgroup: bool = True) -> str:
        return handler(self.section, "nvidia", PROGRAM, systemd_cgroup=systemd_cgroup)

    @property
    def good(self) -> Files:
        return {MAIN: self.file(self.runc(), self.nvidia())}


class State(Struct, frozen=True):
    """A node: its containerd was started with `ran`, and its files are `now` since then.

    `reasons`: the findings, and `commands`: the printed commands, by their first words. If `restarted`, it was started
    with `now` too.
    """

    ran: Callable[[Release], Files]
    now: Callable[[Release], Files]
    reasons: set[str]
    commands: tuple[str, ...] = ()
    restarted: bool = False
    mode: int = 0o755
    """Of NVIDIA's program."""


def good(release: Release) -> Files:
    return release.good


def without(release: Release) -> Files:
    return {MAIN: release.file(release.runc())}


def kata(release: Release) -> Files:
    return {MAIN: release.file(release.runc(), release.nvidia(), handler(release.section, "kata"))}


def disabled(release: Release) -> Files:
    return {MAIN: f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n{kata(release)[MAIN]}'}


def disabled_without(release: Release) -> Files:
    return {MAIN: f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n{without(release)[MAIN]}'}


def dockers(_: Release) -> Files:
    return {MAIN: 'disabled_plugins = ["cri"]\n'}


def undefined(release: Release) -> Files:
    return {MAIN: kata(release)[MAIN].replace(' = "runc"', ' = "crun"')}


def nvidia_undefined(release: Release) -> Files:
    return {MAIN: without(release)[MAIN].replace(' = "runc"', ' = "nvidia"')}


def malformed(release: Release) -> Files:
    return {MAIN: f"{release.good[MAIN]}[["}


def unimportable(release: Release) -> Files:
    return {MAIN: f'imports = ["/etc/containerd/gone.toml"]\n{release.good[MAIN]}'}


def removed_type(release: Release) -> Files:
    return {MAIN: kata(release)[MAIN].replace("io.containerd.runc.v2", "io.containerd.runc.v1")}


def cgroupfs(release: Release) -> Files:
    tables = (release.runc(), release.nvidia(systemd_cgroup=False))
    return {MAIN: release.file(*tables, handler(release.section, "kata"))}


def other_program(release: Release) -> Files:
    return {MAIN: release.good[MAIN].replace(PROGRAM, "/opt/gone/nvidia-container-runtime")}


def misplaced(release: Release) -> Files:
    other = V2 if release.section == V3 else V3
    return {MAIN: release.file(release.runc(), handler(other, "nvidia", PROGRAM))}


def swapped(release: Release) -> Files:
    """NVIDIA's handler is gone, and another one is new."""
    return {MAIN: release.file(release.runc(), handler(release.section, "kata"))}


RESTART, GIVE = ("systemctl restart",), ("helm upgrade", "nvidia-ctk runtime")
STATES = {
    "well": State(good, good, set()),
    "an edit that nobody loaded": State(good, kata, {"RuntimeConfigNotLoaded"}, RESTART),
    "no handler": State(without, without, {"NvidiaRuntimeMissing"}, GIVE),
    "a handler that is not kept": State(good, without, {"NvidiaRuntimeNotKept"}, GIVE),
    "one handler gone, one new": State(good, swapped, {"NvidiaRuntimeNotKept", "RuntimeConfigNotLoaded"}, GIVE),
    "CRI off, and an edit": State(good, disabled, {"RuntimeCriDisabled"}),
    "CRI off, and no handler kept": State(good, disabled_without, {"RuntimeCriDisabled"}),
    "CRI off, and no handler": State(without, disabled_without, {"RuntimeCriDisabled", "NvidiaRuntimeMissing"}),
    "Docker's own file": State(good, dockers, {"RuntimeCriDisabled"}),
    "Docker's own file, loaded": State(good, dockers, {"RuntimeCriDisabled", "NvidiaRuntimeMissing"}, restarted=True),
    "no such default, and an edit": State(good, undefined, {"DefaultRuntimeUndefined", "RuntimeConfigNotLoaded"}),
    "no such default, loaded": State(good, undefined, {"DefaultRuntimeUndefined"}, restarted=True),
    "no handler, and the default": State(
        without, nvidia_undefined, {"DefaultRuntimeUndefined", "NvidiaRuntimeMissing", "RuntimeConfigNotLoaded"}
    ),
    "no TOML": State(good, malformed, {"RuntimeConfigMalformed"}),
    "no such import": State(good, unimportable, {"RuntimeConfigMalformed"}),
    "no TOML, loaded": State(good, malformed, set(), restarted=True),
    "another driver, and an edit": State(good, cgroupfs, {"CgroupDriverMismatch", "RuntimeConfigNotLoaded"}),
    "a program that is not there": State(good, other_program, {"RuntimeBinaryMissing", "RuntimeConfigNotLoaded"}),
    "a program that nobody may run": State(good, good, {"RuntimeBinaryNotExecutable"}, ("chmod 0755",), mode=0o644),
    "a handler in a table that is not read": State(good, misplaced, {"RuntimeConfigMisplaced", "NvidiaRuntimeNotKept"}),
}


def _of_loader(answer: RuntimeAnswer) -> dict[str, Any]:
    return {"on_disk": answer.on_disk, "refusal": answer.refusal, "why_not_loaded": answer.why_not_loaded}


class Node:
    """The node of a test, as the checks see it."""

    def __init__(self, containerd: RunningContainerd, release: Release) -> None:
        self.containerd, self.release = containerd, release

    def be(self, state: State) -> None:
        assert self.containerd.start(self._whole(state.ran(self.release)))
        self.containerd.put(self._whole(state.now(self.release)))
        (self.containerd.root / PROGRAM.lstrip("/")).chmod(state.mode)
        if state.restarted:
            self.containerd.run("systemctl restart containerd")

    def facts(self) -> ContainerRuntime:
        root, path = self.containerd.root, f"{FOLDER}/{MAIN}"
        files, missing = nvidia_definitions.files_of(root, path, CONTAINERD)
        own = next((one for one in processes.find(Path("/")).processes if one.pid == self.containerd.pid), None)
        asked = ContainerRuntime(
            path,
            socket=SOCKET,
            pid=own.pid if own is not None else 0,
            since_boot=own.since_boot if own is not None else None,
            kubelet=Kubelet("kubelet", 1, systemd_cgroup=True),
            files=tuple(nvidia_definitions.with_times(root, files)),
            missing_imports=tuple(missing),
            definitions=tuple(nvidia_definitions.definitions(root, files, path, CONTAINERD)),
            for_gpus=True,
        )
        answer = RuntimeStatus(root).ask(asked)
        assert answer is not None
        loaded = Loader(Path("/")).load(asked)
        seen = replace(asked, live=answer.live, why_not_live=answer.why_not_live, **_of_loader(loaded))
        named = [handler.binary for handler in seen.used.handlers if handler.binary]
        return replace(seen, programs=tuple(host_paths.find_program(root, name) for name in named))

    def _whole(self, files: Files) -> Files:
        return {**files, "bin/nvidia-container-runtime": "#!/bin/sh\n"}


@pytest.fixture(scope="module", params=RELEASES)
def node(
    request: pytest.FixtureRequest, real_containerd: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    try:
        toolkit = nvidia_toolkit.program()
    except NoProgramError as error:
        tiers.cannot_run(f"NOT TESTED with NVIDIA's nvidia-ctk: {error}")
    folder = tmp_path_factory.mktemp("node")
    helm = folder / "helm"
    helm.write_text(OPERATORS)
    helm.chmod(0o755)
    with RunningContainerd(real_containerd(request.param), folder / "root", toolkit, helm) as containerd:
        package = containerd.root / PACKAGES.lstrip("/")
        package.parent.mkdir(parents=True)
        package.write_text("#!/bin/sh\n")
        package.chmod(0o755)
        yield Node(containerd, Release(*RELEASES_OWN[request.param]))


def findings(runtime: ContainerRuntime) -> list[Finding]:
    advised = (find for check in GROUP for find in finds(check, EXPECTED, {CONTAINER_RUNTIME: runtime}))
    return [finding for finding in advised if isinstance(finding, Finding)]


def printed(found: list[Finding]) -> list[str]:
    return list(dict.fromkeys(command for finding in found for command in _COMMAND.findall(finding.detail)))


def first_words(command: str) -> str:
    return " ".join(command.split()[:2])


def ways(runtime: ContainerRuntime) -> set[str]:
    """Return the ways in which a pod gets a GPU now, if it can be started at all."""
    if runtime.live is None:
        return set()
    return {name for name, program in runtime.running_handlers.items() if nvidia_definitions.is_nvidias(name, program)}


OWN_WAYS = {
    K8S_SNAP: GIVE,
    EKS_AL2023: GIVE,
    AKS: GIVE,
    K3S: ("helm upgrade", "systemctl restart"),
    RKE2: ("helm upgrade", "systemctl restart"),
}


@pytest.mark.parametrize("distribution", OWN_WAYS)
def test_no_distributions_own_command_makes_a_node_worse(distribution: str, node: Node) -> None:
    state = State(without, without, set())
    node.be(state)
    before = replace(node.facts(), distribution=distribution)
    commands = printed(findings(before))

    assert tuple(sorted({first_words(text) for text in commands})) == OWN_WAYS[distribution]
    for command in commands:
        node.be(state)
        done = node.containerd.run(command)
        after = node.facts()
        assert done.returncode == 0, (command, done.stderr)
        assert after.live is not None, command
        # k3s and RKE2 define the handler themselves when they start.
        assert ways(after) or distribution in (K3S, RKE2), command


@pytest.mark.parametrize("name", STATES)
def test_no_printed_command_makes_a_node_worse(name: str, node: Node) -> None:
    state = STATES[name]
    node.be(state)
    before = node.facts()
    found = findings(before)
    commands = printed(found)

    assert {finding.reason for finding in found} == state.reasons
    assert tuple(sorted({first_words(text) for text in commands})) == state.commands
    for command in commands:
        if command != commands[0]:
            node.be(state)
        done = node.containerd.run(command)
        after = node.facts()
        assert done.returncode == 0, (command, done.stderr)
        assert node.containerd.is_up, command
        assert after.live is not None or before.live is None, (command, after.why_not_live)
        assert ways(before) <= ways(after), command
        assert {finding.reason for finding in findings(after)} < state.reasons, command
