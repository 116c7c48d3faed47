"""Read a text that a person pasted: outputs of kubectl, logs, or a whole thread with prose between them.

Each output of kubectl is recognised by its own form. The rest is a log: of the pod that a command names, or of an
unknown one.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.sources.assumed_pods import (
    WAITED,
    Named,
    assumed_pod,
    kind_of,
    last_refusal,
    name_of,
    scheduler_of,
    unscheduled,
)
from gpu_healthcheck.diagnosis.sources.describe import (
    DATES,
    OTHER_PODS,
    Described,
    event_rows,
    moment_of,
    read_described,
    requested,
    unbroken,
)
from gpu_healthcheck.diagnosis.sources.tables import EventRow, PodRow, event_row, oldest, pod_row
from gpu_healthcheck.healthcheck.text import yaml_reading
from gpu_healthcheck.healthcheck.text.boundary import value_at
from gpu_healthcheck.healthcheck.text.documents import MalformedError
from gpu_healthcheck.healthcheck.text.json_cost import refuse_costly
from gpu_healthcheck.healthcheck.text.moments import CLOCKS_APART, timestamp
from gpu_healthcheck.healthcheck.text.printable import printable

_LONGEST_LINE, _MOST_LINES = 16_384, 2_000_000
_MOST_JSON, _MOST_CUTS, _COMPARED, _MOST_READ = 2_000_000, 3, 20, 200
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\-_])|[\u200b\u2060\ufeff\r]"
)
_QUOTE = re.compile(r"(?:[ ]?>[ ]?)+")
_FENCE = re.compile(r"\s*(?:```+|~~~+)[\w +-]{0,40}\Z")
_SHELL = r"\s*`{0,2}(?:➜[ ]+(?:\S{1,80}[ ]+){1,3}|\S{0,80}(?:[ ]\S{1,80}){0,2}[ ]?[#$%>\u276f][ ]+)"
_COMMAND = re.compile(
    rf"{_SHELL}?(?:sudo[ ]+)?(?:(?:k3s[ ]|microk8s[ .])?kubectl|oc|k|kubecolor)[ ](?P<words>[a-z-][^\n]{{0,1000}})"
)
_PROMPT = re.compile(r"\s*(?:\S{1,60}@\S{1,120}(?:[ ]\S{1,80})?[#$%][ ]|[$#][ ]+[a-z./])")
_NAME = re.compile(r"\s*Name:\s+[a-z0-9][a-z0-9.-]{0,252}\s*\Z")
_BELOW_NAME = ("Namespace:", "Roles:", "Labels:", "Annotations:", "Priority:")
_YAML = re.compile(r"\s*(?:- )?apiVersion:\s+[\w./-]{1,100}\s*\Z")
_YAML_LINE = re.compile(r"(?:\s|[\w./-]{1,100}:(?:\s|\Z)|- |-\Z|#|---|\Z)")
_JSON = re.compile(r"\s*\{\s*(?:\Z|\"(?:apiVersion|kind|metadata|items)\")")
_OF_CODE = re.compile(
    r"\s*(?://|/\*|\*\s|#(?!\s*\d)|throw\s|(?:except|raise|import|from|if|elif|while|return|def|class|assert|try|for|func|var|const|let|"
    r"echo|grep)\b[^:]{0,200}[\w\"')(:{\\]\s*\Z|[a-z_][\w.]{0,60}\((?=.{0,400}[\"']).*\)[;,]?\Z|"
    r"[A-Za-z_][\w.]{0,60} \+?= )"
)
"""Line of a program: it may quote a message without reporting it."""
_QUOTES = re.compile(r'\\{1,20}"')
"""Quotation mark in a quoted message, as in the kubelet's log."""


_COUNTED = {"Pod": "pods", "Node": "nodes", "Event": "events"}
_STATES = {"containerStatuses", "initContainerStatuses"}
_SOME_POD = Named("", "Pod")
"""Object of events below no command that names it."""


