"""Check: DCGM's diagnostic, level 2 or 4, which computes on the GPUs and verifies the results.

It is not part of the regular check cycle, because it needs exclusive use of the GPUs. Each test and GPU has one
finding, with the severity of the worst error that the test names. `gpu-healthcheck explain dcgm` lists DCGM's errors
with their severities.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.catalog import dcgm
from gpu_healthcheck.healthcheck.catalog.dcgm import (
    dcgm_table,
    dcgm_tests,
    return_of_code,
    return_of_text,
    rule_dcgm,
)
from gpu_healthcheck.healthcheck.catalog.policy import Policy, Ruling
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    Nature,
    NotConfigured,
    Observation,
    Passed,
    Reason,
    Severity,
    Unobserved,
    UnobservedCause,
    counted,
)
from gpu_healthcheck.healthcheck.probes.dcgm.diag import LEVEL_2_RUN, LEVEL_4_RUN, DcgmReading
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import SOFTWARE, DiagAnswer, DiagError, DiagResult
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml
from gpu_healthcheck.healthcheck.text.naming import named

DevicesInUse = frozenset[tuple[str, int | None]]
"""Devices as pairs of kind and DCGM's index."""
_OVERRIDDEN = "severity-overrides"
LEVEL_2_TESTS = ("memory", "pcie")
"""Tests of the GPUs themselves. A run of level 2 or more without one of these tests did not test the GPUs."""
_UNTOLD = 0
"""DCGM's error ID UNKNOWN, for errors without a known ID."""
_MORE_WITHOUT_SAYING = frozenset((0, 1, 2, 19, 44, 51, 53, 56, 59, 64, 65, 66, 67))
"""IDs of errors of a failed call: only their text shows whether the test could run at all."""
_COULD_NOT_RUN = (
    (
        re.compile(
            r"busy or unavailable|\bin use\b|\bused by (?:an)?other\b|\b(?:is|are) (?:currently )?busy\b", re.IGNORECASE
        ),
        dcgm.IN_USE,
    ),
    (re.compile(r"already running", re.IGNORECASE), dcgm.ALREADY_RUNNING),
    (re.compile(r"permission denied|(?:insufficient|no) permissions?\b", re.IGNORECASE), dcgm.NO_PERMISSION),
    (
        re.compile(r"cannot open (?:shared object|library)|library not found", re.IGNORECASE),
        dcgm.LIBRARY_MISSING,
    ),
    (re.compile(r"\baborted early\b|test was aborted", re.IGNORECASE), dcgm.ABORTED),
    (
        re.compile(r"skipping (?:the )?test|test (?:is|was) (?:skipped|disabled)", re.IGNORECASE),
        dcgm.TEST_SKIPPED,
    ),
)
_CAUSES = {
    18: dcgm.NO_PERMISSION,
    22: dcgm.LIBRARY_MISSING,
    47: dcgm.ABORTED,
    48: dcgm.TEST_SKIPPED,
    82: dcgm.NO_GPUS,
    96: dcgm.NO_PERMISSION,
    117: dcgm.TEST_SKIPPED,
    124: dcgm.NO_PERMISSION,
}
_OTHERS_WORK = 25
"""Error ID GRAPHICS_PROCESSES: other processes use the GPU, which may cause some tests to fail (DCGM's text)."""
_OF_A_GPU_IN_USE = frozenset((51, 56, 64, 65, 66))
"""Other errors of a GPU in use that do not mention the use: failed calls and failed memory allocations."""
_OF_THE_HARDWARE = re.compile(
    r"uncorrectable|contained|\becc error|\bnvlink\b|hardware stack|\billegal\b|misaligned|unspecified launch|"
    r"fallen off|\blost\b",
    re.IGNORECASE,
)
"""CUDA's texts (cudaGetErrorString) for errors that no other program can cause."""
_ENDS_WITH_RESULTS = (0, 205, 226)
"""Exit codes: no error; an error of severity ISOLATE; other errors (dcgm_structs.h: NVVS_ISOLATE_ERROR, NVVS_ERROR)."""
_SAYS_FAILED = (205, 226)
_BY_A_SIGNAL, _MOST_SIGNALS = 128, 65
"""Exit code of a shell for a program that a signal ended: 128 plus the signal's number."""
_OVER_REPORTING_ERRORS = frozenset((30, 31, 50, 51, 56, 62, 63, 64, 65, 66, 110, 130))
"""Errors of GPUs that another program used briefly, errors of speed thresholds, and requests of DCGM for another run.

DCGM issues 272 and 284; dcgm_errors.h: LOW_BANDWIDTH, HIGH_LATENCY, STRESS_LEVEL, CUDA_API, MEMORY_ALLOC,
MEMORY_BANDWIDTH, TARGET_POWER, API_FAIL, API_FAIL_GPU, CUDA_CONTEXT, GFLOPS_THRESHOLD_VIOLATION, RETEST_REQUESTED.
"""
_NOT_GPUS = frozenset(("cpu", "core"))
"""Parts of a Grace CPU, which DCGM 4 lists as tested. It skips them without the package of the CPU test."""
ALSO = "; also "
"""Separator between a finding's first error and the others."""
_LONGEST_TEXT, _LONGEST_NAME, _MOST_NAMED, _MOST_SHOWN = 240, 48, 6, 24
_STATUS_WORDS = {"pass": "passed", "fail": "failed", "skip": "skipped", "not-run": "not run", "unknown": "unclear"}
_THRESHOLD = "an error that the test reports; a failure without an error is MONITOR, for a memory test RESET"
_WORD = re.compile(r"[a-z0-9]+")

