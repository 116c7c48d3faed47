"""The program of a sweep's Job as a real process on a simulated node, with a stand-in in dcgmi's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpu_healthcheck.healthcheck.text.moments import timestamp
from tests.agent.world import P, World
from tests.probes.dcgm.documents import Said, Story, dcgm_4, runtime_error
from tests.waiting import hand_over

SWEEP = f"{P}/sweep-result"
ALREADY_RUNNING = runtime_error(
    "Error: Unable to complete diagnostic. Return: (-39) : A diag instance is already running, cannot run a new diag "
    "until the current one finishes"
).decode()
ALL_SKIPPED = json.dumps(dcgm_4(Story(8, skipped=[(test, gpu) for test in ("memory", "pcie") for gpu in range(8)])))


def swept(hours_ago: float, status: str = "pass", **more: Any) -> str:
    """The record of an earlier sweep."""
    at = timestamp(datetime.now(UTC) - timedelta(hours=hours_ago))
    return json.dumps({"timestamp": at, "status": status, "severity": "PASS", "by": "sweep", **more})


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    lines: list[dict[str, Any]]
    """Of its log."""
    err: str


@dataclass
class Pod:
    world: World

    def dcgm(self, **files: str) -> None:
        """Write the files that control the dcgmi of this node."""
        for name, text in files.items():
            self.world.host.write_value(f"dcgm/{name.replace('_', '-')}", text)

    def hold(self) -> None:
        """Its diagnostic goes on until it is let go."""
        os.mkfifo(self._answer)

    def let_go(self, answer: str = "") -> None:
        """Then it prints that; that all is well, where nothing is said."""
        hand_over(self._answer, answer or self.answer())

    def well(self) -> None:
        """Nothing holds the next one."""
        self._answer.unlink(missing_ok=True)

    @property
    def _answer(self) -> Path:
        return self.world.host.root / "dcgm/answer"

    def answer(self, *errors: tuple[str, int, Said]) -> str:
        """Return dcgmi's output for this node's GPUs: by test and GPU, an error."""
        gpus = self.world.host.gpus
        document = dcgm_4(Story(len(gpus), errors={(test, gpu): [said] for test, gpu, said in errors}))
        for entity, gpu in zip(document["entity_groups"][0]["entities"], gpus, strict=True):
            entity["serial_num"] = gpu.serial
        return json.dumps(document)

    def annotate(self, text: str) -> None:
        self.world.cluster.edit({"metadata": {"annotations": {SWEEP: text}}})

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """With KILL_AT it dies there, see `dying_sweep_run`."""
        host = self.world.host.root
        environment = {
            "PATH": f"{host}/usr/bin:{os.environ['PATH']}",
            "KUBECONFIG": str(self.world.kubeconfig),
            "NODE_NAME": self.world.cluster.name,
            "HOST_ROOT": str(host),
            "CONFIG_DIR": str(self.world.config),
            **variables,
        }
        program = ["tests.sweeper.dying_sweep_run"] if "KILL_AT" in variables else ["cli", "sweep-run"]
        command = [sys.executable, "-m", *program]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, **variables: str) -> Ended:
        return ended(self.start(**variables))

    @property
    def asked(self) -> list[str]:
        """Return the runs of dcgmi, in sequence."""
        path = self.world.host.root / "dcgm/asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[0].removeprefix("what=") for line in lines if line.startswith("what=")]

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.world.node().object["metadata"].get("annotations") or {})

    @property
    def record(self) -> dict[str, Any]:
        record = json.loads(self.annotations[SWEEP])
        assert isinstance(record, dict)
        return record

    @property
    def causes(self) -> set[str]:
        return {entry["cause"] for entry in self.record["unobserved"]}


def ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate()
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    return Ended(process.returncode, out, lines, err)
