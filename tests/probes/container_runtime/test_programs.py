"""Programs of the host: where they lie, and for which machine they are."""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.probes.container_runtime import host_paths
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import RuntimeBinary

PATH = "/usr/bin/containerd"


def put(root: Path, path: str, raw: bytes, mode: int = 0o755) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(raw)
    file.chmod(mode)


def elf(machine: int = 62) -> bytes:
    """The head of a file of 64 bits, little end first."""
    fields = (2, machine, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", *fields)


@pytest.mark.parametrize("raw", [b"", b"\x7fELF", b"\x7fELF" + bytes(60), b"#!/bin/sh\n" * 20])
def test_another_file_has_no_machine(raw: bytes, tmp_path: Path) -> None:
    put(tmp_path, PATH, raw)

    assert host_paths.architecture(tmp_path, PATH) == ""


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for path in ("/pipe", "/folder", "/nothing", "/\0"):
        assert host_paths.architecture(tmp_path, path) == ""


@pytest.mark.parametrize(
    ("machine", "message"),
    [(62, "x86_64"), (183, "aarch64"), (0xFFFF, "")],
)
def test_the_machine_is_that_of_the_elf_head(machine: int, message: str, tmp_path: Path) -> None:
    put(tmp_path, PATH, elf(machine))

    assert host_paths.architecture(tmp_path, PATH) == message


def test_the_program_that_runs_this_is_of_this_machine() -> None:
    assert host_paths.architecture(Path("/"), sys.executable) == os.uname().machine


def test_a_program_is_found_as_a_service_finds_it(tmp_path: Path) -> None:
    put(tmp_path, "/usr/local/bin/nvidia-container-runtime", b"", 0o644)
    put(tmp_path, "/usr/bin/nvidia-container-runtime", elf())
    put(tmp_path, "/opt/runtime", b"#!/bin/sh\n", 0o644)
    (tmp_path / "opt/link").symlink_to("/usr/bin/nvidia-container-runtime")
    (tmp_path / "opt/dangling").symlink_to("/nowhere")

    bare = "nvidia-container-runtime"
    assert host_paths.find_program(tmp_path, bare) == RuntimeBinary(
        bare, f"/usr/bin/{bare}", executable=True, architecture="x86_64"
    )
    assert host_paths.find_program(tmp_path, "/opt/runtime") == RuntimeBinary("/opt/runtime", "/opt/runtime")
    assert host_paths.find_program(tmp_path, "/opt/link") == RuntimeBinary("/opt/link", "/opt/link", True, "x86_64")
    for missing in ("/opt/dangling", "crun", "/opt", ""):
        assert host_paths.find_program(tmp_path, missing) == RuntimeBinary(missing)


def test_one_that_nobody_may_run_is_named_where_there_is_no_other(tmp_path: Path) -> None:
    put(tmp_path, "/usr/bin/crun", b"", 0o644)

    assert host_paths.find_program(tmp_path, "crun") == RuntimeBinary("crun", "/usr/bin/crun")


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)), max_size=8
    ),
    st.integers(0, 1000),
)
def test_a_damaged_program_is_read_or_it_is_nothing(damages: list[tuple[int, int]], length: int) -> None:
    raw = bytearray(elf())
    for place, byte in damages:
        raw[place % len(raw)] = byte
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), PATH, bytes(raw[: max(length, len(raw) - length)]))
        machine = host_paths.architecture(Path(folder), PATH)

    assert machine in ("", "ppc64le", "x86_64", "aarch64")