class NothingRecognisedError(ValueError):
    """Text has no part that a diagnosis can use."""


class PastedLog(Struct, frozen=True):
    """A log, with the pod whose log a command printed; '' if it is unknown."""

    lines: Sequence[str]
    namespace: str = ""
    pod: str = ""
    container: str = ""


class Pasted(Struct):
    """Content of a text. `at`: about when it was copied; None if no event has an age."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    logs: list[PastedLog] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    """Lines outside of all recognised blocks; those of code blocks if there are any."""
    counts: Counter[str] = field(default_factory=Counter)
    at: datetime | None = None
    incomplete: list[str] = field(default_factory=list)
    """Reasons why a part of the state is not in the text."""


class _Block(Struct):
    kind: str
    lines: list[str] = field(default_factory=list)
    fenced: bool = False
    named: Named = field(default_factory=Named)
    has_events: bool = False


def read_pasted(raw: bytes | bytearray) -> Pasted:
    """Read the text. Raises NothingRecognisedError for a binary file."""
    if raw.count(0, 0, 65536):
        raise NothingRecognisedError("it is not text")
    return _Thread(list(_blocks(_cleaned(raw)))).pasted()


def _cleaned(raw: bytes | bytearray) -> Iterator[str]:
    """Yield the lines without colours, quotation marks of mails, and HTML entities."""
    text = _ESCAPES.sub("", raw.decode("utf-8", "replace")).replace("\xa0", " ").expandtabs(8)
    if "&lt;" in text or "&quot;" in text or "&#" in text or "&gt;" in text:
        text = html.unescape(text)
    for line in text.split("\n", _MOST_LINES)[:_MOST_LINES]:
        short = line[:_LONGEST_LINE].rstrip()
        quote = _QUOTE.match(short)
        yield short[quote.end() :] if quote else short


def _blocks(lines: Iterable[str]) -> Iterator[_Block]:
    """Yield the blocks of the text, each with the command above it."""
    ahead = list(lines)
    block, fenced, named = _Block("text"), False, Named()
    for number, line in enumerate(ahead):
        if _FENCE.match(line):
            yield block
            fenced = not fenced
            block, named = _Block("text", [], fenced), named if fenced else Named()
            continue
        if command := _COMMAND.match(line):
            yield block
            named = name_of(command["words"].split("`")[0].split())
            block = _Block("log" if named.verb == "logs" else "text", [], fenced, named)
            continue
        if _PROMPT.match(line):
            yield block
            block, named = _Block("text", [], fenced), Named()
            continue
        kind = _begins(line, ahead[number + 1 : number + 6], block.kind)
        if kind and (kind != block.kind or kind == "describe"):
            yield block
            block = _Block(kind, [], fenced, named)
        elif not kind and not _continues(block, line):
            yield block
            block = _Block("text", [], fenced)
        block.lines.append(line)
        block.has_events |= line.lstrip().startswith("Events:")
    yield block


def _begins(line: str, following: Sequence[str], kind: str) -> str:
    """Return the kind of block that begins at the line; '' if none does."""
    below = [other.strip() for other in following if other.strip()]
    if _NAME.match(line) and below and below[0].startswith(_BELOW_NAME):
        return "describe"
    if kind == "describe":
        return ""
    if _YAML.match(line) and kind != "yaml":
        return "yaml"
    if kind not in ("yaml", "log") and _JSON.match(line):
        return "" if kind == "json" else "json"
    if kind not in ("yaml", "json", "log") and (event_row(line) or line.strip() == "Events:"):
        return "events"
    return "pods" if kind in ("text", "pods") and pod_row(line) else ""


def _continues(block: _Block, line: str) -> bool:
    """Whether the line belongs to the block."""
    if block.kind == "yaml":
        indent = len(block.lines[0]) - len(block.lines[0].lstrip())
        return block.fenced or (not line[:indent].strip() and bool(_YAML_LINE.match(line[indent:])))
    if block.kind == "events" and not block.fenced:
        row, lengths = event_row(block.lines[-1]), [len(entry) for entry in block.lines[-_COMPARED:]]
        # Only `describe` prints messages of several lines; another row may have been broken by a terminal.
        return bool(line.strip()) and (row is None or not row.kind or lengths[-1] == max(lengths))
    if block.kind == "describe" and not block.fenced and block.lines and not block.lines[-1].strip():
        return not line.strip() or not block.has_events or event_row(line) is not None
    return block.kind != "pods"


class _Thread:
    """Objects and logs of the blocks."""

    def __init__(self, blocks: Sequence[_Block]) -> None:
        self._content = Pasted()
        self._described: list[Described] = []
        self._events: list[tuple[EventRow, Named]] = []
        self._rows: dict[str, PodRow] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._manifests: dict[str, dict[str, Any]] = {}
        self._free: list[_Block] = []
        self._dates: list[datetime] = []
        self._latest = datetime.now(UTC) + CLOCKS_APART
        for block in blocks:
            self._readers[block.kind](self, block)

    def pasted(self) -> Pasted:
        """Return the content, with a pod for each one that only events or tables name."""
        now = datetime.now(UTC)
        at = self._at(now)
        content, now = self._content, at or now
        content.at = at
        for described in self._described:
            self._add_described(described, now)
        self._add_named(now)
        # The log of a pod without container states is judged by itself.
        judged = {name for name, pod in self._pods.items() if _STATES & set(pod["status"])}
        content.logs = [_log_of(block) for block in self._free if block.kind == "log" and block.named.name in judged]
        free = [block for block in self._free if block.named.name not in judged]
        if any(block.fenced for block in free):
            free = [block for block in free if block.fenced or not content.objects]
        lines = (line for block in free for line in block.lines)
        content.rest = [_QUOTES.sub('"', line) for line in lines if line.strip() and not _OF_CODE.match(line)]
        return content

    def _at(self, now: datetime) -> datetime | None:
        """Return about when the text was copied: after its dates, and its events' ages after the starts of their pods.

        None if the text has neither ages nor the heartbeats of a node.
        """
        events = [row for row, _ in self._events] + [row for one in self._described for row in one.events]
        is_node = any(one.raw["kind"] == "Node" for one in self._described)
        if not is_node and all(row.last is None for row in events):
            return None
        starts = (
            started + oldest(one.events)
            for one in self._described
            if one.raw["kind"] == "Pod" and (started := _moment(one.raw["metadata"].get("creationTimestamp")))
        )
        return min(max((*self._dates, *starts), default=now), now)

    def _add_described(self, described: Described, now: datetime) -> None:
        kind, metadata = described.raw["kind"], described.raw["metadata"]
        if kind == "Pod":
            _complete(described.raw, described.events, now)
        self._add(described.raw, *self._others(described))
        for row in described.events:
            self._add_event(row, Named("", kind, metadata.get("namespace", ""), metadata["name"]), now)
        if not described.whole:
            self._content.incomplete.append(f"the text ends within {kind.lower()} {metadata['name']}")

    def _others(self, node: Described) -> Iterator[dict[str, Any]]:
        """Yield the pods on a node that the text does not describe, with the resources that are left to them."""
        if not node.others:
            return
        pods = {one.raw["metadata"]["name"]: one.raw for one in self._described if one.raw["kind"] == "Pod"}
        on = [pod for pod in pods.values() if pod["spec"]["nodeName"] == node.raw["metadata"]["name"]]
        for other in node.others:
            if other["metadata"]["name"] == OTHER_PODS:
                requests = other["spec"]["containers"][0]["resources"]["requests"]
                for name, amount in [*requests.items()]:
                    requests[name] = str(max(int(amount) - sum(requested(pod, name) for pod in on), 0))
            if other["metadata"]["name"] not in pods:
                yield other

    def _add(self, *objects: dict[str, Any]) -> None:
        for one in objects:
            self._content.objects.append(one)
            self._content.counts[_COUNTED.get(one["kind"], "other objects")] += one["metadata"]["name"] != OTHER_PODS
            if one["kind"] == "Pod":
                one["metadata"]["namespace"] = one["metadata"].get("namespace") or "default"
                self._pods.setdefault(one["metadata"]["name"], one)

    def _add_named(self, now: datetime) -> None:
        """Add the events of tables, and the pods that they name and no other block describes."""
        described = {*self._pods}
        names = described or {name for name, row in self._rows.items() if not row.ready}
        only = next(iter(names)) if len(names) == 1 else ""
        events = [
            (row, Named("", "Pod", "", only) if named == _SOME_POD and only else named) for row, named in self._events
        ]
        of_pods: dict[str, list[tuple[EventRow, Named]]] = {name: [] for name in self._rows if name not in described}
        for row, named in events:
            if named.kind == "Pod" and named.name not in described:
                of_pods.setdefault(named.name, []).append((row, named))
        shown = {}
        for name, rows in of_pods.items():
            shown[name] = assumed_pod(
                name, rows, self._rows.get(name), self._manifests.get(name), self._log_of_pod(name), now
            )
            spaces = (block.named.namespace for block in self._free if block.named.name == name)
            if shown[name]["metadata"]["namespace"] == "default" and (space := next(filter(None, spaces), "")):
                shown[name]["metadata"]["namespace"] = space
            self._add(shown[name])
        for row, named in events:
            pod = (shown.get(named.name) or self._pods.get(named.name)) if named.kind == "Pod" else None
            meta = pod["metadata"] if pod else {"namespace": named.namespace, "name": named.name}
            self._add_event(row, Named("", named.kind, meta.get("namespace", ""), meta["name"]), now)
        if of_pods or (self._events and not described):
            self._content.incomplete.append("it has only events or table rows of some objects")

    def _log_of_pod(self, name: str) -> str:
        lines = [line for block in self._free if block.named.name == name for line in block.lines]
        return "\n".join(lines[-_MOST_READ:])

    def _add_event(self, row: EventRow, named: Named, now: datetime) -> None:
        times = {"firstTimestamp": row.first, "lastTimestamp": row.last}
        self._add(
            {
                "kind": "Event",
                "metadata": {"name": f"{named.name}.{self._content.counts['events']}", "namespace": named.namespace},
                "involvedObject": {"kind": named.kind, "namespace": named.namespace, "name": named.name},
                "type": "Warning" if row.warning else "Normal",
                "reason": row.reason,
                "message": row.message,
                "count": row.count,
                "source": {"component": row.by.partition(",")[0]},
            }
            | {key: timestamp(now - age) for key, age in times.items() if age is not None}
        )

    def _take_describe(self, block: _Block) -> None:
        described = read_described(block.lines)
        if described is None:
            kind, name = block.named.kind, block.lines[0].partition(":")[2].strip()
            rows = event_rows(block.lines)
            if kind and rows:
                spaces = [line.partition(":")[2].strip() for line in block.lines[1:3] if "Namespace:" in line]
                self._events += [(row, Named("", kind, spaces[0] if spaces else "", name)) for row in rows]
            else:
                self._free.append(block)
            return
        self._described.append(described)
        found = (moment_of(text) for line in block.lines for text in DATES.findall(line))
        self._dates += [at for at in found if at is not None and at <= self._latest]

    def _take_events(self, block: _Block) -> None:
        for row in event_rows(unbroken(block.lines)):
            if row.kind:
                self._events.append((row, Named("", kind_of(row), row.namespace or block.named.namespace, row.name)))
            else:
                self._events.append((row, block.named if block.named.kind else _SOME_POD))

    def _take_pods(self, block: _Block) -> None:
        for row in filter(None, map(pod_row, block.lines)):
            self._rows[row.name] = replace(row, namespace=row.namespace or block.named.namespace)

    def _take_yaml(self, block: _Block) -> None:
        if not self._take_objects(_yaml_objects(block.lines, self._content.incomplete)):
            self._free.append(block)

    def _take_json(self, block: _Block) -> None:
        text = "\n".join(block.lines)
        try:
            refuse_costly(text.encode(), _MOST_JSON)
            found, _ = json.JSONDecoder().raw_decode(text.lstrip())
        except (ValueError, RecursionError):
            found = None
        if not self._take_objects([found]):
            self._free.append(block)

    def _take_objects(self, objects: Iterable[Any]) -> int:
        """Add the objects, and those of Lists; return how many there are."""
        count = 0
        for one in objects:
            if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
                continue
            if isinstance(one.get("items"), list):
                count += 1 + self._take_objects(one["items"])
            elif isinstance(name := value_at(one, "metadata", "name"), str) and isinstance(one.get("spec", {}), dict):
                count += 1
                one.setdefault("spec", {})
                if "status" in one or "creationTimestamp" in one["metadata"]:
                    self._add(one)
                elif one["kind"] == "Pod":
                    self._manifests[name] = one
        return count

    def _take_text(self, block: _Block) -> None:
        self._free.append(block)

    _readers: ClassVar[Mapping[str, Callable[[_Thread, _Block], None]]] = {
        "describe": _take_describe,
        "events": _take_events,
        "pods": _take_pods,
        "yaml": _take_yaml,
        "json": _take_json,
        "log": _take_text,
        "text": _take_text,
    }


def _log_of(block: _Block) -> PastedLog:
    named = block.named
    return PastedLog([line for line in block.lines if line.strip()], named.namespace, named.name, named.container)


def _complete(pod: dict[str, Any], events: Sequence[EventRow], now: datetime) -> None:
    """Add what the events of a pod show: its scheduler, and why it has no node."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    created = _moment(metadata.get("creationTimestamp")) or (now - oldest(events) if events else None)
    if created is not None:
        metadata["creationTimestamp"] = timestamp(created - WAITED)
    spec["schedulerName"] = scheduler_of(events, (*metadata["annotations"], *_resources(spec)))
    if not spec["nodeName"]:
        # Without an event, neither the scheduler nor a scheduling gate is known, and no scheduler can be missed.
        others = (one for one in status["conditions"] if one["type"] != "PodScheduled")
        status["conditions"] = [*others, unscheduled(last_refusal(events))]


