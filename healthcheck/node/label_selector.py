"""Label selectors: their requirements, and their text as `kubectl -l` accepts it."""

from __future__ import annotations

import re

from msgspec import Struct

LABEL_KEY = re.compile(
    r"(?:(?=[^/]{1,253}/)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z"
)
"""Key of a label: an optional DNS subdomain, and a name of at most 63 characters."""
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?\Z")
_LONGEST_KEY, _LONGEST_SHOWN = 317, 60
_REQUIREMENT = re.compile(
    r"\s*(?:!\s*(?P<absent>[\w./-]+)|(?P<key>[\w./-]+)"
    r"(?:\s*(?P<equals>==?|!=)\s*(?P<value>[\w.-]*)|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:(?P<comma>,)|\Z)"
)


class Expression(Struct, frozen=True):
    """One requirement of a selector: `key operator values`."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def takes(self, value: str | None) -> bool:
        """Whether the key may have this value; None if the key is absent. An unknown operator matches nothing."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return False

    def __str__(self) -> str:
        """Format as `team is a or b`."""
        match self.operator:
            case "In":
                return f"{self.key} is {' or '.join(self.values)}"
            case "NotIn":
                return f"{self.key} is not {' or '.join(self.values)}"
            case "Exists":
                return f"{self.key} is present"
            case "DoesNotExist":
                return f"{self.key} is absent"
        return f"{self.key} {self.operator} {', '.join(self.values)}".strip()


def parse_selector(text: str) -> tuple[Expression, ...]:
    """Return the requirements of a selector, which must all be met. Raises ValueError for an invalid or empty one."""
    expressions, at = list[Expression](), 0
    while (found := _REQUIREMENT.match(text, at)) and (expression := _expression(found)):
        expressions.append(expression)
        if not found["comma"]:
            return tuple(expressions)
        at = found.end()
    raise ValueError(f"{text[at:].strip()[:_LONGEST_SHOWN]!r} is no label selector")


def _expression(found: re.Match[str]) -> Expression | None:
    """Return one requirement; None if its key or a value is invalid."""
    key = found["absent"] or found["key"]
    values: tuple[str, ...] = ()
    if found["absent"]:
        operator = "DoesNotExist"
    elif found["set"]:
        operator = "In" if found["set"] == "in" else "NotIn"
        values = tuple(value.strip() for value in found["values"].split(","))
    elif found["equals"]:
        operator, values = "NotIn" if found["equals"] == "!=" else "In", (found["value"],)
    else:
        operator = "Exists"
    is_valid = len(key) <= _LONGEST_KEY and LABEL_KEY.match(key) and all(map(_LABEL_VALUE.match, values))
    return Expression(key, operator, values) if is_valid else None
