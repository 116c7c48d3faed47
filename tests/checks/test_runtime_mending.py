"""Fixes of a container runtime, row by row: the commands are complete, and a path never escapes its quotes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import runtime_fixes
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import (
    AKS,
    BOTTLEROCKET,
    EKS_AL2023,
    K0S,
    K3S,
    K8S_SNAP,
    KUBEADM,
    MICROK8S,
    RKE2,
    TALOS,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    CRIO,
    ContainerRuntime,
    NvidiaDefinition,
    RuntimeBinary,
    Toolkit,
)

FILE, SOCKET = "/etc/containerd/config.toml", "/run/containerd/containerd.sock"
SNAP = "/var/lib/k8s-containerd/k8s-containerd"
SNAP_FILE, SNAP_DROP_IN = f"{SNAP}/etc/containerd/config.toml", f"{SNAP}/etc/containerd/conf.d/99-nvidia.toml"
HELM = (
    "helm upgrade \"$(helm list -n gpu-operator | awk '/gpu-operator-v[0-9]/ {print $1}')\" nvidia/gpu-operator "
    "-n gpu-operator --version \"$(helm list -n gpu-operator | awk '/gpu-operator-v[0-9]/ {print $NF}')\" "
    "--reuse-values --set "
)
HOSTS, OPERATORS = "/usr/bin/nvidia-container-runtime", "/usr/local/nvidia/toolkit/nvidia-container-runtime"


def runtime_at(path: str = FILE, **more: Any) -> ContainerRuntime:
    base = ContainerRuntime(path, socket=SOCKET)
    toolkit = more.pop("of", "")
    programs = (RuntimeBinary(toolkit, toolkit, executable=True),) if toolkit else ()
    return replace(base, programs=programs, **more)


def give(runtime: ContainerRuntime) -> str:
    return runtime_fixes.give_handler(runtime)


def values(**env: str) -> str:
    pairs = (f"toolkit.env[{n}].name={key},toolkit.env[{n}].value={env[key]}" for n, key in enumerate(env))
    return f"`{HELM}'{','.join(pairs)}'`"


CRIOS_DROP_IN = "--drop-in-config=/etc/crio/crio.conf.d/99-nvidia.toml"
STANDARD = values(CONTAINERD_CONFIG=FILE, CONTAINERD_SOCKET=SOCKET)
CONFIGURE = f"`nvidia-ctk runtime configure --runtime=containerd --config={FILE} && systemctl restart containerd`"


EITHER = f"with the GPU operator {STANDARD}; with the toolkit on the host {CONFIGURE}"


@pytest.mark.parametrize("distribution", ["", KUBEADM, AKS])
@pytest.mark.parametrize(
    ("toolkit", "message"),
    [
        (OPERATORS, STANDARD),
        (HOSTS, EITHER),
        ("", EITHER),
    ],
)
def test_advice_uses_the_toolkit_that_the_node_has(distribution: str, toolkit: str, message: str) -> None:
    assert give(runtime_at(distribution=distribution, of=toolkit)) == message


def test_toolkit_is_known_by_its_configuration_and_by_definitions() -> None:
    other = NvidiaDefinition("/x", "nvidia", "/x", binary=OPERATORS)
    operators = Toolkit("/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml")

    assert give(runtime_at(definitions=(other,))) == STANDARD
    assert give(runtime_at(toolkit=operators)) == STANDARD
    assert give(runtime_at(toolkit=Toolkit("/etc/nvidia-container-runtime/config.toml"))) == EITHER


@pytest.mark.parametrize(
    ("runtime", "parts"),
    [
        (
            runtime_at(SNAP_FILE, distribution=K8S_SNAP, socket=f"{SNAP}/run/containerd/containerd.sock", of=OPERATORS),
            [
                values(
                    CONTAINERD_CONFIG=SNAP_FILE,
                    CONTAINERD_SOCKET=f"{SNAP}/run/containerd/containerd.sock",
                    RUNTIME_DROP_IN_CONFIG=SNAP_DROP_IN,
                ),
                f"{SNAP_FILE} belongs to the snap, so edits there are lost",
            ],
        ),
        (
            runtime_at(SNAP_FILE, distribution=K8S_SNAP, of=HOSTS),
            [f"--config={SNAP_FILE} --drop-in-config={SNAP_DROP_IN} && snap restart k8s.containerd`"],
        ),
        (
            runtime_at("/k3s/config.toml", distribution=K3S, unit="k3s.service", template="/k3s/config-v3.toml.tmpl"),
            [
                "with the toolkit on the host install the package nvidia-container-toolkit",
                values(CONTAINERD_SOCKET=SOCKET),
                "then `systemctl restart k3s`",
                "edits there are lost (other changes: /k3s/config-v3.toml.tmpl)",
            ],
        ),
        (runtime_at(distribution=K3S), ["`systemctl restart 'k3s*'`"]),
        (runtime_at(distribution=RKE2, unit="rke2-agent.service"), ["`systemctl restart rke2-agent`"]),
        (
            runtime_at(distribution=MICROK8S, template="/args/containerd-template.toml"),
            ["`microk8s enable nvidia`", "generated from /args/containerd-template.toml", "are lost"],
        ),
        (
            runtime_at(distribution=K0S, of=OPERATORS),
            [
                values(
                    RUNTIME_CONFIG="/etc/k0s/containerd.d/nvidia.toml",
                    RUNTIME_SOCKET=SOCKET,
                    RUNTIME_EXECUTABLE_PATH="/var/lib/k0s/bin/containerd",
                )
            ],
        ),
        (runtime_at(distribution=K0S, of=HOSTS), ["--config=/etc/k0s/containerd.d/nvidia.toml", "restart 'k0s*'`"]),
        (runtime_at(distribution=BOTTLEROCKET), ["aws-k8s-VERSION-nvidia", "can't be changed"]),
        (runtime_at(distribution=TALOS), ["nvidia-container-toolkit-production", "can't be changed"]),
        (runtime_at(distribution=EKS_AL2023, of=HOSTS), ["EKS AMI for NVIDIA", CONFIGURE, "at each boot"]),
        (
            runtime_at(kind=CRIO, of=HOSTS),
            [f"`nvidia-ctk runtime configure --runtime=crio {CRIOS_DROP_IN} && systemctl restart crio`"],
        ),
        (runtime_at(kind=CRIO, of=OPERATORS), ["delete this node's pod of nvidia-container-toolkit-daemonset"]),
    ],
)
def test_advice_depends_on_the_distribution(runtime: ContainerRuntime, parts: list[str]) -> None:
    message = give(runtime)
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("runtime", "command"),
    [
        (runtime_at(), "systemctl restart containerd"),
        (runtime_at(unit="crio.service", kind=CRIO), "systemctl restart crio"),
        (runtime_at(unit="snap.microk8s.daemon-containerd.service"), "snap restart microk8s.daemon-containerd"),
        (runtime_at(distribution=MICROK8S), "snap restart microk8s.daemon-containerd"),
        (runtime_at(distribution=RKE2), "systemctl restart 'rke2-*'"),
        (runtime_at(unit="odd; reboot.service"), "systemctl restart 'odd; reboot'"),
    ],
)
def test_restart_command_names_the_unit(runtime: ContainerRuntime, command: str) -> None:
    assert runtime_fixes.restart(runtime) == command


@pytest.mark.parametrize(
    ("runtime", "file", "message"),
    [
        (runtime_at(), FILE, f"correct {FILE}"),
        (
            runtime_at(template="/t"),
            FILE,
            f"correct /t, the template of {FILE}",
        ),
        (runtime_at(template="/t"), "/etc/drop-in.toml", "correct /etc/drop-in.toml"),
        (runtime_at(distribution=BOTTLEROCKET), FILE, "its files can't be changed: use `apiclient set`"),
    ],
)
def test_file_is_corrected_where_the_change_persists(runtime: ContainerRuntime, file: str, message: str) -> None:
    assert runtime_fixes.correct(runtime, file).startswith(message)


@pytest.mark.parametrize("path", ["/a b", "/$(reboot)", "/a'b", "/a,b{c}", "/`x`"])
def test_path_is_quoted_in_commands(path: str) -> None:
    words = shlex.split(runtime_fixes.helm_values({"CONTAINERD_CONFIG": path}))
    escaped = "".join(f"\\{letter}" if letter in ",{}" else letter for letter in path)
    assert words[-1] == f"toolkit.env[0].name=CONTAINERD_CONFIG,toolkit.env[0].value={escaped}"
    assert shlex.split(runtime_fixes.make_executable(path).strip("`"))[-1] == path
    configured = give(runtime_at(path, distribution=K8S_SNAP)).rpartition("`nvidia-ctk ")[2].partition(" && ")[0]
    assert shlex.split(configured)[-2] == f"--config={path}"


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/etc/cdi/nvidia.yaml", "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"),
        ("/var/run/cdi/nvidia.yaml", "`systemctl restart nvidia-cdi-refresh` or `nvidia-ctk cdi generate"),
    ],
)
def test_specification_is_generated_again_at_its_path(path: str, command: str) -> None:
    assert runtime_fixes.generate_spec(path).startswith(command)
