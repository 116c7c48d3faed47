"""Ask the NCCL library of a running pod for the ranks of its job, and parse its answer.

NCCL answers on a socket in the pod (RAS) since 2.24, in JSON since 2.28.7:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files

from msgspec import DecodeError, Struct
from msgspec.json import decode

from gpu_healthcheck.diagnosis.facts.gpu_requests import gpus_of
from gpu_healthcheck.diagnosis.snapshot.pods import Pod
from gpu_healthcheck.healthcheck.text.boundary import listed, table, text, value_at, whole
from gpu_healthcheck.healthcheck.text.json_cost import refuse_costly
from gpu_healthcheck.healthcheck.text.printable import printable

Execute = Callable[[str, str, str, Sequence[str], float, int], bytes]
"""Run a command, by namespace, pod, container, words, seconds and the most bytes of output."""
_SECONDS, _LONGEST, _MOST_VALUES, _LONGEST_LINE, _SHOWN = 12.0, 16 << 20, 2_000_000, 1000, 200
_COMMA_LEFT_OUT = re.compile(r'(?<=[^\s,{\[:])\n(?=\s*["{])')
"""Line end after a value and before the next one, where NCCL 2.28.9 writes no comma."""
_LAST_PART, _NO_COMMUNICATORS = "\nWarnings\n==", "\nNo communicator data collected!"
_DEAD, _SILENT, _LEFT = "is dead", "does not answer", "has left the communicator"
_LAUNCHED = r"(?:launched up to operation (\d{1,18})|not launched any operations)"
_HEADING = re.compile(r"(?:#\d+-\d+ \(([0-9a-f]{1,16})\) )?([A-Z]+)\Z", re.ASCII)
_OPERATION = re.compile(r"  Communicator ranks have different (\w{1,40}) operation counts", re.ASCII)
_RANKS = re.compile(rf"  (\d{{1,9}}) ranks have {_LAUNCHED}", re.ASCII)
_RANK = re.compile(
    rf"  Rank (\d{{1,9}})(?P<alone> has {_LAUNCHED})? -- "
    r"GPU (\d{1,3})(?: \(NVML (\d{1,3})\))? managed by process (\d{1,9}) on node (\S+)",
    re.ASCII,
)
_MISSING = re.compile(r"  The missing ranks?: ([\d,]+)", re.ASCII)
_PROCESS = re.compile(r"  Process (\d{1,9}) on node (\S+) managing GPU", re.ASCII)


class NcclRasError(Exception):
    """NCCL did not answer. The message is the reason."""


class RasRank(Struct, frozen=True):
    """Rank of a communicator: the address of its host, '' if unknown, its process, and its GPU's index in NVML."""

    rank: int
    host: str = ""
    pid: int = -1
    device: int = -1

    @property
    def process(self) -> tuple[str | int, int, int]:
        return self.host or self.rank, self.pid, self.device


class CountGroup(Struct, frozen=True):
    """The number of ranks that launched the same number of collectives; a text names only the ranks of small groups."""

    number: int
    ranks: Sequence[RasRank]


class Communicator(Struct, frozen=True, dict=True):
    """Communicator. `counts`: groups by operation and launches. `missing`: ranks without data, each with its state."""

    name: str
    counts: Mapping[str, Mapping[int, CountGroup]]
    missing: Sequence[tuple[RasRank, str]] = ()

    @cached_property
    def size(self) -> int:
        """Return its number of ranks; 0 if unknown."""
        groups = (some.values() for some in self.counts.values())
        present = max((sum(group.number for group in some) for some in groups), default=0)
        return present + len(self.missing) if present else 0

    @property
    def ranks(self) -> Iterator[RasRank]:
        yield from (rank for groups in self.counts.values() for group in groups.values() for rank in group.ranks)
        yield from (rank for rank, _ in self.missing)


class RasAnswer(Struct, frozen=True):
    """Communicators by name. A text (not `is_whole`) has only those in which ranks differ or are missing."""

    communicators: Mapping[str, Communicator]
    is_whole: bool = True


def gpu_container(pod: Pod) -> str:
    """Return the name of the container with GPUs."""
    names = [each.name for each in pod.spec.containers if gpus_of(each) or each.claims]
    return next(iter(names), pod.spec.containers[-1].name if pod.spec.containers else "")