def _resources(spec: Mapping[str, Any]) -> Iterator[str]:
    for container in spec["containers"]:
        yield from container["resources"]["requests"]


def _moment(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def _yaml_objects(lines: Sequence[str], incomplete: list[str]) -> Iterator[Any]:
    """Yield the objects of the documents, each item of a List parsed by itself. What can't be parsed is left out."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    part: list[str] = []
    is_list = False
    for line in (*(line[indent:] for line in lines), "---"):
        if line.startswith("---") or (is_list and (line.startswith("- ") or not line.startswith((" ", "-")))):
            if part:
                yield from _parsed(part, incomplete)
            part = []
        is_list = (is_list and not line.startswith("---")) or line.rstrip() == "items:"
        if is_list and line.startswith("- "):
            line = f"  {line[2:]}"  # noqa: PLW2901 - an item is a document of its own
        if not line.startswith("---"):
            part.append(line)


def _parsed(lines: list[str], incomplete: list[str]) -> Iterator[Any]:
    for _ in range(_MOST_CUTS):
        try:
            found = yaml_reading.read("\n".join(lines).encode("utf-8", "replace"))
        except MalformedError as error:
            incomplete.append(f"a YAML document can't be read to its end: {printable(error.message, 120)}")
            lines = lines[: max(error.line - 1, 0)]
        else:
            yield _plain(found)
            return


def _plain(value: Any) -> Any:
    """Return the value with times as texts."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return timestamp(value if value.tzinfo else value.replace(tzinfo=UTC)) if isinstance(value, datetime) else value
