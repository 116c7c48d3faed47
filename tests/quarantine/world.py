"""A node for a real quarantine run: the program as a process, fakes of its programs, the API stand-in.

The node is a p4d.24xlarge with two of its EFA devices, so that a run is short.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from gpu_healthcheck.sim.api_objects import PODS
from gpu_healthcheck.sim.api_stand_in import ApiStandIn
from gpu_healthcheck.sim.node import EFA_PROGRAMS, SimulatedNode
from tests.waiting import GIVE_UP_SECONDS

T = TypeVar("T")
P = "gpu-healthcheck.aws-samples.io"
NODE = "gpu-node-1"
ROOT = Path(__file__).parents[2]
SPOT = {"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}
MAINTENANCE = {"key": f"{P}/maintenance", "value": "quarantine", "effect": "NoSchedule"}
LEVEL_4_PROGRAM = "dcgmi"
LEVEL_4, LOOPBACK, ROCE = "4-dcgm-diag-l4", "6-efa-loopback", "9-roce"
LOAD, ALL_REDUCE = "10-gpu-load", "5-nccl-allreduce"


@dataclass
class Ended:
    """How a run ended. `log`: its lines of JSON."""

    code: int
    out: str
    err: str

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event]


@dataclass
class World:
    host: SimulatedNode
    stand_in: ApiStandIn
    folder: Path

    # --- the node and its object

    def dcgm(self, **files: str) -> None:
        """Set the behaviour of the diagnostic: the files that control `sim/dcgmi.sh`, by name."""
        for name, text in files.items():
            self.host.write_value(f"dcgm/{name.replace('_', '-')}", text)

    def well(self) -> None:
        """Reset the behaviour of the diagnostic."""
        for name in ("answer", "answer-4", "hang", "code", "error"):
            (self.host.root / "dcgm" / name).unlink(missing_ok=True)

    @property
    def levels(self) -> list[str]:
        """Return the levels that the diagnostic ran."""
        asked = self.host.root / "dcgm/asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        return [line.split()[0].removeprefix("what=") for line in lines if line.startswith("what=")]

    @property
    def node(self) -> dict[str, Any]:
        return self.stand_in.node(NODE)

    def annotate(self, **texts: str | None) -> None:
        named = {f"{P}/{key.replace('_', '-')}": text for key, text in texts.items()}
        self.stand_in.edit_node(NODE, {"metadata": {"annotations": named}})

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.node["metadata"].get("annotations") or {})

    @property
    def record(self) -> dict[str, Any]:
        """The run's own, as it is now; {} where there is none."""
        record: dict[str, Any] = json.loads(self.annotations.get(f"{P}/quarantine-result", "{}"))
        return record

    @property
    def marks(self) -> tuple[str, str, bool]:
        """Who holds the node: the kind of the run, the label `mode`, and whether the taint stands."""
        run = json.loads(self.annotations.get(f"{P}/run", "{}"))
        mode = (self.node["metadata"].get("labels") or {}).get(f"{P}/mode", "")
        return run.get("kind", ""), mode, MAINTENANCE in (self.node["spec"].get("taints") or [])

    def add_gpu_pod(self, name: str, phase: str = "Running") -> None:
        container = {"name": "work", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        pod = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": NODE, "containers": [container]},
            "status": {"phase": phase},
        }
        self.stand_in.store.create(PODS, "default", pod)

    # --- the program

    @property
    def environment(self) -> Mapping[str, str]:
        programs = f"{self.host.root}/usr/bin:{self.host.root}/opt/nccl-tests/build:{self.host.root}/{EFA_PROGRAMS}"
        return {
            "PATH": f"{programs}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "NODE_NAME": NODE,
            "HOST_ROOT": str(self.host.root),
            "CONFIG_DIR": str(self.folder / "config"),
            "REPORT_DIR": str(self.reports),
            "KUBECONFIG": str(self.stand_in.kubeconfig(self.folder / "kubeconfig")),
        }

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    @contextmanager
    def started(self, *words: str, program: str = "quarantine", **variables: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", program, *words],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # In a pod nothing outlives the run; here each test that it started has a session of its own. A run that is
            # still active would begin its next test.
            process.kill()
            process.wait()
            self.end_tests()
            process.communicate()

    def tests_running(self) -> list[psutil.Process]:
        """Return the running programs of this node, and their children."""
        tests = (LEVEL_4_PROGRAM, "fi_pingpong", "ib_write_bw", "gpu_load", "all_reduce_perf")
        every = [process for process in psutil.process_iter(["cmdline", "environ"]) if process.info["cmdline"]]
        return [
            process
            for process in every
            if str(self.host.root)
            in " ".join([*process.info["cmdline"], (process.info["environ"] or {}).get("PATH", "")])
            and (
                Path(process.info["cmdline"][0]).name == "sleep"
                or any(name in " ".join(process.info["cmdline"]) for name in tests)
            )
        ]

    def end_tests(self, number: signal.Signals = signal.SIGKILL) -> None:
        for process in self.tests_running():
            with suppress(psutil.NoSuchProcess):  # with its parent it may have ended by itself
                process.send_signal(number)

    def run(self, *words: str, program: str = "quarantine", **variables: str) -> Ended:
        with self.started(*words, program=program, **variables) as process:
            return end_of(process)


def end_of(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=GIVE_UP_SECONDS)
    return Ended(process.returncode, out, err)
