"""A document of YAML as PyYAML reads it, within our bounds."""

from __future__ import annotations

from typing import Any

import yaml

from healthcheck.text.documents import MalformedError

_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe one in C where PyYAML was built with it."""
_MOST_NESTED = 128
"""Lists and mappings within each other."""
_MOST_NODES = 200_000
"""With all that aliases and merge keys repeat: some hundred bytes can stand for billions."""
_LONGEST_NUMBER = 64
"""Characters. PyYAML takes quadratic time for 1:1:1:…, and of a longer one Python makes no text."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read(raw: bytes) -> Any:
    """Raises MalformedError."""
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
    """Its events are read without recursion, its tables are not: in C, without end, and the process would be lost."""
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
        """Raises MalformedError where they are too many, or a number is too long."""
        if id(node) not in self._known:
            self._known[id(node)] = 1  # met again within itself
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
