"""DCGM's diagnostic as it is really run: the stand-in of the simulated node, in a process of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.checks.dcgm_diag import LEVEL_2, LEVEL_4
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Host, Observation, Outcome, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.dcgm import diag as dcgm
from gpu_healthcheck.healthcheck.probes.dcgm.diag import (
    HURRY_SECONDS,
    PATIENCE_SECONDS,
    Dcgm,
    DcgmReading,
    checked_host,
    level_2_patience_seconds,
)
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import DiagAnswer
from gpu_healthcheck.sim.node import SimulatedNode
from tests.host.test_command import is_gone
from tests.probes.dcgm.documents import FAULTY, Story, dcgm_4, printed
from tests.waiting import eventually

SHORT, LONG = 0.5, 60.0
FAILED = Story(8, errors={("memory", 3): [FAULTY]})


class Dcgmi:
    """DCGM's program on a simulated node, with its options and calls."""

    def __init__(self, root: Path) -> None:
        self.node = SimulatedNode.create(root, "p5.48xlarge")
        programs = self.node.install_dcgmi()
        self.calls_file = root / "dcgm"
        self.path = f"{programs}:/usr/bin:/bin"

    def tell(self, name: str, content: str | bytes = b"") -> None:
        (self.calls_file / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def asked(self) -> list[str]:
        return (self.calls_file / "asked").read_text().splitlines()

    def diag(self, deadline_seconds: float = LONG, patience_seconds: float = LONG, host: str = "") -> Dcgm:
        return Dcgm(host, deadline_seconds, self.path, patience_seconds)


@pytest.fixture
def dcgmi(tmp_path: Path) -> Iterator[Dcgmi]:
    one = Dcgmi(tmp_path / "node")
    yield one
    one.node.close()


def answer(seen: DcgmReading) -> DiagAnswer:
    assert isinstance(seen.answer, DiagAnswer), seen
    return seen.answer


def cause(seen: DcgmReading) -> Unobserved:
    assert isinstance(seen.answer, Unobserved), seen
    return seen.answer


def judged(seen: DcgmReading, level: int = 2) -> Outcome:
    check = {2: LEVEL_2, 4: LEVEL_4}[level]
    evidence = read_probes(Host(Path("/"), ask_dcgm=lambda _: seen), [check])
    return judge([check], evidence, Expectation())[0]


@pytest.mark.parametrize("level", [2, 4])
def test_every_gpu_of_a_healthy_node_passes(dcgmi: Dcgmi, level: int) -> None:
    seen = dcgmi.diag().run(level)

    assert (answer(seen).code, answer(seen).level) == (0, level)
    outcome = judged(seen, level)
    assert (outcome.findings, outcome.unobserved) == ((), ())
    assert {result.subject for result in outcome.passed if result.reason == "DcgmDiagMemory"} == {
        f"gpu/{n}" for n in range(8)
    }


def test_deep_diagnostic_runs_the_level_of_its_check(dcgmi: Dcgmi) -> None:
    evidence = read_probes(Host(dcgmi.node.root, ask_dcgm=dcgmi.diag().run), [LEVEL_2])

    (outcome,) = judge([LEVEL_2], evidence, Expectation())
    assert (outcome.unobserved, len(outcome.passed)) == ((), 24)
    assert [line for line in dcgmi.asked() if line.startswith("what=2 ")]


def test_what_it_writes_and_how_it_ends_are_judged_together(dcgmi: Dcgmi) -> None:
    dcgmi.tell("answer-2", b"Some banner\n" + printed(dcgm_4(FAILED)))
    dcgmi.tell("error", "CUDA_VISIBLE_DEVICES is not set\n")
    dcgmi.tell("code", "205")

    seen = dcgmi.diag().run(2)

    assert answer(seen).said == ("Some banner", "CUDA_VISIBLE_DEVICES is not set")
    assert [(finding.reason, finding.subject) for finding in judged(seen).findings] == [("DcgmDiagMemory", "gpu/3")]


def test_it_knows_nothing_of_ours_but_where_its_parts_are(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/dcgm")
    dcgmi.diag().run(2)

    fields = dict(line.partition("=")[::2] for line in dcgmi.asked()[1:])
    assert fields["LD_LIBRARY_PATH"] == "/usr/local/dcgm"
    assert "CUDA_VISIBLE_DEVICES" not in fields


def test_it_works_in_a_folder_of_its_own_that_is_gone_afterwards(
    dcgmi: Dcgmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot write, its own test of that fails (error 96)."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dcgmi.diag().run(2)

    folder = Path(dcgmi.asked()[0].partition("pwd=")[2])
    assert folder.parent == tmp_path.resolve()
    assert not folder.exists()


def test_tests_are_run_by_their_names(dcgmi: Dcgmi) -> None:
    dcgmi.tell("answer-memory,pcie", printed(dcgm_4(Story(tests=("memory", "pcie")))))

    seen = dcgmi.diag().run_tests(["memory", "--host", "pcie", "a b", ""])

    assert {row.test for row in answer(seen).results} == {"memory", "pcie"}
    assert dcgmi.diag().run_tests(["-p"]) == DcgmReading(absent="no valid test name")


def test_a_hostengine_of_the_node_is_used_by_its_name(dcgmi: Dcgmi) -> None:
    dcgmi.tell("hostengine", "localhost:5555")

    assert [unobserved.cause.name for unobserved in judged(dcgmi.diag().run(2)).unobserved] == ["DcgmNoHostengine"]
    assert judged(dcgmi.diag(host="localhost:5555").run(2)).unobserved == ()


def test_missing_dcgmi_is_not_queried(tmp_path: Path) -> None:
    seen = Dcgm(path=str(tmp_path)).run(2)

    assert seen == DcgmReading(absent="dcgmi is not installed here")
    assert (judged(seen).configured, judged(seen).seen) == (False, (Observation("dcgmi is not installed here"),))


def test_dcgmi_that_cannot_start_is_unobserved(tmp_path: Path) -> None:
    (tmp_path / "dcgmi").write_bytes(b"\x7fELF, but no more")
    (tmp_path / "dcgmi").chmod(0o755)

    assert cause(Dcgm(path=str(tmp_path)).run(2)).cause.name == "DcgmFailed"


@pytest.mark.parametrize("deaf", [False, True])
def test_program_that_does_not_end_is_terminated_then_killed(dcgmi: Dcgmi, deaf: bool) -> None:
    dcgmi.tell("hang")
    if deaf:
        dcgmi.tell("deaf")

    seen = dcgmi.diag(deadline_seconds=1.0, patience_seconds=SHORT if deaf else LONG).run(2)

    assert cause(seen) == Unobserved(
        UnobservedCause.named("DcgmTimedOut"), "dcgmi diag -r 2: no end within 1 s; its process was ended"
    )
    eventually(lambda: is_gone(int((dcgmi.calls_file / "sleeper").read_text())))
    (dcgmi.calls_file / "hang").unlink()
    assert answer(dcgmi.diag().run(2)).code == 0


def test_repeated_tests_have_the_remaining_time_of_their_level(dcgmi: Dcgmi) -> None:
    dcgmi.tell("seconds", "1")
    diag = dcgmi.diag(deadline_seconds=LONG)
    answer(diag.run(2))
    dcgmi.tell("seconds", str(10 * LONG))
    diag._ends_at -= LONG - 2.0  # as if the level had taken that long

    assert cause(diag.run_tests(["pcie"])).cause.name == "DcgmTimedOut"


def test_stopped_test_of_a_needed_node_is_not_repeated(dcgmi: Dcgmi) -> None:
    dcgmi.tell("hang")
    diag, seen = dcgmi.diag(), []
    thread = threading.Thread(target=lambda: seen.append(diag.run(2)))
    thread.start()
    eventually((dcgmi.calls_file / "sleeper").exists)

    diag.stop()
    thread.join()

    assert [cause(reading).cause.name for reading in (*seen, diag.run(2))] == ["DcgmStopped", "DcgmStopped"]
    assert len([line for line in dcgmi.asked() if line.startswith("what=")]) == 1


def test_a_flood_has_an_end(dcgmi: Dcgmi) -> None:
    dcgmi.tell("answer", b"x" * (5 << 20))

    seen = dcgmi.diag(patience_seconds=SHORT).run(2)
    assert cause(seen).detail.endswith("its output is longer than 4194304 bytes")


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "localhost",
        "localhost:5555",
        "nvidia-dcgm.gpu-operator.svc:5555",
        "10.0.0.1:1",
        "[::1]:5555",
        "h:65535",
    ],
)
def test_a_host_may_be(value: str) -> None:
    assert checked_host(value) == value.strip()


@pytest.mark.parametrize(
    "value",
    [
        "-h",
        "--help",
        "a b",
        "h:",
        "h:0",
        "h:65536",
        "h:5555:1",
        "http://h",
        "h;reboot",
        "h\n:1",
        "::1",
        "$(x)",
        "x" * 300,
    ],
)
def test_a_host_may_not_be(value: str) -> None:
    with pytest.raises(ValueError, match="allowed is host or host:port"):
        checked_host(value)


def test_a_hostengine_goes_on_without_dcgmi_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as engine:
        monkeypatch.setattr(dcgm, "_ENGINE", engine.getsockname())
        here = level_2_patience_seconds("")
        monkeypatch.setattr(dcgm, "_ENGINE", ("127.0.0.1", 1))

        assert (here, level_2_patience_seconds("nvidia-dcgm:5555"), level_2_patience_seconds("")) == (
            PATIENCE_SECONDS,
            PATIENCE_SECONDS,
            HURRY_SECONDS,
        )