FAMILY = Reason(
    "DcgmDiag",
    Severity.MONITOR,
    "A new DCGM test failed: it is newer than this program. The finding has the test's name, for instance DcgmDiagNew.",
    "Read the error in the detail: it sets the severity of the finding.",
    threshold=_THRESHOLD,
)


def reason_name(test: str) -> str:
    """Return the reason of this test's findings, such as `DcgmDiagMemoryBandwidth`; DcgmDiagUnnamed without a name."""
    words = "".join(word.capitalize() for word in _WORD.findall(test.lower()))
    return FAMILY.name + (words[:_LONGEST_NAME] or "Unnamed")


def _reasons(level: int) -> Iterator[Reason]:
    """Yield the reasons of the tests that run at this level but not at a lower level."""
    for test in dcgm_tests().values():
        if test.level == level:
            name = reason_name(test.name)
            yield Reason(name, Severity.MONITOR, test.meaning, test.action, threshold=_THRESHOLD, source=test.source)


class _Device(Struct, frozen=True):
    """The device that a test result belongs to: its subject in findings, and its attributes."""

    subject: str
    about: Mapping[str, str] = field(default_factory=dict)


class _Fault(Struct, frozen=True):
    """An error that counts as a fault, with its ruling on this cluster."""

    error: DiagError
    ruling: Ruling


