"""`diagnose job --ranks`: which rank NCCL itself reports as missing or behind, and what the node knows of its GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.cli import diagnose
from gpu_healthcheck.diagnosis.answers.ranks import judged
from gpu_healthcheck.diagnosis.sources.nccl_ras import NcclRasError, parse
from gpu_healthcheck.healthcheck.text.printable import printable
from gpu_healthcheck.sim.nccl_ras import NcclRas, SimulatedCommunicator, SimulatedRank, as_json, as_text
from tests.console import typed
from tests.diagnosis.exec_cluster import STDOUT, ExecCluster, frame
from tests.diagnosis.states import Object, ago, node, obj, pod, recorded, snapshot
from tests.hostile import ANY_TEXT

ROOT = Path(__file__).parents[2]
KEYS = st.sampled_from(
    (
        *("communicators", "hash", "ranks", "missing_ranks", "rank", "host", "pid", "nvml_dev", "collective_counts"),
        *("status", "AllReduce"),
    )
)
VERSIONS = ("2.24.3", "2.26.2", "2.28.7", "2.28.9", "2.30.1")
WHOLE = ("2.28.7", "2.28.9", "2.30.1")
NODES = ("gpu-a", "gpu-b", "gpu-c", "gpu-d")
TOOLS = ("sh", "bash", "cat", "timeout")
WORLD = 0x27A079B828FF1A75


def address(number: int) -> str:
    return f"10.0.0.{number + 1}"


def worker(number: int, /, **changes: Any) -> Object:
    """Return pod `train-N` of job `train`, with all GPUs of its node."""
    address_of_pod = {"podIP": address(number)}
    return pod(f"train-{number}", 2, on=NODES[number], owner=("Job", "train"), status=address_of_pod, **changes)


def job(*pods: Object, nodes: tuple[Object, ...] | None = None) -> list[Object]:
    there = [node(name, 2) for name in NODES] if nodes is None else nodes
    return [obj("Job", "train", "team", spec={"parallelism": 4}), *pods, *there]


def whole_job() -> list[Object]:
    return job(*map(worker, range(4)))


def communicator(
    counts: int | dict[int, int],
    *,
    number: int = WORLD,
    size: int = 8,
    ranks: tuple[int, ...] | None = None,
    states: dict[int, str] | None = None,
    operations: dict[int, dict[str, int]] | None = None,
) -> SimulatedCommunicator:
    """Return a communicator with two ranks per pod.

    `counts`: of AllReduce, of all ranks, or {-1: of most ranks} and of single ones. `ranks`: places in the job of its
    ranks.
    """
    by_rank = {-1: counts} if isinstance(counts, int) else counts
    return SimulatedCommunicator(
        number,
        tuple(
            SimulatedRank(
                rank,
                address(place // 2),
                490 + place,
                place % 2,
                {"AllReduce": by_rank.get(rank, by_rank[-1]), **(operations or {}).get(rank, {})},
                (states or {}).get(rank, ""),
            )
            for rank, place in enumerate(ranks or range(size))
        ),
    )


class World:
    """Job on four nodes. Its NCCL answers with the states, one per question."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.pauses: list[float] = []
        self.tools = folder / "bin"
        self.tools.mkdir()
        monkeypatch.setattr(diagnose, "sleep", self.pauses.append)

    def ask(
        self,
        ras: NcclRas,
        objects: list[Object] | None = None,
        words: tuple[str, ...] = ("job", "team/train"),
        tools: tuple[str, ...] = TOOLS,
        prepare: Callable[[ExecCluster], None] = lambda _: None,
    ) -> tuple[int, dict[str, Any], ExecCluster]:
        """Return exit code, document and cluster of the command."""
        done, cluster = self.run(ras, objects, (*words, "-o", "json"), tools, prepare)
        assert done.stderr == b"", done.stderr
        return done.returncode, json.loads(done.stdout), cluster

    def run(
        self,
        ras: NcclRas,
        objects: list[Object] | None = None,
        words: tuple[str, ...] = ("job", "team/train"),
        tools: tuple[str, ...] = TOOLS,
        prepare: Callable[[ExecCluster], None] = lambda _: None,
    ) -> tuple[subprocess.CompletedProcess[bytes], ExecCluster]:
        for name in tools:
            if not (self.tools / name).exists():
                python = Path(sys.executable).resolve() if name == "python3" else None
                (self.tools / name).symlink_to(python or str(shutil.which(name)))
        environment = {"PATH": str(self.tools), "NCCL_RAS_ADDR": ras.address}
        cluster = ExecCluster(whole_job() if objects is None else objects, environment)
        prepare(cluster)
        variables = {"KUBECONFIG": str(cluster.kubeconfig(self._folder)), "PATH": os.environ["PATH"]}
        with cluster.server:
            return typed(["diagnose", *words, "--ranks"], variables), cluster


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def lagging(**changes: Any) -> SimulatedCommunicator:
    return communicator({-1: 1845, 5: 1842}, **changes)


