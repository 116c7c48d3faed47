"""NCCL's RAS socket: the protocol of versions 2.24 to 2.30, with text and JSON as these versions write them.

Formats: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

_ALL_IN_ONE, _JSON, _WITHOUT_COMMA = (2, 26), (2, 28, 7), (2, 28, 9)
"""First version with counts by operation, and with JSON; the version that leaves out a comma."""
OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass(frozen=True)
class SimulatedRank:
    """Rank of a communicator. `state`: '' if it answers, else `silent`, `dead`, or `left` without the communicator."""

    rank: int
    host: str
    pid: int
    device: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    state: str = ""

    @property
    def place(self) -> str:
        return f"GPU {self.device} managed by process {self.pid} on node {self.host}"


@dataclass(frozen=True)
class SimulatedCommunicator:
    """Communicator with its hash."""

    hash: int
    ranks: tuple[SimulatedRank, ...]

    @property
    def present(self) -> list[SimulatedRank]:
        return [rank for rank in self.ranks if not rank.state]

    @property
    def missing(self) -> list[SimulatedRank]:
        return [rank for rank in self.ranks if rank.state]


State = Sequence[SimulatedCommunicator]


def version_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def as_json(version: str, state: State) -> str:
    """Return the document as NCCL prints it."""
    document = {
        "nccl_version": version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-29 06:00:00",
        "communicators_count": len(state),
        "communicators": [_communicator(each) for each in state],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }
    text = json.dumps(document, indent=2) + "\n"
    if version_of(version) == _WITHOUT_COMMA:
        text = text.replace('],\n      "missing_ranks": [', ']\n      "missing_ranks": [')
    return text


def _communicator(communicator: SimulatedCommunicator) -> dict[str, Any]:
    ranks = [
        _rank(rank)
        | {
            "status": {
                "init_state": 0,
                "async_error": 0,
                "finalize_called": False,
                "destroy_flag": False,
                "abort_flag": False,
            },
            "collective_counts": {name: rank.counts.get(name, 0) for name in OPERATIONS},
        }
        for rank in communicator.present
    ]
    missing = [
        _rank(rank) | {"status": {"unresponsive": rank.state != "left", "considered_dead": rank.state == "dead"}}
        for rank in communicator.missing
    ]
    return {
        "hash": f"0x{communicator.hash:x}",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(communicator.ranks),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }


def _rank(rank: SimulatedRank) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "cuda_dev": rank.device,
        "nvml_dev": rank.device,
    }


def as_text(version: str, state: State) -> str:
    """Return the verbose status as NCCL prints it."""
    old = version_of(version) < _ALL_IN_ONE
    lines = [
        f"NCCL version {version} compiled with CUDA 12.8",
        "CUDA runtime version 12080, driver version 13000",
        *("", "Job summary", "===========", ""),
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        "      4          8            1         32       32",
        *("", "Communicators... (0.00s)", "=============", ""),
    ]
    if state:
        lines += [
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
            "    #  in group  per comm  per node  per comm  in group",
        ]
        lines += (_row(number, each) for number, each in enumerate(state))
    else:
        lines += ["No communicator data collected!"]
    lines += ["", "Errors", "======", ""]
    lines += _lost(state, "INCOMPLETE", "silent", "  Missing communicator data from {} job process{}")
    lines += _lost(state, "DEAD", "dead", "  {} job process{} considered dead (unreachable via the RAS network)")
    for number, each in enumerate(state):
        if gone := [rank for rank in each.missing if rank.state != "left"]:
            lines += [
                f"#{number}-0 ({each.hash:016x}) INCOMPLETE",
                f"  Missing communicator data from {len(gone)} rank",
            ]
            if old:
                numbers = ",".join(str(rank.rank) for rank in gone)
                lines += [f"  The missing rank{'s' if len(gone) > 1 else ''}: {numbers}", ""]
            else:
                lines += [*(f"  Rank {rank.rank} -- {rank.place}" for rank in gone), ""]
    lines += ["Warnings", "========", ""]
    for number, each in enumerate(state):
        lines += _mismatch(number, each, old=old)
    return "\n".join(lines) + "\n"


def _row(number: int, communicator: SimulatedCommunicator) -> str:
    size, mismatch = len(communicator.ranks), any(True for _ in _mismatch(number, communicator, old=True))
    error = "INCOMPLETE" if communicator.missing else "MISMATCH" if mismatch else "OK"
    return f"{number:5}  {1:8}  {4:8}  {'8':>8}  {size:8}  {size:8}  {'RUNNING':>8}  {error:>6}"


def _lost(state: State, heading: str, kind: str, sentence: str) -> list[str]:
    lost = {(rank.host, rank.pid): rank for each in state for rank in each.ranks if rank.state == kind}
    if not lost:
        return []
    several = "es" if len(lost) > 1 else "" if kind == "silent" else " is"
    places = (f"  Process {rank.pid} on node {rank.host} managing GPU {rank.device}" for rank in lost.values())
    return [heading, sentence.format(len(lost), several), *places, ""]


def _mismatch(number: int, communicator: SimulatedCommunicator, *, old: bool) -> Iterator[str]:
    heading = [f"#{number}-0 ({communicator.hash:016x}) MISMATCH"]
    for operation in ("collective",) if old else OPERATIONS:
        counted = [(_count(rank, operation), rank) for rank in communicator.present]
        numbers = Counter(count for count, _ in counted)
        if len(numbers) < 2:
            continue
        yield from heading
        heading = []
        yield f"  Communicator ranks have different {operation} operation counts"
        for count, ranks in numbers.most_common():
            launched = f"launched up to operation {count}" if count or old else "not launched any operations"
            if ranks > 1:
                yield f"  {ranks} ranks have {launched}"
            if ranks == 1 or ranks < len(communicator.ranks) * 0.5:
                for _, rank in (one for one in counted if one[0] == count):
                    own = f" has {launched}" if ranks == 1 else ""
                    yield f"  Rank {rank.rank}{own} -- {rank.place}"
        yield ""


def _count(rank: SimulatedRank, operation: str) -> int:
    return sum(rank.counts.values()) if operation == "collective" else rank.counts.get(operation, 0)


class NcclRas:
    """RAS socket on loopback. The answers show `states` in order; the last one repeats.

    `hostile`, if set, writes the answer instead. `asked` has the commands of each connection.
    """

    def __init__(self, version: str, *states: State) -> None:
        self.version = version
        self.states = list(states)
        self.asked: list[list[str]] = []
        self.hostile: Callable[[], Iterable[bytes]] | None = None
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def status(self, form: str) -> str:
        """Return the next answer."""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return (as_json if form == "json" else as_text)(self.version, state)

    def _handler(self) -> type[socketserver.StreamRequestHandler]:
        ras = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                commands: list[str] = []
                ras.asked.append(commands)
                form = "text"
                for line in self.rfile:
                    command = line.decode().strip()
                    commands.append(command)
                    if command.lower() in ("status", "verbose status"):
                        for part in ras.hostile() if ras.hostile else (ras.status(form).encode(),):
                            self.wfile.write(part)
                        return
                    answer = ras.answer(command)
                    form = "json" if (command, answer) == ("SET FORMAT json", "OK") else form
                    self.wfile.write(f"{answer}\n".encode())

        return Handler

    def answer(self, command: str) -> str:
        """Return the answer to a command before the status."""
        if command.startswith("CLIENT PROTOCOL "):
            return "SERVER PROTOCOL 2"
        if command.startswith("TIMEOUT ") or (command.startswith("SET FORMAT ") and version_of(self.version) >= _JSON):
            return "OK"
        return f"ERROR: Unknown command {command}"
