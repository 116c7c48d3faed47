"""Docker's daemon.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from healthcheck.probes.container_runtime.docker import STANDARD_FILE, read_configuration
from healthcheck.probes.container_runtime.facts import RuntimeConfiguration


def read(root: Path, text: str | bytes) -> RuntimeConfiguration:
    file = root / STANDARD_FILE.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_configuration(root)


def test_what_the_toolkit_writes_is_read(tmp_path: Path) -> None:
    fields = {
        "default-runtime": "nvidia",
        "exec-opts": ["native.cgroupdriver=cgroupfs", "native.cgroupdriver=systemd"],
        "features": {"cdi": True},
        "cdi-spec-dirs": ["/opt/cdi"],
        "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}, "kata": {"runtimeType": "io.k.v2"}},
    }

    seen = read(tmp_path, json.dumps(fields))

    assert [(handler.name, handler.binary, handler.runtime_type) for handler in seen.handlers] == [
        ("runc", "", ""),
        ("nvidia", "nvidia-container-runtime", ""),
        ("kata", "", "io.k.v2"),
    ]
    assert (seen.default, seen.systemd_cgroup, seen.cdi, seen.cdi_folders) == ("nvidia", True, True, ("/opt/cdi",))


@pytest.mark.parametrize("text", [None, "", " \n", "{}", b"\xef\xbb\xbf{}", "{}".encode("utf-16")])
def test_without_a_word_there_are_the_defaults(text: str | bytes | None, tmp_path: Path) -> None:
    seen = read_configuration(tmp_path) if text is None else read(tmp_path, text)

    assert (seen.problem, seen.default, [handler.name for handler in seen.handlers]) == (None, "runc", ["runc"])
    assert (seen.systemd_cgroup, seen.cdi) == (None, False)


NEWER = sys.version_info >= (3, 13)
TRAILING_COMMA = ("Illegal trailing comma", (2, 8)) if NEWER else ("Expecting property name", (3, 1))


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ('{\n "a": 1,\n}', *TRAILING_COMMA),
        ('{"a": "b" "c": 1}', "Expecting ',' delimiter", (1, 11)),
        ("[]", "no object", (1, 1)),
        (b'{"a":\n "\xff"}', "no UTF-8", (2, 3)),
        ('{"runtimes": []}', "runtimes is not a table", (0, 0)),
        ('{"runtimes": {"nvidia": "x"}}', "nvidia is not a table", (0, 0)),
        ('{"runtimes": {"nvidia": {"path": 1}}}', "path is not a string", (0, 0)),
        ('{"default-runtime": 1}', "default-runtime is not a string", (0, 0)),
        ('{"exec-opts": "x"}', "exec-opts is not a list of strings", (0, 0)),
        ('{"cdi-spec-dirs": [1]}', "cdi-spec-dirs is not a list of strings", (0, 0)),
        ('{"features": 1}', "features is not a table", (0, 0)),
    ],
)
def test_a_value_that_dockerd_rejects_is_reported_with_its_line(
    text: str | bytes, message: str, place: tuple[int, int], tmp_path: Path
) -> None:
    problem = read(tmp_path, text).problem

    assert problem is not None
    assert message in problem.message
    assert ((problem.line, problem.column), problem.only_ours) == (place, False)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": 1' + "0" * 5000 + "}", '{"a": NaN}', " " * (1 << 20) + "{}"])
def test_what_only_we_cannot_read_is_no_fault(text: str, tmp_path: Path) -> None:
    problem = read(tmp_path, text).problem

    assert problem is not None
    assert problem.only_ours
