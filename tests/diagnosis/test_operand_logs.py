"""Logs of components that fail: the line that reports why, and the fix for it."""

from __future__ import annotations

import pytest

from gpu_healthcheck.diagnosis.causes.components import hint
from gpu_healthcheck.diagnosis.facts.log_lines import telling_lines
from tests.diagnosis.component_states import DRIVER, NAMESPACE, PLUGIN, TOOLKIT, VALIDATOR, gpu_node, operand, operator
from tests.diagnosis.states import Object, judged, terminated

A = gpu_node("a")
STANDING = """\
ERROR: Unable to load the kernel module 'nvidia.ko'.  This happens most
       frequently when this kernel module was built against the wrong or
       improperly configured kernel sources, with a version of gcc that
       differs from the one used to build the target kernel, or if another
       driver, such as nouveau, is present and prevents the NVIDIA kernel
       module from obtaining ownership of the NVIDIA device(s), or no NVIDIA
       device installed in this system is supported by this NVIDIA Linux
       graphics driver release.
ERROR: Installation has failed.  Please see the file '/var/log/nvidia-installer.log' for details.
"""
OLD_STANDING = STANDING.replace(
    "another\n       driver, such as nouveau, is", "a driver\n       such as rivafb, nvidiafb, or nouveau is"
)
PROBE = """\
NVRM: The NVIDIA probe routine was not called for 1 device(s).
NVRM: This can occur when a driver such as:
NVRM: nouveau, rivafb, nvidiafb or rivatv
NVRM: was loaded and obtained ownership of the NVIDIA device(s).
"""
LINES = [
    (
        "logrus, fatal before the consequence",
        (
            'time="2026-11-27T10:00:00Z" level=info msg="Loading config"\n'
            'time="2026-11-27T10:00:00Z" level=fatal msg="Error: unable to load: unsupported config version: 3"\n'
            'time="2026-11-27T10:00:00Z" level=info msg="Shutting Down"\n'
            'time="2026-11-27T10:00:01Z" level=error msg="error running nvidia-toolkit: exit status 1"'
        ),
        "unsupported config version: 3",
    ),
    (
        "slog, in capitals",
        (
            'time=2026-11-27T10:00:00.000Z level=WARN msg="Failed to read the file of counters"\n'
            'time=2026-11-27T10:00:00.000Z level=ERROR source=main.go:7 msg="no NVML"\n'
            'time=2026-11-27T10:00:00.000Z level=ERROR source=main.go:9 msg="stopping"'
        ),
        'msg="no NVML"',
    ),
    (
        "klog, an error before a fatal one",
        (
            "I1127 10:00:00.000000       1 main.go:2] failed lookups are logged\n"
            "E1127 10:00:00.000000       1 main.go:3] error creating NVML labeler\n"
            "F1127 10:00:01.000000       1 main.go:4] stopping"
        ),
        "creating NVML labeler",
    ),
    (
        "klog, the first of several errors",
        (
            "E1127 10:00:00.000000       1 factory.go:1] Incompatible strategy detected auto\n"
            "E1127 10:00:00.000001       1 factory.go:2] You can check the prerequisites at: URL\n"
            "E1127 10:00:00.000002       1 main.go:3] error starting plugins: invalid device discovery strategy"
        ),
        "Incompatible strategy detected auto",
    ),
    (
        "JSON, without its stack trace",
        (
            '{"level":"info","msg":"starting"}\n'
            '{"level":"error","ts":1,"msg":"unable to start","error":"no kind \\"X\\"","stacktrace":"main\\n"}\n'
            '{"level":"error","ts":2,"msg":"exiting","error":"exit status 1"}'
        ),
        'unable to start: no kind \\"X\\"',
    ),
    (
        "zap",
        "2026-11-27T10:00:00Z\tERROR\tsetup\tunable to watch\n2026-11-27T10:00:01Z\tINFO\tfailed over",
        "unable to watch",
    ),
    (
        "panic",
        "I1127 10:00:00.000000 1 a.go:1] failed\npanic: assignment to entry in nil map\n\ngoroutine 1 [running]:",
        "nil map",
    ),
    (
        "validator, an error at level info",
        (
            'time="2026-11-27T10:00:00Z" level=info msg="version: 1"\n'
            'time="2026-11-27T10:00:00Z" level=info msg="Error: error validating driver: failed to load module"'
        ),
        "failed to load module",
    ),
    (
        "compiler",
        (
            "Compiling NVIDIA driver kernel modules...\nwarning: the compiler differs from that of the kernel\n"
            "+ make -s -j 4 'ERROR: x'\n/usr/src/nvidia/nv.c:7:3: error: implicit declaration of function 'f'\n"
            "make[2]: *** [scripts/Makefile.build:243: nv.o] Error 1\nmake: *** [Makefile:85: modules] Error 2"
        ),
        "nv.c:7:3: error: implicit declaration",
    ),
    ("linker", "ld.lld: error: version script assignment failed\n" + STANDING, "version script assignment failed"),
    ("a module that does not load", STANDING, "Unable to load the kernel module"),
    (
        "package manager, without the network",
        (
            "debconf: unable to initialize frontend\nW: Failed to fetch http://x  Temporary failure resolving 'x'\n"
            "Could not resolve Linux kernel version\nStopping NVIDIA persistence daemon..."
        ),
        "Temporary failure resolving",
    ),
    (
        "the last of two runs",
        (
            "DRIVER_ARCH is x86_64\nCould not resolve Linux kernel version\nDRIVER_ARCH is x86_64\n"
            "ERROR: Unable to open 'kernel/dkms.conf' for copying (No such file or directory)\n"
            "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\nUnmounting driver rootfs"
        ),
        "Key was rejected by service",
    ),
    (
        "a new run that has no error yet",
        "DRIVER_ARCH is x86_64\nmodprobe: ERROR: a\nDRIVER_ARCH is x86_64\nUpdating",
        "ERROR: a",
    ),
    (
        "with the time of kubectl",
        "2026-11-27T10:00:00Z E: Unable to locate package x\n2026-11-27T10:00:00Z Failed",
        "locate package x",
    ),
    (
        "a log without levels, after its settings",
        (
            '2026/11/27 10:00:00 Starting FS watcher.\n{\n  "failOnInitError": true,\n}\n10:00:01 Loading NVML\n'
            "10:00:01 Failed to initialize NVML: could not load NVML library.\nIf this is a GPU node, did you ..."
        ),
        "Failed to initialize NVML",
    ),
    (
        "logrus on a terminal",
        "INFO[0000] Error counters are read\nWARN[0001] failed once\nERRO[0002] no handler\nFATA[0003] exit status 1",
        "no handler",
    ),
    (
        "MIG manager, after its look at the present profiles",
        (
            'level=fatal msg="Assertion failure: selected configuration not currently applied"\n'
            'level=error msg="\\nThe following GPUs could not be reset:\\n  GPU 0000:06.0: In use by another client"\n'
            'level=fatal msg="Error applying MIG configuration with hooks: error resetting all GPUs: exit status 255"'
        ),
        "could not be reset",
    ),
    ("without any error", "Starting\nWaiting for GPUs", "Waiting for GPUs"),
    ("nothing but a consequence", "Starting\nexit status 1\nDone", "exit status 1"),
    ("empty", "\n", ""),
]