BEHIND = "is 3 collectives behind the others ({} 1,842 of 1,845)"
NO_LAG = "No rank lags: all launched the same collectives."
PROGRESS = "The job makes progress: its ranks launched collectives within 10 s."
STOPPED = "No rank launched a collective within 10 s. NCCL names 1 rank:"


def operation(version: str) -> str:
    return "collective" if version == "2.24.3" else "AllReduce"


@pytest.mark.parametrize("version", VERSIONS)
def test_rank_behind_is_named_with_its_pod_and_node(world: World, version: str) -> None:
    with NcclRas(version, [lagging()]) as ras:
        code, document, cluster = world.ask(ras)

    place = "process 495 with GPU 1 of pod/team/train-2 on node/gpu-c"
    why = BEHIND.format(operation(version))
    assert (code, document["causes"]) == (1, [])
    assert document["ranks"] == {
        "summary": STOPPED,
        "suspects": [f"rank 5 of 8 (communicator 0x27a079b828ff1a75, {place}) {why}"],
        "could_not": "",
    }
    assert ras.asked == [["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "VERBOSE STATUS"]] * 2
    assert [command[:2] for command in cluster.commands] == [("train-0", "main")] * 2
    assert world.pauses == [10.0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("second", [{-1: 1850, 5: 1848}, {-1: 1845, 5: 1843}, {-1: 1848, 5: 1842}])
def test_ranks_that_advance_are_no_cause(world: World, version: str, second: dict[int, int]) -> None:
    """The rank itself advances, or the others do."""
    with NcclRas(version, [lagging()], [communicator(second)]) as ras:
        code, document, _ = world.ask(ras)

    assert (code, document["ranks"]["summary"], document["ranks"]["suspects"]) == (0, PROGRESS, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_rank_that_catches_up_is_no_cause(world: World, version: str) -> None:
    with NcclRas(version, [lagging()], [communicator(1845)]) as ras:
        code, document, _ = world.ask(ras)

    assert (code, document["ranks"]["summary"]) == (0, PROGRESS)


@pytest.mark.parametrize("version", VERSIONS)
def test_symmetric_hang_points_to_the_network(world: World, version: str) -> None:
    with NcclRas(version, [communicator(1845)]) as ras:
        code, document, _ = world.ask(ras)

    summary = document["ranks"]["summary"]
    assert (code, document["ranks"]["suspects"], summary[: len(NO_LAG)]) == (0, [], NO_LAG)
    assert "No rank launched a collective within 10 s." in summary or version not in WHOLE
    assert "does not report whether equal ranks advance" in summary or version in WHOLE
    assert summary.endswith("of these nodes: gpu-a, gpu-b, gpu-c, gpu-d.")


@pytest.mark.parametrize("version", WHOLE)
def test_equal_ranks_that_advance_make_progress(world: World, version: str) -> None:
    with NcclRas(version, [communicator(1845)], [communicator(1846)]) as ras:
        assert world.ask(ras)[1]["ranks"]["summary"] == PROGRESS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("state", "why"), [("silent", "does not answer"), ("dead", "is dead")])
def test_missing_rank_is_named(world: World, version: str, state: str, why: str) -> None:
    with NcclRas(version, [communicator(1845, states={5: state})]) as ras:
        code, document, _ = world.ask(ras)

    (suspect,) = document["ranks"]["suspects"]
    unknown = "NCCL before 2.28.7 does not report whether equal ranks advance. NCCL names 1 rank:"
    assert (code, document["ranks"]["summary"]) == (1, STOPPED if version in WHOLE else unknown)
    if version == "2.24.3":
        assert suspect.startswith("rank 5 (communicator 0x27a079b828ff1a75, process unknown)")
        return
    assert "process 495 with GPU 1 of pod/team/train-2 on node/gpu-c" in suspect
    assert suspect.endswith(why)


@pytest.mark.parametrize("version", VERSIONS)
def test_rank_behind_that_becomes_silent_is_no_progress(world: World, version: str) -> None:
    with NcclRas(version, [lagging()], [communicator(1845, states={5: "silent"})]) as ras:
        code, document, _ = world.ask(ras)

    assert (code, document["ranks"]["summary"].endswith("NCCL names 1 rank:")) == (1, True)
    assert "does not answer" in document["ranks"]["suspects"][0]


@pytest.mark.parametrize("version", WHOLE)
def test_missing_rank_of_a_communicator_that_advances_is_no_cause(world: World, version: str) -> None:
    with NcclRas(version, *([communicator(count, states={5: "silent"})] for count in (7, 8))) as ras:
        code, document, _ = world.ask(ras)

    assert (code, document["ranks"]["summary"]) == (0, PROGRESS)


@pytest.mark.parametrize("version", WHOLE)
def test_rank_that_left_is_named(world: World, version: str) -> None:
    with NcclRas(version, [communicator(7, states={2: "left"})]) as ras:
        code, document, _ = world.ask(ras)

    assert (code, len(document["ranks"]["suspects"])) == (1, 1)
    assert document["ranks"]["suspects"][0].endswith("has left the communicator")


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_rank_comes_before_a_rank_behind(world: World, version: str) -> None:
    with NcclRas(version, [communicator({-1: 9, 3: 8}, states={6: "dead"})]) as ras:
        _, document, _ = world.ask(ras)

    assert [suspect.partition(" of ")[0] for suspect in document["ranks"]["suspects"]] == ["rank 6", "rank 3"]


@pytest.mark.parametrize("version", VERSIONS)
def test_idle_communicator_beside_one_at_work_is_progress(world: World, version: str) -> None:
    idle = communicator(3, number=2, size=2)
    with NcclRas(version, [idle, lagging()], [idle, communicator({-1: 1900, 5: 1899})]) as ras:
        code, document, _ = world.ask(ras)

    assert (code, document["ranks"]["summary"]) == (0, PROGRESS)


@pytest.mark.parametrize("version", VERSIONS)
def test_idle_communicator_beside_one_that_hangs_names_the_rank(world: World, version: str) -> None:
    with NcclRas(version, [communicator(3, number=2, size=2), lagging()]) as ras:
        code, document, _ = world.ask(ras)

    assert (code, len(document["ranks"]["suspects"])) == (1, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_fewer_ranks_ahead_are_named(world: World, version: str) -> None:
    with NcclRas(version, [communicator({-1: 640, 2: 641, 3: 641})]) as ras:
        code, document, _ = world.ask(ras)

    first, second = document["ranks"]["suspects"]
    ahead = f"is 1 collective ahead of the others ({operation(version)} 641 of 640)"
    assert (code, first[:6], second[:6]) == (1, "rank 2", "rank 3")
    assert first.endswith(ahead)
    assert second.endswith(ahead)


@pytest.mark.parametrize("version", VERSIONS)
def test_half_of_the_ranks_behind(world: World, version: str) -> None:
    """A text names ranks of smaller groups only."""
    with NcclRas(version, [communicator({-1: 9, 0: 8, 1: 8, 2: 8, 3: 8})]) as ras:
        code, document, _ = world.ask(ras)

    if version in WHOLE:
        assert (code, len(document["ranks"]["suspects"])) == (1, 4)
    else:
        assert (code, document["ranks"]["suspects"]) == (0, [])
        assert "Half of them are behind, and NCCL's text does not name them." in document["ranks"]["summary"]


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_rank_in_another_collective_is_named_with_both(world: World, version: str) -> None:
    other = communicator({-1: 10, 3: 9}, operations={3: {"Broadcast": 1}})
    with NcclRas(version, [other]) as ras:
        code, document, _ = world.ask(ras)

    (suspect,) = document["ranks"]["suspects"]
    assert code == 1
    assert "1 collective ahead of the others (Broadcast 1 of 0)" in suspect
    assert "1 collective behind the others (AllReduce 9 of 10)" in suspect


@pytest.mark.parametrize("version", WHOLE)
def test_rank_that_waits_for_another_is_no_suspect(world: World, version: str) -> None:
    """Pairs of GPUs, and two groups across the pairs: GPU 3 does not come, GPU 2 waits for it, the others for both."""
    pairs = [
        communicator({-1: 50, 1: 49} if pair == 1 else 50, number=pair + 1, ranks=(2 * pair, 2 * pair + 1))
        for pair in range(4)
    ]
    across = [communicator({-1: 20, 1: 19}, number=parity + 9, ranks=tuple(range(parity, 8, 2))) for parity in (0, 1)]
    with NcclRas(version, [*pairs, *across]) as ras:
        code, document, _ = world.ask(ras)

    (suspect,) = document["ranks"]["suspects"]
    assert code == 1
    assert "process 493 with GPU 1 of pod/team/train-1 on node/gpu-b" in suspect


@pytest.mark.parametrize("version", VERSIONS)
def test_nccl_without_communicators(world: World, version: str) -> None:
    with NcclRas(version, []) as ras:
        code, document, _ = world.ask(ras)

    assert (code, document["ranks"]["summary"][:25]) == (0, "NCCL has no communicator:")


def test_suspects_are_limited(world: World) -> None:
    size = 64
    with NcclRas("2.30.1", [communicator({-1: 9} | dict.fromkeys(range(30), 8), size=size)]) as ras:
        _, document, _ = world.ask(ras)

    assert document["ranks"]["summary"].endswith("NCCL names 30 ranks (the first 16):")
    assert len(document["ranks"]["suspects"]) == 16
    assert "process 505 on 10.0.0.8, the address of none of its pods" in document["ranks"]["suspects"][15]


# The node of a rank.


def xid_74(index: int) -> Object:
    about = {"index": str(index), "uuid": f"GPU-{index}", "serial": str(index)}
    subject = f"gpu/0000:1{index}:00.0"
    return {"reason": "Xid74", "severity": "RESET", "subject": subject, "about": about, "first_seen": ago(5)}


def of_record(*findings: Object, **work: Object) -> tuple[Object, ...]:
    """Return the nodes, one with this record."""
    rows = {f"GPU-{name}": {"pod": "22222222"} | row for name, row in work.items()}
    record = recorded(*findings, severity="RESET", status="fail", work=rows)
    return tuple(node(name, 2, annotations=record if name == "gpu-c" else {}) for name in NODES)


def workers() -> list[Object]:
    return [worker(number, metadata={"uid": f"{number}" * 8 + "-uid"}) for number in range(4)]


def test_rank_has_the_record_of_its_gpus(world: World) -> None:
    since = {"since": ago(9)}
    nodes = of_record(xid_74(0), xid_74(1), a={"state": "idle"} | since, b={"state": "waiting", "since": ago(8)})
    with NcclRas("2.30.1", [lagging()]) as ras:
        _, document, _ = world.ask(ras, job(*workers(), nodes=nodes))

    (suspect,) = document["ranks"]["suspects"]
    evidence = suspect.partition("1,845): ")[2].split("; ")
    assert evidence == [
        f"GPU-a idle since {ago(9)}",
        f"GPU-b waiting since {ago(8)}",
        f"Xid74 on gpu/0000:11:00.0 since {ago(5)}",
    ]


def test_rank_of_a_pod_with_a_part_of_the_node_has_all_its_findings(world: World) -> None:
    nodes = tuple(
        node(name, 8, annotations=recorded(xid_74(0), xid_74(1), severity="RESET", status="fail")) for name in NODES
    )
    with NcclRas("2.30.1", [lagging()]) as ras:
        _, document, _ = world.ask(ras, job(*workers(), nodes=nodes))

    assert document["ranks"]["suspects"][0].count("Xid74 on gpu/") == 2


def test_record_of_another_pod_is_no_evidence(world: World) -> None:
    nodes = of_record(a={"state": "idle", "since": ago(9), "pod": "99999999"})
    with NcclRas("2.30.1", [lagging()]) as ras:
        _, document, _ = world.ask(ras, job(*workers(), nodes=nodes))

    assert document["ranks"]["suspects"][0].endswith("1,845)")


def test_pod_of_a_job_asks_for_the_whole_job(world: World) -> None:
    with NcclRas("2.30.1", [lagging()]) as ras:
        _, document, _ = world.ask(ras, words=("pod", "team/train-3"))

    assert "of pod/team/train-2 on node/gpu-c" in document["ranks"]["suspects"][0]


# On the network of the host, any NCCL may answer.


def on_host(number: int, **changes: Any) -> Object:
    return worker(number, spec={"hostNetwork": True}, **changes)


def test_host_network_with_the_jobs_own_ranks(world: World) -> None:
    other = pod("other", 0, on="gpu-a", spec={"hostNetwork": True})
    with NcclRas("2.30.1", [lagging()]) as ras:
        code, document, _ = world.ask(ras, job(*map(on_host, range(4)), other))

    assert (code, len(document["ranks"]["suspects"])) == (1, 1)


def test_host_network_refuses_the_ranks_of_another_job(world: World) -> None:
    elsewhere = SimulatedCommunicator(WORLD, (SimulatedRank(0, "10.9.9.9", 1, 0, {"AllReduce": 1}),))
    with NcclRas("2.30.1", [elsewhere]) as ras:
        code, document, cluster = world.ask(ras, job(*map(on_host, range(4))))

    refusal = "on the network of its host, an NCCL answered whose ranks are not in this job's pods: 10.9.9.9"
    assert (code, document["ranks"]["suspects"], len(cluster.commands)) == (2, [], 3)
    assert document["ranks"]["could_not"].startswith(f"pod/team/train-0: {refusal}; pod/team/train-1: ")
    assert world.pauses == []


def test_host_network_refuses_an_answer_that_another_pod_may_give(world: World) -> None:
    others = [pod(f"other-{name}", 2, on=name, spec={"hostNetwork": True}) for name in NODES]
    with NcclRas("2.30.1", [lagging()]) as ras:
        code, document, _ = world.ask(ras, job(*map(on_host, range(4)), *others))

    assert code == 2
    assert "pod/team/other-gpu-a may have answered" in document["ranks"]["could_not"]


def test_host_network_refuses_an_answer_without_addresses(world: World) -> None:
    """The text of NCCL 2.24 names only the numbers of missing ranks, and none of equal ones."""
    for state in (communicator(9), communicator(9, states={5: "dead"})):
        with NcclRas("2.24.3", [state]) as ras:
            code, document, _ = world.ask(ras, job(*map(on_host, range(4))))

        assert code == 2
        assert "whose ranks are not in this job's pods: unknown" in document["ranks"]["could_not"]


def test_pods_on_one_host_are_not_told_apart(world: World) -> None:
    """Their ranks have one address, so no record of a single pod is shown."""
    pods = [
        worker(2, spec={"hostNetwork": True}, metadata={"name": name, "uid": name}) for name in ("train-2", "train-9")
    ]
    with NcclRas("2.30.1", [communicator({-1: 9, 1: 8}, ranks=(4, 5))]) as ras:
        code, document, _ = world.ask(ras, job(*pods, nodes=of_record(xid_74(1))))

    place = "with GPU 1 of one of pod/team/train-2, pod/team/train-9 on node/gpu-c"
    assert (code, len(document["ranks"]["suspects"])) == (1, 1)
    assert place in document["ranks"]["suspects"][0]
    assert "Xid74" not in document["ranks"]["suspects"][0]


def test_own_network_accepts_unknown_addresses(world: World) -> None:
    """The ranks may use another interface of the pod."""
    elsewhere = [
        SimulatedRank(rank, f"192.168.0.{rank}", 7, 0, {"AllReduce": 9 if rank else 8}, "") for rank in range(4)
    ]
    with NcclRas("2.30.1", [SimulatedCommunicator(WORLD, tuple(elsewhere))]) as ras:
        code, document, _ = world.ask(ras)

    assert code == 1
    assert "process 7 on 192.168.0.0, the address of none of its pods" in document["ranks"]["suspects"][0]


# Without an answer.


def could_not(world: World, ras: NcclRas, code: int = 2, **changes: Any) -> str:
    done, document, _ = world.ask(ras, **changes)
    assert (done, document["ranks"]["summary"], document["ranks"]["suspects"]) == (code, "", [])
    return str(document["ranks"]["could_not"])


def test_without_permission_the_owner_gets_the_command(world: World) -> None:
    def deny(cluster: ExecCluster) -> None:
        cluster.denied = True

    with NcclRas("2.30.1", [lagging()]) as ras:
        why = could_not(world, ras, prepare=deny)

        command = why.partition("`")[2].rstrip("`")
        assert why.startswith("you lack get and create of pods/exec in namespace team. Its owner prints NCCL's report")
        assert command.startswith("kubectl -n team exec train-0 -c main -- bash -c 'exec 3<>/dev/tcp/localhost/28028; ")
        script = command.partition("bash -c ")[2].replace("localhost/28028", ras.address.replace(":", "/"))
        printed = subprocess.run(["bash", "-c", f"bash -c {script}"], capture_output=True, check=True).stdout
        assert b"Rank 5 has launched up to operation 1842" in printed


def test_without_permission_other_causes_count(world: World) -> None:
    def deny(cluster: ExecCluster) -> None:
        cluster.denied = True

    with NcclRas("2.30.1", [lagging()]) as ras:
        assert "pods/exec" in could_not(
            world, ras, 1, prepare=deny, objects=job(*workers(), nodes=of_record(xid_74(1)))
        )


def test_without_a_shell(world: World) -> None:
    with NcclRas("2.30.1", [lagging()]) as ras:
        why = could_not(world, ras, tools=())

    assert why.count("executable file not found in $PATH") == 3


def test_without_a_tool(world: World) -> None:
    with NcclRas("2.30.1", [lagging()]) as ras:
        assert "the image has neither bash, python3 nor ncclras" in could_not(world, ras, tools=("sh",))


@pytest.mark.parametrize("tools", [TOOLS, ("sh", "python3")])
def test_without_a_listener(world: World, tools: tuple[str, ...]) -> None:
    with NcclRas("2.30.1", [lagging()]) as ras:
        pass
    assert f"nothing listens on {ras.address}: NCCL is older than 2.24" in could_not(world, ras, tools=tools)


def test_without_a_running_pod(world: World) -> None:
    pending = [pod("train-0", 2, owner=("Job", "train"), phase="Succeeded", on="gpu-a")]
    with NcclRas("2.30.1", [lagging()]) as ras:
        assert could_not(world, ras, objects=job(*pending)) == "none of its pods with GPUs runs"


def test_next_pod_answers(world: World) -> None:
    """The NCCL of the first pod does not answer."""

    def fail_first(cluster: ExecCluster) -> None:
        cluster.silent = {"train-0"}

    with NcclRas("2.30.1", [lagging()]) as ras:
        code, _, cluster = world.ask(ras, prepare=fail_first)

    assert (code, [command[0] for command in cluster.commands]) == (1, ["train-0", "train-1", "train-1"])


# The tools of an image.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[127.0.0.1]"])
@pytest.mark.parametrize("tools", [TOOLS, ("sh", "bash", "cat"), ("sh", "python3")])
def test_script_asks_with_bash_or_python(world: World, tools: tuple[str, ...], host: str) -> None:
    def set_address(cluster: ExecCluster) -> None:
        cluster.environment["NCCL_RAS_ADDR"] = f"{host}:{ras.address.partition(':')[2]}"

    with NcclRas("2.30.1", [lagging()]) as ras:
        code, document, _ = world.ask(ras, tools=tools, prepare=set_address)

    assert (code, len(document["ranks"]["suspects"]), len(ras.asked)) == (1, 1, 2)


@pytest.mark.parametrize("version", ["2.24.3", "2.30.1"])
def test_script_asks_with_the_client_of_nccl(world: World, version: str) -> None:
    """The client of an older version does not know the option -f."""
    refusal = "case $* in *-f*) exit 1;; esac" if version == "2.24.3" else ""
    with NcclRas(version, [lagging()]) as ras:
        answer = ras.status("text" if refusal else "json")
        client = f'{refusal}\n[ "$*" = "-h 127.0.0.1 -p {ras.address[10:]} -t 3 -v{"" if refusal else " -f json"}" ]'
        (world.tools / "ncclras").write_text(f"#!/bin/sh\n{client} && cat {world.tools}/answer\n")
        (world.tools / "ncclras").chmod(0o755)
        (world.tools / "answer").write_text(answer)
        code, document, _ = world.ask(ras, tools=("sh", "cat"))

    assert (code, len(document["ranks"]["suspects"]), ras.asked) == (1, 1, [])


def test_address_of_the_container_is_no_code(world: World) -> None:
    def set_address(cluster: ExecCluster) -> None:
        cluster.environment["NCCL_RAS_ADDR"] = f"$(touch {world.tools}/x);`touch {world.tools}/x`:1'\"; touch x #"

    with NcclRas("2.30.1", [lagging()]) as ras:
        assert "nothing listens on $(touch" in could_not(world, ras, prepare=set_address, tools=(*TOOLS, "touch"))
    assert not (world.tools / "x").exists()


# Hostile answers: the pod's owner decides what its processes answer.


def sized(raw: int, count: Any = 9) -> dict[str, Any]:
    ranks = [
        {"rank": rank, "host": "10.0.0.1", "pid": rank, "nvml_dev": 0, "collective_counts": {"AllReduce": count}}
        for rank in range(raw)
    ]
    return {"communicators": [{"hash": "0x1", "size": raw, "ranks": ranks, "missing_ranks": []}]}


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "text": b"SERVER PROTOCOL 2\nOK\nhello\n",
    "cut JSON": b'{"communicators": [{"hash": "0x1", "ra',
    "deep lists": b'{"communicators": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"communicators":' * 50_000,
    "many values": b'{"communicators": [' + b"0," * 3_000_000 + b"0]}",
    "no list": b'{"communicators": {}}',
    "no objects": b'{"communicators": [1]}',
    "a list": b'OK\n{"communicators": [[]]}',
    "numbers of the wrong type": json.dumps(sized(2, "9")).encode(),
    "a large number": json.dumps(sized(2, 10**30)).encode(),
    "not UTF-8": b"\xff\xfe{\x00",
    "null": b"{null}",
}


def hostile(world: World, *parts: bytes) -> tuple[subprocess.CompletedProcess[bytes], ExecCluster]:
    with NcclRas("2.30.1", []) as ras:
        ras.hostile = lambda: parts
        return world.run(ras)


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_hostile_answer_is_could_not_check(world: World, answer: bytes) -> None:
    with NcclRas("2.30.1", []) as ras:
        ras.hostile = lambda: (answer,)
        reasons = could_not(world, ras).split("; ")

    assert [reason[:18] for reason in reasons] == [f"pod/team/train-{number}: " for number in range(3)]


def test_answer_of_very_many_ranks(world: World) -> None:
    document = sized(60_000)
    document["communicators"][0]["ranks"][7]["collective_counts"]["AllReduce"] = 8
    done, _ = hostile(world, json.dumps(document).encode())

    assert done.returncode == 1
    assert b"rank 7 of 60000" in done.stdout


def test_answer_of_very_many_different_counts(world: World) -> None:
    document = sized(60_000)
    for rank in document["communicators"][0]["ranks"]:
        rank["collective_counts"] = {f"{number}": rank["rank"] for number in range(3)}
    done, _ = hostile(world, json.dumps(document).encode())

    assert done.returncode == 1
    assert b"NCCL names 1 rank" in done.stdout


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "json"])
@pytest.mark.parametrize("evil", ["\x1b[2J\x1b]0;title\x07", "\u202egnp.exe", "<script>x()</script>", "[x](http://y)"])
def test_hostile_names_are_printable(world: World, evil: str, form: str) -> None:
    document = sized(3)
    document["communicators"][0]["hash"] = evil
    for rank in document["communicators"][0]["ranks"]:
        rank |= {"host": evil, "collective_counts": {evil: 8 if rank["rank"] == 1 else 9}}
    with NcclRas("2.30.1", []) as ras:
        ras.hostile = lambda: (json.dumps(document).encode(),)
        done, _ = world.run(ras, words=("job", "team/train", "-o", form))

    page = done.stdout.decode()
    assert (done.returncode, "rank 1 of 3" in page.replace("\\", "")) == (1, True)
    assert not {"\x1b", "\x07", "\u202e"} & set(page)
    assert "<script>x()" not in page or form in ("terminal", "json")


def test_endless_answer_is_cut(world: World) -> None:
    def endless(write: Callable[[bytes], object]) -> None:
        while True:
            write(frame(STDOUT + b"{" + b" " * 65_535))

    def prepare(cluster: ExecCluster) -> None:
        cluster.stream = endless

    with NcclRas("2.30.1", []) as ras:
        assert could_not(world, ras, prepare=prepare).count("its answer is longer than 16 MiB") == 3


@given(
    st.binary(max_size=200)
    | st.text().map(str.encode)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
        max_leaves=40,
    ).map(lambda tree: json.dumps({"communicators": tree}).encode())
)
def test_any_answer_is_parsed_or_refused(raw: bytes) -> None:
    try:
        answer = parse(raw)
        shown = judged(snapshot(*whole_job()), [], answer, answer).lines
    except NcclRasError as error:
        shown = (str(error),)
    assert all(line and printable(line) == line for line in shown)


