"""A listing that is none, as of something else that listens at the address: an answer, and no fault of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_healthcheck.sim.loopback import LoopbackAnswers, LoopbackServer
from tests.cli.cluster import run_here

READ_AT_ONCE = """
import sys, threading
from gpu_healthcheck.healthcheck.cluster.pages import check_node, node_page
sys.setswitchinterval(1e-7)
start = threading.Barrier(16)
def read(first):
    start.wait()
    check_node({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready"}]}}) if first else node_page()
threads = [threading.Thread(target=read, args=(number % 2,)) for number in range(16)]
for one in threads: one.start()
for one in threads: one.join()
"""
BODIES = [b"", b"null", b"[]", b"\xff{", b'{"items":7}', b'{"items":[],"metadata":7}', b"[" * 99_999]


class Answers(LoopbackAnswers):
    body = b""

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        self.answer(200, self.body, {"Content-Type": "application/json"})


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with LoopbackServer(Answers) as server:
        document = {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": server.endpoint}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(document))
        yield tmp_path / "config"


@pytest.mark.parametrize("words", [("status",), ("status", "--allocation"), ("diagnose",)])
@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"\xff{", b'{"items":7}', b'{"items":[],"metadata":7}', b"[" * 99999]
)
def test_malformed_list_is_reported(
    words: tuple[str, ...], body: bytes, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "body", body)
    done = run_here(kubeconfig, *words)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "an answer that is no" in done.stdout + done.stderr


def test_a_list_that_says_nothing_of_itself_is_one(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "body", b'{"metadata":null,"items":null}')
    done = run_here(kubeconfig, "diagnose")

    assert (done.returncode, done.stderr) == (0, "")


def test_threads_may_read_their_first_nodes_at_the_same_moment() -> None:
    """msgspec ends in a segmentation fault there; an agent's watch and its writer both begin with a Node."""
    for _ in range(6):
        assert subprocess.run([sys.executable, "-c", READ_AT_ONCE], check=False).returncode == 0
