"""Real registry on loopback, from Go modules; its data is in a folder of the caller."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from go_programs.build import built, digest, go_build, home_of
from sim.control_plane.files import free_ports
from sim.real_node.waiting import wait_until

_ROOM = Path(__file__).parent / "registry"
_PACKAGE = "github.com/distribution/distribution/v3/cmd/registry"
_PATIENCE_SECONDS = 60


def program() -> Path:
    """Return the registry's program, and build it if necessary. Raises NoProgramError without Go."""

    def build(folder: Path) -> None:
        print("building the registry (once, takes one or two minutes)", file=sys.stderr, flush=True)
        go_build(_ROOM, folder, "-s -w", [_PACKAGE])

    return built(home_of("registry") / digest(_ROOM), build) / "registry"


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Run the registry and yield its HOST:PORT."""
    (port,) = free_ports(1)
    host = f"127.0.0.1:{port}"
    configuration = folder / "registry.yml"
    configuration.write_text(
        json.dumps(
            {
                "version": 0.1,
                "log": {"level": "error"},
                "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
                "http": {"addr": host},
            }
        )
    )
    with (folder / "registry.log").open("w") as log:
        process = subprocess.Popen([program(), "serve", configuration], stdout=log, stderr=log)
        try:
            wait_until(lambda: _answers(host), _PATIENCE_SECONDS, (folder / "registry.log").read_text)
            yield host
        finally:
            process.terminate()
            process.wait()


def _answers(host: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{host}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
