"""Which container runtime the kubelet uses, and what lies around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from healthcheck.model import Host
from healthcheck.probes.runtime.container_runtime import read_container_runtime
from healthcheck.probes.runtime.facts import ContainerRuntime
from healthcheck.probes.runtime.processes import Process, endpoint_of, find, kubelet_of
from sim.container_runtime import DISTRIBUTIONS, IMAGE_MADE, NVIDIA_V2, OPERATORS_PROGRAM, V2, handler
from sim.node import SimulatedNode

STANDARD = "/run/containerd/containerd.sock"
FILE = "/etc/containerd/config.toml"
SNAP = "/var/lib/k8s-containerd/k8s-containerd"
K3S_SOCKET = "/run/k3s/containerd/containerd.sock"
MICROK8S_SOCKET = "/var/snap/microk8s/common/run/containerd.sock"
# Distribution: the kubelet's socket, who says so, the file, and the handlers of its containerd.
EXPECTED = {
    "kubeadm": (STANDARD, "--container-runtime-endpoint of kubelet", FILE, "runc nvidia"),
    "eks-al2023": (STANDARD, "containerRuntimeEndpoint in /etc/kubernetes/kubelet/config.json", FILE, "nvidia"),
    "eks-al2023-containerd-1": (
        STANDARD,
        "containerRuntimeEndpoint in /etc/kubernetes/kubelet/config.json",
        FILE,
        "runc nvidia",
    ),
    "bottlerocket": (
        STANDARD,
        "containerRuntimeEndpoint in /etc/kubernetes/kubelet/config",
        FILE,
        "nvidia nvidia-cdi nvidia-legacy",
    ),
    "k3s": (K3S_SOCKET, "default of k3s-agent", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "runc nvidia"),
    "rke2": (
        K3S_SOCKET,
        "--container-runtime-endpoint of kubelet",
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        "runc nvidia",
    ),
    "microk8s": (
        MICROK8S_SOCKET,
        "default of kubelite",
        "/var/snap/microk8s/6089/args/containerd.toml",
        "runc nvidia nvidia-container-runtime",
    ),
    "k8s-snap": (
        f"{SNAP}/run/containerd/containerd.sock",
        "--container-runtime-endpoint of kubelet",
        f"{SNAP}/etc/containerd/config.toml",
        "runc nvidia",
    ),
    "aks": (STANDARD, "--container-runtime-endpoint of kubelet", FILE, "runc nvidia-container-runtime"),
    "gke": (STANDARD, "default of kubelet", FILE, "runc"),
}


def read(node: SimulatedNode) -> ContainerRuntime:
    return read_container_runtime(Host(node.root))


def runnable(node: SimulatedNode) -> list[str]:
    return [one.named for one in read(node).programs if one.executable]


def handlers(seen: ContainerRuntime) -> str:
    assert seen.used is not None
    return " ".join(one.name for one in seen.used.handlers)


def test_every_distribution_that_is_simulated_is_expected_here() -> None:
    assert sorted(EXPECTED) == sorted(DISTRIBUTIONS)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_kubelets_containerd_is_found_by_the_processes(distribution: str, node: SimulatedNode) -> None:
    node.run_kubernetes(distribution)

    seen = read(node)

    assert seen.used is not None
    assert (seen.socket, seen.known_from, seen.used.path, handlers(seen)) == EXPECTED[distribution]
    assert seen.used.problem is None
    assert {file.written for file in seen.used.files} == {IMAGE_MADE}
    assert seen.started is not None


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_on_a_captured_tree_it_is_assumed_from_the_layout(distribution: str, node: SimulatedNode) -> None:
    node.run_kubernetes(distribution)
    node.hide_host_processes()

    seen = read(node)

    assert seen.used is not None
    assert (seen.socket, handlers(seen)) == (EXPECTED[distribution][0], EXPECTED[distribution][3])
    assert seen.known_from.startswith("assumed")
    assert seen.started is None


def test_on_a_host_without_a_kubelet_nothing_is_assumed(node: SimulatedNode) -> None:
    node.stop_kubernetes()

    assert read(node) == ContainerRuntime(None, "no kubelet runs on this node")


def test_a_tree_without_anything_of_it_says_so(tmp_path: Path) -> None:
    assert read_container_runtime(Host(tmp_path)).why_none.startswith("no kubelet, and no configuration of containerd")


# Two containerds: what the kubelet's is told by, in this order.


def test_what_another_containerd_reads_is_kept_apart(node: SimulatedNode) -> None:
    node.run_kubernetes("k8s-snap")
    node.put_file("etc/containerd/config.toml", f"version = 2\n{NVIDIA_V2}")

    seen = read(node)

    assert handlers(seen) == "runc nvidia"
    assert [(one.path, [each.name for each in one.handlers]) for one in seen.others] == [(FILE, ["nvidia"])]


def test_whoever_listens_on_the_socket_outranks_what_their_flags_say(node: SimulatedNode) -> None:
    """Process 901 is the standard containerd, 902 the snap's, 903 the kubelet."""
    node.run_kubernetes("k8s-snap")
    node.write_value(
        "proc/903/net/unix",
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        f"0000000000000000: 00000003 00000000 00000000 0001 03 77001 {SNAP}/run/containerd/containerd.sock\n"
        f"0000000000000000: 00000002 00000000 00010000 0001 01 77002 {SNAP}/run/containerd/containerd.sock\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 77003 /run/dbus/socket\n"
        "nonsense",
    )
    for pid, inode in ((901, 77002), (902, 77001)):
        folder = node.root / f"proc/{pid}/fd"
        folder.mkdir()
        (folder / "3").write_text("")
        (folder / "4").symlink_to(f"socket:[{inode}]")

    seen = read(node)

    assert seen.used is not None
    assert seen.used.path == FILE


