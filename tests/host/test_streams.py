"""Documents on standard output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Struct

from gpu_healthcheck.healthcheck.host.streams import write_json
from gpu_healthcheck.healthcheck.model import Severity, Status


class Printed(Struct, frozen=True):
    name: str
    parts: tuple[float, ...]


def plain(value: Any) -> Any:
    return {"name": value.name, "parts": list(value.parts)}


DOCUMENTS = {
    "plain": {"a": [1, None, True, {"b": []}, {}], "status": Status.FAIL, "severity": Severity.RESET},
    "values": [Printed("node-1", (0.5, 2.0)), Printed('"quoted"\\', ())],
    "letters that are no ASCII": {"name": "n\u00f6de \U0001f600", "told": Printed("\u2028", ())},
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("value", DOCUMENTS.values(), ids=DOCUMENTS)
def test_json_is_written_like_pythons(
    value: Any, indent: int | None, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    write_json(value, indent)

    separators = None if indent else (",", ":")
    raw = capsysbinary.readouterr().out
    assert raw.decode("ascii") == json.dumps(value, indent=indent, separators=separators, default=plain) + "\n"
