"""Configuration in force of the running container runtime (CRI: Version and Status), with its loader's answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from gpu_healthcheck.healthcheck.host.grpc_socket import LONGEST_SECONDS, NodeSocket
from gpu_healthcheck.healthcheck.host.latest_answer import LatestAnswer, TimedAnswer
from gpu_healthcheck.healthcheck.model import Host, ProbeError
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    ContainerRuntime,
    Handler,
    Live,
    RuntimeAnswer,
    RuntimeConfiguration,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.loader import Loader
from gpu_healthcheck.healthcheck.text.printable import printable

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
    """Answers of the runtime and of its loader.

    Both are requested at the start, after a change of the process or the files, and hourly; the loader again only after
    such a change. After a failure, the next request follows soon. Between requests, the last answer is returned.
    """

    root: Path
    deadline_seconds: float = LONGEST_SECONDS
    clock: Callable[[], float] = time.monotonic
    _socket: NodeSocket = field(init=False)
    _loader: Loader = field(init=False)
    _loaded: tuple[object, RuntimeAnswer] | None = field(default=None, init=False)
    """Last answer of the loader, with the process and the files that it is for."""
    _answers: LatestAnswer[ContainerRuntime, RuntimeAnswer] = field(init=False)

    def __post_init__(self) -> None:
        self._socket = NodeSocket("container-runtime", self.deadline_seconds)
        self._loader = Loader(self.root)
        self._answers = LatestAnswer("container-runtime", self._ask, _is_outdated, self.clock)

    def read(self, facts: ContainerRuntime) -> RuntimeAnswer | None:
        """Return the last answer of this runtime; None before the first.

        If a new answer is due, a thread requests it, and the caller does not wait.
        """
        return self._read(facts, wait=False)

    def ask(self, facts: ContainerRuntime) -> RuntimeAnswer | None:
        """Request both answers now and wait for them."""
        return self._read(facts, wait=True)

    def end(self) -> int | None:
        """Stop the running child processes. Return the pid of one that can't be stopped."""
        return self._socket.end() or self._loader.end()

    def _read(self, facts: ContainerRuntime, *, wait: bool) -> RuntimeAnswer | None:
        asked = self._answers.read(facts, wait=wait)
        return asked.answer if asked and _process(asked.question) == _process(facts) else None

    def _ask(self, facts: ContainerRuntime) -> RuntimeAnswer:
        question = (_process(facts), facts.files)
        if self._loaded is None or self._loaded[0] != question or self._loaded[1].why_not_loaded:
            self._loaded = question, self._loader.load(facts)
        answer = self._loaded[1]
        try:
            return replace(answer, live=read_status(*self._socket.ask(self.root, facts.socket)))
        except ProbeError as error:
            return replace(answer, why_not_live=printable(str(error)))


def _is_outdated(asked: TimedAnswer[ContainerRuntime, RuntimeAnswer], facts: ContainerRuntime, now: float) -> bool:
    before = asked.question
    if (_process(before), before.files) != (_process(facts), facts.files):
        return True
    return now - asked.at >= (ASKED_AGAIN_SECONDS if _is_settled(asked.answer) else TRIED_AGAIN_SECONDS)


def _process(facts: ContainerRuntime) -> tuple[str, int, float | None]:
    return facts.socket, facts.pid, facts.since_boot


def with_answer(host: Host, facts: ContainerRuntime) -> ContainerRuntime:
    """Return the facts with the answers of the running runtime and of its loader, or the reasons for their absence.

    Without a socket, the facts are returned unchanged.
    """
    if not facts.socket:
        return facts
    if host.ask_container_runtime is None:
        return replace(facts, why_not_live=NOT_HERE, why_not_loaded=NOT_HERE)
    answer: RuntimeAnswer | None = host.ask_container_runtime(facts)
    answer = answer or RuntimeAnswer(why_not_live=NOT_YET, why_not_loaded=NOT_YET)
    return replace(facts, **asdict(answer))


def read_status(version: Mapping[str, Any], status: Mapping[str, Any]) -> Live:
    """Return VersionResponse and StatusResponse as facts.

    Raises ProbeError if they lack the ready condition. Only the fields listed here are kept: containerd's full answer
    also contains the passwords of its registries.
    """
    conditions = {entry.get("type"): entry for entry in status.get("status", {}).get("conditions", ())}
    if _READY not in conditions:
        raise ProbeError(f"the container runtime does not report its condition {_READY}")
    return Live(
        _text(version.get("runtime_name")),
        _text(version.get("runtime_version")).removeprefix("v"),
        "" if conditions[_READY].get("status") else _why_not_ready(conditions[_READY]),
        _configuration(status, _config(status)),
    )


def _configuration(status: Mapping[str, Any], config: Mapping[str, Any]) -> RuntimeConfiguration | None:
    """Return the configuration in force; None if the answer names no handler."""
    containerd, crio = _table(config, "containerd"), _table(config, "crio")
    runtimes = _table(containerd, "runtimes") or _table(crio, "Runtimes")
    names = {entry.get("name", "") for entry in status.get("runtime_handlers", ())} - {""} or set(runtimes)
    if not names:
        return None
    cdi = config.get("enableCDI")
    return RuntimeConfiguration(
        tuple(_handler(name, _table(runtimes, name)) for name in sorted(names)[:_MOST_NAMES]),
        _text(containerd.get("defaultRuntimeName") or crio.get("DefaultRuntime")),
        # In containerd 2.3, no value means on; 2.4 has no such option.
        cdi if isinstance(cdi, bool) else "cdiSpecDirs" in config or None,
        tuple(_texts(config.get("cdiSpecDirs") or crio.get("CDISpecDirs"))),
    )


def _handler(name: str, runtime: Mapping[str, Any]) -> Handler:
    """Return a handler of containerd (`runtimeType`, `options`) or of CRI-O (`RuntimeType`, `RuntimePath`)."""
    options = _table(runtime, "options")
    driver = options.get("SystemdCgroup")
    return Handler(
        _text(name),
        _text(runtime.get("runtimeType") or runtime.get("RuntimeType")),
        _text(options.get("BinaryName") or runtime.get("RuntimePath")),
        driver if isinstance(driver, bool) else None,
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


def _why_not_ready(condition: Mapping[str, Any]) -> str:
    parts = [_text(condition.get(key)) for key in ("reason", "message")]
    return ": ".join(part for part in parts if part) or f"{_READY} is false"


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return printable(value, _LONGEST_TEXT) if isinstance(value, str) else ""


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (_text(text) for text in value[:_MOST_NAMES] if isinstance(text, str))


def _is_settled(answer: RuntimeAnswer) -> bool:
    live = answer.live
    if live is None or live.not_ready:
        return False
    if live.configuration is None or answer.on_disk is None:
        return True
    return {each.name for each in answer.on_disk.handlers} <= {each.name for each in live.configuration.handlers}