def test_the_socket_in_containerds_own_file_tells_whose_it_is(node: SimulatedNode) -> None:
    """k3s gives its containerd no --address."""
    node.run_kubernetes("k3s")
    (node.root / "proc/903").mkdir()
    for name in ("comm", "stat"):
        (node.root / f"proc/903/{name}").write_text((node.root / f"proc/902/{name}").read_text())
    (node.root / "proc/903/cmdline").write_bytes(b"/usr/bin/containerd\0")

    seen = read(node)

    assert seen.used is not None
    assert seen.used.path == EXPECTED["k3s"][2]


@pytest.mark.parametrize("socket", ["unix:///run/crio/crio.sock", "unix:///run/cri-dockerd.sock", "npipe:////x"])
def test_another_kind_of_runtime_is_named_and_not_judged(socket: str, node: SimulatedNode) -> None:
    (node.root / "proc/902/cmdline").write_text(f"kubelet\0--container-runtime-endpoint\0{socket}\0")

    seen = read(node)

    assert seen.used is None
    assert seen.why_none.endswith("not a containerd that we know")


def test_a_kubelet_whose_containerd_does_not_run_is_known_by_its_socket(node: SimulatedNode) -> None:
    node.run_kubernetes("rke2")
    (node.root / "proc/902/comm").write_text("other\n")

    seen = read(node)

    assert seen.used is not None
    assert (seen.used.path, seen.started) == (EXPECTED["rke2"][2], None)


# The kubelet's own words.


def kubelet(*arguments: str, name: str = "kubelet") -> Process:
    return Process(7, name, (name, *arguments), None)


@pytest.mark.parametrize(
    ("arguments", "socket"),
    [
        ((), STANDARD),
        (("--container-runtime-endpoint=unix:///run/a.sock",), "/run/a.sock"),
        (("--container-runtime-endpoint", "/var/run/a.sock"), "/run/a.sock"),
        (("--container-runtime-endpoint=/a", "--container-runtime-endpoint=/b"), "/b"),
        (("--container-runtime-endpoint=/a", "--config=/etc/k.yaml"), "/a"),
        (("--config=/etc/k.yaml",), "/run/from-file.sock"),
        (("--config", "/etc/missing.yaml"), STANDARD),
        (("--config", "/etc/empty.yaml"), STANDARD),
        (("--config", "/etc/broken.yaml"), STANDARD),
        (("--container-runtime-endpoint",), STANDARD),
        (("--image-service-endpoint=/c",), STANDARD),
    ],
)
def test_a_flag_outranks_the_file_and_the_file_the_default(
    arguments: tuple[str, ...], socket: str, tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/k.yaml").write_text("containerRuntimeEndpoint: unix:///run/from-file.sock\n")
    (tmp_path / "etc/empty.yaml").write_text("")
    (tmp_path / "etc/broken.yaml").write_text("containerRuntimeEndpoint: [unix")

    assert endpoint_of(tmp_path, kubelet(*arguments)).socket == socket


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["rke2", "containerd", "kubelet"], "kubelet"),
        (["k3s-server"], "k3s-server"),
        (["k3s-agent", "kubelite"], "kubelite"),
        (["containerd", "crio"], None),
        ([], None),
    ],
)
def test_a_kubelet_of_its_own_outranks_a_program_that_holds_one(names: list[str], chosen: str | None) -> None:
    found = kubelet_of([kubelet(name=name) for name in names])

    assert (found.name if found else None) == chosen


