"""The child that asks over a socket: messages as their authors number them, and every way to get no answer."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.host import grpc_child
from gpu_healthcheck.healthcheck.host.command import isolated
from gpu_healthcheck.healthcheck.host.grpc_child import QUESTIONS, without_others
from gpu_healthcheck.healthcheck.host.grpc_socket import NodeSocket
from gpu_healthcheck.healthcheck.model import ProbeError
from tests.host.grpc_server import answers_to, serving
from tests.permissions import as_nobody

MODULES = Path(os.environ.get("GOMODCACHE", Path.home() / "go/pkg/mod")) / "k8s.io"
CRI_PROTOS = list(MODULES.glob("cri-api@*/pkg/apis/runtime/v1/api.proto"))
POD_PROTOS = (
    "kubelet@*/pkg/apis/pods/v1alpha1/api.proto",
    "api@*/core/v1/generated.proto",
    "apimachinery@*/pkg/apis/meta/v1/generated.proto",
)
PROTOS = {
    "container-runtime": CRI_PROTOS,
    "pod-sandboxes": CRI_PROTOS,
    "pod-resources": list(MODULES.glob("kubelet@*/pkg/apis/podresources/v1/api.proto")),
    "pods": [path for pattern in POD_PROTOS for path in MODULES.glob(pattern)]
    if [*MODULES.glob(POD_PROTOS[0])]
    else [],
}
MESSAGE = re.compile(r"^message (\w+) \{(?:\}|(.*?)^\})", re.MULTILINE | re.DOTALL)
FIELD = re.compile(
    r"^\s*(?:// )?(?:optional )?((?:repeated )?(?:map<string, string>|[.\w]+)) (\w+) = (\d+);", re.MULTILINE
)
"""With those that were taken out and stand there as a comment."""
VERSION = {"runtime_name": "containerd", "runtime_version": "2.1.4"}
STATUS = {"status": {"conditions": [{"type": "RuntimeReady", "status": True}]}}
PATH = "/run/r.sock"


@pytest.mark.parametrize("question", QUESTIONS)
def test_field_has_the_number_and_type_of_its_proto_file(question: str) -> None:
    """In every version of their file that lies here: none has changed a number."""
    if not PROTOS[question]:
        pytest.skip("Kubernetes' own .proto files are in no Go module cache here")
    theirs: dict[tuple[str, str], set[tuple[int, str]]] = {}
    for file in PROTOS[question]:
        for message, body in MESSAGE.findall(file.read_text()):
            for kind, name, number in FIELD.findall(body):
                # The package of a type is left out, and a Pod travels as its bytes, which are the message itself.
                plain = re.sub(r"[.\w]*\.(?=\w+$)", "", kind).replace("repeated bytes", "repeated Pod")
                theirs.setdefault((message, name), set()).add((int(number), plain))
    entry = {"key": (1, "string"), "value": (2, "string")}  # protobuf.dev, Maps: how every map travels
    for message, fields in QUESTIONS[question].messages.items():
        for name, number, kind in fields:
            written = re.sub("repeated (InfoEntry|Annotation)", "map<string, string>", kind)
            known = {entry[name]} if message in ("InfoEntry", "Annotation") else theirs[message, name]
            assert (message, name, known) == (message, name, {(number, written)})


def test_answer_has_only_used_annotations() -> None:
    kept = {"key": "hami.io/vgpu-devices-allocated", "value": "GPU-1,NVIDIA,3000,30:;"}
    others = [{"key": "example.com/large", "value": "x" * 200_000}, {"key": kept["key"], "value": "x" * 5000}, {}]
    pod = {"metadata": {"name": "p"}, "annotations": [kept, *others]}

    assert without_others({"items": [pod]}) == {"items": [{"metadata": {"name": "p"}, "annotations": [kept]}]}


def test_questions_are_only_reads() -> None:
    calls = [f"{question.package}.{call.method}" for question in QUESTIONS.values() for call in question.calls]
    assert calls == [
        "runtime.v1.RuntimeService/Version",
        "runtime.v1.RuntimeService/Status",
        "runtime.v1.RuntimeService/ListPodSandbox",
        "v1alpha1.Pods/ListPods",
        "v1.PodResourcesLister/List",
    ]


def test_query_returns_each_answer_of_a_verbose_request(short_root: Path) -> None:
    with serving(short_root / PATH[1:], answers_to("container-runtime", VERSION, STATUS)) as server:
        assert NodeSocket("container-runtime").ask(short_root, PATH) == [VERSION, STATUS]
    verbose = b"\x08\x01"
    assert [request for _, request in server.asked] == [b"", verbose]


def test_query_follows_links_and_special_characters_inside_the_root(short_root: Path) -> None:
    path = "/run/100%25 #1?.sock"
    (short_root / "var").mkdir()
    (short_root / "var/run").symlink_to("/run")
    with serving(short_root / "run/plain.sock", answers_to("container-runtime", VERSION, STATUS)):
        (short_root / path[1:]).symlink_to("plain.sock")
        os.link(short_root / "run/plain.sock", short_root / "run/hard %41.sock")
        for name in (path, "/run/hard %41.sock", "/var/run/plain.sock"):
            assert NodeSocket("container-runtime").ask(short_root, name) == [VERSION, STATUS]


def why_not(root: Path, path: str = PATH, deadline_seconds: float = 10.0) -> str:
    with pytest.raises(ProbeError) as failed:
        NodeSocket("container-runtime", deadline_seconds).ask(root, path)
    return str(failed.value)


def test_query_of_no_socket_starts_no_child(short_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nobody/would/start")
    (short_root / "file").write_text("")
    (short_root / "loop").symlink_to("loop")

    assert why_not(short_root) == "/run/r.sock: No such file or directory"
    assert why_not(short_root, "/file") == "/file: no socket"
    assert why_not(short_root, "/loop") == "/loop: Too many levels of symbolic links"
    assert why_not(short_root, "a\0b") == "a\0b: Invalid argument"


def test_query_of_a_socket_without_a_grpc_server_is_an_error(short_root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(short_root / "closed.sock"))
    assert why_not(short_root, "/closed.sock") == "/closed.sock: Connection refused"
    (short_root / ("x" * 120)).mkdir()
    os.link(short_root / "closed.sock", short_root / ("x" * 120) / "r.sock")
    assert "too long" in why_not(short_root, f"/{'x' * 120}/r.sock")
    with socket.socket(socket.AF_UNIX) as held, socket.socket(socket.AF_UNIX) as first:
        held.bind(str(short_root / "full.sock"))
        held.listen(0)
        first.connect(str(short_root / "full.sock"))
        assert "no end within 0.5 s" in why_not(short_root, "/full.sock", deadline_seconds=0.5)
    with serving(short_root / PATH[1:], {}):
        assert why_not(short_root).startswith("/run/r.sock: UNIMPLEMENTED: ")


def test_failed_child_is_reported_with_its_exit_code(short_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where gRPC is not installed, or its library is for another machine."""
    monkeypatch.setattr(sys, "executable", "/bin/cat")
    with serving(short_root / PATH[1:], {}):
        message = why_not(short_root)
    assert message.startswith("/run/r.sock: the child ended with exit code 1: ")


