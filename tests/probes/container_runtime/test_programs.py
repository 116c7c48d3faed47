"""Programs of the host: where they lie, for which machine they are, and of which modules Go made them."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.probes.container_runtime import programs
from healthcheck.probes.container_runtime.containerd import MODULE
from healthcheck.probes.container_runtime.facts import Program
from sim import go_program

PATH = "/usr/bin/containerd"
UPSTREAM = f"mod\t{MODULE}/v2\tv2.1.4\th1:xyz="


def put(root: Path, path: str, raw: bytes, mode: int = 0o755) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(raw)
    file.chmod(mode)


def version(root: Path, *lines: str) -> str:
    put(root, PATH, go_program.go_program(*lines))
    return programs.go_version_of_module(root, PATH, MODULE)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((f"path\t{MODULE}/v2/cmd/containerd", UPSTREAM, f"dep\t{MODULE}/api\tv1.9.0\th1:x="), "2.1.4"),
        ((f"mod\t{MODULE}\tv1.7.28\t", f"dep\t{MODULE}/api\tv1.8.0\t"), "1.7.28"),
        ((f"mod\t{MODULE}/v2\tv2.1.4+dirty\t",), "2.1.4"),
        ((f"mod\t{MODULE}/v2\tv2.3.0-rc.1\t",), "2.3.0-rc.1"),
        # k3s and RKE2 bring a fork of it among their dependencies.
        (
            (
                "path\tgithub.com/k3s-io/k3s/cmd/server",
                "mod\tgithub.com/k3s-io/k3s\t(devel)\t",
                f"dep\t{MODULE}/v2\tv2.1.5",
                "=>\tgithub.com/k3s-io/containerd/v2\tv2.1.4-k3s1\th1:x=",
                "dep\tgithub.com/containerd/errdefs\tv1.0.0",
                "=>\tgithub.com/k3s-io/errdefs\tv9.9.9\th1:x=",
                "build\t-ldflags=-X github.com/k3s-io/k3s/pkg/version.Version=v1.33.4+k3s1",
            ),
            "2.1.4-k3s1",
        ),
        # From a checkout, the version given to the linker.
        (
            (f"mod\t{MODULE}/v2\t(devel)\t", f"build\t-ldflags=-s -X {MODULE}/v2/version.Version=v2.0.5 -X a.b=c"),
            "2.0.5",
        ),
        ((f"mod\t{MODULE}/v2\t(devel)\t",), "2"),
        ((f"mod\t{MODULE}/v2\tv0.0.0-20240101000000-abcdefabcdef\t",), "2"),
        # Debian's, made without modules.
        ((f"path\t{MODULE}/cmd/containerd", "build\t-trimpath=true"), "1"),
        (("mod\tgithub.com/containerd/nerdctl\tv2.0.0\t",), ""),
        ((f"dep\t{MODULE}-shim\tv1.0.0\t",), ""),
        (("mod", "dep", "=>", "", "path"), ""),
        ((), ""),
    ],
)
def test_the_version_is_that_of_the_module_in_the_program(lines: tuple[str, ...], told: str, tmp_path: Path) -> None:
    assert version(tmp_path, *lines) == told


def test_what_was_read_is_remembered_until_the_file_is_another(tmp_path: Path) -> None:
    assert version(tmp_path, UPSTREAM) == "2.1.4"
    assert programs.go_version_of_module(tmp_path, PATH, MODULE) == "2.1.4"

    assert version(tmp_path, f"mod\t{MODULE}/v2\tv2.10.12\t") == "2.10.12"


@pytest.mark.parametrize("raw", [b"", b"\x7fELF", b"\x7fELF" + bytes(60), b"#!/bin/sh\n", b"\xff Go buildinf:" * 20])
def test_another_file_has_neither_version_nor_machine(raw: bytes, tmp_path: Path) -> None:
    put(tmp_path, PATH, raw)

    assert (programs.go_version_of_module(tmp_path, PATH, MODULE), programs.architecture(tmp_path, PATH)) == ("", "")


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for path in ("/pipe", "/folder", "/nothing", "/\0"):
        assert (programs.go_version_of_module(tmp_path, path, MODULE), programs.architecture(tmp_path, path)) == (
            "",
            "",
        )


@pytest.mark.parametrize(
    ("machine", "told"),
    [(go_program.X86_64, "x86_64"), (go_program.AARCH64, "aarch64"), (0xFFFF, "")],
)
def test_the_machine_is_that_of_the_elf_head(machine: int, told: str, tmp_path: Path) -> None:
    put(tmp_path, PATH, go_program.go_program(machine=machine))

    assert programs.architecture(tmp_path, PATH) == told


def test_the_program_that_runs_this_is_of_this_machine() -> None:
    assert programs.architecture(Path("/"), sys.executable) == os.uname().machine


def test_a_program_is_found_as_a_service_finds_it(tmp_path: Path) -> None:
    put(tmp_path, "/usr/local/bin/nvidia-container-runtime", b"", 0o644)
    put(tmp_path, "/usr/bin/nvidia-container-runtime", go_program.go_program())
    put(tmp_path, "/opt/runtime", b"#!/bin/sh\n", 0o644)
    (tmp_path / "opt/link").symlink_to("/usr/bin/nvidia-container-runtime")
    (tmp_path / "opt/dangling").symlink_to("/nowhere")

    bare = "nvidia-container-runtime"
    assert programs.find(tmp_path, bare) == Program(bare, f"/usr/bin/{bare}", executable=True, architecture="x86_64")
    assert programs.find(tmp_path, "/opt/runtime") == Program("/opt/runtime", "/opt/runtime")
    assert programs.find(tmp_path, "/opt/link") == Program("/opt/link", "/opt/link", True, "x86_64")
    for missing in ("/opt/dangling", "crun", "/opt", ""):
        assert programs.find(tmp_path, missing) == Program(missing)


def test_one_that_nobody_may_run_is_named_where_there_is_no_other(tmp_path: Path) -> None:
    put(tmp_path, "/usr/bin/crun", b"", 0o644)

    assert programs.find(tmp_path, "crun") == Program("crun", "/usr/bin/crun")


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)), max_size=8
    ),
    st.integers(0, 1000),
)
def test_a_damaged_program_is_read_or_it_is_nothing(damages: list[tuple[int, int]], length: int) -> None:
    raw = bytearray(go_program.go_program(UPSTREAM))
    for place, byte in damages:
        raw[place % len(raw)] = byte
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), PATH, bytes(raw[: max(length, len(raw) - length)]))
        told = programs.go_version_of_module(Path(folder), PATH, MODULE)
        machine = programs.architecture(Path(folder), PATH)

    assert not told or (told[0].isdigit() and len(told) <= 80)
    assert machine in ("", "i686", "ppc64le", "s390x", "armv7l", "x86_64", "aarch64", "riscv64", "loongarch64")
