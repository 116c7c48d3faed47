"""A manifest as text with replaceable values, so that comments and layout stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

Steps = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """Span of the text, and the template that replaces it."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Document:
    """One object of a manifest."""

    text: str

    @cached_property
    def content(self) -> Any:
        return yaml.safe_load(self.text)

    @cached_property
    def _root(self) -> yaml.Node:
        root = yaml.compose(self.text, Loader=yaml.SafeLoader)
        assert root is not None
        return root

    @property
    def identity(self) -> tuple[str, str]:
        return self.content["kind"], self.content["metadata"]["name"]

    def value(self, path: Steps) -> Any:
        """Return the value at a path; None without one."""
        found: Any = self.content
        for step in path:
            if isinstance(found, dict) and step not in found:
                return None
            found = found[step]
        return found

    def replaced(self, path: Steps, text: str) -> Edit:
        """Return an edit that replaces the value of a key."""
        _, node = self._entry(path)
        return Edit(node.start_mark.index, self._end(node), text)

    def entry(self, path: Steps) -> tuple[Edit, int]:
        """Return an edit that removes the whole entry, whose text the caller sets, and the column of its key."""
        key, node = self._entry(path)
        return Edit(key.start_mark.index, self._end(node), ""), key.start_mark.column

    def below(self, path: Steps) -> tuple[Edit, int]:
        """Return an edit that adds lines directly below this key, and their column."""
        key, node = self._entry(path)
        first = node.value[0][0] if isinstance(node, yaml.MappingNode) else node
        line_end = self.text.index("\n", key.end_mark.index)
        return Edit(line_end, line_end, ""), first.start_mark.column

    def _entry(self, path: Steps) -> tuple[yaml.Node, yaml.Node]:
        key, node = self._root, self._root
        for step in path:
            if isinstance(node, yaml.SequenceNode):
                key = node = node.value[int(step)]
            else:
                key, node = next((entry, value) for entry, value in node.value if entry.value == step)
        return key, node

    def _end(self, node: yaml.Node) -> int:
        """Return the end of a node without the comments and empty lines that the parser adds to a block."""
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            return self._end(last[1] if isinstance(last, tuple) else last)
        start, end = node.start_mark.index, node.end_mark.index
        return start + len(self.text[start:end].rstrip())


def documents(text: str) -> Iterator[Document]:
    """Yield the objects of a file in order."""
    for word in re.split(r"(?m)^---\n", text):
        if yaml.safe_load(word) is not None:
            yield Document(word)


def as_template(text: str, edits: list[Edit]) -> str:
    """Return the text with these edits; parts that Helm would take for a template are escaped."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        parts += [_plain(text[at : edit.start]), edit.text]
        at = edit.end
    return "".join([*parts, _plain(text[at:])])


def _plain(text: str) -> str:
    return text.replace("{{", '{{ "{{" }}')
