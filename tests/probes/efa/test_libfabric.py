"""fi_info, asked seldom and never waited for by a look: the simulated node's own program, really run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.model import Host, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.efa.libfabric import (
    ASKED_AGAIN_SECONDS,
    Libfabric,
    LibfabricReading,
    Listing,
    read_libfabric,
    read_listing,
)
from gpu_healthcheck.sim.node import EFA_PROGRAMS, SimulatedNode
from tests.captures.saving import saved_and_read
from tests.waiting import eventually

LISTED = b"""provider: efa
    fabric: efa-direct
    domain: rdmap16s0-rdm
    version: 203.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap16s0-rdm
    version: 203.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: efa_1-rdm
    version: 203.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: efa_2-dgrm
    version: 203.0
    type: FI_EP_DGRAM
    protocol: FI_PROTO_EFA
"""


class Asked:
    """libfabric on a simulated node, with a clock that a test moves."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.now = 0.0
        path = f"{node.root}/{EFA_PROGRAMS}:/usr/bin:/bin"
        self.libfabric = Libfabric(node.root, path=path, clock=lambda: self.now)

    def look(self) -> LibfabricReading:
        """Run a probe, and wait for the request that it began."""
        look = self.libfabric.read()
        if self.libfabric._answers.asking:
            self.libfabric._answers.asking.join()
        return look

    @property
    def environments(self) -> list[set[str]]:
        """Of each run."""
        try:
            message = (self.node.root / "libfabric/asked").read_text()
        except FileNotFoundError:
            return []
        return [
            {line.partition("=")[0] for line in word.split("\n") if line}
            for word in message.split("FI_HMEM=system")[1:]
        ]

    @property
    def times(self) -> int:
        return len(self.environments)


@pytest.fixture
def asked(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setenv("FI_LOG_LEVEL", "debug")
    monkeypatch.setenv("FI_PROVIDER", "tcp")
    node.write_value("libfabric/unlisted", "")
    one = Asked(node)
    yield one
    one.libfabric.end()


def listing(look: LibfabricReading) -> Listing:
    assert isinstance(look.answer, Listing)
    return look.answer


def test_read_never_waits_and_the_next_has_the_answer(asked: Asked) -> None:
    assert asked.look() == LibfabricReading()

    answer = listing(asked.look())
    assert (answer.exit_code, answer.listed, answer.missing) == (0, tuple(sorted(asked.node.efa_names)), ())
    assert answer.devices == answer.listed
    assert answer.version == "203.0"


def test_a_person_waits_for_the_answer(asked: Asked) -> None:
    assert len(listing(asked.libfabric.ask()).listed) == 32


def test_a_whole_answer_is_repeated_for_an_hour(asked: Asked) -> None:
    for seconds, times in [(0.0, 1), (300.0, 1), (ASKED_AGAIN_SECONDS - 1, 1), (ASKED_AGAIN_SECONDS, 2), (4000.0, 2)]:
        asked.now = seconds
        asked.look()
        assert (seconds, asked.times) == (seconds, times)


def test_answer_that_lacks_a_device_is_requested_again_in_each_cycle(asked: Asked) -> None:
    asked.node.write_value("libfabric/unlisted", asked.node.efa_names[3])
    asked.look()

    assert listing(asked.look()).missing == (asked.node.efa_names[3],)
    assert asked.times == 2

    asked.node.write_value("libfabric/unlisted", "")
    assert listing(asked.look()).missing == (asked.node.efa_names[3],)
    assert listing(asked.look()).missing == ()
    asked.look()
    assert asked.times == 3


def test_other_devices_are_asked_about_anew_and_the_old_answer_is_none_about_them(asked: Asked) -> None:
    asked.look()
    asked.node.remove_efa(5)

    assert asked.look() == LibfabricReading()
    assert len(listing(asked.look()).devices) == 31
    assert asked.times == 2


def test_device_that_cannot_be_opened_is_not_queried(asked: Asked) -> None:
    asked.node.remove_uverbs(5)

    answer = listing(asked.libfabric.ask())
    assert (asked.node.efa_names[5] in answer.devices, answer.missing) == (False, ())


def test_one_device_that_can_t_be_opened_hides_them_all(make_node: Callable[[str], SimulatedNode]) -> None:
    asked = Asked(make_node("p6-b200.48xlarge"))
    asked.node.write_value("libfabric/refused", "mlx5_0")

    answer = listing(asked.libfabric.ask())
    assert (answer.exit_code, answer.listed, len(answer.missing)) == (61, (), 8)
    assert answer.says == "fi_getinfo: -61 (No data available)"


def test_a_hanging_program_blocks_no_cycle_and_no_second_is_started(asked: Asked) -> None:
    asked.node.write_value("libfabric/hang", "")

    assert asked.libfabric.read() == LibfabricReading()
    thread = eventually(
        lambda: asked.libfabric._answers.asking if asked.times and asked.libfabric._program._process else None
    )
    assert (asked.libfabric.read(), asked.libfabric._answers.asking is thread, asked.times) == (
        LibfabricReading(),
        True,
        1,
    )

    assert asked.libfabric.end() is None
    thread.join()
    (asked.node.root / "libfabric/hang").unlink()
    assert asked.look().answer == Unobserved(UnobservedCause.named("LibfabricFailed"), "fi_info was ended by SIGKILL")
    assert listing(asked.look()).missing == ()


def test_a_program_that_misses_its_deadline_is_ended(asked: Asked) -> None:
    asked.node.write_value("libfabric/hang", "")
    asked.libfabric.deadline_seconds = 0.2

    why = "fi_info: no end within 0.2 s; its process was ended"
    assert asked.libfabric.ask().answer == Unobserved(UnobservedCause.named("LibfabricNotAnswering"), why)


def test_it_knows_nothing_of_our_environment(asked: Asked) -> None:
    asked.look()

    assert len(asked.environments) == 1
    assert {"FI_LOG_LEVEL", "FI_PROVIDER", "HOME"} & asked.environments[0] == set()


def test_missing_program_is_not_queried(node: SimulatedNode, tmp_path: Path) -> None:
    absent = LibfabricReading(absent="fi_info is not installed here")
    assert Libfabric(node.root, path=str(tmp_path)).read() == absent

    (tmp_path / "fi_info").write_text("no program")
    assert Libfabric(node.root, path=str(tmp_path)).read() == absent


def test_program_that_cannot_run_is_unobserved(node: SimulatedNode, tmp_path: Path) -> None:
    program = tmp_path / "fi_info"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)

    why = f"fi_info: {program}: Exec format error"
    assert Libfabric(node.root, path=str(tmp_path)).ask().answer == Unobserved(
        UnobservedCause.named("LibfabricFailed"), why
    )


