"""containerd's runtime types."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthcheck.checks.runtime_type import CHECK
from healthcheck.model import NotConfigured
from healthcheck.probes.container_runtime.facts import CRIO
from tests.checks.runtimes import FILE, MEND, NVIDIA, PROGRAM, RUNC, finding, judge, reasons, runtime, seen

OLD = ["io.containerd.runtime.v1.linux", "io.containerd.runc.v1"]


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize(
    ("version", "schema", "well"),
    [
        ("2.0.0", 2, False),
        ("2.1-k3s1", 2, False),
        ("1.7.27", 2, True),
        ("", 3, False),
        ("", 2, True),
        ("x", 3, False),
    ],
)
def test_a_type_that_containerd_2_dropped_is_found_there(old: str, version: str, schema: int, well: bool) -> None:
    wrong_type = finding(
        "RuntimeTypeRemoved",
        f"{FILE}, line 12: nvidia has runtime_type {old}, which containerd 2 does not have; {MEND}",
    )
    handler = replace(NVIDIA, runtime_type=old)
    assert judge(CHECK, runtime(RUNC, handler, version=version, schema=schema)) == ([] if well else [wrong_type])


@pytest.mark.parametrize("well", [True, False])
def test_of_the_others_only_the_default_one_counts(well: bool) -> None:
    other = replace(RUNC, name="old", runtime_type=OLD[1])
    observed = runtime(RUNC, NVIDIA, other, version="2.1.4", default="runc" if well else "old")
    assert reasons(judge(CHECK, observed)) == ([] if well else ["RuntimeTypeRemoved"])


@pytest.mark.parametrize(
    ("kind", "binary", "well"),
    [
        ("io.containerd.kata.v2", PROGRAM, False),
        ("io.containerd.kata.v2", "", True),
        ("io.containerd.runc.v2", PROGRAM, True),
        ("", PROGRAM, True),
    ],
)
def test_a_type_that_does_not_start_the_program_named_is_found(kind: str, binary: str, well: bool) -> None:
    handler = replace(NVIDIA, runtime_type=kind, binary=binary)
    wrong_type = finding(
        "RuntimeTypeIgnoresBinary",
        f"{FILE}, line 12: nvidia has runtime_type {kind}, which does not start {binary}; {MEND}",
    )
    assert judge(CHECK, runtime(RUNC, handler)) == ([] if well else [wrong_type])


@pytest.mark.parametrize(
    ("binary", "ignored", "well"),
    [("", PROGRAM, False), ("/usr/bin/runc", PROGRAM, False), (PROGRAM, PROGRAM, True), ("", "", True)],
)
def test_the_oldest_shim_takes_its_program_from_another_option(binary: str, ignored: str, well: bool) -> None:
    handler = replace(NVIDIA, runtime_type=OLD[0], binary=binary, ignored_binary=ignored)
    wrong_type = finding(
        "RuntimeTypeIgnoresBinary",
        f"{FILE}, line 12: nvidia has runtime_type {OLD[0]}, which does not start {PROGRAM}; {MEND}",
    )
    assert judge(CHECK, runtime(RUNC, handler)) == ([] if well else [wrong_type])


def test_only_containerd_has_them() -> None:
    assert judge(CHECK, runtime(NVIDIA, kind=CRIO)) == [NotConfigured("CRI-O has no runtime types")]


def test_it_tells_them() -> None:
    assert seen(CHECK, runtime(RUNC, NVIDIA))[0].what == "io.containerd.runc.v2"
    assert seen(CHECK, runtime())[0].what == "none named"
