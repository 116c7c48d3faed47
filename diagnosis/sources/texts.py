"""Texts among the files of a saved state: what was recognised in them, and whose logs they contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import RecordFinding
from gpu_healthcheck.diagnosis.snapshot.pods import ContainerState, Pod
from gpu_healthcheck.diagnosis.sources.assumed_pods import UNKNOWN_NODE
from gpu_healthcheck.diagnosis.sources.copied_kernel_log import read_kernel_log
from gpu_healthcheck.diagnosis.sources.pasted import NothingRecognisedError, Pasted, PastedLog, read_pasted
from gpu_healthcheck.healthcheck.text.printable import printable

_LONGEST = 64 << 20
"""Bytes of a text that are read."""
_LONGEST_NAME = 120
_COUNTED = ("pods", "nodes", "events", "other objects", "kernel lines", "log lines")
_MOST_LOG_LINES, _LONGEST_LINE, _MOST_CHARACTERS = 5000, 4096, 256 * 1024
_NODE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}", re.IGNORECASE | re.ASCII)
"""Name that a command may contain: no option, and no control character."""


class Texts:
    """Content of the texts that were read so far. `is_known`: whether a log has the text of a cause."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._logs: list[PastedLog] = []
        self._other: dict[str, str] = {}
        self._findings: dict[str, tuple[RecordFinding, ...]] = {}
        self.counts: Counter[str] = Counter()

    def take(self, name: str, content: bytearray) -> Pasted:
        """Read a text, and return its content. Raises NothingRecognisedError."""
        if len(content) > _LONGEST:
            raise NothingRecognisedError(f"over {_LONGEST >> 20} MiB, which is the limit for a text")
        text = read_pasted(content)
        kernel = read_kernel_log(name, text.rest)
        if kernel.findings:
            text.rest = [line for line in text.rest if "NVRM" not in line]
        rest = _joined(text.rest)
        is_known = self._is_known(rest)
        if not (text.objects or text.logs or kernel.findings or is_known):
            raise NothingRecognisedError("it has no output of kubectl, and no message about a GPU that is known")
        if not text.objects:
            text.incomplete.append("it has no object of a cluster")
        if kernel.findings:
            node = kernel.host or _only_node(text.objects)
            self._findings[f"node/{node if _NODE_NAME.fullmatch(node) else UNKNOWN_NODE}"] = kernel.findings
            self.counts["kernel lines"] += kernel.lines
        if is_known:
            self._other[_subject(name)] = rest
            text.logs.append(PastedLog(text.rest))
        self._logs += text.logs
        self.counts += text.counts
        self.counts["log lines"] += sum(len(log.lines) for log in text.logs)
        return text

    def into(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the logs and findings of the texts."""
        if not self.counts:
            return snapshot
        logs = dict(snapshot.logs)
        for log in self._logs:
            logs.update(_of_pod(snapshot, log))
        return replace(
            snapshot,
            logs=logs,
            recognised={what: self.counts[what] for what in _COUNTED if self.counts[what]},
            other_logs=self._other,
            kernel_findings=self._findings,
        )


def _subject(name: str) -> str:
    return "log" if name == "-" else f"log/{printable(PurePath(name).name, _LONGEST_NAME)}"


def _joined(lines: Sequence[str]) -> str:
    """Return the last lines as one printable log: the error is near its end."""
    return "\n".join(printable(line, _LONGEST_LINE) for line in lines[-_MOST_LOG_LINES:])[-_MOST_CHARACTERS:]


def _only_node(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the only node that the objects name; '' if there are several."""
    named = {str(one["metadata"].get("name")) for one in objects if one["kind"] == "Node"}
    named |= {str(one["spec"].get("nodeName") or "") for one in objects if one["kind"] == "Pod"}
    named -= {"", UNKNOWN_NODE}
    return named.pop() if len(named) == 1 else ""


def _of_pod(snapshot: Snapshot, log: PastedLog) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the log with its pod and container: those of the command, else the only container that fails."""
    pods = [pod for pod in snapshot.pods if log.pod in ("", pod.meta.name)]
    pods = [pod for pod in pods if log.namespace in ("", pod.meta.namespace)]
    states = [(pod, state) for pod in pods for state in pod.states if _is_meant(pod, state, log)]
    if len(states) == 1:
        pod, state = states[0]
        yield (pod.subject, state.name), _joined(log.lines)


def _is_meant(pod: Pod, state: ContainerState, log: PastedLog) -> bool:
    if log.container:
        return state.name == log.container
    has_failed = state.waiting == "CrashLoopBackOff" or any(
        (end and end.exit_code) for end in (state.ended, state.last_ended)
    )
    return bool(has_failed) or (bool(log.pod) and len(pod.states) == 1)
