"""DCGM's diagnostic, judged: documents of every version, exit codes, and tests that could not run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog.dcgm import dcgm_table, rule_dcgm
from gpu_healthcheck.healthcheck.catalog.policy import Policy, parse_overrides
from gpu_healthcheck.healthcheck.checks.dcgm_diag import (
    LEVEL_2,
    LEVEL_4,
    judge_answer,
    level_of,
    needs_repeat,
    reason_name,
    rows_of,
    with_repeat,
)
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.memory.deep_tests import after_deep_test, deep_result
from gpu_healthcheck.healthcheck.memory.exit_table import exit_words
from gpu_healthcheck.healthcheck.memory.findings import Memory
from gpu_healthcheck.healthcheck.model import (
    Evidence,
    Finding,
    Host,
    Judgement,
    Nature,
    Now,
    Observation,
    Outcome,
    Passed,
    Severity,
    Unobserved,
)
from gpu_healthcheck.healthcheck.probes.dcgm.diag import LEVEL_2_RUN, LEVEL_4_RUN, DcgmReading
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import DiagAnswer, DiagError, DiagResult, read_answer
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml
from tests.checks.evidence import healthy
from tests.examples import NOW
from tests.probes.dcgm.documents import (
    FAULTY,
    NOT_PERSISTENT,
    SHAPES,
    Said,
    Story,
    dcgm_4,
    dcgm_4_5,
    printed,
    runtime_error,
)

PASS, MONITOR, RESET, REBOOT, ISOLATE = Severity
WELL, FAILED = Story(), Story(errors={("memory", 1): [FAULTY]})
POLICY = Policy()
LATER = Now(NOW.wall + timedelta(hours=6), NOW.monotonic + 21600.0)


def answer(document: Any, code: int | None = None, level: int | None = None) -> DiagAnswer:
    return read_answer(printed(document), b"", code, level)


def said(answer: DiagAnswer, policy: Policy = POLICY, gpus: Sequence[nvml.Gpu] = ()) -> list[Judgement]:
    return list(judge_answer(answer, tuple(gpus), policy))


def findings(answer: DiagAnswer, policy: Policy = POLICY) -> dict[tuple[str, str], Severity]:
    return {(f.reason, f.subject): f.severity for f in said(answer, policy) if isinstance(f, Finding)}


def causes(answer: DiagAnswer) -> list[str]:
    return [word.cause.name for word in said(answer) if isinstance(word, Unobserved)]


def passed(answer: DiagAnswer) -> set[tuple[str, str]]:
    return {(word.reason, word.subject) for word in said(answer) if isinstance(word, Passed)}


def with_error(error: dict[str, Any], status: str = "Fail", test: str = "memory") -> DiagAnswer:
    document = dcgm_4(WELL)
    tests = [t for c in document["DCGM Diagnostic"]["test_categories"] for t in c["tests"] if t["name"] == test]
    tests[0]["results"][1] |= {"status": status, "warnings": [error]}
    return answer(document)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_test_that_failed_is_a_finding_of_its_gpu(shape: str) -> None:
    diag_answer = answer(SHAPES[shape](FAILED), 205)

    assert findings(diag_answer) == {("DcgmDiagMemory", "gpu/1"): ISOLATE}
    (finding,) = [word for word in said(diag_answer) if isinstance(word, Finding)]
    assert finding.detail.endswith("FAULTY_MEMORY: Found 3 faulty memory elements on GPU 1")
    assert (finding.rule, finding.about["index"]) == ("dcgm_errors.csv:52", "1")
    assert causes(diag_answer) == []
    assert ("DcgmDiagMemory", "gpu/0") in passed(diag_answer)
    assert ("DcgmDiagMemory", "gpu/1") not in passed(diag_answer)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_tests_passed(shape: str) -> None:
    diag_answer = answer(SHAPES[shape](WELL), 0, 2)
    software = "" if shape < "4" else "gpu/0"

    assert (findings(diag_answer), causes(diag_answer)) == ({}, [])
    assert {("DcgmDiagMemory", "gpu/0"), ("DcgmDiagPcie", "gpu/1"), ("DcgmDiagSoftware", software)} <= passed(
        diag_answer
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_persistence_mode_off_is_watched_and_isolates_nothing(shape: str) -> None:
    """Two real captures: exit code 226, and the hardware is well."""
    diag_answer = answer(SHAPES[shape](Story(errors={("software", 0): [NOT_PERSISTENT]})), 226)

    assert (findings(diag_answer), causes(diag_answer)) == ({("DcgmDiagSoftware", "gpu/0"): MONITOR}, [])


def test_the_worst_error_of_a_test_wins_and_all_are_reported() -> None:
    errors = [Said("slow", 62, 1, 4), FAULTY, *(Said(f"other {n}", 61, 8, 1) for n in range(9))]
    diag_answer = answer(dcgm_4(Story(errors={("memory", 0): errors, ("pcie", 0): [Said("narrow", 46, 13, 5)]})))

    assert findings(diag_answer) == {("DcgmDiagMemory", "gpu/0"): ISOLATE, ("DcgmDiagPcie", "gpu/0"): RESET}
    (finding,) = [word for word in said(diag_answer) if isinstance(word, Finding) and word.reason == "DcgmDiagMemory"]
    assert finding.detail.startswith("error 52 FAULTY_MEMORY: ")
    assert "also error 62 MEMORY_BANDWIDTH, error 61 ECC_PENDING" in finding.detail
    assert finding.detail.endswith(" and 4 more")


@pytest.mark.parametrize("error_id", sorted(dcgm_table()))
@pytest.mark.parametrize("status", ["Fail", "Warn"])
def test_error_of_a_failed_test_has_the_severity_of_its_table(error_id: int, status: str) -> None:
    row = dcgm_table()[error_id]
    answer = with_error({"warning": "words", "error_id": error_id}, status)

    if row.could_not_run:
        assert (findings(answer), len(causes(answer))) == ({}, 1)
    else:
        # 0 is no id: a failed test of memory is RESET by itself then.
        severity = rule_dcgm(error_id, None, POLICY).severity if error_id else RESET
        assert findings(answer) == {("DcgmDiagMemory", "gpu/1"): severity}
        assert causes(answer) == []
    assert ("DcgmDiagMemory", "gpu/1") not in passed(answer)


@pytest.mark.parametrize("error_id", [None, *sorted(dcgm_table())])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_with_a_passed_test_is_no_fault(error_id: int | None, shape: str) -> None:
    """DCGM issue 284: memory could not be allocated, but the test passed. The exit code is 226."""
    said = Said("Couldn't allocate at least 75.0% of GPU memory on GPU 1", -1 if error_id is None else error_id)
    document = SHAPES[shape](Story(errors={("memory", 1): [said]}))
    diag_answer = answer(json.loads(json.dumps(document).replace('"Fail"', '"Pass"')), 226, 2)

    assert (findings(diag_answer), causes(diag_answer), needs_repeat(diag_answer, POLICY)) == ({}, [], ())
    # It shows no earlier fault gone.
    assert ("DcgmDiagMemory", "gpu/1") not in passed(diag_answer)
    assert ("DcgmDiagMemory", "gpu/0") in passed(diag_answer)


def test_failed_summary_of_a_passed_device_is_no_fault() -> None:
    document = dcgm_4_5(Story(errors={("memory", 1): [Said("Couldn't allocate at least 75.0%", 56, 10, 4)]}))
    test = document["DCGM Diagnostic"]["test_categories"][1]["tests"][0]
    test["results"][1]["status"] = "Pass"
    assert test["test_summary"]["status"] == "Fail"

    assert (findings(answer(document, 226)), causes(answer(document, 226))) == ({}, [])


BUSY = "API call cudaEventCreate failed for GPU 1: 'CUDA-capable device(s) is/are busy or unavailable'"
NOT_HAD = "Couldn't allocate at least 75.0% of GPU memory on GPU 1"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("where", ["memory", "pcie"])
def test_use_of_a_gpu_is_no_fault(shape: str, where: str) -> None:
    errors = {("memory", 1): [Said(NOT_HAD, 56, 10, 4)]}
    errors[where, 1] = [*errors.get((where, 1), []), Said(BUSY, 65, 4, 4)]
    diag_answer = answer(SHAPES[shape](Story(errors=errors)), 226, 2)

    assert (findings(diag_answer), set(causes(diag_answer))) == ({}, {"DcgmInUse"})


@pytest.mark.parametrize("shape", [dcgm_4, dcgm_4_5])
def test_foreign_process_on_a_gpu_is_a_use_of_it(shape: Callable[[Story], dict[str, Any]]) -> None:
    graphics = Said("NVVS has detected processes with graphics contexts open", 25, 3, 6)
    errors = {("software", 1): [graphics], ("memory", 1): [Said(NOT_HAD, 56, 10, 4)]}
    diag_answer = answer(shape(Story(errors=errors)), 226, 2)

    assert (findings(diag_answer), causes(diag_answer)) == ({("DcgmDiagSoftware", "gpu/1"): MONITOR}, ["DcgmInUse"])


@pytest.mark.parametrize(
    ("info", "found", "why"),
    [
        (BUSY, {}, ["DcgmInUse"]),
        ([BUSY], {}, ["DcgmInUse"]),
        ("GPU 1 tested 93% of its memory", {("DcgmDiagMemory", "gpu/1"): RESET}, []),
    ],
)
def test_failure_without_a_warning_is_explained_by_its_info(
    info: str | list[str], found: dict[tuple[str, str], Severity], why: list[str]
) -> None:
    result = {"gpu_id": "1", "status": "Fail", "info": info}
    tests = [{"name": "GPU Memory", "results": [result]}, {"name": "PCIe", "results": [result | {"status": "Pass"}]}]
    diag_answer = answer({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}, 226)

    assert (findings(diag_answer), causes(diag_answer)) == (found, why)


@pytest.mark.parametrize(
    "message",
    [
        "uncorrectable ECC error encountered",
        "uncorrectable NVLink error detected during the execution",
        "an illegal memory access was encountered",
        "unspecified launch failure",
    ],
)
@pytest.mark.parametrize("shape", [dcgm_4, dcgm_4_5])
def test_gpu_in_use_excuses_no_hardware_error(shape: Callable[[Story], dict[str, Any]], message: str) -> None:
    text = f"API call cuCtxSynchronize failed for GPU 1: '{message}'"
    graphics = Said("NVVS has detected processes with graphics contexts open", 25, 3, 6)
    errors = {("software", 1): [graphics], ("memory", 1): [Said(text, 65, 6, 4)]}
    diag_answer = answer(shape(Story(errors=errors)), 226, 2)

    assert findings(diag_answer)["DcgmDiagMemory", "gpu/1"] == RESET
    assert causes(diag_answer) == []


def test_a_test_of_the_cpu_that_was_skipped_leaves_no_gpu_untested() -> None:
    """The same occurs on a Grace without the package of that test."""
    document = dcgm_4(WELL)
    category = document["DCGM Diagnostic"]["test_categories"][0]
    skipped = [{"entity_group": "CPU", "entity_group_id": 7, "entity_id": text, "status": "Skip"} for text in (0, 1)]
    category["tests"].append({"name": "cpu_eud", "results": skipped})
    text = answer(document, 0, 2)

    assert (findings(text), causes(text)) == ({}, [])


def test_a_gpu_in_use_excuses_no_other_gpu_and_no_error_of_its_own() -> None:
    errors = {("memory", 0): [Said(NOT_HAD, 56, 10, 4)], ("pcie", 1): [Said(BUSY, 65, 4, 4)], ("memory", 1): [FAULTY]}
    diag_answer = answer(dcgm_4(Story(errors=errors)), 205, 2)

    assert findings(diag_answer) == {("DcgmDiagMemory", "gpu/0"): RESET, ("DcgmDiagMemory", "gpu/1"): ISOLATE}


@pytest.mark.parametrize(
    "text",
    [
        "Couldn't allocate at least 75.0% of GPU memory on GPU 1: it is used by another process",
        "Couldn't allocate at least 75.0% of GPU memory on GPU 1, which is in use",
        "Error using CUDA API cuCtxCreate. Unable to create: 'CUDA-capable device(s) is/are busy or unavailable'",
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_failed_memory_test_of_a_gpu_in_use_is_no_fault(shape: str, text: str) -> None:
    error_id = 51 if "CUDA API" in text else 56
    diag_answer = answer(SHAPES[shape](Story(errors={("memory", 1): [Said(text, error_id, 10, 4)]})), 226, 2)

    assert (findings(diag_answer), causes(diag_answer)) == ({}, ["DcgmInUse"])


@pytest.mark.parametrize(
    ("test", "severity"), [("memory", RESET), ("memtest", RESET), ("pcie", MONITOR), ("memory_bandwidth", MONITOR)]
)
@pytest.mark.parametrize("text", ["words that nobody knows", "Persistence mode for GPU 1 is disabled.", ""])
def test_a_failed_test_of_memory_without_an_id_is_a_reset_by_itself(text: str, test: str, severity: Severity) -> None:
    story = Story(tests=("software", "memory", "pcie", test), errors={(test, 1): [Said(text, -1, severity=-1)]})
    diag_answer = answer(dcgm_4(story))

    assert findings(diag_answer) == {(reason_name(test), "gpu/1"): severity}


def test_severity_in_the_output_counts_for_errors_missing_in_the_table() -> None:
    assert findings(with_error({"warning": "new", "error_id": 999, "error_severity": 2})) == {
        ("DcgmDiagMemory", "gpu/1"): ISOLATE
    }
    assert findings(with_error({"warning": "new", "error_id": 999})) == {("DcgmDiagMemory", "gpu/1"): MONITOR}
    assert findings(with_error({"warning": "new"})) == {("DcgmDiagMemory", "gpu/1"): RESET}


@pytest.mark.parametrize(
    ("error_id", "text", "cause"),
    [
        (51, "Error using CUDA API cudaSetDevice: CUDA-capable device(s) is/are busy or unavailable", "DcgmInUse"),
        (65, "API call cuCtxCreate failed for GPU 1: 'all CUDA-capable devices are busy or unavailable'", "DcgmInUse"),
        (66, "GPU 1 failed to create a CUDA context: device is in use", "DcgmInUse"),
        (64, "API call open failed: 'Permission denied'", "DcgmNoPermission"),
        (19, "Error calling NVML API nvmlInit: Insufficient Permissions", "DcgmNoPermission"),
        (None, "Test was aborted early due to user signal", "DcgmAborted"),
        (47, "Test was aborted early due to user signal", "DcgmAborted"),
        (48, "The memory test is skipped for this GPU.", "DcgmTestSkipped"),
        (117, "words", "DcgmTestSkipped"),
        (22, "Cannot open library libcuda.so: 'no such file'", "DcgmLibraryMissing"),
        (96, "does not have permissions to create a file in directory '/'", "DcgmNoPermission"),
        (124, "words", "DcgmNoPermission"),
        (82, "No valid GPUs passed to plugin", "DcgmNoGpus"),
    ],
)
def test_a_test_that_could_not_run_is_no_fault(error_id: int | None, text: str, cause: str) -> None:
    answer = with_error({"warning": text, "error_id": error_id, "error_severity": 4})

    assert (findings(answer), causes(answer)) == ({}, [cause])


@pytest.mark.parametrize(
    ("error_id", "text"),
    [
        (54, "Cuda GPU 1 is no longer bound to a CUDA context...Aborting"),
        (52, "Found 3 faulty memory elements; the device is busy or unavailable"),
        (55, "Skipping test memory because ECC is not enabled on GPU 1"),
        (25, "processes with graphics contexts in use"),
    ],
)
def test_error_that_names_itself_is_never_excused(error_id: int, text: str) -> None:
    answer = with_error({"warning": text, "error_id": error_id})

    assert (list(findings(answer)), causes(answer)) == ([("DcgmDiagMemory", "gpu/1")], [])


@pytest.mark.parametrize(
    ("category", "reason", "severity"), [(1, "DcgmDiagMemory", RESET), (2, "DcgmDiagPcie", MONITOR)]
)
def test_a_failure_that_names_no_error_is_watched_but_of_memory(category: int, reason: str, severity: Severity) -> None:
    document = dcgm_4(WELL)
    document["DCGM Diagnostic"]["test_categories"][category]["tests"][0]["results"][1]["status"] = "Fail"

    assert findings(answer(document, 0)) == {(reason, "gpu/1"): severity}


def test_a_result_that_no_version_gives_is_neither_fault_nor_pass() -> None:
    document = dcgm_4(WELL)
    document["DCGM Diagnostic"]["test_categories"][1]["tests"][0]["results"][1]["status"] = "Perhaps"
    diag_answer = answer(document, 0)

    assert (findings(diag_answer), causes(diag_answer)) == ({}, ["DcgmNonsense"])
    assert ("DcgmDiagMemory", "gpu/1") not in passed(diag_answer)


@pytest.mark.parametrize("shape", SHAPES)
def test_skipped_everywhere_is_no_pass(shape: str) -> None:
    """Consumer GPUs: the software is tested, and nothing else (DCGM issues 55 and 139)."""
    skipped = [(test, gpu) for test in ("memory", "pcie") for gpu in range(2)]

    assert causes(answer(SHAPES[shape](Story(skipped=skipped)), 0)) == ["DcgmAllSkipped"]
    answer_gpu = answer(SHAPES[shape](Story(skipped=[("memory", 1), ("pcie", 1)])), 0)
    assert [word.subject for word in said(answer_gpu) if isinstance(word, Unobserved)] == ["gpu/1"]


def test_a_skipped_test_with_another_that_ran_is_no_gap() -> None:
    diag_answer = answer(dcgm_4(Story(skipped=[("memory", 0), ("memory", 1)])), 0)

    assert (findings(diag_answer), causes(diag_answer)) == ({}, [])
    assert not {reason for reason, _ in passed(diag_answer)} & {"DcgmDiagMemory"}


def test_skip_with_a_reason_is_a_skip_and_an_aborted_test_is_not() -> None:
    disabled = {"warning": "The memory test is skipped for this GPU.", "error_id": 48}
    aborted = {"warning": "Test was aborted early due to user signal", "error_id": 47}

    assert causes(with_error(disabled, "Skip")) == []
    assert causes(with_error(aborted, "Skip")) == ["DcgmAborted"]


def test_a_run_that_lacks_the_tests_of_its_level_is_no_pass() -> None:
    """DCGM 4 without its proprietary packages (issue 296)."""
    only_software = dcgm_4(Story(tests=("software",)))

    assert causes(answer(only_software, 0, 2)) == ["DcgmTestsMissing"]
    assert causes(answer(only_software, 0)) == []  # a person's run of level 1 is complete
    assert causes(answer(dcgm_4(WELL), 0, 4)) == []


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (1, "DcgmFailed"),
        (127, "DcgmFailed"),
        (143, "DcgmKilled"),
        (193, "DcgmFailed"),
        (-9, "DcgmKilled"),
        (189, "DcgmGpusDetached"),
        (190, "DcgmStopped"),
        (198, "DcgmTestsNotFound"),
        (199, "DcgmDriverTimeout"),
        (200, "DcgmNvmlNotLoaded"),
        (202, "DcgmPaused"),
        (203, "DcgmKilled"),
        (204, "DcgmDiagNotInstalled"),
        (215, "DcgmNotLaunched"),
        (216, "DcgmFailed"),
        (217, "DcgmAlreadyRunning"),
        (221, "DcgmNoGpus"),
        (222, "DcgmInUse"),
        (227, "DcgmNoPermission"),
        (233, "DcgmNotHomogeneous"),
        (235, "DcgmNoHostengine"),
        (237, "DcgmResetRequired"),
        (238, "DcgmGpuLost"),
        (239, "DcgmNoPermission"),
        (242, "DcgmNoData"),
        (244, "DcgmVersionMismatch"),
        (245, "DcgmTimedOut"),
        (250, "DcgmNotSupported"),
        (254, "DcgmRefused"),
        (255, "DcgmRefused"),
    ],
)
def test_exit_code_without_a_result_gives_the_reason_and_no_pass(code: int, cause: str) -> None:
    for diag_answer in (read_answer(b"", b"words", code, 2), answer(dcgm_4(WELL), code, 2)):
        assert (findings(diag_answer), causes(diag_answer), passed(diag_answer)) == ({}, [cause], set())


@pytest.mark.parametrize("code", [205, 226])
def test_an_exit_code_of_a_failure_that_no_result_shows_is_no_pass(code: int) -> None:
    assert causes(answer(dcgm_4(WELL), code, 2)) == ["DcgmContradiction"]
    assert causes(read_answer(b"", b"", code, 2)) == ["DcgmNoData"]


def test_failed_test_counts_whatever_ended_the_run() -> None:
    diag_answer = answer(dcgm_4(FAILED), 203, 2)

    assert (findings(diag_answer), causes(diag_answer)) == ({("DcgmDiagMemory", "gpu/1"): ISOLATE}, ["DcgmKilled"])


@pytest.mark.parametrize(
    ("text", "code", "cause"),
    [
        (
            "Error: Unable to complete diagnostic. Return: (-39) : A diag instance is already running, cannot run a",
            217,
            "DcgmAlreadyRunning",
        ),
        ("Error: Unable to complete diagnostic for group 0. Return: (-39) x", None, "DcgmAlreadyRunning"),
        ("Error: Diagnostic can only be performed on a homogeneous group of GPUs.", None, "DcgmNotHomogeneous"),
        (
            "Error: Diagnostic could not be run because the Tesla recommended driver is not being used.",
            None,
            "DcgmNotSupported",
        ),
        ("Error: Diagnostic could not be run while DCGM is paused.", None, "DcgmPaused"),
        ("All 8 requested GPUs are detached. No diagnostic will be run.", None, "DcgmGpusDetached"),
        ("Requested tests were not found among possible test choices.", 198, "DcgmTestsNotFound"),
        ("Return: (-12) API version mismatch", None, "DcgmVersionMismatch"),
        ("Error: Unable to complete diagnostic for group 0. Return: (-11) Timeout.", None, "DcgmTimedOut"),
        ("nvvs ended somehow", 226, "DcgmFailed"),
        ("nvvs ended somehow", 203, "DcgmKilled"),
    ],
)
def test_runtime_error_explains_a_missing_result(text: str, code: int | None, cause: str) -> None:
    answer = read_answer(runtime_error(text), b"", code)

    assert (findings(answer), causes(answer)) == ({}, [cause])


@pytest.mark.parametrize(
    ("out", "cause"),
    [
        (b"Error: Unable to start an embedded host engine. Something.\n", "DcgmNoHostengine"),
        (b"Error: unable to establish a connection to the specified host: x\n", "DcgmNoHostengine"),
        (b"Error: Unable to connect to host engine. Host engine connection invalid/disconnected.", "DcgmNoHostengine"),
        (b"WARNING: You are using a DCGM installation with limited functionality that ...", "DcgmDiagNotInstalled"),
        (b"", "DcgmNoData"),
        (b"nothing known", "DcgmNoData"),
    ],
)
def test_plain_text_answer_explains_a_missing_result(out: bytes, cause: str) -> None:
    assert causes(read_answer(out, b"", 0)) == [cause]


def test_an_answer_that_ends_early_is_no_pass() -> None:
    assert causes(read_answer(printed(dcgm_4(WELL))[:-60], b"", 0)) == ["DcgmCutOff"]
    assert causes(replace(answer(dcgm_4(WELL), 0), too_long=True)) == ["DcgmTooLong"]


def _without_serials(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "entity_groups"}


def test_a_gpu_has_its_address_from_nvml() -> None:
    gpus = [replace(healthy(index), serial=f"165012300{1 - index}") for index in range(2)]
    other_order = said(answer(dcgm_4(FAILED), 205), gpus=gpus)
    by_number = said(answer(_without_serials(dcgm_4(FAILED)), 205), gpus=gpus)

    found = [
        [(finding.subject, finding.about["uuid"]) for finding in judged if isinstance(finding, Finding)]
        for judged in (other_order, by_number)
    ]
    assert found == [[(gpus[0].subject, gpus[0].uuid)], [(gpus[1].subject, gpus[1].uuid)]]


def test_a_gpu_that_nvml_lists_and_dcgm_left_out_was_not_tested() -> None:
    gpus = [replace(healthy(index), serial="") for index in range(3)]

    left_out = [
        unobserved for unobserved in said(answer(dcgm_4(WELL), 0, 2), gpus=gpus) if isinstance(unobserved, Unobserved)
    ]
    assert [(unobserved.cause.name, unobserved.subject) for unobserved in left_out] == [
        ("DcgmGpuLeftOut", gpus[2].subject)
    ]


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("memory_bandwidth", "DcgmDiagMemoryBandwidth"),
        ("pcie", "DcgmDiagPcie"),
        ("a test: of tomorrow!", "DcgmDiagATestOfTomorrow"),
        ("", "DcgmDiagUnnamed"),
        ("\N{SNOWMAN}", "DcgmDiagUnnamed"),
        ("x" * 500, "DcgmDiagX" + "x" * 47),
    ],
)
def test_a_finding_is_named_after_its_test(test: str, reason: str) -> None:
    assert reason_name(test) == reason


def test_a_cluster_has_its_own_severities() -> None:
    policy = Policy(parse_overrides("dcgm 52 = RESET"))

    assert findings(answer(dcgm_4(FAILED)), policy) == {("DcgmDiagMemory", "gpu/1"): RESET}
    assert findings(answer(dcgm_4(FAILED)), Policy({"Dcgm52": PASS})) == {}
    expected = Expectation(policy=Policy({"DcgmDiagMemory": MONITOR}))
    (outcome,) = judge((LEVEL_2,), Evidence({LEVEL_2_RUN: DcgmReading(answer(dcgm_4(FAILED)))}), expected)
    assert [(finding.severity, finding.rule) for finding in outcome.findings] == [(MONITOR, "severity-overrides")]


@pytest.mark.parametrize(
    ("tests", "level"),
    [
        (("software",), 2),
        (("software", "memory", "pcie"), 2),
        (("software", "memory", "pcie", "memtest"), 4),
        (("pulse_test",), 4),
        (("diagnostic",), 4),
    ],
)
def test_the_tests_tell_which_level_was_run(tests: tuple[str, ...], level: int) -> None:
    assert level_of(answer(dcgm_4(Story(tests=tests)))) == level


# Errors that are repeated before they count.


@pytest.mark.parametrize(
    ("errors", "tests"),
    [
        ([Said("slow", 62, 1, 4)], ("memory",)),
        ([Said("Couldn't allocate", 56, 10, 4), Said("clocks", 43, 9, 1)], ("memory",)),
        ([Said("slow", 62, 1, 4), FAULTY], ()),
        ([FAULTY], ()),
        ([Said("watch", 61, 8, 1)], ()),
        ([], ()),
    ],
)
def test_only_failures_of_healthy_gpus_are_repeated(errors: list[Said], tests: tuple[str, ...]) -> None:
    assert needs_repeat(answer(dcgm_4(Story(errors={("memory", 0): errors}))), POLICY) == tests
    # One GPU that surely failed needs no second opinion of the others.
    both = Story(errors={("memory", 0): errors, ("memory", 1): [FAULTY]})
    assert needs_repeat(answer(dcgm_4(both)), POLICY) == ()


def test_test_known_to_be_wrong_is_repeated_whatever_its_result() -> None:
    answer = DiagAnswer(results=(DiagResult("nvbandwidth", "fail", "gpu", 0, (DiagError("MCUTIL > 10%", 44, 16, 4),)),))

    assert needs_repeat(answer, POLICY) == ("nvbandwidth",)


def test_second_run_counts_if_it_has_a_result() -> None:
    slow = Story(errors={("memory", 0): [Said("slow", 62, 1, 4)]})
    first = answer(dcgm_4(slow), 226, 2)

    again = with_repeat(first, answer(dcgm_4(Story(tests=("memory",)))))
    assert (findings(again), sorted({row.test for row in again.results})) == ({}, ["memory", "pcie", "software"])
    assert causes(with_repeat(first, answer(dcgm_4(Story(tests=("memory",))), 0))) == []
    other_gpu = read_answer(printed(dcgm_4(Story(1, tests=("memory",)))))
    on_the_second = answer(dcgm_4(Story(errors={("memory", 1): [Said("slow", 62, 1, 4)]})), 226)
    assert findings(with_repeat(on_the_second, other_gpu)) == {("DcgmDiagMemory", "gpu/1"): RESET}
    still = with_repeat(first, answer(dcgm_4(dataclasses.replace(slow, tests=("memory",)))))
    assert findings(still) == {("DcgmDiagMemory", "gpu/0"): RESET}
    assert with_repeat(first, read_answer(runtime_error("busy"))).results == first.results


# Through the check, and its effect on the memory.


def outcome(answer: DiagAnswer, level: int = 2) -> Outcome:
    check, run = (LEVEL_2, LEVEL_2_RUN) if level == 2 else (LEVEL_4, LEVEL_4_RUN)
    return judge((check,), Evidence({run: DcgmReading(answer)}), Expectation())[0]


def found(*stories: tuple[Story, int]) -> Memory:
    memory = Memory(boot_id="boot")
    for number, (story, level) in enumerate(stories):
        now = Now(NOW.wall + timedelta(hours=number), NOW.monotonic + 3600.0 * number)
        began = now.wall - timedelta(minutes=5)
        memory = after_deep_test(memory, deep_result([outcome(answer(dcgm_4(story)), level)], began, now.wall), now)
    return memory


def standing(memory: Memory) -> list[tuple[str, str, Severity, int]]:
    return [
        (finding.finding.reason, finding.finding.subject, finding.finding.severity, finding.count)
        for finding in memory.active
    ]


def test_a_deep_finding_is_an_event_with_its_own_exit() -> None:
    (finding,) = found((FAILED, 2)).active

    assert (finding.nature, finding.check) == (Nature.EVENT, "dcgm-diag-l2")
    assert "a later level 2 in which the same test passes" in exit_words(finding)
    (of_level_4,) = found((FAILED, 4)).active
    assert "level 2" not in exit_words(of_level_4)


def test_later_level_2_of_the_same_test_ends_its_findings_on_that_gpu() -> None:
    other = Story(errors={("memory", 0): [FAULTY]})

    assert standing(found((FAILED, 2), (WELL, 2))) == []
    assert standing(found((FAILED, 2), (WELL, 4))) == []
    assert standing(found((FAILED, 2), (other, 2))) == [("DcgmDiagMemory", "gpu/0", ISOLATE, 1)]
    assert standing(found((FAILED, 2), (FAILED, 2))) == [("DcgmDiagMemory", "gpu/1", ISOLATE, 2)]
    assert standing(found((FAILED, 2), (Story(tests=("pcie",)), 2))) == [("DcgmDiagMemory", "gpu/1", ISOLATE, 1)]


def test_level_2_ends_nothing_that_level_4_found() -> None:
    assert standing(found((FAILED, 4), (WELL, 2))) == [("DcgmDiagMemory", "gpu/1", ISOLATE, 1)]
    assert standing(found((FAILED, 2), (FAILED, 4), (WELL, 2))) == [("DcgmDiagMemory", "gpu/1", ISOLATE, 2)]


def test_worse_of_two_findings_is_active_until_it_ends() -> None:
    milder = Story(errors={("memory", 1): [Said("slow", 62, 1, 4)]})

    assert standing(found((FAILED, 2), (milder, 2))) == [("DcgmDiagMemory", "gpu/1", ISOLATE, 2)]
    assert standing(found((milder, 2), (FAILED, 2))) == [("DcgmDiagMemory", "gpu/1", ISOLATE, 2)]


def test_a_run_that_came_to_nothing_changes_nothing() -> None:
    before = found((FAILED, 2))
    nothing = outcome(read_answer(runtime_error("Return: (-39) already running")))

    assert after_deep_test(before, deep_result([nothing], LATER.wall, LATER.wall), LATER) == before
    assert after_deep_test(Memory(), deep_result([nothing], LATER.wall, LATER.wall), LATER).active == ()


def test_the_software_of_all_gpus_has_passed_only_where_every_part_did() -> None:
    """Before DCGM 4 a passed part names no GPU: it must not end the finding of another part."""
    not_persistent = Story(errors={("software", 0): [NOT_PERSISTENT]})

    assert not any(reason == "DcgmDiagSoftware" for reason, _ in passed(answer(SHAPES["3.3.9"](not_persistent))))
    before = found((not_persistent, 2))
    well = outcome(answer(SHAPES["3.3.9"](WELL)))
    assert after_deep_test(before, deep_result([well], LATER.wall, LATER.wall), LATER).active == ()


# The list.


def test_read_outside_a_deep_diagnostic_is_unobserved() -> None:
    evidence = read_probes(Host(root=Any), [LEVEL_2])  # type: ignore[arg-type]
    (outcome,) = judge((LEVEL_2,), evidence, Expectation())

    assert [cause.cause.name for cause in outcome.unobserved] == ["ProbeFailed"]


def test_without_dcgmi_the_check_does_not_belong_to_the_node() -> None:
    (outcome,) = judge((LEVEL_2,), Evidence({LEVEL_2_RUN: DcgmReading(absent="not here")}), Expectation())

    assert (outcome.configured, outcome.seen) == (False, (Observation("not here"),))


_errors = st.builds(
    DiagError,
    st.sampled_from(["", "busy or unavailable", "Found 3 faulty memory elements", "x" * 600]),
    st.none() | st.integers(0, 140),
    st.none(),
    st.none() | st.integers(0, 9),
)
_results = st.builds(
    lambda test, status, device, errors: DiagResult(test, status, device[0], device[1], tuple(errors)),
    st.sampled_from(["software", "memory", "pcie", "nvbandwidth", "", "new"]),
    st.sampled_from(["pass", "fail", "skip", "not-run", "unknown"]),
    st.sampled_from([("", None), ("gpu", 0), ("gpu", 1), ("cpu", 0)]),
    st.lists(_errors, max_size=3),
)


@given(st.lists(_results, max_size=8), st.none() | st.integers(-64, 255), st.sampled_from([None, 2, 4]))
def test_any_answer_is_judged(results: list[DiagResult], code: int | None, level: int | None) -> None:
    answer = DiagAnswer(code, level, 1, tuple(results))

    judged = said(answer)

    assert sum(isinstance(word, Observation) for word in judged) == bool(results)
    keys = [(word.reason, word.subject) for word in judged if isinstance(word, Finding)]
    assert len(keys) == len(set(keys))
    assert not set(keys) & passed(answer)
    assert all(len(word.detail) <= 700 for word in judged if isinstance(word, Finding | Unobserved))
    # No GPU is healthy without an observation.
    ran = [row for row in rows_of(answer) if row.status in ("pass", "fail")]
    assert ran or causes(answer) or keys
    assert set(needs_repeat(answer, POLICY)) <= {row.test for row in results}
