"""The running container runtime's answer compared with its files, and their times without an answer."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from healthcheck.checks.runtime_fixes import give_handler
from healthcheck.checks.runtime_loaded import CHECK
from healthcheck.model import NotConfigured, TooEarly
from healthcheck.probes.container_runtime import cri
from healthcheck.probes.container_runtime.facts import Handler, Live, ReadFile
from tests.checks.runtimes import (
    AKS,
    BROKEN,
    DROP_IN,
    FILE,
    NVIDIA,
    PROGRAM,
    RESTART,
    RUNC,
    SPEC,
    STARTED,
    UNREADABLE,
    configuration,
    finding,
    judge,
    runtime,
    seen,
)

LIVE = Live("containerd", "1.7.27", ("", "runc", "nvidia"), (("nvidia", PROGRAM),), "runc", cdi=False)


@pytest.mark.parametrize(("after", "well"), [(-60.0, True), (10.0, True), (10.1, False), (86400.0, False)])
def test_a_file_newer_than_its_reader_is_found(after: float, well: bool) -> None:
    files = (ReadFile(FILE, STARTED - 60), ReadFile(DROP_IN, STARTED + after))

    not_loaded = finding("RuntimeConfigNotLoaded", f"{DROP_IN}: changed after containerd was started; {RESTART}")
    assert judge(CHECK, runtime(NVIDIA, files=files)) == ([] if well else [not_loaded])


def test_where_no_runtime_is_to_be_seen_there_is_none_to_have_loaded_anything() -> None:
    untold = NotConfigured("no running containerd is visible, so its loaded configuration is unknown")
    assert judge(CHECK, runtime(NVIDIA, why_not_live=cri.NOT_HERE, started=None)) == [untold]


def test_without_a_comparable_clock_no_unloaded_file_is_reported() -> None:
    untold = NotConfigured("unknown whether containerd was started before its files were written")
    newer = (ReadFile(FILE, STARTED + 3600),)
    observed = runtime(NVIDIA, files=newer, why_not_live=cri.NOT_HERE, started=None, since_boot=10.0)
    assert judge(CHECK, observed) == [untold]


def test_a_newer_file_that_says_what_already_runs_is_no_fault() -> None:
    files = (ReadFile(FILE, STARTED + 3600),)
    assert judge(CHECK, runtime(RUNC, NVIDIA, files=files, live=LIVE)) == []


def test_where_this_version_does_not_say_the_times_count() -> None:
    files = (ReadFile(FILE, STARTED + 3600),)
    assert len(judge(CHECK, runtime(NVIDIA, files=files, live=replace(LIVE, handlers=None)))) == 1


@pytest.mark.parametrize(
    ("live", "message"),
    [
        (
            replace(LIVE, handlers=("runc",)),
            f"{FILE}, line 12: nvidia is defined, but the running containerd does not know it",
        ),
        (
            replace(LIVE, binaries=(("nvidia", "/old"),)),
            f"{FILE}, line 12: nvidia starts {PROGRAM}, but in the running containerd /old",
        ),
        (
            replace(LIVE, binaries=(("nvidia", ""),)),
            f"{FILE}, line 12: nvidia starts {PROGRAM}, but in the running containerd runc",
        ),
        (replace(LIVE, default="nvidia"), f"{FILE}: the default is runc, but in the running containerd nvidia"),
        (
            replace(LIVE, systemd_cgroups=(("nvidia", False), ("runc", True))),
            f"{FILE}, line 12: SystemdCgroup of nvidia is true, but in the running containerd false",
        ),
        (replace(LIVE, cdi=True), f"{FILE}: CDI is off, but in the running containerd on"),
    ],
)
def test_files_that_say_something_else_than_what_runs_were_not_loaded(live: Live, message: str) -> None:
    """Though no file is newer than the process."""
    assert judge(CHECK, runtime(RUNC, NVIDIA, live=live)) == [
        finding("RuntimeConfigNotLoaded", f"{message}; {RESTART}")
    ]


def test_of_another_default_the_file_is_named_that_says_it() -> None:
    observed = runtime(RUNC, NVIDIA, default_in=DROP_IN, live=replace(LIVE, default="nvidia"))
    message = f"{DROP_IN}: the default is runc, but in the running containerd nvidia; {RESTART}"
    assert judge(CHECK, observed) == [finding("RuntimeConfigNotLoaded", message)]


@pytest.mark.parametrize(
    "live",
    [
        LIVE,
        replace(LIVE, default=""),
        replace(LIVE, binaries=()),
        replace(LIVE, cdi=None),
        replace(LIVE, handlers=("nvidia", "untrusted")),
    ],
)
def test_what_is_the_same_or_not_said_is_no_fault(live: Live) -> None:
    assert judge(CHECK, runtime(RUNC, NVIDIA, live=live)) == []


def test_without_the_version_cdis_default_is_not_known() -> None:
    assert judge(CHECK, runtime(RUNC, NVIDIA, version="", live=replace(LIVE, cdi=True))) == []


@pytest.mark.parametrize(
    ("left", "live"),
    [
        ((RUNC,), LIVE),
        ((RUNC,), replace(LIVE, handlers=("runc", AKS.name), binaries=((AKS.name, PROGRAM),))),
    ],
)
def test_a_handler_that_only_the_running_one_has_is_lost_at_its_next_restart(
    left: tuple[Handler, ...], live: Live
) -> None:
    name = (live.handlers or ())[-1]
    give = give_handler(runtime(*left), configuration(*left))
    assert judge(CHECK, runtime(*left, live=live)) == [
        finding("NvidiaRuntimeNotKept", f"{FILE} no longer defines {name}, but the runtime still runs with it: {give}")
    ]


def test_one_that_is_not_ready_is_found_whatever_its_files_say() -> None:
    live = Live("containerd", "1.7.27", not_ready="ShimFailed: no such file")
    not_loaded = finding("RuntimeNotReady", f"ShimFailed: no such file; {RESTART}")

    assert judge(CHECK, runtime(NVIDIA, live=live)) == [not_loaded]
    held = "first correct the faults RuntimeConfigMalformed in its files: a restart would load them"
    assert judge(CHECK, runtime(problem=BROKEN, live=live)) == [
        finding("RuntimeNotReady", f"ShimFailed: no such file; {held}"),
        TooEarly(f"{FILE} can't be read", "runtime/containerd", ("RuntimeConfigNotLoaded", "NvidiaRuntimeNotKept")),
    ]


def test_it_tells_whom_it_asked() -> None:
    assert seen(CHECK, runtime(NVIDIA, live=LIVE))[0].what == "containerd 1.7.27 answers with runc, nvidia"
    assert seen(CHECK, runtime(NVIDIA))[0].what == "by the modification times of its files: its status was not read"
    silent = runtime(NVIDIA, why_not_live="no answer in 2 s")
    assert seen(CHECK, silent)[0].what == "by the modification times of its files: no answer in 2 s"
    asked = runtime(NVIDIA, why_not_live=cri.NOT_YET)
    assert seen(CHECK, asked)[0].what == cri.NOT_YET


def test_before_the_running_one_answers_what_stood_before_stands() -> None:
    """A new agent knows only the files; an earlier answer is in its memory."""
    newer = runtime(NVIDIA, why_not_live=cri.NOT_YET, started=STARTED - 3600)
    reasons = ("RuntimeConfigNotLoaded", "NvidiaRuntimeNotKept", "RuntimeNotReady")
    assert judge(CHECK, newer) == [TooEarly(cri.NOT_YET, "runtime/containerd", reasons)]


# Restarts that would load a fault.

HELD = "first correct the faults {} in its files: a restart would load them"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"disabled_in": FILE}, "RuntimeCriDisabled"),
        ({"default": "crun"}, "DefaultRuntimeUndefined"),
        ({"disabled_in": FILE, "default": "crun"}, "RuntimeCriDisabled, DefaultRuntimeUndefined"),
    ],
)
def test_no_restart_is_advised_with_files_that_would_not_serve_the_kubelet(fault: dict[str, Any], reason: str) -> None:
    newer = (ReadFile(FILE, STARTED + 3600),)
    not_loaded = finding(
        "RuntimeConfigNotLoaded", f"{FILE}: changed after containerd was started; {HELD.format(reason)}"
    )
    assert judge(CHECK, runtime(RUNC, NVIDIA, files=newer, **fault)) == [not_loaded]

    [kept] = judge(CHECK, runtime(RUNC, live=replace(LIVE, default=fault.get("default", "runc")), **fault))
    assert "`" not in str(kept)
    assert HELD.format(reason) in str(kept)


def test_no_restart_takes_away_the_only_way_to_a_gpu() -> None:
    with_cdi = replace(LIVE, handlers=("runc",), binaries=(), cdi=True)
    [judgement] = judge(CHECK, runtime(RUNC, cdi_specs=(SPEC,), live=with_cdi))
    assert "first define CDI in its files again" in str(judgement)

    [judgement] = judge(CHECK, runtime(RUNC, NVIDIA, cdi_specs=(SPEC,), live=replace(LIVE, cdi=True)))
    assert RESTART in str(judgement)


def test_one_that_is_not_ready_is_not_restarted_with_files_that_nobody_could_read() -> None:
    [judgement, _] = judge(CHECK, runtime(problem=UNREADABLE, live=Live("containerd", "1.7.27", not_ready="x")))
    assert f"first check {FILE}" in str(judgement)