def ask(execute: Execute, pod: Pod) -> RasAnswer:
    """Return the answer of a pod. Raises NcclRasError, ClusterError."""
    script = (files("gpu_healthcheck.diagnosis.sources") / "nccl_ras.sh").read_text("utf-8")
    words = ("sh", "-c", script)
    return parse(execute(pod.meta.namespace, pod.meta.name, gpu_container(pod), words, _SECONDS, _LONGEST))


def parse(raw: bytes) -> RasAnswer:
    """Parse an answer in JSON or text. Raises NcclRasError."""
    answer = raw.decode("utf-8", "replace")
    if len(raw) >= _LONGEST:
        raise NcclRasError(f"its answer is longer than {_LONGEST >> 20} MiB")
    try:
        if document := answer[answer.find("{") :] if "{" in answer else "":
            refuse_costly(raw, _MOST_VALUES)
            found = value_at(_decoded(document), "communicators")
            return RasAnswer({each.name: each for each in map(_communicator, listed(found))})
    except (ValueError, RecursionError) as error:
        raise NcclRasError(f"its answer is unreadable: {printable(str(error), _SHOWN)}") from error
    if _LAST_PART not in answer:
        raise NcclRasError(f"no complete answer in time: {printable(answer.strip(), _SHOWN)}")
    return RasAnswer({each.name: each for each in _read_text(answer)}, _NO_COMMUNICATORS in answer)


def _decoded(document: str) -> object:
    try:
        return decode(document)
    except DecodeError:
        return decode(_COMMA_LEFT_OUT.sub(",\n", document))


def _communicator(raw: object) -> Communicator:
    ranks: defaultdict[str, defaultdict[int, list[RasRank]]] = defaultdict(lambda: defaultdict(list))
    for entry in listed(value_at(raw, "ranks")):
        for operation, count in table(value_at(entry, "collective_counts")).items():
            ranks[text(operation)][whole(count)].append(_rank(entry))
    counts = {name: {count: CountGroup(len(some), some) for count, some in ranks[name].items()} for name in ranks}
    missing = []
    for entry in listed(value_at(raw, "missing_ranks")):
        dead, silent = (value_at(entry, "status", key) for key in ("considered_dead", "unresponsive"))
        missing.append((_rank(entry), _DEAD if dead else _LEFT if silent is False else _SILENT))
    return Communicator(text(value_at(raw, "hash")), counts, missing)


def _rank(raw: object) -> RasRank:
    rank, pid, device = (whole(value_at(raw, key)) for key in ("rank", "pid", "nvml_dev"))
    host = text(value_at(raw, "host"))
    return RasRank(rank, "" if host == "unknown" else host, pid, device)


def _read_text(answer: str) -> Iterator[Communicator]:
    """Read the text of NCCL 2.24 and later. Lines that name a rank belong to the heading above them."""
    counts: defaultdict[str, defaultdict[str, dict[int, CountGroup]]] = defaultdict(lambda: defaultdict(dict))
    missing: defaultdict[str, list[RasRank]] = defaultdict(list)
    dead = set()
    name = kind = operation = ""
    ranks: list[RasRank] = []
    for line in (line for line in answer.splitlines() if len(line) < _LONGEST_LINE):
        if found := _HEADING.match(line):
            name, kind, operation = f"0x{(found[1] or '').lstrip('0')}", found[2], ""
        elif (found := _PROCESS.match(line)) and kind == "DEAD":
            dead.add((printable(found[2]), int(found[1])))
        elif found := _OPERATION.match(line):
            operation = found[1]
        elif found := _MISSING.match(line):
            missing[name] += (RasRank(int(rank)) for rank in found[1].split(",") if rank)
        elif found := _RANKS.match(line):
            ranks = []
            counts[name][operation][int(found[2] or 0)] = CountGroup(int(found[1]), ranks)
        elif found := _RANK.match(line):
            rank = RasRank(int(found[1]), printable(found[7]), int(found[6]), int(found[5] or found[4]))
            if kind == "INCOMPLETE":
                missing[name].append(rank)
            elif found["alone"]:
                counts[name][operation][int(found[3] or 0)] = CountGroup(1, [rank])
            elif operation:
                ranks.append(rank)
    for name in {**counts, **missing}:
        states = [_DEAD if (rank.host, rank.pid) in dead else _SILENT for rank in missing[name]]
        yield Communicator(name, counts[name], list(zip(missing[name], states, strict=True)))
