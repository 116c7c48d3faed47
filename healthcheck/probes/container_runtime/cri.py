"""Status of the running container runtime, over the kubelet's own socket (CRI: Version and Status)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from healthcheck.host.grpc_socket import LONGEST_SECONDS, NodeSocket
from healthcheck.host.latest_answer import LatestAnswer, TimedAnswer
from healthcheck.model import Host, ProbeError
from healthcheck.probes.container_runtime.facts import ContainerRuntime, Live, ReadFile
from healthcheck.text.printable import printable

ASKED_AGAIN_SECONDS = 3600.0
"""A runtime keeps its loaded configuration while it runs; only CRI-O reloads parts of it on SIGHUP."""
TRIED_AGAIN_SECONDS = 60.0
"""Delay after no answer, after "not ready", or after an answer without a handler of its files."""
NOT_YET = "it has not answered yet"
NOT_HERE = "a saved tree has no running container runtime"
_READY = "RuntimeReady"
_LONGEST_TEXT = 200
_MOST_NAMES = 256


@dataclass
class RuntimeStatus:
    """Status of the runtime, requested at the start, after a change of its process or its files, and hourly.

    After a failure, the next request follows soon. Between requests, the last answer is returned.
    """

    root: Path
    deadline_seconds: float = LONGEST_SECONDS
    clock: Callable[[], float] = time.monotonic
    _socket: NodeSocket = field(init=False)
    _answers: LatestAnswer[ContainerRuntime, Live | str] = field(init=False)

    def __post_init__(self) -> None:
        self._socket = NodeSocket("container-runtime", self.deadline_seconds)
        self._answers = LatestAnswer("container-runtime", self._ask, _is_outdated, self.clock)

    def look(self, facts: ContainerRuntime) -> Live | str | None:
        """Return the last answer of this runtime, or the reason for its absence; None before the first.

        If a new answer is due, a thread requests it, and the caller does not wait.
        """
        return self._look(facts, wait=False)

    def ask(self, facts: ContainerRuntime) -> Live | str | None:
        """Request the status now and wait for the answer."""
        return self._look(facts, wait=True)

    def end(self) -> int | None:
        """Stop the running child process. Return its pid if it can't be stopped."""
        return self._socket.end()

    def _look(self, facts: ContainerRuntime, *, wait: bool) -> Live | str | None:
        asked = self._answers.look(facts, wait=wait)
        return asked.answer if asked and _is_same_process(asked.question, facts) else None

    def _ask(self, facts: ContainerRuntime) -> Live | str:
        try:
            return read_status(*self._socket.ask(self.root, facts.socket))
        except ProbeError as error:
            return printable(str(error))


def _is_outdated(asked: TimedAnswer[ContainerRuntime, Live | str], facts: ContainerRuntime, now: float) -> bool:
    before = asked.question
    if not _is_same_process(before, facts) or _files(before) != _files(facts):
        return True
    return now - asked.at >= (ASKED_AGAIN_SECONDS if _is_settled(asked.answer, facts) else TRIED_AGAIN_SECONDS)


def _is_same_process(before: ContainerRuntime, facts: ContainerRuntime) -> bool:
    return (before.socket, before.since_boot) == (facts.socket, facts.since_boot)


def with_live(host: Host, facts: ContainerRuntime) -> ContainerRuntime:
    """Return the facts with the running runtime's report, or with the reason for its absence.

    Without a socket, the facts are returned unchanged.
    """
    if not facts.socket:
        return facts
    if host.ask_container_runtime is None:
        return replace(facts, why_not_live=NOT_HERE)
    answer = host.ask_container_runtime(facts)
    if isinstance(answer, Live):
        return replace(facts, live=answer)
    return replace(facts, why_not_live=answer or NOT_YET)


def read_status(version: Mapping[str, Any], status: Mapping[str, Any]) -> Live:
    """Return VersionResponse and StatusResponse as facts.

    Raises ProbeError if they lack the ready condition. Only the fields listed here are kept: containerd's full answer
    also contains the passwords of its registries.
    """
    conditions = {entry.get("type"): entry for entry in status.get("status", {}).get("conditions", ())}
    if _READY not in conditions:
        raise ProbeError(f"the container runtime does not report its condition {_READY}")
    config = _config(status)
    containerd, crio = _table(config, "containerd"), _table(config, "crio")
    runtimes = _table(containerd, "runtimes") or _table(crio, "Runtimes")
    names = {entry.get("name", "") for entry in status.get("runtime_handlers", ())} - {""} or set(runtimes)
    return Live(
        name=_text(version.get("runtime_name")),
        version=_text(version.get("runtime_version")).removeprefix("v"),
        handlers=tuple(sorted(_text(name) for name in names)[:_MOST_NAMES]) if names else None,
        binaries=tuple(sorted(_binaries(runtimes))[:_MOST_NAMES]),
        default=_text(containerd.get("defaultRuntimeName") or crio.get("DefaultRuntime")),
        cdi=_cdi(config),
        cdi_folders=tuple(_texts(config.get("cdiSpecDirs") or crio.get("CDISpecDirs"))),
        not_ready="" if conditions[_READY].get("status") else _why_not_ready(conditions[_READY]),
        systemd_cgroups=tuple(sorted(_systemd_cgroups(runtimes))[:_MOST_NAMES]),
    )


def _config(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in the answer's `info`.

    containerd reports its whole configuration there, CRI-O its configuration in addition to `sandboxImage`, and
    cri-dockerd only that image.
    """
    fields = {entry.get("key"): entry.get("value", "") for entry in status.get("info", ())}
    try:
        config = json.loads(fields.get("config", ""))
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _cdi(config: Mapping[str, Any]) -> bool | None:
    """Return `enableCDI` of containerd 1.7 to 2.3. In 2.3, no value means on. 2.4 has no such option."""
    result = config.get("enableCDI")
    if isinstance(result, bool):
        return result
    return True if "cdiSpecDirs" in config else None


def _binaries(runtimes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each handler's program: `options.BinaryName` of containerd, `RuntimePath` of CRI-O."""
    for name in runtimes:
        runtime = _table(runtimes, name)
        binary = _table(runtime, "options").get("BinaryName") or runtime.get("RuntimePath")
        if binary:
            yield _text(name), _text(binary)


def _systemd_cgroups(runtimes: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    for name in runtimes:
        is_systemd = _table(_table(runtimes, name), "options").get("SystemdCgroup")
        if isinstance(is_systemd, bool):
            yield _text(name), is_systemd


def _why_not_ready(condition: Mapping[str, Any]) -> str:
    words = [_text(condition.get(key)) for key in ("reason", "message")]
    return ": ".join(word for word in words if word) or f"{_READY} is false"


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return printable(value, _LONGEST_TEXT) if isinstance(value, str) else ""


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (_text(text) for text in value[:_MOST_NAMES] if isinstance(text, str))


def _files(facts: ContainerRuntime) -> frozenset[ReadFile]:
    return frozenset(facts.used.files if facts.used else ())


def _is_settled(answer: Live | str, facts: ContainerRuntime) -> bool:
    if isinstance(answer, str) or answer.not_ready:
        return False
    defined = {handler.name for handler in facts.used.handlers} if facts.used else set()
    return answer.handlers is None or defined <= set(answer.handlers)