def test_only_the_programs_that_we_look_for_are_read(node: SimulatedNode) -> None:
    node.write_value("proc/950/comm", "containerd-shim")
    node.write_value("proc/951/comm", "kubelet")
    node.write_value("proc/951/stat", (node.root / "proc/902/stat").read_text().replace(") S ", ") Z ").strip())

    assert [(one.pid, one.name) for one in find(node.root)] == [(901, "containerd"), (902, "kubelet")]


@pytest.mark.parametrize("uptime", ["", "soon", "nan nan"])
def test_without_a_time_of_boot_no_process_is_told(uptime: str, node: SimulatedNode) -> None:
    node.write_value("proc/uptime", uptime)

    assert find(node.root) == ()


# Programs and CDI specifications.


def test_a_program_is_one_that_can_be_run(node: SimulatedNode) -> None:
    program = f"/{OPERATORS_PROGRAM}"
    node.run_kubernetes("kubeadm")
    assert runnable(node) == [program]

    (node.root / OPERATORS_PROGRAM).chmod(0o644)
    assert runnable(node) == []

    node.remove_file(OPERATORS_PROGRAM)
    (node.root / OPERATORS_PROGRAM).symlink_to("/opt/toolkit")
    assert runnable(node) == []

    node.put_file("opt/toolkit", "")
    (node.root / "opt/toolkit").chmod(0o755)
    assert runnable(node) == [program]


@pytest.mark.parametrize("folder", ["usr/local/bin", "usr/sbin", "snap/bin"])
def test_a_bare_name_is_looked_for_where_services_look(folder: str, node: SimulatedNode) -> None:
    node.put_file("etc/containerd/config.toml", "version = 2\n" + handler(V2, "gpu", "a-program"))
    assert runnable(node) == []

    node.put_file(f"{folder}/a-program", "")
    (node.root / folder / "a-program").chmod(0o755)
    assert runnable(node) == ["a-program"]


DEVICES = [{"name": "0"}]


@pytest.mark.parametrize(
    ("name", "spec", "counts"),
    [
        ("nvidia.yaml", {"kind": "nvidia.com/gpu", "devices": DEVICES}, True),
        ("x.json", {"kind": "k8s.device-plugin.nvidia.com/gpu", "devices": DEVICES}, True),
        ("x.json", {"kind": "management.nvidia.com/gpu", "devices": DEVICES}, False),
        ("x.json", {"kind": "notnvidia.com/gpu", "devices": DEVICES}, False),
        ("x.json", {"kind": "amd.com/gpu", "devices": DEVICES}, False),
        ("x.json", {"kind": "nvidia.com/gpu", "devices": []}, False),
        ("x.json", {"kind": ["nvidia.com/gpu"], "devices": DEVICES}, False),
        ("x.json", [], False),
        ("x.txt", {"kind": "nvidia.com/gpu", "devices": DEVICES}, False),
    ],
)
def test_a_specification_counts_that_names_nvidias_devices_for_pods(
    name: str, spec: object, counts: bool, node: SimulatedNode
) -> None:
    node.put_file(f"var/run/cdi/{name}", json.dumps(spec))

    assert [one.path for one in read(node).cdi_specs] == ([f"/var/run/cdi/{name}"] if counts else [])


@pytest.mark.parametrize("text", ["{", "[" * 5000, "kind: [", "a: &a [*a]\nkind: nvidia.com/gpu", "\0"])
@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_a_specification_that_is_none_does_not_crash(name: str, text: str, node: SimulatedNode) -> None:
    node.put_file(f"etc/cdi/{name}", text)

    assert read(node).cdi_specs == ()
