"""Parsers of JSON and YAML documents, with the position and the reason of errors."""

from __future__ import annotations

import codecs
import contextlib
import functools
import json
from typing import Any, NoReturn

import yaml

Table = dict[str, Any]
_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Safe loader; the C version if PyYAML was built with it."""
_MOST_NESTED = 128
"""Most nested lists and mappings."""
_MOST_NODES = 200_000
"""Most nodes, after aliases and merge keys are expanded: some hundred bytes can expand to billions."""
_LONGEST_NUMBER = 64
"""Most characters of a number. PyYAML needs quadratic time for 1:1:1:…, and Python can't print longer numbers."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class MalformedError(Exception):
    """Error for a malformed document; `line` and `column` count from 1, 0 means unknown."""

    def __init__(self, message: str, line: int = 0, column: int = 0, *, only_ours: bool = False) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column
        self.only_ours = only_ours
        """Whether the document only exceeds the limits of this program, and other programs may read it."""


@functools.lru_cache(maxsize=8)
def json_object(raw: bytes) -> Table:
    """Parse a JSON object, which callers must not change. Whitespace alone means an empty one.

    Raises MalformedError. A byte order mark at the beginning decides the encoding, as in dockerd. Without a mark it is
    UTF-8.
    """
    marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = decoded(raw, "utf-16" if marked else "utf-8-sig")
    if not text.strip():
        return {}
    try:
        result = json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise MalformedError(error.msg, error.lineno, error.colno) from error
    except (RecursionError, ValueError) as error:
        raise MalformedError(f"can't be read: {type(error).__name__}", only_ours=True) from error
    if not isinstance(result, dict):
        raise MalformedError("no object", 1, 1)
    return _sayable(result) if "\\u" in text else result


@functools.lru_cache(maxsize=16)
def yaml_object(raw: bytes) -> Table:
    """Parse a YAML mapping, which callers must not change. Raises MalformedError.

    JSON is YAML except for its tabs, so it is parsed as JSON.
    """
    if raw.lstrip().startswith(b"{"):
        with contextlib.suppress(MalformedError):
            return json_object(raw)
    result = _yaml_document(raw)
    if result is None:
        return {}
    if not isinstance(result, dict):
        raise MalformedError("no mapping", 1, 1)
    return result


def _sayable(fields: Table) -> Table:
    """Return the table with unpaired surrogates replaced, because they can't be written anywhere.

    Go reads them in the same way.
    """
    replaced: Table = json.loads(json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace"))
    return replaced


def decoded(raw: bytes, encoding: str = "utf-8") -> str:
    """Decode the text. Raises MalformedError."""
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        raise MalformedError("no UTF-8", line, error.start - before.rfind(b"\n")) from error


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _yaml_document(raw: bytes) -> Any:
    """Parse a YAML document within limits. Raises MalformedError."""
    try:
        _refuse_deep(raw)
        loader = _YAML(raw)
        try:
            document = loader.get_single_node()
            if document is None:
                return None
            _Sizes().of(document)
            return loader.construct_document(document)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark
        raise MalformedError(
            error.problem or "no YAML", *((place.line + 1, place.column + 1) if place else ())
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedError(f"can't be read: {type(error).__name__}", only_ours=True) from error


def _refuse_deep(raw: bytes) -> None:
    """Raise MalformedError if a document is nested too deeply.

    Its events are parsed without recursion. Its tables are built by unlimited recursion in C, which would end the
    process.
    """
    depth = 0
    for event in yaml.parse(raw, Loader=_YAML):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_NESTED:
            raise MalformedError("nested too deeply to be read here", only_ours=True)


class _Sizes:
    """Number of nodes in a document after its aliases are followed. Each node is visited once."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, node: yaml.Node) -> int:
        """Return the number of nodes. Raises MalformedError if there are too many, or if a number is too long."""
        if id(node) not in self._known:
            self._known[id(node)] = 1  # value for a node that contains itself
            self._known[id(node)] = size = 1 + sum(map(self.of, _within(node)))
            if size > _MOST_NODES:
                raise MalformedError("its aliases expand to more than is read here", only_ours=True)
        return self._known[id(node)]


def _within(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [entry for pair in node.value for entry in pair]
    if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
        raise MalformedError("a number is too long to be read here", only_ours=True)
    return node.value if isinstance(node, yaml.SequenceNode) else []