def test_any_comma_may_be_left_out() -> None:
    document = as_json("2.30.1", [communicator({-1: 9, 1: 8}, size=4, states={2: "dead", 3: "left"})] * 2)
    whole = parse(document.encode())
    places = [place for place in range(len(document)) if document.startswith(",\n", place)]

    assert len(places) > 90
    assert len(whole.communicators[f"0x{WORLD:x}"].missing) == 2
    for place in places:
        assert parse(f"{document[:place]}{document[place + 1 :]}".encode()) == whole
    with pytest.raises(NcclRasError, match="unreadable"):
        parse(document.replace("},", "}}").encode())


@given(st.lists(st.tuples(st.integers(5, 7), st.sampled_from(("", "", "", "silent", "dead"))), min_size=1, max_size=9))
def test_text_names_the_same_ranks_as_json(ranks: list[tuple[int, str]]) -> None:
    counts = {rank: count for rank, (count, _) in enumerate(ranks)} | {-1: 0}
    states = {rank: state for rank, (_, state) in enumerate(ranks)}
    state = [communicator(counts, size=len(ranks), states=states)]
    whole = snapshot(*whole_job())
    text, *documents = (
        judged(whole, whole.pods, answer, answer)
        for answer in (parse(as_text("2.26.2", state).encode()), *(parse(as_json(v, state).encode()) for v in WHOLE))
    )

    assert documents == [documents[0]] * len(WHOLE)
    names = [[suspect.split()[1] for suspect in each.suspects] for each in (text, documents[0])]
    assert names[0] == names[1] or "Half of them are behind" in text.summary