def test_query_without_permission_is_an_error(short_root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(short_root / "r.sock"))
        held.listen()
        short_root.chmod(0o755)
        (short_root / "r.sock").chmod(0)
        with as_nobody():
            answer = grpc_child.ask(QUESTIONS["container-runtime"], str(short_root / "r.sock"))
    assert answer == {"error": "Permission denied"}


def test_query_of_a_hanging_server_ends_at_its_deadline(short_root: Path) -> None:
    with serving(short_root / PATH[1:], answers_to("container-runtime", VERSION, STATUS)) as server:
        server.holds.clear()
        assert why_not(short_root, deadline_seconds=0.5) == "/run/r.sock: no end within 0.5 s; its process was ended"


def test_query_of_a_web_server_is_an_error(short_root: Path) -> None:
    """A web server, say."""
    program = (
        "import socket,sys\ns=socket.socket(1)\ns.bind(sys.argv[1])\ns.listen()\nprint(flush=True)\n"
        "while True: s.accept()[0].sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')"
    )
    path = short_root / "r.sock"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            assert why_not(short_root, "/r.sock").startswith("/r.sock: UNAVAILABLE: ")
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\xff" * 100, "INTERNAL"),
        (b"\x0a\x05ab", "INTERNAL"),
        (bytes(64 << 20), "RESOURCE_EXHAUSTED"),
        (b"\x12\xff\xff\x7f\x0a\xfb\xff\x7f" + b"x" * 2097147, "its output is longer"),
    ],
    ids=["garbage", "cut off", "64 MiB", "a long name"],
)
def test_invalid_answer_is_an_error(short_root: Path, answer: bytes, why: str) -> None:
    good = answers_to("container-runtime", VERSION, STATUS)
    method = (
        "/runtime.v1.RuntimeService/Version" if why != "its output is longer" else "/runtime.v1.RuntimeService/Status"
    )
    with serving(short_root / PATH[1:], {**good, method: answer}):
        assert why in why_not(short_root)


def test_child_without_a_parent_ends_itself(short_root: Path) -> None:
    """Its parent was killed."""
    argv = [*isolated("gpu_healthcheck.healthcheck.host.grpc_child"), "container-runtime", str(short_root / PATH[1:])]
    with serving(short_root / PATH[1:], answers_to("container-runtime", VERSION, STATUS)) as server:
        server.holds.clear()
        assert subprocess.run([*argv, "0.5"], check=False).returncode == -signal.SIGALRM


def test_caller_never_loads_grpc(short_root: Path) -> None:
    program = (
        "import json, sys, pathlib\n"
        "import gpu_healthcheck.agent.process.agent_program, gpu_healthcheck.cli.__main__\n"
        "import gpu_healthcheck.healthcheck.probes.pod_resources\n"
        "from gpu_healthcheck.healthcheck.host.grpc_socket import NodeSocket\n"
        "answer = NodeSocket('container-runtime').ask(pathlib.Path(sys.argv[1]), sys.argv[2])\n"
        "print(json.dumps([len(answer), [one for one in sys.modules if one.startswith(('grpc', 'google.'))]]))\n"
    )
    with serving(short_root / PATH[1:], answers_to("container-runtime", VERSION, STATUS)):
        done = subprocess.run(
            [sys.executable, "-c", program, str(short_root), PATH], capture_output=True, text=True, check=True
        )
    assert json.loads(done.stdout) == [2, []]