def test_without_an_efa_device_it_is_not_run(make_node: Callable[[str], SimulatedNode]) -> None:
    asked, with_efa = Asked(make_node("g6.xlarge")), make_node("p5.48xlarge")
    asked.libfabric.path = f"{with_efa.root}/{EFA_PROGRAMS}"

    assert asked.libfabric.ask() == LibfabricReading(absent="no EFA device that programs can open")


def test_a_tree_that_is_not_this_machine_is_not_asked_about(node: SimulatedNode) -> None:
    assert read_libfabric(Host(node.root)).absent == "fi_info can only check the machine on which it runs"


def test_each_domain_of_reliable_datagrams_counts_once() -> None:
    devices = ("efa_1", "efa_2", "rdmap16s0")
    answer = read_listing(devices, 0, LISTED, b"")

    assert answer == Listing(devices, 0, ("efa_1", "rdmap16s0"), "203.0")
    assert isinstance(answer, Listing)
    assert answer.missing == ("efa_2",)


@pytest.mark.parametrize(
    ("code", "err", "message"),
    [
        (1, b"Usage: fi_info\n", "fi_info ended with exit code 1: Usage: fi_info"),
        (12, b"", "fi_info ended with exit code 12"),
        (127, b"", "fi_info ended with exit code 127"),
        (-11, b"", "fi_info was ended by SIGSEGV"),
        (1, b"x" * 1000, f"fi_info ended with exit code 1: {'x' * 200}"),
        (
            1,
            b"libfabric:47889:1753871169::efa:core:f():47<warn> one\nlibfabric:478:1753::efa:core:g():9<warn> it\n\n",
            "fi_info ended with exit code 1: libfabric: efa:core:g():9<warn> it",
        ),
    ],
)
def test_exit_without_devices_is_unobserved(code: int, err: bytes, message: str) -> None:
    assert read_listing(("rdmap16s0",), code, b"", err) == Unobserved(UnobservedCause.named("LibfabricFailed"), message)


@given(st.sampled_from([0, 61, 1, -9]), st.binary(), st.binary())
def test_whatever_it_writes_is_read_and_can_be_written_down(code: int, out: bytes, err: bytes) -> None:
    look = LibfabricReading(read_listing(("rdmap16s0",), code, LISTED + out, err))

    assert saved_and_read(look) == look
