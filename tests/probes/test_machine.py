"""Identity of this machine, and the answers of EC2's metadata service."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.probes.machine import hostname, instance_type, machine_id, on_ec2
from gpu_healthcheck.sim.imds import SimulatedImds

UUID = "EC2D6AB0-1234-4000-8000-0000000000FF"
OS_ID = "0123456789abcdef0123456789abcdef"


def tree(root: Path, **files: str | bytes) -> Path:
    paths = {
        "product_uuid": "sys/class/dmi/id/product_uuid",
        "vendor": "sys/class/dmi/id/sys_vendor",
        "hypervisor": "sys/hypervisor/uuid",
        "machine_id": "etc/machine-id",
    }
    for name, content in files.items():
        path = root / paths[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.mark.parametrize(
    ("files", "identity"),
    [
        ({"product_uuid": f"{UUID}\n", "machine_id": OS_ID}, UUID.lower()),
        ({"machine_id": f"{OS_ID}\n"}, OS_ID),
        ({"product_uuid": "\n", "machine_id": OS_ID}, OS_ID),
        ({}, ""),
        ({"product_uuid": b"\xff\xfe\n"}, "\ufffd\ufffd"),
        ({"product_uuid": "x" * 500}, "x" * 128),
    ],
)
def test_machine_id_comes_from_firmware_then_system(
    tmp_path: Path, files: dict[str, str | bytes], identity: str
) -> None:
    assert machine_id(tree(tmp_path, **files)) == identity


@pytest.mark.parametrize(
    ("files", "is_ec2"),
    [
        ({"vendor": "Amazon EC2\n"}, True),
        ({"vendor": "Xen\n", "hypervisor": "ec2e1916-9099-7caf-fd21-012345abcdef\n"}, True),
        ({"vendor": "Xen\n", "hypervisor": "00000000-9099\n"}, False),
        ({"vendor": "Google\n"}, False),
        ({"vendor": "Amazon EC2 lookalike"}, False),
        ({}, False),
    ],
)
def test_an_ec2_machine_is_known_by_its_firmware(tmp_path: Path, files: dict[str, str | bytes], is_ec2: bool) -> None:
    assert on_ec2(tree(tmp_path, **files)) is is_ec2


@pytest.fixture
def ec2(tmp_path: Path) -> Path:
    return tree(tmp_path, vendor="Amazon EC2")


@pytest.mark.parametrize("name", ["p5.48xlarge", "p6-b200.48xlarge", "g4dn.metal", "u-24tb1.112xlarge"])
def test_the_instance_type_is_asked_with_a_token(ec2: Path, name: str) -> None:
    with SimulatedImds(name) as imds:
        assert instance_type(ec2, imds.endpoint) == name
        assert len(imds.tokens) == 1


def test_another_machine_is_not_queried(tmp_path: Path) -> None:
    with SimulatedImds("p5.48xlarge") as imds:
        with pytest.raises(ProbeError, match="not an EC2 machine"):
            instance_type(tmp_path, imds.endpoint)

        assert imds.tokens == set()


def test_a_proxy_is_not_asked_which_machine_this_is(ec2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    with SimulatedImds("p5.48xlarge") as imds:
        assert instance_type(ec2, imds.endpoint) == "p5.48xlarge"


def test_a_service_that_does_not_answer_in_time_is_no_answer(ec2: Path) -> None:
    with SimulatedImds("p5.48xlarge", delay_seconds=60) as imds, pytest.raises(ProbeError, match="timed out"):
        instance_type(ec2, imds.endpoint)


def test_a_service_that_is_not_there_is_no_answer(ec2: Path) -> None:
    with pytest.raises(ProbeError, match=r"instance metadata: .*refused"):
        instance_type(ec2, "http://127.0.0.1:9")


def test_a_service_without_an_instance_type_is_no_answer(ec2: Path) -> None:
    with SimulatedImds("p5.48xlarge") as imds:
        imds.values.clear()
        with pytest.raises(ProbeError, match="404"):
            instance_type(ec2, imds.endpoint)


@pytest.mark.parametrize("answer", ["<html>captive portal</html>", "p5 48xlarge", "\u00e9", "p5/48", " "])
def test_an_answer_that_is_no_instance_type_is_refused(ec2: Path, answer: str) -> None:
    with SimulatedImds(answer) as imds, pytest.raises(ProbeError, match="instance metadata"):
        instance_type(ec2, imds.endpoint)


@pytest.fixture
def speak() -> Iterator[Callable[[bytes], str]]:
    """A server that says the same bytes to everybody and hangs up."""
    servers: list[socket.socket] = []

    def start(words: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        threading.Thread(target=_say, args=(server, words), daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def _say(server: socket.socket, words: bytes) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(4096)
            connection.sendall(words)


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\x00\xff\xfe nonsense\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    ],
)
def test_a_server_that_talks_nonsense_is_no_answer(ec2: Path, speak: Callable[[bytes], str], words: bytes) -> None:
    with pytest.raises(ProbeError, match="instance metadata"):
        instance_type(ec2, speak(words))


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"etc/hostname": "gpu-7\n", "proc/sys/kernel/hostname": "pod-x\n"}, "gpu-7"),
        ({"etc/hostname": "\n", "proc/sys/kernel/hostname": "gpu-7\n"}, "gpu-7"),
        ({"etc/hostname": "gpu\x1b[2J"}, r"gpu\x1b[2J"),
        ({}, ""),
    ],
)
def test_a_tree_names_its_own_machine(files: dict[str, str], name: str, tmp_path: Path) -> None:
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)

    assert hostname(tmp_path) == name


def test_a_link_in_a_tree_names_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").symlink_to("/proc/sys/kernel/ostype")

    assert hostname(tmp_path) == ""
