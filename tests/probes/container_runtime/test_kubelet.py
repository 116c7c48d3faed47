"""A kubelet's settings for its runtime: flags, file, drop-ins, and the service files of kubelets with hidden flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import STANDARD_SOCKET
from gpu_healthcheck.healthcheck.probes.container_runtime.kubelet import choose, settings_of
from gpu_healthcheck.healthcheck.probes.container_runtime.processes import Process

K3S_SOCKET = "/run/k3s/containerd/containerd.sock"


def kubelet(*arguments: str, name: str = "kubelet", pid: int = 7, mounts: str = "") -> Process:
    return Process(pid, name, (name, *arguments), namespace=mounts)


def put(root: Path, files: dict[str, str | bytes]) -> Path:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.mark.parametrize(
    ("arguments", "socket"),
    [
        ((), STANDARD_SOCKET),
        (("--container-runtime-endpoint=unix:///run/a.sock",), "/run/a.sock"),
        (("--container-runtime-endpoint", "/var/run/a.sock"), "/run/a.sock"),
        (("--container-runtime-endpoint=/a", "--container-runtime-endpoint=/b"), "/b"),
        (("--container-runtime-endpoint=/a", "--config=/etc/k.yaml"), "/a"),
        (("--config=/etc/k.yaml",), "/run/from-file.sock"),
        (("--config=/etc/k.json",), "/run/from-json.sock"),
        (("--config", "/etc/missing.yaml"), STANDARD_SOCKET),
        (("--config", "/etc/empty.yaml"), STANDARD_SOCKET),
        (("--config", "/etc/broken.yaml"), STANDARD_SOCKET),
        (("--config", "/etc/list.yaml"), STANDARD_SOCKET),
        (("--config", "/etc/number.yaml"), STANDARD_SOCKET),
        (("--config", "/etc/deep.yaml"), STANDARD_SOCKET),
        (("--config", "/etc/loop.yaml"), STANDARD_SOCKET),
        (("--config", "/etc/bytes.yaml"), STANDARD_SOCKET),
        (("--container-runtime-endpoint",), STANDARD_SOCKET),
        (("--image-service-endpoint=/c",), STANDARD_SOCKET),
    ],
)
def test_flag_outranks_the_file_and_the_file_the_default(
    arguments: tuple[str, ...], socket: str, tmp_path: Path
) -> None:
    files: dict[str, str | bytes] = {
        "etc/k.yaml": "containerRuntimeEndpoint: unix:///run/from-file.sock\n",
        "etc/k.json": '{"containerRuntimeEndpoint": "unix:///run/from-json.sock"}',
        "etc/empty.yaml": "",
        "etc/broken.yaml": "containerRuntimeEndpoint: [unix",
        "etc/list.yaml": "- containerRuntimeEndpoint\n",
        "etc/number.yaml": "containerRuntimeEndpoint: 7\n",
        "etc/deep.yaml": "[" * 500_000,
        "etc/bytes.yaml": b"\xff\xfe\0a: 1\n",
    }
    put(tmp_path, files)
    (tmp_path / "etc/loop.yaml").symlink_to("loop.yaml")

    assert settings_of(tmp_path, kubelet(*arguments)).endpoint == socket


def test_unreadable_file_does_not_hide_the_drop_in(tmp_path: Path) -> None:
    put(tmp_path, {"etc/k.yaml": "containerRuntimeEndpoint: [", "etc/d/1.conf": "containerRuntimeEndpoint: /a\n"})

    settings = settings_of(tmp_path, kubelet("--config=/etc/k.yaml", "--config-dir", "/etc/d"))

    assert (settings.endpoint, settings.endpoint_source) == ("/a", "containerRuntimeEndpoint in /etc/d/1.conf")


def test_drop_ins_apply_in_the_order_of_their_names(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "etc/k.yaml": "containerRuntimeEndpoint: /0\ncgroupDriver: cgroupfs\n",
            "etc/d/10-a.conf": "containerRuntimeEndpoint: /1\n",
            "etc/d/20-b.conf/x.conf": "containerRuntimeEndpoint: /2\ncgroupDriver: systemd\n",
            "etc/d/5-c.conf": "containerRuntimeEndpoint: /3\n",
            "etc/d/9-d.yaml": "containerRuntimeEndpoint: /4\n",
        },
    )

    seen = settings_of(tmp_path, kubelet("--config=/etc/k.yaml", "--config-dir=/etc/d"))

    assert (seen.endpoint, seen.config, seen.systemd_cgroup) == ("/3", "/etc/k.yaml", True)


@pytest.mark.parametrize(
    ("arguments", "message", "expected"),
    [
        ((), "", None),
        ((), "cgroupDriver: systemd\n", True),
        ((), "cgroupDriver: cgroupfs\n", False),
        ((), "cgroupDriver: null\n", None),
        (("--cgroup-driver=cgroupfs",), "cgroupDriver: systemd\n", False),
    ],
)
def test_cgroup_driver_is_unknown_if_it_is_not_set(
    arguments: tuple[str, ...], message: str, expected: bool | None, tmp_path: Path
) -> None:
    put(tmp_path, {"etc/k.yaml": message})

    assert settings_of(tmp_path, kubelet("--config=/etc/k.yaml", *arguments)).systemd_cgroup is expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (K3S_SOCKET, "default of k3s-agent")),
        (
            {"var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": "containerRuntimeEndpoint: /a\n"},
            ("/a", "containerRuntimeEndpoint in /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf"),
        ),
    ],
)
def test_endpoint_of_k3s_is_read_from_its_drop_ins(
    files: dict[str, str | bytes], expected: tuple[str, str], tmp_path: Path
) -> None:
    seen = settings_of(put(tmp_path, files), Process(7, "k3s-agent", ("/usr/local/bin/k3s agent",)))

    assert (seen.endpoint, seen.endpoint_source) == expected


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
def test_separate_kubelet_outranks_a_program_that_contains_one(
    names: list[str], chosen: str | None, tmp_path: Path
) -> None:
    found = choose(tmp_path, [kubelet("agent", name=name, pid=pid) for pid, name in enumerate(names)])

    assert (found.name if found else None) == chosen


def test_kubelet_in_a_container_counts_only_without_another(tmp_path: Path) -> None:
    """As with kind, where nodes are containers; Talos has its only kubelet in one."""
    (tmp_path / "proc/1/ns").mkdir(parents=True)
    (tmp_path / "proc/1/ns/mnt").symlink_to("mnt:[1]")
    nested, own = kubelet(pid=3, mounts="mnt:[2]"), kubelet("server", name="k3s-server", pid=9, mounts="mnt:[1]")

    assert choose(tmp_path, [nested, own]) == own
    assert choose(tmp_path, [nested]) == nested


@pytest.mark.parametrize("words", [(), ("kubectl", "get"), ("etcd-snapshot",)])
def test_short_lived_command_of_k3s_is_no_kubelet(words: tuple[str, ...], tmp_path: Path) -> None:
    assert choose(tmp_path, [kubelet(*words, name="k3s")]) is None
