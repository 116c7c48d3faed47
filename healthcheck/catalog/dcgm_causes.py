"""Causes for a run of DCGM's diagnostic without a result, or with parts left out.

`dcgm_returns.csv` refers to them.
"""

from __future__ import annotations

from healthcheck.model import UnobservedCause

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
