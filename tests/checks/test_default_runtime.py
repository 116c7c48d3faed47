"""The handler of pods that name none."""

from __future__ import annotations

import pytest

from healthcheck.checks.default_runtime import CHECK
from healthcheck.model import Observation
from healthcheck.probes.container_runtime.facts import CRIO, DOCKER
from tests.checks.runtimes import AKS, DROP_IN, FILE, MEND, NVIDIA, RUNC, finding, judge, runtime, seen


def test_a_default_that_nobody_defines_is_found() -> None:
    assert judge(CHECK, runtime(AKS, default="nvidia")) == [
        finding(
            "DefaultRuntimeUndefined",
            f"{FILE}: the default is 'nvidia'; defined are nvidia-container-runtime, runc; {MEND}",
        )
    ]


def test_the_file_is_named_that_says_it() -> None:
    message = f"{DROP_IN}: the default is 'nvidia'; defined are runc; {MEND.replace(FILE, DROP_IN)}"
    observed = runtime(RUNC, default="nvidia", default_in=DROP_IN)
    assert judge(CHECK, observed) == [finding("DefaultRuntimeUndefined", message)]


@pytest.mark.parametrize("default", ["runc", "nvidia"])
def test_one_that_is_defined_or_built_in_is_well(default: str) -> None:
    assert judge(CHECK, runtime(NVIDIA, default=default)) == []


def test_containerd_1_has_no_implicit_runc_with_a_handler_table() -> None:
    assert len(judge(CHECK, runtime(NVIDIA, built_in=()))) == 1
    # Of unknown version, it may be 2, which has it.
    assert judge(CHECK, runtime(NVIDIA, built_in=(), version="")) == []


@pytest.mark.parametrize("kind", [CRIO, DOCKER])
@pytest.mark.parametrize(("default", "well"), [("runc", True), ("crun", True), ("nvidia", False)])
def test_others_bring_theirs(kind: str, default: str, well: bool) -> None:
    assert (judge(CHECK, runtime(kind=kind, built_in=(), default=default)) == []) is well


def test_it_tells_the_default() -> None:
    assert seen(CHECK, runtime(NVIDIA, default="nvidia")) == [Observation("nvidia", "one of nvidia, runc")]
