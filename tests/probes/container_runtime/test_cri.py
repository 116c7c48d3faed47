"""A running container runtime's own answer: read from real servers, rarely, and without waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.captures import evidence_file
from gpu_healthcheck.healthcheck.model import Host
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.cri import (
    ASKED_AGAIN_SECONDS,
    NOT_HERE,
    NOT_YET,
    TRIED_AGAIN_SECONDS,
    RuntimeStatus,
    read_status,
    with_answer,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    ContainerRuntime,
    Handler,
    Live,
    ReadFile,
    RuntimeAnswer,
    RuntimeConfiguration,
)
from gpu_healthcheck.sim.node import SimulatedNode
from tests.host.grpc_server import Json, Server, answers_to, serving
from tests.waiting import eventually

SOCKET = "/run/containerd/containerd.sock"
READY = {"conditions": [{"type": "NetworkReady"}, {"type": "RuntimeReady", "status": True}]}
NVIDIA = "/usr/bin/nvidia-container-runtime"
CDI_FOLDERS = ["/etc/cdi", "/var/run/cdi"]


def configured(**config: Any) -> Json:
    """A StatusResponse with that in its `info`, and containerd's other fields."""
    info = [{"key": "golang", "value": '"go1.24"'}, {"key": "config", "value": json.dumps(config)}]
    return {"status": READY, "info": info}


def containerd(**more: Any) -> Json:
    runtimes = {
        "runc": {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "", "SystemdCgroup": True}},
        "nvidia": {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": NVIDIA}},
        "kata": {"runtimeType": "io.containerd.kata.v2", "options": None},
    }
    return configured(containerd={"defaultRuntimeName": "runc", "runtimes": runtimes}, **more)


def handlers(*names: str) -> Json:
    return {"runtime_handlers": [{"name": name} for name in names]}


def version(name: str, number: str) -> Json:
    return {"runtime_name": name, "runtime_version": number}


V2 = "io.containerd.runc.v2"
OWN = (Handler("kata", "io.containerd.kata.v2"), Handler("nvidia", V2, NVIDIA), Handler("runc", V2, "", True))


def in_force(*handlers: Handler, cdi: bool | None = None, folders: tuple[str, ...] = ()) -> RuntimeConfiguration:
    return RuntimeConfiguration(handlers or OWN, "runc", cdi, folders)


BOTH = tuple(CDI_FOLDERS)
PAUSE = configured(sandboxImage="registry.k8s.io/pause:3.10")
ANSWERS: dict[str, tuple[str, str, Json, RuntimeConfiguration | None]] = {
    "containerd 1.6": ("containerd", "1.6.20~ds1", containerd(), in_force()),
    "containerd 1.7": (
        *("containerd", "1.7.28", containerd(enableCDI=False, cdiSpecDirs=CDI_FOLDERS)),
        in_force(cdi=False, folders=BOTH),
    ),
    "containerd 2.1": (
        *("containerd", "2.1.4"),
        containerd(enableCDI=True, cdiSpecDirs=CDI_FOLDERS) | handlers("", "kata", "nvidia", "runc"),
        in_force(cdi=True, folders=BOTH),
    ),
    "containerd 2.3 without a value": (
        *("containerd", "2.3.7", containerd(enableCDI=None, cdiSpecDirs=["/etc/cdi"])),
        in_force(cdi=True, folders=("/etc/cdi",)),
    ),
    "containerd 2.4": (
        *("containerd", "2.4.2", containerd(cdiSpecDirs=[]) | handlers("", "nvidia")),
        in_force(OWN[1], cdi=True),
    ),
    "CRI-O 1.29": ("cri-o", "1.29.4", PAUSE, None),
    "CRI-O 1.31": (
        *("cri-o", "1.31.0", PAUSE | handlers("", "crun", "nvidia")),
        RuntimeConfiguration((Handler("crun"), Handler("nvidia"))),
    ),
    "CRI-O with its configuration": (
        *("cri-o", "1.34.0"),
        configured(crio={"DefaultRuntime": "crun", "Runtimes": {"crun": {"RuntimePath": "/usr/bin/crun"}}})
        | handlers("", "crun"),
        RuntimeConfiguration((Handler("crun", "", "/usr/bin/crun"),), "crun"),
    ),
    "cri-dockerd": ("docker", "27.3.1", PAUSE, None),
    "no configuration": ("containerd", "1.7.28", {"status": READY}, None),
}


