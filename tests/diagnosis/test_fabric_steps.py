"""CUDA's error 802 on a node, and the steps that start its fabric manager where that runs."""

from __future__ import annotations

import pytest

from tests.diagnosis.component_states import DRIVER, daemon, gpu_node, operand
from tests.diagnosis.states import Object, container, judged, pod, results, terminated, waiting

LOG = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
ENDED: Object = {"lastState": {"terminated": terminated(1, "Error", LOG)}, "restartCount": 9}
CRASHES = pod("llm", 8, on="a", phase="Running", states=[waiting("CrashLoopBackOff", "back-off", **ENDED)])
PRODUCT, DEPLOYED = "nvidia.com/gpu.product", "nvidia.com/gpu.deploy.driver"
READ = f"`kubectl -n gpu-operator logs {DRIVER}-a -c nvidia-driver-ctr --tail=200`"
RESTART = f"`kubectl -n gpu-operator delete pod {DRIVER}-a`"
MODULES, SYSTEMD = "`modprobe -a mlx5_ib ib_umad`", "`systemctl enable --now nvidia-fabricmanager`"
IN_A_CONTAINER = operand(DRIVER, "a", spec={"containers": [container("gdrcopy"), container("nvidia-driver-ctr")]})
DAEMON = daemon(DRIVER, wanted=1)
ON_THE_HOST = {DEPLOYED: "pre-installed"}
ROWS: list[tuple[str, dict[str, str], list[Object], list[str], list[str]]] = [
    ("H100, container", {}, [IN_A_CONTAINER], [READ, RESTART], [MODULES, SYSTEMD, "NVLSM"]),
    ("B200, container", {PRODUCT: "NVIDIA-B200"}, [IN_A_CONTAINER], [READ, MODULES, RESTART, "NVLSM"], [SYSTEMD]),
    ("driver's pod not visible", {}, [DAEMON], ["kubectl get pods -A"], [SYSTEMD, MODULES]),
    ("the operator without its driver", {}, [], [SYSTEMD], ["kubectl get pods -A", MODULES]),
    (
        "H100, host",
        ON_THE_HOST,
        [],
        ["journalctl -u nvidia-fabricmanager", SYSTEMD],
        [MODULES, "kubectl -n gpu-operator"],
    ),
    ("B300, host", ON_THE_HOST | {PRODUCT: "NVIDIA-B300-SXM6-AC"}, [], [MODULES, "and nvlsm", SYSTEMD], ["delete pod"]),
    ("GB200", {PRODUCT: "NVIDIA-GB200"}, [IN_A_CONTAINER], ["switch trays"], [SYSTEMD, MODULES, RESTART]),
]


@pytest.mark.parametrize(("labels", "others", "has", "lacks"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_fabric_manager_is_started_where_the_driver_runs(
    labels: dict[str, str], others: list[Object], has: list[str], lacks: list[str]
) -> None:
    diagnosis = judged(gpu_node("a", labels=labels), CRASHES, *others)

    assert ("FabricNotReady", "node/a") in results(diagnosis)
    problems = [problem for problem in diagnosis.problems if problem.found.cause.name == "FabricNotReady"]
    steps = " ".join(problems[0].found.steps)
    assert [words for words in has if words not in steps] == []
    assert [words for words in lacks if words in steps] == []
