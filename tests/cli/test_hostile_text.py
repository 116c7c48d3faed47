"""Texts that strangers write on a Node and in its records, in the output of every command: terminal and pipe, any
locale.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.sim.control_plane import ControlPlane
from tests.cli.cluster import P
from tests.cli.quarantine_world import Hospital
from tests.hostile import HOSTILE

pytestmark = pytest.mark.cluster
ALL = " ".join(HOSTILE)
TYPED = "[/x][bold]\x1b[2J\u202e"
"""On a command line."""
NAME = "hostile"
NODE = f"/api/v1/nodes/{NAME}"
_OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)|\r")
"""What rich sends to a terminal: styles, and where it shows something live."""
ON_THE_CLUSTER = (
    ["status"],
    ["release", NAME, "--reason", TYPED, "--by", TYPED, "--dry-run"],
    ["uninstall", "--dry-run"],
    ["quarantine", NAME, "--dry-run"],
    ["sweep", "--dry-run"],
)
WITHOUT_IT = (
    ["release", TYPED, "--reason", "x"],
    ["explain", TYPED],
    ["check", TYPED],
    ["check", "--root", f"/no/{TYPED}"],
    ["replay", f"/no/{TYPED}"],
)


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a control plane with a Node that has hostile text in every field.

    The records also contain halves of surrogate pairs.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    row = {"reason": "Xid79", "subject": f"gpu/{ALL}", "severity": "REBOOT", "nature": "event", "seq": 7}
    row |= {"detail": ALL, "first_seen": now, "last_seen": now, "count": 1, "check": ALL, "about": {ALL: ALL}}
    words = {"by": ALL, "reason": ALL, "at": now}
    record = {"schema": 1, "timestamp": now, "status": "fail", "severity": "REBOOT", "boot_id": ALL, "cursor": 9}
    record |= {"findings": [row], "released": words, "taint": ALL, "checks": [{"check": ALL, "status": ALL}]}
    blind: dict[str, Any] = {"timestamp": now, "status": "unknown", "severity": "PASS"}
    blind |= {"unobserved": [{"check": ALL, "cause": ALL, "detail": ALL}]}
    written = {"results": record, "quarantine-result": record, "sweep-result": blind}
    annotations = {f"{P}/{key}": json.dumps(value) for key, value in written.items()}
    metadata = {"labels": {f"{P}/status": "fail", "nvidia.com/gpu.present": "true"}, "annotations": annotations}
    message = "".join(text for text in ALL if not "\ud800" <= text <= "\udfff")
    annotations[f"{P}/cordoned-by"] = message
    installed.create_node(NAME)
    patch(installed, f"{NODE}?fieldManager=gpu-healthcheck", {"metadata": metadata, "spec": {"unschedulable": True}})
    condition = {"type": "GpuHealthy", "status": "False", "reason": "Xid79", "message": message}
    patch(installed, f"{NODE}/status", {"status": {"conditions": [condition]}})
    yield installed
    installed.request("DELETE", NODE)


def patch(plane: ControlPlane, path: str, change: dict[str, Any]) -> None:
    answer = plane.request("PATCH", path, change)
    assert answer.status == 200, answer.message


def environment(plane: ControlPlane, folder: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "CONFIG_DIR": str(folder), "COLUMNS": "200", **variables}


def is_all_seen(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("words", [*ON_THE_CLUSTER, ["status", "-o", "json"], ["status", "-o", "html"], *WITHOUT_IT])
def test_hostile_text_is_escaped_in_a_pipe(
    plane: ControlPlane, tmp_path: Path, words: list[str], encoding: str
) -> None:
    variables = environment(plane, tmp_path, PYTHONIOENCODING=f"{encoding}:strict")
    done = subprocess.run([sys.executable, "-m", "cli", *words], env=variables, capture_output=True, check=False)

    out, err = done.stdout.decode(encoding), done.stderr.decode(encoding)
    assert ("Traceback" not in err, done.returncode in (0, 1, 2, 3)) == (True, True), err
    assert (is_all_seen(out), is_all_seen(err)) == (True, True), out + err
    assert "[/x]" in out + err or words[0] == "sweep", out + err


@pytest.mark.parametrize("words", [*ON_THE_CLUSTER, ["status", "--watch"]])
def test_hostile_text_is_escaped_on_a_terminal(plane: ControlPlane, tmp_path: Path, words: list[str]) -> None:
    shown = _OURS.sub("", on_a_terminal(words, environment(plane, tmp_path, TERM="xterm")))

    assert "Traceback" not in shown, shown
    assert is_all_seen(shown), shown
    assert "[/x]" in shown or words[0] == "sweep", shown


def on_a_terminal(words: list[str], variables: dict[str, str]) -> str:
    """Return all output of a command to its terminal.

    A command that does not end is terminated after it has shown its first output.
    """
    ours, theirs = pty.openpty()
    raw = b""
    with subprocess.Popen([sys.executable, "-m", "cli", *words], env=variables, stdout=theirs, stderr=theirs) as shown:
        os.close(theirs)
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 1 << 16):
                raw += chunk
                if "--watch" in words and b"tainted nodes" in raw:
                    shown.terminate()
    os.close(ours)
    return raw.decode()


def test_hostile_text_is_escaped_in_a_quarantine_result(hospital: Hospital) -> None:
    finding = {"reason": "DcgmDiagPcie", "severity": "RESET", "subject": f"gpu/{ALL}", "detail": ALL}
    name = hospital.admit("quarantine-hostile", finding, recommendation="reset")

    code, out, err = hospital.quarantine(name)

    assert (code, is_all_seen(out), is_all_seen(err)) == (1, True, True), out + err
    assert printable(ALL) in out