# The command line.


@pytest.mark.parametrize("words", [(), ("node", "gpu-a"), ("hami",)])
def test_ranks_needs_a_workload_or_a_pod(world: World, words: tuple[str, ...]) -> None:
    with NcclRas("2.30.1", [lagging()]) as ras:
        done, cluster = world.run(ras, words=words)

    assert (done.returncode, cluster.served.asked) == (3, [])
    assert done.stderr == b"gpu-healthcheck diagnose: --ranks needs a workload or a pod, such as job NAMESPACE/NAME\n"


def test_ranks_of_a_saved_state(world: World, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{}")
    with NcclRas("2.30.1", [lagging()]) as ras:
        done, _ = world.run(ras, words=("job", "train", "--from", str(tmp_path / "state.json")))

    assert done.returncode == 3
    assert b"--ranks asks a running job and --from reads a saved state: use one of them" in done.stderr


@pytest.mark.parametrize(
    ("form", "title"),
    [("terminal", "\nNCCL's ranks\n  "), ("markdown", "## NCCL's Ranks\n\n- "), ("html", "<ul>\n<li>")],
)
def test_reports_show_the_ranks(world: World, form: str, title: str) -> None:
    with NcclRas("2.30.1", [lagging()]) as ras:
        done, _ = world.run(ras, words=("job", "team/train", "-o", form))

    assert f"{title}No rank launched a collective within 10 s." in done.stdout.decode()
    assert b"No cause was found" in done.stdout