class Asked:
    """A runtime's socket in a root of its own, with a clock that a test moves."""

    def __init__(self, root: Path, server: Server) -> None:
        self.root = root
        self.server = server
        self.now = 1000.0
        self.status = RuntimeStatus(root, clock=lambda: self.now)

    def look(self, facts: ContainerRuntime) -> Live | None:
        """Return the runtime's report of a probe, after the request that it began."""
        answer = self.status.read(facts)
        if self.status._answers.asking:
            self.status._answers.asking.join()
        return answer.live if answer is not None else None

    @property
    def times(self) -> int:
        return sum(method.endswith("/Status") for method, _ in self.server.asked)


@contextmanager
def asked(root: Path, *answers: Json) -> Iterator[Asked]:
    with serving(root / SOCKET[1:], answers_to("container-runtime", *answers)) as server:
        one = Asked(root, server)
        yield one
        assert one.status.end() is None


FILE = ReadFile("/etc/containerd/config.toml", 1_700_000_000.0)
FACTS = ContainerRuntime(FILE.path, socket=SOCKET, since_boot=100.0, files=(FILE,))
NO_LOADER = "its loader could not be asked: its process is not visible"
GOOD = (
    version("containerd", "v2.1.4"),
    ANSWERS["containerd 2.1"][2],
    Live("containerd", "2.1.4", "", ANSWERS["containerd 2.1"][3]),
)


def answer_of(one: Asked) -> RuntimeAnswer:
    answer = one.status.ask(FACTS)
    assert answer is not None
    return answer


def live(one: Asked) -> Live:
    answer = answer_of(one).live
    assert answer is not None
    return answer