@pytest.mark.parametrize(("log", "line"), [row[1:] for row in LINES], ids=[row[0] for row in LINES])
def test_telling_line_of_an_ended_run_is_its_first_error(log: str, line: str) -> None:
    found = telling_lines(log, ended=True)
    assert line in next(iter(found), "")
    assert ("stacktrace" in "".join(found), bool(found)) == (False, bool(line))


def test_telling_lines_of_an_ended_run_have_its_fatal_error_too() -> None:
    log = "Error: Failed to initialize NVML\nlevel=error msg=again\nlevel=fatal msg=stopping\nlevel=fatal msg=stopped"
    assert telling_lines(log, ended=True) == ("Error: Failed to initialize NVML", "level=fatal msg=stopping")
    assert telling_lines("F1127 10:00:00.000000 1 a.go:1] one\nE1127 10:00:01.000000 1 a.go:2] two", ended=True) == (
        "F1127 10:00:00.000000 1 a.go:1] one",
    )


def test_telling_line_of_a_running_container_is_its_last_error() -> None:
    log = 'level=error msg="no route"\nlevel=error msg="no GPU"\nlevel=info msg="again in 5 s"'
    assert telling_lines(log, ended=False) == ('level=error msg="no GPU"',)
    assert telling_lines(log, ended=True) == ('level=error msg="no route"',)


