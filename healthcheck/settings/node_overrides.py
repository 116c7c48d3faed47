"""Settings of node groups: the lines of `node-overrides`, each with a label selector and values for its nodes.

The model of the settings validates the values, so a value is valid here if it is valid as a setting of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.node.label_selector import Expression, parse_selector
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, settings_of, written
from gpu_healthcheck.healthcheck.settings.reading import parse_value

PER_NODE = (
    "TAINT_SEVERITY",
    "EVICT_SEVERITY",
    "EVICT_DELAY",
    "GATE_SEVERITY",
    "CHECKS_LIGHTWEIGHT",
    "DCGM_L2_INTERVAL",
    "ENABLE_TAINT",
)
"""Settings that a line can set."""
MOST_LINES, LONGEST_LINE = 200, 2000
_LONGEST_SHOWN = 60
_GRAMMAR = "write `SELECTOR: KEY=VALUE ...`, as in `team=research,pool in (a, b): TAINT_SEVERITY=REBOOT`"


class OverrideLine(Struct, frozen=True):
    """One line: a selector, and values by name of the field."""

    number: int
    selector: str
    expressions: tuple[Expression, ...]
    values: Mapping[str, Any]

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(expression.takes(labels.get(expression.key)) for expression in self.expressions)


class ValueInForce(Struct, frozen=True):
    """Value of a setting on one node, as the ConfigMap writes it."""

    key: str
    value: str
    line: int = 0
    """Line of `node-overrides`; 0: the value of the whole cluster."""
    selector: str = ""


@lru_cache(maxsize=4)
def parse_lines(text: str) -> tuple[OverrideLine, ...]:
    """Return the lines without empty ones and comments. Raises ValueError, which names an invalid line."""
    lines = list[OverrideLine]()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        if len(lines) == MOST_LINES or len(line) > LONGEST_LINE:
            allowed = f"allowed are {MOST_LINES} lines with a selector, of {LONGEST_LINE} characters each"
            raise ValueError(f"line {number}: {allowed}")
        try:
            lines.append(_parse_line(number, line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return tuple(lines)


def selected_labels(values: NodeSettings, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that a selector names."""
    keys = {expression.key for line in parse_lines(values.node_overrides) for expression in line.expressions}
    return {key: labels[key] for key in sorted(keys & labels.keys())}


def values_in_force(values: NodeSettings, labels: Mapping[str, str]) -> Iterator[ValueInForce]:
    """Yield, for a node with these labels, the settings that a line sets or that differ from their defaults.

    Only settings that a line can set.
    """
    of_node, lines = values.for_labels(labels), parse_lines(values.node_overrides)
    for setting in map(settings_of(NodeSettings).__getitem__, PER_NODE):
        value = getattr(of_node, setting.name)
        last = next((line for line in reversed(lines) if setting.name in line.values and line.selects(labels)), None)
        if last is not None:
            yield ValueInForce(setting.key, written(value), last.number, last.selector)
        elif value != setting.default:
            yield ValueInForce(setting.key, written(value))


def _parse_line(number: int, line: str) -> OverrideLine:
    selector, colon, pairs = (part.strip() for part in line.partition(":"))
    if not colon or not pairs:
        raise ValueError(f"{line[:_LONGEST_SHOWN]!r}; {_GRAMMAR}")
    try:
        expressions = parse_selector(selector)
    except ValueError as error:
        raise ValueError(f"{error}; {_GRAMMAR}") from error
    values: dict[str, Any] = {}
    for pair in pairs.split():
        key, equals, text = pair.partition("=")
        if not equals or key not in PER_NODE:
            raise ValueError(f"{pair[:_LONGEST_SHOWN]!r}; allowed are {', '.join(PER_NODE)}, each with =VALUE")
        # A list of checks has spaces in the setting itself. Spaces separate the pairs here.
        text = text.replace(",", " ") if key == "CHECKS_LIGHTWEIGHT" else text
        values[settings_of(NodeSettings)[key].name] = parse_value(key, text)
    return OverrideLine(number, selector, expressions, values)