@pytest.mark.parametrize(("name", "number", "status", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_report_of_each_runtime_is_read(
    short_root: Path, name: str, number: str, status: Json, expected: RuntimeConfiguration | None
) -> None:
    with asked(short_root, version(name, f"v{number}"), status) as one:
        assert answer_of(one) == RuntimeAnswer(Live(name, number, "", expected), why_not_loaded=NO_LOADER)


def test_runtime_that_is_not_ready_has_its_reason(short_root: Path) -> None:
    condition = {"type": "RuntimeReady", "reason": "DockerDaemonNotReady", "message": "docker: is it running?\n"}
    with asked(short_root, GOOD[0], {"status": {"conditions": [condition]}}) as one:
        answer = live(one)
    assert answer.not_ready == "DockerDaemonNotReady: docker: is it running?\\n"


def test_runtime_without_a_ready_status_is_not_ready() -> None:
    assert read_status({}, {"status": {"conditions": [{"type": "RuntimeReady"}]}}).not_ready == "RuntimeReady is false"


def test_answer_without_the_ready_condition_is_an_error(short_root: Path) -> None:
    with asked(short_root, {}, {}) as one:
        answer = answer_of(one)
    assert answer.why_not_live == "the container runtime does not report its condition RuntimeReady"


def test_passwords_of_registries_are_not_kept(short_root: Path) -> None:
    auths = {"auths": {"https://r": {"username": "u", "password": "hunter2"}}}
    with asked(short_root, GOOD[0], containerd(registry=auths)) as one:
        assert "hunter2" not in repr(one.status.ask(FACTS))


def test_probe_does_not_wait_and_the_next_one_has_the_answer(short_root: Path) -> None:
    with asked(short_root, *GOOD[:2]) as one:
        assert one.look(FACTS) is None
        assert one.look(FACTS) == GOOD[2]
        assert one.times == 1


def test_only_one_request_is_in_progress(short_root: Path) -> None:
    with asked(short_root, *GOOD[:2]) as one:
        one.server.holds.clear()
        assert [one.status.read(FACTS) for _ in range(3)] == [None] * 3
        one.server.holds.set()
        eventually(lambda: one.status.read(FACTS))
        assert one.times == 1


def test_answer_is_requested_again_after_an_hour(short_root: Path) -> None:
    with asked(short_root, *GOOD[:2]) as one:
        for seconds, times in [(0, 1), (300, 1), (ASKED_AGAIN_SECONDS - 1, 1), (ASKED_AGAIN_SECONDS, 2)]:
            one.now = 1000.0 + seconds
            one.look(FACTS)
            assert (seconds, one.times) == (seconds, times)


def test_changed_files_cause_a_new_request_and_the_answer_stays(short_root: Path) -> None:
    edited = replace(FACTS, files=(replace(FILE, written=FILE.written + 1),))
    with asked(short_root, *GOOD[:2]) as one:
        one.look(FACTS)
        assert one.look(edited) == GOOD[2]
        assert one.times == 2


def test_another_process_is_asked_at_once_without_the_earlier_answer(short_root: Path) -> None:
    with asked(short_root, *GOOD[:2]) as one:
        one.look(FACTS)
        assert one.look(replace(FACTS, since_boot=500.0)) is None
        assert one.look(replace(FACTS, since_boot=500.0)) == GOOD[2]
        assert one.look(replace(FACTS, since_boot=None)) is None
        assert one.look(replace(FACTS, socket="/run/k3s/containerd/containerd.sock")) != GOOD[2]


@pytest.mark.parametrize(
    "status",
    [
        {"status": {"conditions": [{"type": "RuntimeReady"}]}},
        {},
    ],
    ids=["not ready", "no answer"],
)
def test_failure_is_requested_again_soon(short_root: Path, status: Json) -> None:
    with asked(short_root, GOOD[0], status) as one:
        for seconds, times in [(0, 1), (TRIED_AGAIN_SECONDS - 1, 1), (TRIED_AGAIN_SECONDS, 2)]:
            one.now = 1000.0 + seconds
            one.look(FACTS)
            assert (seconds, one.times) == (seconds, times)


def test_socket_without_a_listener_is_reported(short_root: Path) -> None:
    status = RuntimeStatus(short_root, clock=lambda: 0.0)
    facts = with_answer(Host(short_root, ask_container_runtime=status.ask), FACTS)
    assert (facts.live, facts.why_not_live) == (None, f"{SOCKET}: No such file or directory")


def test_answer_completes_the_facts(short_root: Path) -> None:
    with asked(short_root, *GOOD[:2]) as one:
        host = Host(short_root, ask_container_runtime=one.status.read)
        assert with_answer(host, FACTS) == replace(FACTS, why_not_live=NOT_YET, why_not_loaded=NOT_YET)
        one.look(FACTS)
        assert with_answer(host, FACTS) == replace(FACTS, live=GOOD[2], why_not_loaded=NO_LOADER)


def test_runtime_without_a_socket_is_not_asked(short_root: Path) -> None:
    facts = ContainerRuntime(why_none="no kubelet")
    assert with_answer(Host(short_root, ask_container_runtime=RuntimeStatus(short_root).ask), facts) == facts


KEYS = ["containerd", "runtimes", "nvidia", "options", "BinaryName", "defaultRuntimeName", "enableCDI", "cdiSpecDirs"]
KEYS += ["crio", "Runtimes", "RuntimePath", "DefaultRuntime", "CDISpecDirs"]
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
)


@given(JSON.map(json.dumps) | st.text() | st.just("[" * 100_000))
def test_any_configuration_is_read_as_short_printable_text(config: str) -> None:
    answer = read_status({}, {"status": READY, "info": [{"key": "config", "value": config}]})
    known = answer.configuration or RuntimeConfiguration()
    texts = [known.default, *known.cdi_folders, *(text for each in known.handlers for text in (each.name, each.binary))]
    assert [text for text in texts if not text.isprintable() or len(text) > 200] == []


def test_number_of_handlers_is_limited() -> None:
    status = {"status": READY} | handlers(*(f"h{number}" for number in range(10_000)))
    configuration = read_status({}, status).configuration
    assert configuration is not None
    assert len(configuration.handlers) == 256


@pytest.mark.parametrize("saved_tree", [False, True])
def test_check_waits_for_the_answer_except_of_a_saved_tree(short_root: Path, saved_tree: bool) -> None:
    node = SimulatedNode.create(short_root / "node", "p5.48xlarge")
    node.run_kubernetes("kubeadm")
    evidence = short_root / "evidence.json"
    argv = [
        sys.executable,
        "-m",
        "cli",
        "check",
        "7",
        "--instance-type",
        "p5.48xlarge",
        "--save-evidence",
        str(evidence),
    ]
    argv += ["--root", str(node.root)] if saved_tree else []
    with closing(node), asked(node.root, *GOOD[:2]) as one:
        environment = {"PATH": os.defpath, "HOST_ROOT": str(node.root)}
        subprocess.run(argv, env=environment, check=False, stdout=subprocess.DEVNULL)
        facts = evidence_file.read(evidence.read_bytes()).evidence[CONTAINER_RUNTIME]
    assert (facts.live, facts.why_not_live) == ((None, NOT_HERE) if saved_tree else (GOOD[2], ""))
    assert one.times == (not saved_tree)