COMPILE, MODULE, NOUVEAU = "does not compile", "of three", "The driver nouveau uses the GPU"
FIXES = [
    (
        TOOLKIT,
        'level=fatal msg="unable to load config: unsupported config version: 4"\nlevel=error msg="exit status 1"',
        "v1.17.4",
    ),
    (
        TOOLKIT,
        'level=error msg="unable to dial: dial unix /runtime/sock-dir/containerd.sock: no such file"',
        "CONTAINERD_SOCKET",
    ),
    (
        TOOLKIT,
        'level=fatal msg="unable to load config: (6, 21): unexpected token: keys cannot contain { character"',
        "template of k3s",
    ),
    (
        VALIDATOR,
        "Failed to allocate device vector A (error code forward compatibility was attempted on non supported HW)!",
        "newer driver",
    ),
    (VALIDATOR, "(error code CUDA-capable device(s) is/are busy or unavailable)!", "WITH_WORKLOAD=false"),
    (
        DRIVER,
        "WARNING: RHCOS '418.94' imagetag missing, using entitlement-based fallback\nError: Unable to find a match: x",
        "OSTREE_VERSION",
    ),
    (TOOLKIT, 'level=error msg="mkdir /usr/local/nvidia: read-only file system"', "toolkit.installDir"),
    (TOOLKIT, 'level=error msg="open /etc/containerd/config.toml: permission denied"', "SELinux"),
    (DRIVER, "nv.c:7:3: error: implicit declaration of function 'f'\n" + STANDING, COMPILE),
    (DRIVER, "ld.lld: error: version script assignment failed\n" + OLD_STANDING, COMPILE),
    (DRIVER, "gcc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'\n" + STANDING, COMPILE),
    (
        DRIVER,
        "make[1]: Entering directory '/usr/src/linux-headers-6.8.0-1'\nmake[1]: *** [Makefile:9: x] Error 2",
        COMPILE,
    ),
    (DRIVER, "make[1]: *** /lib/modules/5.15.0-60-generic/build: No such file or directory.  Stop.", "headers"),
    (DRIVER, "Error: Unable to find a match: kernel-headers-5.14.0-1 kernel-devel-5.14.0-1", "headers"),
    (DRIVER, "Could not resolve Linux kernel version", "headers"),
    (
        DRIVER,
        "W: Failed to fetch http://x  Temporary failure resolving 'x'\nCould not resolve Linux kernel version",
        "name server",
    ),
    (DRIVER, "FATAL: failed to install elfutils packages. RHEL entitlement may be improperly deployed.", "entitle"),
    (DRIVER, STANDING, MODULE),
    (DRIVER, OLD_STANDING, MODULE),
    (DRIVER, "modprobe: ERROR: could not insert 'nvidia': No such device\n" + PROBE, MODULE),
    (DRIVER, "One or more modprobe configuration files to disable Nouveau are already present\n" + STANDING, MODULE),
    (DRIVER, "nouveau  2289664  0\n" + STANDING, NOUVEAU),
    (DRIVER, STANDING + "NVRM: GPU 0000:65:00.0 is already bound to nouveau.", NOUVEAU),
    (DRIVER, "WARNING: The Nouveau kernel driver is currently in use by your system.\n" + STANDING, NOUVEAU),
    (
        DRIVER,
        STANDING + "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
        "kernelModuleType=open",
    ),
    (DRIVER, "NVRM: installed in this system is not supported by open\nNVRM: nvidia.ko because\n", "=proprietary"),
    (DRIVER, "NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 595.10 driver release.", "branch"),
    (
        DRIVER,
        "error: cannot delete Pods with local storage (use --delete-emptydir-data): team/cache",
        "delete them by name",
    ),
    (DRIVER, "modprobe: ERROR: could not insert 'nvidia': Permission denied", "SELinux"),
    (
        DRIVER,
        "ERROR: An NVIDIA kernel module 'nvidia-uvm' appears to already be loaded in\n       your kernel.",
        "still uses the old driver",
    ),
    (PLUGIN, "E1127 10:00:00.000000 1 main.go:1] error getting device memory info: Insufficient Permissions", "MIG"),
    (DRIVER, "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-45-generic", "running kernel"),
    (DRIVER, "modprobe: FATAL: Module ipmi_msghandler not found in directory /lib/modules/6.8", "linux-modules-extra"),
    (TOOLKIT, 'level=error msg="write /usr/local/nvidia/toolkit/x: no space left on device"', "disk is full"),
    (PLUGIN, 'E1127 10:00:00.000000 1 a.go:1] no matches for kind "ResourceSlice" in version "x/v1"', "CRDs"),
    (PLUGIN, 'nodes "a" is forbidden: User "system:serviceaccount:g:p" cannot get resource "nodes"', "service account"),
    (PLUGIN, "/bin/sh: nvidia-smi: not found", "Find out why it exits"),
    (
        PLUGIN,
        "Error: error getting cliqueID: NVLink fabric not attached (device 0/GPU-8d): state=2, refusing to start",
        "grep -A 4 Fabric",
    ),
    (PLUGIN, "Error: error getting nvcap for IMEX channel '0': error getting device major", "computeDomains.enabled"),
    (PLUGIN, "Error: unable to get checkpoint: checkpoint is corrupted", "return to that version"),
    (PLUGIN, "Error to get IB device: %v. No valid EFA devices found", "keep the plugin off it"),
    (
        PLUGIN,
        "E1127 10:00:00.000000 1 main.go:1] failed to create FS watcher: too many open files",
        "max_user_instances",
    ),
]


