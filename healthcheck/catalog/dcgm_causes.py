"""Causes for a run of DCGM's diagnostic without a result, or with parts left out.

`dcgm_returns.csv` refers to them.
"""

from __future__ import annotations

from healthcheck.model import UnobservedCause

_TRIED_AGAIN = "Find what else uses the GPUs or the hostengine; the test is tried again."
_BY_HAND = "Run `dcgmi diag -r 2 -j` by hand."
_READ_ITS_WORDS = "Read DCGM's own words in the message."
_FINDINGS_OF_NVML = "Look at the findings of NVML: they name the GPU and what it needs."
_DISCOVERY = "Compare `dcgmi discovery -l` with `nvidia-smi -L` on the node."
_WHOLE_DCGM = "Install all of DCGM: from 4.0 on the diagnostic is a package of its own."
_FULL_IMAGE = "Give deep runs the image's target `full`, also beside slim agents."

ALREADY_RUNNING = UnobservedCause("DcgmAlreadyRunning", "Another diagnostic runs in the same hostengine.", _TRIED_AGAIN)
IN_USE = UnobservedCause("DcgmInUse", "Something else uses the GPUs.", _TRIED_AGAIN)
STOPPED = UnobservedCause("DcgmStopped", "Somebody stopped the diagnostic.", _TRIED_AGAIN)
KILLED = UnobservedCause("DcgmKilled", "The diagnostic was killed.", _TRIED_AGAIN)
ABORTED = UnobservedCause("DcgmAborted", "A test was aborted before its end.", _TRIED_AGAIN)
TIMED_OUT = UnobservedCause(
    "DcgmTimedOut",
    "The diagnostic did not end within `DCGM_TIMEOUT`, or within DCGM's own time.",
    "Look for a GPU that hangs in `dmesg` on the node.",
)
DRIVER_TIMEOUT = UnobservedCause(
    "DcgmDriverTimeout", "The driver did not answer DCGM in time.", "Look for a GPU that hangs in `dmesg` on the node."
)
NO_HOSTENGINE = UnobservedCause(
    "DcgmNoHostengine",
    "No hostengine answered, and none could be started.",
    "See that `DCGM_HOST` names a hostengine that runs, or is empty.",
)
VERSION_MISMATCH = UnobservedCause(
    "DcgmVersionMismatch",
    "`dcgmi` and the hostengine are of different versions.",
    "Bring the hostengine at `DCGM_HOST` to the version of our image.",
)
NOT_HOMOGENEOUS = UnobservedCause(
    "DcgmNotHomogeneous",
    "The GPUs are not of one model, and DCGM tests them only together.",
    "Leave DCGM's tests off on this node.",
)
NOT_SUPPORTED = UnobservedCause(
    "DcgmNotSupported",
    "DCGM does not run its diagnostic on this driver or GPU.",
    "Look whether a newer DCGM does; otherwise leave its tests off on this node.",
)
ALL_SKIPPED = UnobservedCause(
    "DcgmAllSkipped", "DCGM skipped every test of the hardware, or of one GPU.", _READ_ITS_WORDS
)
TEST_SKIPPED = UnobservedCause("DcgmTestSkipped", "DCGM skipped a test.", _READ_ITS_WORDS)
DIAG_NOT_INSTALLED = UnobservedCause(
    "DcgmDiagNotInstalled", "DCGM is installed without the programs of the diagnostic.", _WHOLE_DCGM
)
TESTS_NOT_FOUND = UnobservedCause("DcgmTestsNotFound", "A test that was asked for is not installed.", _WHOLE_DCGM)
TESTS_MISSING = UnobservedCause("DcgmTestsMissing", "The answer has no result of a test of the GPUs' own.", _WHOLE_DCGM)
NOT_LAUNCHED = UnobservedCause("DcgmNotLaunched", "DCGM could not start the diagnostic's program, nvvs.", _WHOLE_DCGM)
LIBRARY_MISSING = UnobservedCause("DcgmLibraryMissing", "A library that a test needs is missing.", _WHOLE_DCGM)
ABSENT = UnobservedCause("DcgmAbsent", "A quarantine run has no `dcgmi` to test with.", _FULL_IMAGE)
NOT_INSTALLED = UnobservedCause(
    "DcgmNotInstalled", "A deep run was asked for where no `dcgmi` is installed.", _FULL_IMAGE
)
GPU_LOST = UnobservedCause("DcgmGpuLost", "A GPU is lost: the diagnostic could not run.", _FINDINGS_OF_NVML)
RESET_REQUIRED = UnobservedCause(
    "DcgmResetRequired", "A GPU needs a reset before the diagnostic can run.", _FINDINGS_OF_NVML
)
NVML_NOT_LOADED = UnobservedCause("DcgmNvmlNotLoaded", "DCGM could not load NVML.", _FINDINGS_OF_NVML)
NO_GPUS = UnobservedCause("DcgmNoGpus", "DCGM sees no GPU.", _DISCOVERY)
GPU_LEFT_OUT = UnobservedCause("DcgmGpuLeftOut", "DCGM tested other GPUs, and not this one.", _DISCOVERY)
GPUS_DETACHED = UnobservedCause("DcgmGpusDetached", "The GPUs are detached from DCGM.", _DISCOVERY)
PAUSED = UnobservedCause("DcgmPaused", "DCGM is paused.", _DISCOVERY)
NO_PERMISSION = UnobservedCause(
    "DcgmNoPermission", "The diagnostic, or a test of it, was not permitted to run.", _READ_ITS_WORDS
)
REFUSED = UnobservedCause("DcgmRefused", "dcgmi refused an option of the run, or does not know it.", _READ_ITS_WORDS)
TEST_NOT_RUN = UnobservedCause(
    "DcgmTestNotRun", "A test could not run, and says nothing of the hardware.", _READ_ITS_WORDS
)
CUT_OFF = UnobservedCause("DcgmCutOff", "The answer ends before its end.", _BY_HAND)
TOO_LONG = UnobservedCause("DcgmTooLong", "The answer is longer than anybody reads.", _BY_HAND)
NO_DATA = UnobservedCause("DcgmNoData", "No test ran, or none gave a result.", _BY_HAND)
NONSENSE = UnobservedCause("DcgmNonsense", "A test gave a result that no version of DCGM has.", _BY_HAND)
CONTRADICTION = UnobservedCause(
    "DcgmContradiction", "The exit code says that a test failed, and no result does.", _BY_HAND
)
FAILED = UnobservedCause("DcgmFailed", "The diagnostic ended without an answer, for no reason that is known.", _BY_HAND)
ENGINE_EMBEDDED = UnobservedCause(
    "DcgmEngineEmbedded",
    "A DCGM engine without an address runs on the node, such as that of dcgm-exporter, and none is started beside it.",
    "Give the node one engine with an address: `dcgm.enabled=true` of the GPU operator, or the host's `nvidia-dcgm`; "
    '`DCGM_BESIDE_EXPORTER: "true"` accepts two.',
)
ENGINE_UNPROVEN = UnobservedCause(
    "DcgmEngineUnproven",
    "A program listens on the port of DCGM that is not proven to be the host's engine or the GPU operator's.",
    "Find out whose it is (`ss -ltnp sport = :5555` on the node), and name the engine in `DCGM_HOST` if it is yours.",
)
ENGINE_CHANGED = UnobservedCause(
    "DcgmEngineChanged", "The hostengine of the run ended, or another took its place.", _TRIED_AGAIN
)
CAUSES = tuple(one for one in vars().values() if isinstance(one, UnobservedCause))
"""All of them, in the order in which they stand here."""
