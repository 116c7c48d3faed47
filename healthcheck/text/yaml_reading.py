"""Parser of YAML documents with PyYAML, with limits."""

from __future__ import annotations

from typing import Any

import yaml

from gpu_healthcheck.healthcheck.text.documents import MalformedError

_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Safe loader; the C version if PyYAML was built with it."""
_MOST_NESTED = 128
"""Most nested lists and mappings."""
_MOST_NODES = 200_000
"""Most nodes, after aliases and merge keys are expanded: some hundred bytes can expand to billions."""
_LONGEST_NUMBER = 64
"""Most characters of a number. PyYAML needs quadratic time for 1:1:1:…, and Python can't print longer numbers."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read(raw: bytes) -> Any:
    """Parse the document. Raises MalformedError."""
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