def with_log(name: str, log: str) -> list[Object]:
    crash = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": terminated(1)}}
    failing = operand(name, "a", states=[{"name": f"{name}-ctr", "ready": False, "restartCount": 9, **crash}])
    return [entry for entry in operator(A) if entry["metadata"]["name"] != failing["metadata"]["name"]] + [failing]


@pytest.mark.parametrize(("name", "log", "fix"), FIXES, ids=[row[1].splitlines()[0][:60] for row in FIXES])
def test_log_of_a_crashed_component_gives_its_fix(name: str, log: str, fix: str) -> None:
    diagnosis = judged(*with_log(name, log), logs={(f"pod/{NAMESPACE}/{name}-a", f"{name}-ctr"): log})

    (problem,) = diagnosis.problems
    assert fix in problem.found.remedy[0]
    assert problem.found.evidence[1] == f"its log: {telling_lines(log, ended=True)[0]}"


def test_end_of_the_log_in_a_pods_state_counts_as_its_log() -> None:
    log = (
        'level=info msg="Parsing arguments"\\n' * 30 + 'level=fatal msg="no handler"\\nlevel=error msg="exit status 1"'
    )
    crash = {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": terminated(1, message=log)},
    }
    failing = operand(TOOLKIT, "a", states=[{"name": "main", "ready": False, "restartCount": 9, **crash}])
    state = [entry for entry in operator(A) if entry["metadata"]["name"] != failing["metadata"]["name"]]
    (problem,) = judged(*state, failing).problems

    assert problem.found.evidence[1] == 'its log: level=fatal msg="no handler"'
    assert len(problem.found.evidence[0]) < 600


def test_evidence_of_a_crashed_toolkit_names_its_image() -> None:
    logs = {(f"pod/{NAMESPACE}/{TOOLKIT}-a", f"{TOOLKIT}-ctr"): 'level=fatal msg="unsupported config version: 3"'}
    (problem,) = judged(*with_log(TOOLKIT, ""), logs=logs).problems

    assert "its image: v1.17.5-ubuntu20.04" in problem.found.evidence


WAITS = [
    (
        "Failed to initialize NVML: Driver/library version mismatch\ncommand failed, retrying after 5 seconds",
        "reboot it.",
    ),
    ("chroot: failed to run command 'nvidia-smi': No such file\ncommand failed, retrying after 5 seconds", "/usr/bin/"),
    ("WARN[0005] failed to validate the driver, retrying after 5 seconds", "/usr/bin/nvidia-smi"),
    ('level=info msg="No pre-installed driver detected on the host: exit status 14"', "infoROM"),
    ("No devices were found\ncommand failed, retrying after 5 seconds", "kernelModuleType=open"),
    (
        (
            "Check failed. Has the GPU driver been set up? It is expected to be installed under NVIDIA_DRIVER_ROOT "
            "(currently set to '/run/nvidia/driver'). libnvidia-ml.so.1: not found"
        ),
        "nvidiaDriverRoot in its Helm values",
    ),
    ("waiting for nvidia container stack to be setup", "check the driver pod there"),
]


@pytest.mark.parametrize(("log", "fix"), WAITS)
def test_init_container_that_waits_shows_its_log(log: str, fix: str) -> None:
    waits = operand(VALIDATOR, "a", stands_at="driver-validation")
    state = [entry for entry in operator(A) if entry["metadata"]["name"] != waits["metadata"]["name"]]
    (problem,) = judged(*state, waits, logs={(f"pod/{NAMESPACE}/{VALIDATOR}-a", "driver-validation"): log}).problems

    assert fix in problem.found.remedy[0]
    assert f"its log: {log.splitlines()[0]}" in problem.found.evidence


def test_log_of_a_pod_that_waits_for_the_vgpu_manager_gives_its_fix() -> None:
    assert "sandbox-validator=true" in hint("waiting for NVIDIA vGPU Manager to be setup")
    assert hint("NVIDIA vGPU Manager is set up") == ""


def test_lost_gpu_in_a_log_that_repeats_begins_with_a_cordon() -> None:
    waits = operand(VALIDATOR, "a", stands_at="driver-validation")
    state = [entry for entry in operator(A) if entry["metadata"]["name"] != waits["metadata"]["name"]]
    log = "Unable to determine the device handle for GPU 0000:03:00.0: Unknown Error"
    (problem,) = judged(*state, waits, logs={(f"pod/{NAMESPACE}/{VALIDATOR}-a", "driver-validation"): log}).problems

    assert "`kubectl cordon a`" in problem.found.steps[1]