def judge_level_2(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    yield from _judge(evidence[LEVEL_2_RUN], _gpus(evidence), expected.policy)


def judge_level_4(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    yield from _judge(evidence[LEVEL_4_RUN], _gpus(evidence), expected.policy)


def needs_repeat(answer: DiagAnswer, policy: Policy) -> tuple[str, ...]:
    """Return the tests that must run once more before their failure counts.

    They failed with RESET or worse, but only by errors that healthy GPUs can cause too.
    """
    doubted: dict[str, bool] = {}
    rows = rows_of(answer)
    in_use = devices_in_use(rows)
    for row in rows:
        faults = [fault for fault in _faults(row, in_use, policy) if fault.ruling.severity >= Severity.RESET]
        if faults:
            test = dcgm_tests().get(row.test)
            doubtful = (test is not None and test.over_reports) or all(_over_reports(fault.error) for fault in faults)
            doubted[row.test] = doubted.get(row.test, True) and doubtful
    return tuple(test for test, doubtful in doubted.items() if doubtful and test not in ("", SOFTWARE))


def with_repeat(first: DiagAnswer, again: DiagAnswer) -> DiagAnswer:
    """Return the answer after a repetition of some tests: if a repeated test has a result, only that result counts."""
    entries = {(row.test, row.kind, row.index) for row in again.results if row.status in ("pass", "fail")}
    tests = {test for test, _, _ in entries}
    kept = tuple(
        row
        for row in first.results
        if (row.test, row.kind, row.index) not in entries and not (row.index is None and row.test in tests)
    )
    # The first run's exit code reports failures that the repetition may have cleared.
    code = again.code if entries and first.code in _SAYS_FAILED and _ended_with_results(again.code) else first.code
    return replace(first, code=code, results=(*kept, *(row for row in again.results if row.test in tests)))


def level_of(answer: DiagAnswer) -> int:
    """Return the level that a saved answer belongs to, 2 or 4, by the tests in it."""
    return 2 if {row.test for row in answer.results} <= {SOFTWARE, "context_create", *LEVEL_2_TESTS} else 4


def _judge(reading: DcgmReading, gpus: tuple[nvml.Gpu, ...], policy: Policy) -> Iterator[Judgement]:
    if reading.absent:
        yield NotConfigured(reading.absent)
    elif isinstance(reading.answer, Unobserved):
        yield reading.answer
    elif reading.answer is not None:
        yield from judge_answer(reading.answer, gpus, policy)


def judge_answer(answer: DiagAnswer, gpus: tuple[nvml.Gpu, ...], policy: Policy) -> Iterator[Judgement]:
    """Yield all judgements on an answer. `gpus` are the GPUs that NVML lists; empty if NVML was not read."""
    rows = rows_of(answer)
    devices = {(row.kind, row.index): _device(row, answer, gpus) for row in rows}
    unobserved = list(_causes_without_result(answer, rows))
    in_use = devices_in_use(rows)
    failed = frozenset(row.test for row in rows if row.status != "pass" or row.errors)
    for row in rows:
        judged = list(_judge_row(row, devices[row.kind, row.index], failed, in_use, policy))
        yield from (finding for finding in judged if not (unobserved and isinstance(finding, Passed)))
    yield from unobserved
    if not unobserved:
        yield from _not_tested(answer, rows, devices, gpus)
    if rows:
        yield Observation(_summary(rows), source=f"DCGM {answer.version}" if answer.version else "DCGM")


def rows_of(answer: DiagAnswer) -> tuple[DiagResult, ...]:
    """Return one row for each test and device, with the worst status of the results and all errors."""
    rows: dict[tuple[str, str, int | None], DiagResult] = {}
    errors: dict[tuple[str, str, int | None], dict[DiagError, None]] = {}
    order = ("not-run", "skip", "pass", "unknown", "fail")
    for result in answer.results:
        key = (result.test, result.kind, result.index)
        status = max(rows[key].status, result.status, key=order.index) if key in rows else result.status
        rows[key] = replace(result, status=status)
        errors.setdefault(key, {}).update(dict.fromkeys(result.errors))
    return tuple(replace(row, errors=tuple(errors[key])) for key, row in rows.items())


def devices_in_use(rows: Iterable[DiagResult]) -> DevicesInUse:
    """Return the devices that other programs use, according to the errors of tests that did not pass."""
    return frozenset(
        (row.kind, row.index)
        for row in rows
        if row.status != "pass"
        and any(why_not_run(error) == dcgm.IN_USE or error.id == _OTHERS_WORK for error in row.errors)
    )


def _judge_row(
    row: DiagResult, device: _Device, failed: Container[str], in_use: DevicesInUse, policy: Policy
) -> Iterator[Finding | Unobserved | Passed]:
    if row.status == "pass":
        # An error of a test that passed is not a fault, but such a pass does not clear an earlier finding.
        if not row.errors and (row.index is not None or row.test not in failed):
            yield Passed(reason_name(row.test), device.subject if row.index is not None else "")
        return
    for cause, error in _causes(row, in_use).items():
        if row.status != "skip" or cause != dcgm.TEST_SKIPPED:
            yield Unobserved(cause, f"{row.test} on {device.subject}: {in_words(error)}", device.subject)
    faults = [fault for fault in _faults(row, in_use, policy) if fault.ruling.severity > Severity.PASS]
    if faults:
        yield _finding(row, device, faults)
    elif row.status == "fail" and not row.errors:
        detail, alone = f"{row.test} failed, and DCGM reports no error", _failed_alone(row.test)
        yield Finding(reason_name(row.test), alone.severity, device.subject, detail, device.about, rule=alone.rule)
    elif row.status == "unknown" and not row.errors:
        yield Unobserved(dcgm.NONSENSE, f"{row.test} gave a result that no DCGM version defines", device.subject)


def _causes(row: DiagResult, in_use: DevicesInUse) -> dict[UnobservedCause, DiagError]:
    """Return the causes for which the test could not run, each with the first error that gives it."""
    causes: dict[UnobservedCause, DiagError] = {}
    for error in row.errors:
        if cause := why_not_run_here(row, error, in_use):
            causes.setdefault(cause, error)
    return causes


def _faults(row: DiagResult, in_use: DevicesInUse, policy: Policy) -> list[_Fault]:
    if row.status == "pass":
        return []
    return [
        _Fault(error, rule_in(row, error, policy)) for error in row.errors if not why_not_run_here(row, error, in_use)
    ]


def why_not_run_here(row: DiagResult, error: DiagError, in_use: DevicesInUse) -> UnobservedCause | None:
    """Return the cause for which a test that did not pass could not run, from one of its errors.

    None if the error is a fault.
    """
    if cause := why_not_run(error):
        return cause
    may_come_of_use = (row.kind, row.index) in in_use and error.id in _OF_A_GPU_IN_USE
    return dcgm.IN_USE if may_come_of_use and not _OF_THE_HARDWARE.search(error.text) else None


def rule_in(row: DiagResult, error: DiagError, policy: Policy) -> Ruling:
    """Return the ruling for an error in this result.

    If an error without an ID fails a test, its severity is at least that of a failure of this test without an error.
    Therefore a failed memory test counts regardless of its text.
    """
    ruling = rule_of(error, policy)
    decided = error.id or row.status != "fail" or ruling.rule == _OVERRIDDEN
    return ruling if decided else max(ruling, _failed_alone(row.test), key=lambda candidate: candidate.severity)


def _failed_alone(test: str) -> Ruling:
    row = dcgm_tests().get(test)
    return Ruling(row.failed_alone, row.rule) if row else Ruling(Severity.MONITOR, FAMILY.name)


def rule_of(error: DiagError, policy: Policy) -> Ruling:
    return rule_dcgm(_UNTOLD if error.id is None else error.id, error.severity, policy)


def why_not_run(error: DiagError) -> UnobservedCause | None:
    """Return the cause for which a test could not run, or None if it ran and found a fault."""
    known = None if error.id is None else dcgm_table().get(error.id)
    if known is not None and known.could_not_run:
        return _CAUSES.get(known.id, dcgm.TEST_NOT_RUN)
    if known is None or known.id in _MORE_WITHOUT_SAYING:
        return next((cause for pattern, cause in _COULD_NOT_RUN if pattern.search(error.text)), None)
    return None


def _finding(row: DiagResult, device: _Device, faults: list[_Fault]) -> Finding:
    gravest = max(faults, key=lambda fault: fault.ruling.severity)
    others = [_name(fault.error) for fault in faults if fault is not gravest]
    more = f"{ALSO}{named(others, _MOST_NAMED)}" if others else ""
    detail = in_words(gravest.error) + more
    ruling = gravest.ruling
    return Finding(reason_name(row.test), ruling.severity, device.subject, detail, device.about, rule=ruling.rule)


def in_words(error: DiagError) -> str:
    text = error.text if len(error.text) <= _LONGEST_TEXT else error.text[: _LONGEST_TEXT - 1] + "…"
    return f"{_name(error)}: {text}" if text else _name(error)


def _name(error: DiagError) -> str:
    """Return the ID and name of an error, such as `error 52 FAULTY_MEMORY`."""
    if error.id is None:
        return "an error without a number"
    known = dcgm_table().get(error.id)
    return f"error {error.id} {known.name}" if known else f"error {error.id}"


def _over_reports(error: DiagError) -> bool:
    return error.id in _OVER_REPORTING_ERRORS


def _causes_without_result(answer: DiagAnswer, rows: tuple[DiagResult, ...]) -> Iterator[Unobserved]:
    """Yield the causes for which the whole run gave no usable answer, each once."""
    causes: dict[UnobservedCause, str] = {}
    for error in answer.runtime_errors:
        dcgm_return = return_of_text(error) or (
            None if _ended_with_results(answer.code) else return_of_code(answer.code)
        )
        causes.setdefault(
            dcgm_return.cause if dcgm_return else dcgm.FAILED,
            f"{dcgm_return.meaning}: {error}" if dcgm_return else error,
        )
    if answer.too_long:
        causes.setdefault(dcgm.TOO_LONG, "the answer is too long to be read")
    elif answer.cut_off:
        causes.setdefault(dcgm.CUT_OFF, "the answer is incomplete")
    if not causes and not _ended_with_results(answer.code):
        cause, detail = _exit_cause(answer)
        causes.setdefault(cause, detail)
    if not causes and not rows:
        cause, detail = _no_result_cause(answer)
        causes.setdefault(cause, detail)
    yield from (Unobserved(cause, detail) for cause, detail in causes.items())


def _ended_with_results(code: int | None) -> bool:
    return code is None or code in _ENDS_WITH_RESULTS


def _exit_cause(answer: DiagAnswer) -> tuple[UnobservedCause, str]:
    code = answer.code
    assert code is not None
    dcgm_return = return_of_code(code)
    output = f": {answer.said[-1]}" if answer.said else ""
    if dcgm_return:
        return dcgm_return.cause, f"{dcgm_return.meaning} (exit code {code}){output}"
    signal_number = -code if code < 0 else code - _BY_A_SIGNAL
    if 0 < signal_number < _MOST_SIGNALS:
        return dcgm.KILLED, f"dcgmi was ended by signal {signal_number}{output}"
    return dcgm.FAILED, f"dcgmi ended with exit code {code}{output}"


def _no_result_cause(answer: DiagAnswer) -> tuple[UnobservedCause, str]:
    """Return the cause and detail for a run without a result, from the output that is not JSON."""
    for line in answer.said:
        if dcgm_return := return_of_text(line):
            return dcgm_return.cause, f"{dcgm_return.meaning}: {line}"
    output = f": {answer.said[0]}" if answer.said else ""
    return dcgm.NO_DATA, f"no test gave a result{output}"


def _not_tested(
    answer: DiagAnswer,
    rows: tuple[DiagResult, ...],
    devices: Mapping[tuple[str, int | None], _Device],
    gpus: tuple[nvml.Gpu, ...],
) -> Iterator[Unobserved]:
    """Yield the parts that a completed run left out: a test that did not run has not passed."""
    of_hardware = [row for row in rows if row.test != SOFTWARE]
    if not any(_ran(row) for row in of_hardware or rows):
        yield Unobserved(dcgm.ALL_SKIPPED, f"DCGM skipped every test{' of the hardware' if of_hardware else ''}")
        return
    missing = [test for test in LEVEL_2_TESTS if answer.level and test not in {row.test for row in rows}]
    if missing:
        yield Unobserved(dcgm.TESTS_MISSING, f"the answer has no result of {' and '.join(missing)}")
    by_device: dict[str, bool] = {}
    for row in of_hardware:
        if row.index is not None and row.kind not in _NOT_GPUS:
            subject = devices[row.kind, row.index].subject
            by_device[subject] = by_device.get(subject, False) or _ran(row)
    for subject, ran in by_device.items():
        if not ran:
            yield Unobserved(dcgm.ALL_SKIPPED, f"DCGM skipped every test of {subject}", subject)
    for gpu in gpus if by_device else ():
        if gpu.subject not in by_device:
            yield Unobserved(dcgm.GPU_LEFT_OUT, f"DCGM tested other GPUs and not {gpu.subject}", gpu.subject)
    if answer.code in _SAYS_FAILED and not any(row.errors or row.status == "fail" for row in rows):
        yield Unobserved(
            dcgm.CONTRADICTION, f"exit code {answer.code} means that a test failed, but no result is a failure"
        )


def _ran(row: DiagResult) -> bool:
    return row.status in ("pass", "fail", "unknown")


def _gpus(evidence: Evidence) -> tuple[nvml.Gpu, ...]:
    """Return the GPUs that NVML lists, if the same check cycle read NVML.

    A cycle reads NVML for checks such as `driver`.
    """
    if evidence.unread(nvml.NVML) or isinstance(answer := evidence[nvml.NVML].answer, Unobserved):
        return ()
    return tuple(gpu for gpu in answer.gpus if gpu.error == nvml.SUCCESS)


def _device(row: DiagResult, answer: DiagAnswer, gpus: Iterable[nvml.Gpu]) -> _Device:
    """Return the device of a result, matched with a GPU of NVML if NVML was read.

    The match is by serial number, which does not depend on the order of the GPUs, else by index.
    """
    if row.index is None:
        return _Device("dcgm")
    if row.kind != "gpu":
        return _Device(f"{row.kind}/{row.index}")
    serial = answer.serials.get(row.index, "")
    about = {"index": str(row.index)} | ({"serial": serial} if serial else {})
    by_serial = [gpu for gpu in gpus if serial and gpu.serial == serial]
    by_index = [gpu for gpu in gpus if gpu.index == row.index and not (serial and gpu.serial)]
    found = next(iter(by_serial if len(by_serial) == 1 else by_index), None)
    return _Device(found.subject, found.about) if found else _Device(f"gpu/{row.index}", about)


def _summary(rows: Iterable[DiagResult]) -> str:
    """Return a summary as text, such as `memory passed on 8, pcie failed on 1, passed on 7`."""
    tests: dict[str, Counter[str]] = {}
    for row in rows:
        tests.setdefault(row.test, Counter())[row.status] += 1
    messages = [
        f"{test} " + ", ".join(f"{_STATUS_WORDS[status]} on {count}" for status, count in sorted(counts.items()))
        for test, counts in list(tests.items())[:_MOST_SHOWN]
    ]
    if len(tests) > _MOST_SHOWN:
        messages.append(counted(len(tests) - _MOST_SHOWN, "further test"))
    return "; ".join(messages)


LEVEL_2 = Check("dcgm-diag-l2", "1-dcgm-diag-l2", (LEVEL_2_RUN,), judge_level_2, (FAMILY, *_reasons(2)), Nature.EVENT)
LEVEL_4 = Check("dcgm-diag-l4", "4-dcgm-diag-l4", (LEVEL_4_RUN,), judge_level_4, tuple(_reasons(4)), Nature.EVENT)
"""Level 4 also runs the tests of level 2; their reasons are listed with level 2."""
