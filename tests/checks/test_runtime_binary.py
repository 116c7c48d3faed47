"""The programs that NVIDIA's handlers start."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from healthcheck.checks.runtime_binary import CHECK
from healthcheck.model import Finding
from healthcheck.probes.container_runtime.facts import CRIO, RuntimeBinary
from tests.checks.runtimes import (
    FILE,
    MEND,
    NVIDIA,
    OFFERED,
    PROGRAM,
    RUNC,
    SPEC,
    finding,
    judge,
    reasons,
    runtime,
    seen,
)

STARTS = f"{FILE}, line 12: nvidia starts {PROGRAM}"
NONE_THERE = (RuntimeBinary(PROGRAM), RuntimeBinary(OFFERED.binary))
ONE_THERE = (RuntimeBinary(PROGRAM, PROGRAM, True), RuntimeBinary(OFFERED.binary))


@pytest.mark.parametrize(
    ("program", "reason", "message"),
    [
        (
            RuntimeBinary(PROGRAM),
            "RuntimeBinaryMissing",
            "which does not exist; reinstall the NVIDIA container toolkit",
        ),
        (
            RuntimeBinary(PROGRAM, PROGRAM),
            "RuntimeBinaryNotExecutable",
            f"which is not executable; run `chmod 0755 {PROGRAM}`",
        ),
        (
            RuntimeBinary(PROGRAM, PROGRAM, True, "aarch64"),
            "RuntimeBinaryOfAnotherArchitecture",
            "built for aarch64 on a machine with x86_64; install the NVIDIA container toolkit for x86_64",
        ),
    ],
)
def test_a_program_that_cannot_be_run_is_found_by_what_keeps_it(
    program: RuntimeBinary, reason: str, message: str
) -> None:
    observed = runtime(RUNC, NVIDIA, programs=(program,))
    assert judge(CHECK, observed) == [finding(reason, f"{STARTS}, {message}")]


@pytest.mark.parametrize(
    ("made_for", "machine"), [("x86_64", "x86_64"), ("", "x86_64"), ("aarch64", ""), ("aarch64", "aarch64")]
)
def test_a_program_of_this_machine_or_of_nobody_knows_which_is_well(made_for: str, machine: str) -> None:
    programs = (RuntimeBinary(PROGRAM, PROGRAM, True, made_for),)
    assert judge(CHECK, runtime(NVIDIA, programs=programs, architecture=machine)) == []


def test_a_bare_name_is_looked_for_where_programs_lie() -> None:
    [found] = judge(CHECK, runtime(OFFERED, programs=(RuntimeBinary(OFFERED.binary),)))

    assert isinstance(found, Finding)
    assert "which does not exist in any usual folder of programs" in found.detail


@pytest.mark.parametrize(
    ("more", "well"),
    [
        ({"programs": ONE_THERE}, True),
        ({"programs": ONE_THERE, "default": OFFERED.name}, False),
        ({"programs": NONE_THERE}, False),
    ],
)
def test_a_handler_that_is_only_offered_is_judged_when_it_is_used(more: dict[str, Any], well: bool) -> None:
    """MicroK8s defines one on every node before there is a program for it."""
    names = [
        finding.detail for finding in judge(CHECK, runtime(NVIDIA, OFFERED, **more)) if isinstance(finding, Finding)
    ]
    assert any("nvidia-container-runtime starts" in name for name in names) is not well


@pytest.mark.parametrize("handler", [RUNC, replace(RUNC, name="kata", binary="/not/there")])
def test_the_programs_of_others_are_nobodys_business(handler: Any) -> None:
    assert judge(CHECK, runtime(handler, NVIDIA)) == []


def test_a_handler_without_a_program_starts_runc() -> None:
    bare = replace(NVIDIA, binary="")

    advice = f"set BinaryName to NVIDIA's program, {PROGRAM}: {MEND}"
    message = f"{FILE}, line 12: nvidia has no BinaryName, so it starts runc; {advice}"
    assert judge(CHECK, runtime(bare)) == [finding("RuntimeBinaryMissing", message)]
    assert judge(CHECK, runtime(bare, cdi=True, cdi_specs=(SPEC,))) == []
    # CRI-O searches for a program with the name of the handler.
    assert judge(CHECK, runtime(bare, kind=CRIO)) == []


@pytest.mark.parametrize("kind", ["io.containerd.kata.v2", "io.containerd.runsc.v1"])
def test_a_type_that_starts_no_program_by_its_name_needs_none(kind: str) -> None:
    assert reasons(judge(CHECK, runtime(replace(NVIDIA, runtime_type=kind, binary="")))) == []


def test_handlers_with_one_fault_are_one_finding() -> None:
    other = replace(NVIDIA, name="nvidia-cdi", binary=f"{PROGRAM}.cdi", line=20)
    [found] = judge(CHECK, runtime(NVIDIA, other, programs=(*NONE_THERE, RuntimeBinary(other.binary))))
    assert f"line 12: nvidia starts {PROGRAM}," in str(found)
    assert "line 20: nvidia-cdi starts" in str(found)


def test_it_tells_where_they_lie() -> None:
    assert seen(CHECK, runtime(NVIDIA))[0].what == PROGRAM
    assert seen(CHECK, runtime(NVIDIA, programs=(RuntimeBinary("x"),)))[0].what == "no x"
    assert seen(CHECK, runtime(programs=()))[0].what == "no program named"


def test_a_program_that_a_captured_tree_cannot_have_is_not_missed() -> None:
    observed = runtime(NVIDIA, programs=())
    assert judge(CHECK, observed) == []
    assert seen(CHECK, observed)[0].what == "this captured tree does not contain the named programs"
