"""`gpu-healthcheck check`, as a person types it: which checks it runs, which it does not, and level 2 here and now."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from gpu_healthcheck.cli.app import app
from gpu_healthcheck.sim.node import SimulatedNode
from gpu_healthcheck.sim.pod_resources import serving_pod_resources
from tests.console import typed
from tests.probes.dcgm.documents import FAULTY, Story, dcgm_4, printed
from tests.waiting import GIVE_UP_SECONDS, eventually

POD = ("team", "train-0", 8)
HELD = "gpu-healthcheck check: 1-dcgm-diag-l2: team/train-0 has 8 nvidia.com/gpu"


class World:
    """A p4d.24xlarge under HOST_ROOT, with dcgmi on the PATH, that is a node of no cluster."""

    def __init__(self, host: SimulatedNode) -> None:
        self.host = host
        self.environment = {
            **{key: value for key, value in os.environ.items() if key != "KUBERNETES_SERVICE_HOST"},
            "HOST_ROOT": str(host.root),
            "CONFIG_DIR": "/nowhere",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1",
            "PATH": f"{host.install_dcgmi()}:{os.environ['PATH']}",
        }

    @property
    def levels(self) -> list[str]:
        """Return the levels that DCGM ran."""
        asked = self.host.root / "dcgm/asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        return [line.split()[0].removeprefix("what=") for line in lines if line.startswith("what=")]

    def command(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "cli", "check", *map(str, words)]

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        done = typed(["check", *map(str, words)], self.environment)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def record(self, *words: str | Path) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.run(*words, "--json").stdout)
        return record


@pytest.fixture
def world(short_root: Path) -> Iterator[World]:
    with SimulatedNode.create(short_root / "n", "p4d.24xlarge") as host:
        yield World(host)


def test_check_verbose_shows_only_differences_between_equal_gpus(world: World) -> None:
    healthy = world.run("gpu-siblings", "-v").stdout
    (world.host.root / "nvml/gpu5/remap_pending").write_text("1\n")
    faulty = world.run("gpu-siblings", "-v").stdout

    assert len(healthy.splitlines()) < 150
    assert [len(set(re.findall(r"GPU-[0-9a-f-]{36}", printed))) for printed in (healthy, faulty)] == [8, 8]
    assert [printed.count("pending=True") - healthy.count("pending=True") for printed in (healthy, faulty)] == [0, 1]


@pytest.mark.parametrize("word", ["1", "1-dcgm-diag-l2", "dcgm-diag-l2", "dcgm-l2"])
def test_check_runs_level_2_by_each_name(world: World, word: str) -> None:
    done = world.run(word)

    assert (done.returncode, world.levels) == (0, ["2"])
    assert "1 dcgm-diag-l2" in done.stdout
    assert done.stdout.endswith(": pass\n")
    assert "DCGM's level 2 takes minutes" in done.stderr


def test_check_writes_one_record_for_level_2_and_light_checks(world: World) -> None:
    record = world.record("1", "nvidia-smi", "topology")

    assert [entry["check"] for entry in record["checks"]] == ["0-nvidia-smi", "3-topology-check", "1-dcgm-diag-l2"]


def test_check_level_2_finding_has_the_gpus_address_and_is_replayed_alike(world: World) -> None:
    document = dcgm_4(Story(8, errors={("memory", 3): (FAULTY,)}))
    del document["entity_groups"]  # serials of other GPUs
    world.host.write_value("dcgm/answer", printed(document).decode())
    path = world.host.root / "evidence.json"
    done = world.run("1", "--json", "--save-evidence", path)
    record = json.loads(done.stdout)

    assert (done.returncode, record["status"]) == (1, "fail")
    assert [entry["reason"] for entry in record["findings"]] == ["DcgmDiagMemory"]
    assert record["findings"][0]["subject"] == f"gpu/{world.host.gpus[3].address}"
    again = typed(["replay", "--json", str(path)], world.environment)
    assert again.returncode == 1
    assert [load["reason"] for load in json.loads(again.stdout)["findings"]] == ["DcgmDiagMemory"]


def test_check_level_2_without_dcgmi_could_not_check(world: World) -> None:
    (world.host.root / "usr/bin/dcgmi").unlink()
    done = world.run("1", "--json")
    record = json.loads(done.stdout)

    assert (done.returncode, record["status"]) == (2, "unknown")
    assert [entry["cause"] for entry in record["unobserved"]] == ["DcgmNotInstalled"]


def test_check_level_2_needs_force_while_a_pod_holds_gpus(world: World) -> None:
    with serving_pod_resources(world.host.root, lambda: [POD]):
        done = world.run("1", "0")
        assert (done.returncode, done.stdout, world.levels) == (2, "", [])
        assert HELD in done.stderr
        assert "--force tests anyway" in done.stderr

        assert (world.run("1", "--force").returncode, world.levels) == (0, ["2"])


def test_check_level_2_tests_nothing_while_a_process_uses_a_gpu(world: World) -> None:
    world.host.write_value("nvml/gpu2/processes", "4711")
    done = world.run("1")

    assert (done.returncode, world.levels) == (2, [])
    assert f"processes use gpu/{world.host.gpus[2].address}" in done.stderr


def test_check_level_2_tests_nothing_if_the_kubelet_does_not_answer(world: World) -> None:
    (world.host.root / "var/lib/kubelet").mkdir(parents=True, exist_ok=True)
    done = world.run("1")

    assert (done.returncode, world.levels) == (2, [])
    assert "it is unknown whether its GPUs are in use" in done.stderr


@pytest.mark.parametrize(("answer", "code", "levels"), [("n", 2, []), ("y", 0, ["2"])])
def test_check_level_2_asks_on_a_terminal(world: World, answer: str, code: int, levels: list[str]) -> None:
    ours, theirs = pty.openpty()
    with serving_pod_resources(world.host.root, lambda: [POD]):
        process = subprocess.Popen(
            world.command("1"), env=world.environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        raw = _until(ours, b"Test anyway? [y/N]")
        os.write(ours, f"{answer}\n".encode())
        raw += _until(ours, b"")
        assert process.wait(GIVE_UP_SECONDS) == code
    os.close(ours)

    assert HELD.encode() in raw
    assert world.levels == levels


def _until(terminal: int, words: bytes) -> bytes:
    """Return the terminal's output up to these words; to its end without words."""
    raw = b""
    while not (words and words in raw):
        assert select.select([terminal], [], [], GIVE_UP_SECONDS)[0], raw
        try:
            raw += os.read(terminal, 65536)
        except OSError:  # the other end was closed
            break
    return raw


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_check_level_2_ends_all_its_processes_at_a_signal(world: World, number: signal.Signals) -> None:
    world.host.write_value("dcgm/hang", "")
    process = subprocess.Popen(
        world.command("1", "--json"), env=world.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    sleeper = world.host.root / "dcgm/sleeper"
    pid = int(eventually(lambda: sleeper.read_text().strip() if sleeper.exists() else ""))
    process.send_signal(number)
    out, _ = process.communicate(timeout=GIVE_UP_SECONDS)

    assert process.returncode == 130
    record = json.loads(out)
    assert (record["status"], [entry["cause"] for entry in record["unobserved"]]) == ("unknown", ["DcgmStopped"])
    assert eventually(lambda: _is_gone(pid))


def _is_gone(pid: int) -> bool:
    """The end of an orphan may be unread on this machine."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def refused(*words: str) -> str:
    """Return the message of a rejected command."""
    done = CliRunner().invoke(app, ["check", *words], env={"CONFIG_DIR": "/nowhere"})
    assert (done.exit_code, done.stdout) == (3, "")
    return done.stderr


@pytest.mark.parametrize(
    "word", ["4", "4-dcgm-diag-l4", "dcgm-l4", "5", "nccl-allreduce", "6", "efa-loopback", "rdma-loopback"]
)
def test_check_of_a_whole_node_test_names_the_command_that_runs_it(word: str) -> None:
    message = refused("0", word)

    assert "gpu-healthcheck quarantine NODE" in message
    assert "quarantine-run" in message
    assert "available here: 0, 1, 2, 3, 7, 8, 9" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("word",), "no check 'word'; allowed are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0-nvidia-smi, 1-dcgm-diag-l2"),
        (("1", "--root", "/"), "--root /: 1-dcgm-diag-l2 can only test the GPUs of this machine"),
        (("0", "--root", "/nowhere"), "--root /nowhere: no such directory"),
    ],
)
def test_check_refuses_what_it_can_not_check(words: tuple[str, ...], message: str) -> None:
    assert message in refused(*words)


def test_check_names_a_missing_host_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_ROOT", "/nowhere")

    assert refused("nouveau") == "gpu-healthcheck check: HOST_ROOT /nowhere: no such directory\n"


def test_check_without_root_warns_if_a_check_could_not_run(world: World) -> None:
    if subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets nobody become somebody else")
    # root of the new user namespace, unprivileged outside
    command = ["unshare", "--user", *world.command("xid", "--json")]
    done = subprocess.run(command, env=world.environment, capture_output=True, text=True, check=False)
    (world.host.root / "dev/kmsg").unlink()
    blind = subprocess.run(command, env=world.environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert blind.returncode == 2
    assert blind.stderr == "not running as root: checks that could not run may need root\n"


def test_check_without_hami_leaves_its_group_unconfigured(world: World) -> None:
    done = world.run("--json")
    groups = {load["check"]: load["status"] for load in json.loads(done.stdout)["checks"]}

    assert done.stderr == ""
    assert groups.pop("8-hami") == "not-configured"
    assert "".join(group[0] for group in groups) == "02379"


@pytest.mark.parametrize("words", [(), ("efa-count", "7-container-runtime")])
def test_check_record_lists_its_checks(world: World, words: tuple[str, ...]) -> None:
    assert len(world.record(*words)["checks"]) > 0


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds between the reads, which do not pass."""
    seconds: list[float] = []
    monkeypatch.setattr("gpu_healthcheck.cli.this_machine.sleep", seconds.append)
    return seconds


@pytest.mark.parametrize(
    ("speeds", "code", "words"),
    [
        ({1980: range(5), 1410: [5], 1981: [6, 7]}, 0, "GPU 5 is slower than the other GPUs of its pod (GpuSlower"),
        ({1980: range(8)}, 0, "8 of 8 GPUs compared with other busy GPUs"),
        ({}, 2, "GpusNotCompared: could not compare: 0 of 8 GPUs were busy at both reads, and 4 of one pod are needed"),
        ({1980: [0, 1, 2]}, 2, "GpusNotCompared: could not compare: 3 of 8 GPUs were busy at both reads"),
    ],
    ids=["slow", "equal", "idle", "uneven"],
)
def test_check_siblings_now_compares_the_gpus_of_a_pod(
    world: World, waits: list[float], speeds: dict[int, list[int]], code: int, words: str
) -> None:
    for mhz, indices in speeds.items():
        world.host.work(list(indices), mhz, 300)
    pods = [("team", "train-0", [gpu.uuid for gpu in world.host.gpus])]
    with serving_pod_resources(world.host.root, lambda: pods):
        done = world.run("siblings", "--now")

    assert (done.returncode, waits) == (code, [60])
    assert words in done.stdout
    assert "the second read is in 60 s" in done.stderr


def test_check_siblings_now_without_a_kubelet_compares_nothing(world: World, waits: list[float]) -> None:
    world.host.work(range(7), 1980, 300)
    world.host.work([7], 1410, 200)
    done = world.run("siblings", "--now", "--interval", "20")

    assert (done.returncode, waits) == (2, [20])
    assert "the kubelet does not name their pods: " in done.stdout


def test_check_siblings_without_now_runs_one_cycle(world: World, waits: list[float]) -> None:
    assert world.run("siblings").stdout == world.run("gpu-siblings").stdout
    assert waits == []


@pytest.mark.parametrize(
    "words",
    [("--now",), ("0", "--now"), ("siblings", "clocks", "--now"), ("siblings", "--now", "--interval", "5")],
    ids=" ".join,
)
def test_check_now_is_refused_for_other_checks(world: World, waits: list[float], words: tuple[str, ...]) -> None:
    assert (world.run(*words).returncode, waits) == (3, [])


def test_check_siblings_now_ends_at_ctrl_c(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpu_healthcheck.cli.this_machine.sleep", interrupt)
    done = world.run("siblings", "--now")

    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
