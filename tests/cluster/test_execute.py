"""Commands in containers, through the API server's WebSocket: bounded, whatever the container or its kubelet sends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.cluster.connection import Connection, connect
from gpu_healthcheck.healthcheck.cluster.errors import Forbidden, Refused, Unavailable
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access
from gpu_healthcheck.healthcheck.cluster.pods import Listings
from tests.diagnosis.exec_cluster import STDOUT, ExecCluster, frame, status


def connection(cluster: ExecCluster, folder: Path) -> Listings:
    return Listings(Connection(partial(connect, Access(str(cluster.kubeconfig(folder))))))


@pytest.fixture
def exec_cluster() -> Iterator[ExecCluster]:
    cluster = ExecCluster((), {"PATH": os.environ["PATH"]})
    with cluster.server:
        yield cluster


def test_execute_returns_the_output(exec_cluster: ExecCluster, tmp_path: Path) -> None:
    words = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    listings = connection(exec_cluster, tmp_path)

    assert listings.execute("team", "p", "main", words, 60, 100) == b"out\n"
    assert exec_cluster.commands == [("p", "main", words)]


def test_execute_cuts_the_output(exec_cluster: ExecCluster, tmp_path: Path) -> None:
    listings = connection(exec_cluster, tmp_path)

    assert listings.execute("team", "p", "main", ["sh", "-c", "yes | head -c 99999"], 60, 100) == b"y\n" * 50


STREAMS: dict[str, tuple[bytes, bytes]] = {
    "closed without a status": (frame(STDOUT + b"out"), b"out"),
    "a close frame": (frame(STDOUT + b"out") + b"\x88\x02\x03\xe8", b"out"),
    "standard error and unknown streams": (
        frame(b"\x02err") + frame(b"\x07x") + frame(b"") + frame(STDOUT + b"o"),
        b"o",
    ),
    "a frame that promises more than it has": (
        frame(STDOUT + b"out") + b"\x82\x7f" + b"\x00" * 4 + b"\xff" * 4,
        b"out",
    ),
    "no frame": (b"\x83\x00", b""),
    "a failure after an output": (frame(STDOUT + b"out") + frame(status(status="Failure", message="x")), b"out"),
}


@pytest.mark.parametrize(("sent", "output"), STREAMS.values(), ids=STREAMS)
def test_execute_of_a_hostile_kubelet(exec_cluster: ExecCluster, tmp_path: Path, sent: bytes, output: bytes) -> None:
    exec_cluster.stream = lambda write: write(sent)

    assert connection(exec_cluster, tmp_path).execute("team", "p", "main", ["x"], 60, 1000) == output


def test_execute_ends_a_frame_without_end(exec_cluster: ExecCluster, tmp_path: Path) -> None:
    def endless(write: Callable[[bytes], object]) -> None:
        write(b"\x82\x7f" + b"\x00" * 2 + b"\xff" * 6)
        while True:
            write(STDOUT * 65_536)

    exec_cluster.stream = endless

    assert connection(exec_cluster, tmp_path).execute("team", "p", "main", ["x"], 60, 1000) == b""


def test_execute_ends_a_stream_that_does_not(exec_cluster: ExecCluster, tmp_path: Path) -> None:
    ended = threading.Event()

    def silent(write: Callable[[bytes], object]) -> None:
        write(frame(STDOUT + b"begin"))
        ended.wait()

    exec_cluster.stream = silent
    try:
        assert connection(exec_cluster, tmp_path).execute("team", "p", "main", ["x"], 0.2, 1000) == b"begin"
    finally:
        ended.set()


def test_execute_without_an_answer(tmp_path: Path) -> None:
    """The API server waits for a kubelet that hangs."""
    cluster = ExecCluster((), {})
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster.server.close()
        cluster.endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Unavailable, match="create pods/exec: "):
            connection(cluster, tmp_path).execute("team", "p", "main", ["x"], 0.2, 1000)


def test_execute_without_permission(exec_cluster: ExecCluster, tmp_path: Path) -> None:
    exec_cluster.denied = True

    with pytest.raises(Forbidden, match='create pods/exec: 403: pods "x" is forbidden'):
        connection(exec_cluster, tmp_path).execute("team", "p", "main", ["x"], 60, 1000)


def test_execute_of_a_missing_command(exec_cluster: ExecCluster, tmp_path: Path) -> None:
    with pytest.raises(
        Refused, match=r'create pods/exec: Internal error .* exec: "no-shell": executable file not found'
    ):
        connection(exec_cluster, tmp_path).execute("team", "p", "main", ["no-shell"], 60, 1000)
