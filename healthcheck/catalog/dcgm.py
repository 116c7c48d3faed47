"""DCGM's diagnostic errors, and the mapping of DCGM's severities to the severities of this project.

`dcgm_returns.csv` refers to the causes for a run without a result, or with parts left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from gpu_healthcheck.healthcheck.catalog.csv_rows import read_rows
from gpu_healthcheck.healthcheck.catalog.policy import OVERRIDDEN, Policy, Ruling
from gpu_healthcheck.healthcheck.model import Severity, UnobservedCause

_TRIED_AGAIN = "Find the other user of the GPUs or the hostengine; the test is retried."
_BY_HAND = "Run `dcgmi diag -r 2 -j` by hand."
_READ_ITS_WORDS = "Read DCGM's error in the message."
_FINDINGS_OF_NVML = "Read the findings of the NVML checks: they name the GPU and the action."
_DISCOVERY = "Compare `dcgmi discovery -l` with `nvidia-smi -L` on the node."
_WHOLE_DCGM = "Install all packages of DCGM: from 4.0 on the diagnostic is a separate package."
_FULL_IMAGE = "Use the image's target `full` for deep diagnostics, also with slim agents."

ALREADY_RUNNING = UnobservedCause("DcgmAlreadyRunning", "Another diagnostic runs in the same hostengine.", _TRIED_AGAIN)
IN_USE = UnobservedCause("DcgmInUse", "Another program uses the GPUs.", _TRIED_AGAIN)
STOPPED = UnobservedCause("DcgmStopped", "The diagnostic was stopped on request.", _TRIED_AGAIN)
KILLED = UnobservedCause("DcgmKilled", "The diagnostic was killed.", _TRIED_AGAIN)
ABORTED = UnobservedCause("DcgmAborted", "A test was aborted before its end.", _TRIED_AGAIN)
TIMED_OUT = UnobservedCause(
    "DcgmTimedOut",
    "The diagnostic did not end within `DCGM_TIMEOUT`, or within DCGM's own time.",
    "Find a GPU that hangs in `dmesg` on the node.",
)
DRIVER_TIMEOUT = UnobservedCause(
    "DcgmDriverTimeout", "The driver did not answer DCGM in time.", "Find a GPU that hangs in `dmesg` on the node."
)
NO_HOSTENGINE = UnobservedCause(
    "DcgmNoHostengine",
    "No hostengine answered, and none could be started.",
    "Set `DCGM_HOST` to a running hostengine, or to an empty value.",
)
VERSION_MISMATCH = UnobservedCause(
    "DcgmVersionMismatch",
    "The hostengine refuses the `dcgmi` of this image and, if it has one, its own: their versions differ.",
    "Install `dcgmi` of the engine's version beside the engine's program, or an engine of the image's DCGM version.",
)
NOT_HOMOGENEOUS = UnobservedCause(
    "DcgmNotHomogeneous",
    "The GPUs are of different models, which DCGM can't test together.",
    "Do not run DCGM's tests on this node.",
)
NOT_SUPPORTED = UnobservedCause(
    "DcgmNotSupported",
    "DCGM does not run its diagnostic on this driver or GPU.",
    "Check whether a newer DCGM does; otherwise do not run its tests on this node.",
)
ALL_SKIPPED = UnobservedCause(
    "DcgmAllSkipped", "DCGM skipped every test of the hardware, or of one GPU.", _READ_ITS_WORDS
)
TEST_SKIPPED = UnobservedCause("DcgmTestSkipped", "DCGM skipped a test.", _READ_ITS_WORDS)
DIAG_NOT_INSTALLED = UnobservedCause(
    "DcgmDiagNotInstalled", "DCGM is installed without the programs of the diagnostic.", _WHOLE_DCGM
)
TESTS_NOT_FOUND = UnobservedCause("DcgmTestsNotFound", "A requested test is not installed.", _WHOLE_DCGM)
TESTS_MISSING = UnobservedCause(
    "DcgmTestsMissing", "The answer lacks the result of a test of the GPUs themselves.", _WHOLE_DCGM
)
NOT_LAUNCHED = UnobservedCause("DcgmNotLaunched", "DCGM could not start the diagnostic's program, nvvs.", _WHOLE_DCGM)
LIBRARY_MISSING = UnobservedCause("DcgmLibraryMissing", "A library that a test needs is missing.", _WHOLE_DCGM)
ABSENT = UnobservedCause("DcgmAbsent", "A quarantine run has no `dcgmi`.", _FULL_IMAGE)
NOT_INSTALLED = UnobservedCause(
    "DcgmNotInstalled", "A deep diagnostic was requested, but `dcgmi` is not installed.", _FULL_IMAGE
)
GPU_LOST = UnobservedCause("DcgmGpuLost", "A GPU is lost: the diagnostic could not run.", _FINDINGS_OF_NVML)
RESET_REQUIRED = UnobservedCause(
    "DcgmResetRequired", "A GPU needs a reset before the diagnostic can run.", _FINDINGS_OF_NVML
)
NVML_NOT_LOADED = UnobservedCause("DcgmNvmlNotLoaded", "DCGM could not load NVML.", _FINDINGS_OF_NVML)
NO_GPUS = UnobservedCause("DcgmNoGpus", "DCGM sees no GPU.", _DISCOVERY)
GPU_LEFT_OUT = UnobservedCause("DcgmGpuLeftOut", "DCGM tested other GPUs, but not this one.", _DISCOVERY)
GPUS_DETACHED = UnobservedCause("DcgmGpusDetached", "The GPUs are detached from DCGM.", _DISCOVERY)
PAUSED = UnobservedCause("DcgmPaused", "DCGM is paused.", _DISCOVERY)
NO_PERMISSION = UnobservedCause(
    "DcgmNoPermission", "The diagnostic, or a test of it, was not permitted to run.", _READ_ITS_WORDS
)
REFUSED = UnobservedCause("DcgmRefused", "dcgmi rejected an option of the run, or does not know it.", _READ_ITS_WORDS)
TEST_NOT_RUN = UnobservedCause(
    "DcgmTestNotRun", "A test could not run, and shows nothing about the hardware.", _READ_ITS_WORDS
)
CUT_OFF = UnobservedCause("DcgmCutOff", "The answer is incomplete.", _BY_HAND)
TOO_LONG = UnobservedCause("DcgmTooLong", "The answer is too long to be read.", _BY_HAND)
NO_DATA = UnobservedCause("DcgmNoData", "No test ran, or none gave a result.", _BY_HAND)
NONSENSE = UnobservedCause("DcgmNonsense", "A test gave a result that no version of DCGM defines.", _BY_HAND)
CONTRADICTION = UnobservedCause(
    "DcgmContradiction", "The exit code means that a test failed, but no result is a failure.", _BY_HAND
)
FAILED = UnobservedCause("DcgmFailed", "The diagnostic ended without an answer, for an unknown reason.", _BY_HAND)
ENGINE_EMBEDDED = UnobservedCause(
    "DcgmEngineEmbedded",
    "A DCGM engine without an address runs on the node, such as that of dcgm-exporter, and no second one is started.",
    "Run one engine with an address on the node: `dcgm.enabled=true` of the GPU operator, or the host's `nvidia-dcgm`; "
    '`DCGM_BESIDE_EXPORTER: "true"` accepts two.',
)
ENGINE_UNPROVEN = UnobservedCause(
    "DcgmEngineUnproven",
    "A program on DCGM's port is not proven to be the host's engine or the GPU operator's.",
    "Find its owner (`ss -ltnp sport = :5555` on the node), and set `DCGM_HOST` to the engine if it is yours.",
)
ENGINE_CHANGED = UnobservedCause(
    "DcgmEngineChanged", "The hostengine of the run ended, or was replaced by another.", _TRIED_AGAIN
)
CAUSES = tuple(one for one in vars().values() if isinstance(one, UnobservedCause))
"""All causes, in the order of their definition."""


WORDS = ("NONE", "MONITOR", "ISOLATE", "UNKNOWN", "TRIAGE", "CONFIG", "RESET")
"""Names of dcgmErrorSeverity_t by number, the value of `error_severity` in the JSON (dcgm_errors.h)."""
LADDER: Mapping[str, Severity] = {
    "NONE": Severity.MONITOR,
    "MONITOR": Severity.MONITOR,
    "ISOLATE": Severity.ISOLATE,
    "UNKNOWN": Severity.MONITOR,
    "TRIAGE": Severity.RESET,
    "CONFIG": Severity.MONITOR,
    "RESET": Severity.RESET,
}
"""docs/rules.md 19. An error with severity NONE or an unknown severity is still an error."""


class DcgmError(Struct, frozen=True):
    """One error ID of DCGM's list.

    `could_not_run` means that the test could not run and gave no result about the hardware.
    """

    id: int
    name: str
    severity: str
    could_not_run: bool
    source: str
    override: Severity | None = None
    why: str = ""

    @property
    def rule(self) -> str:
        return f"{'dcgm_overrides' if self.override is not None else 'dcgm_errors'}.csv:{self.id}"


@cache
def dcgm_table() -> Mapping[int, DcgmError]:
    """Return the errors by ID. Raises ValueError for an invalid row, which the build should reject."""
    overrides = {int(row["id"]): row for _, row in read_rows("dcgm_overrides.csv")}
    table: dict[int, DcgmError] = {}
    for line, row in read_rows("dcgm_errors.csv"):
        error_id = int(row["id"])
        if row["severity"] not in WORDS or row["could_not_run"] not in ("yes", "no") or error_id in table:
            raise ValueError(f"dcgm_errors.csv:{line}: id {error_id}, severity {row['severity']!r}")
        ours = overrides.pop(error_id, None)
        table[error_id] = DcgmError(
            error_id,
            row["name"],
            row["severity"],
            row["could_not_run"] == "yes",
            row["source"],
            Severity[ours["severity"]] if ours else None,
            ours["why"] if ours else "",
        )
    if overrides:
        raise ValueError(f"dcgm_overrides.csv: no such id in dcgm_errors.csv: {sorted(overrides)}")
    return table


class DcgmTest(Struct, frozen=True):
    """One test of the diagnostic, with its name in DCGM 4.

    `over_reports` marks a test that healthy GPUs also fail, whatever its result is.
    """

    name: str
    level: int
    """Lowest diagnostic level that runs the test, of the two that this project uses: 2 and 4."""
    over_reports: bool
    failed_alone: Severity
    """Severity of a failure without an error ID."""
    meaning: str
    action: str
    source: str

    @property
    def rule(self) -> str:
        return f"dcgm_tests.csv:{self.name}"


@cache
def dcgm_tests() -> Mapping[str, DcgmTest]:
    """Return the tests by name. Raises ValueError for an invalid row, which the build should reject."""
    tests: dict[str, DcgmTest] = {}
    for line, row in read_rows("dcgm_tests.csv"):
        if row["level"] not in ("2", "4") or row["over_reports"] not in ("yes", "no"):
            raise ValueError(f"dcgm_tests.csv:{line}: level {row['level']!r}, over_reports {row['over_reports']!r}")
        over_reports = row["over_reports"] == "yes"
        level, alone = int(row["level"]), Severity[row["failed_alone"]]
        test = (row["meaning"], row["action"], row["source"])
        tests[row["test"]] = DcgmTest(row["test"], level, over_reports, alone, *test)
    return tests


class DcgmReturn(Struct, frozen=True):
    """Reason why a run has no result, by dcgmReturn_t; the exit code is its last byte.

    It is not a result about the hardware.
    """

    number: int
    cause: UnobservedCause
    meaning: str
    words: re.Pattern[str] | None
    """Pattern of error texts with this meaning but without the number."""


@cache
def dcgm_returns() -> tuple[DcgmReturn, ...]:
    """Return the rows of `dcgm_returns.csv`.

    Raises KeyError for a row whose cause is not declared, which the build should reject.
    """
    causes = {cause.name: cause for cause in CAUSES}
    rows = [row for _, row in read_rows("dcgm_returns.csv")]
    return tuple(
        DcgmReturn(
            int(row["number"]),
            causes[row["cause"]],
            row["meaning"],
            re.compile(row["words"], re.IGNORECASE) if row["words"] else None,
        )
        for row in rows
    )


_RETURN = re.compile(r"\bReturn: \((-\d{1,3})\)")


def return_of_code(code: int | None) -> DcgmReturn | None:
    """Return the meaning of an exit code for the whole run.

    None for an exit code of a run with results, and for an unknown exit code.
    """
    return next((dcgm_return for dcgm_return in dcgm_returns() if dcgm_return.number & 0xFF == code), None)


def return_of_text(text: str) -> DcgmReturn | None:
    """Return the meaning of an error text for the whole run: by the number in the text, else by its words."""
    match = _RETURN.search(text)
    number = int(match[1]) if match else 0
    by_number = (dcgm_return for dcgm_return in dcgm_returns() if dcgm_return.number == number)
    by_words = (dcgm_return for dcgm_return in dcgm_returns() if dcgm_return.words and dcgm_return.words.search(text))
    return next(by_number, next(by_words, None))


def rule_dcgm(error_id: int, stated: str | int | None, policy: Policy) -> Ruling:
    """Return the ruling for an error of the diagnostic on this cluster.

    `stated` is the severity in the output, as a word or number, or None. It takes
    precedence over the table, because it belongs to the installed version of DCGM.
    """
    reason = f"Dcgm{error_id}"
    if reason in policy.overrides:
        return Ruling(policy.overrides[reason], OVERRIDDEN)
    row = dcgm_table().get(error_id)
    if row is not None and row.override is not None:
        return Ruling(row.override, row.rule)
    word = _word(stated) or (row.severity if row else "UNKNOWN")
    return Ruling(LADDER[word], row.rule if row else "dcgm_errors.csv: no such id")


def _word(stated: str | int | None) -> str:
    """Return the name of a DCGM severity, or an empty string if the value is not one."""
    if isinstance(stated, int):
        return WORDS[stated] if 0 <= stated < len(WORDS) else ""
    word = (stated or "").strip().upper()
    if word.isdecimal() and len(word) == 1:
        return _word(int(word))
    return word if word in WORDS else ""
