"""Logs of components, and lines of schedulers, that a person copied without their pods and nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnosis.test_pasted import causes, diagnosed

REGISTERED = """\
I0610 12:00:00.2 server.go:147] Starting to serve 'nvidia.com/gpu' on /var/lib/kubelet/device-plugins/nvidia.sock
I0610 12:00:00.3 server.go:154] Registered device plugin for 'nvidia.com/gpu' with Kubelet
"""
NO_DRIVER = """\
I0610 12:00:00.1 factory.go:107] Detected non-NVML platform: could not load NVML library: libnvidia-ml.so.1
E0610 12:00:00.2 factory.go:113] If this is a GPU node, did you configure the NVIDIA Container Toolkit?
I0610 12:00:00.2 main.go:317] No devices found. Waiting indefinitely.
"""
OLD_PLUGIN = """\
2021/09/23 18:57:59 Loading NVML
2021/09/23 18:57:59 Failed to initialize NVML: could not load NVML library.
2021/09/23 18:57:59 If this is a GPU node, did you set the docker default runtime to `nvidia`?
"""
NO_KUBELET = """\
2026/04/05 04:02:20 Starting to serve on /var/lib/kubelet/device-plugins/nvidia.sock
2026/04/05 04:02:20 Could not register device plugin: context deadline exceeded
2026/04/05 04:02:20 Could not contact Kubelet, retrying. Did you enable the device plugin feature gate?
"""
GPU_LOST = """\
I0610 12:09:42.1 health.go:159] XidCriticalError: Xid=79 on Device=GPU-7540, the device will go unhealthy.
I0610 12:09:42.2 server.go:245] 'nvidia.com/gpu' device marked unhealthy: GPU-7540
"""
NO_RIGHTS = """\
E0407 12:00:00.1 main.go:188] error starting plugins: error getting parent memory info: Insufficient Permissions
"""
NO_MPS = """\
E0610 12:00:00.1 main.go:203] Failed to start plugin: error waiting for MPS daemon: error checking MPS daemon health
"""
FAULTY = [
    (NO_DRIVER, "GpusNotOffered", "run it with the nvidia runtime"),
    (OLD_PLUGIN, "GpusNotOffered", "run it with the nvidia runtime"),
    (NO_KUBELET, "GpusNotOffered", "/var/lib/k0s/kubelet on k0s"),
    (REGISTERED + GPU_LOST, "UnhealthyGpus", "`gpu-healthcheck explain Xid79`"),
    (NO_RIGHTS, "GpusNotOffered", "NVIDIA_MIG_MONITOR_DEVICES=all"),
    (NO_MPS, "GpusNotOffered", "nvidia.com/mps.capable=true"),
]
HEALTHY = {
    "it registered later": NO_MPS + REGISTERED,
    "it works": REGISTERED,
    "another server": "INFO: Starting to serve the model\nERROR: failed to open the cache\n",
}


@pytest.mark.parametrize(("log", "cause", "step"), FAULTY, ids=[row[2] for row in FAULTY])
def test_copied_log_of_a_device_plugin_has_the_fix_of_its_error(
    log: str, cause: str, step: str, tmp_path: Path
) -> None:
    code, document, _ = diagnosed(tmp_path, log)

    assert (code, causes(document)) == (1, [(cause, "log/paste-0.txt")])
    assert any(step in text for text in document["causes"][0]["remedy"])


@pytest.mark.parametrize("log", HEALTHY.values(), ids=HEALTHY)
def test_copied_log_of_a_sound_device_plugin_has_no_cause(log: str, tmp_path: Path) -> None:
    code, _, stderr = diagnosed(tmp_path, log)

    assert code == 2
    assert "nothing recognised" in stderr


INSTALLS = """\
========== NVIDIA Software Installer ==========
Starting installation of NVIDIA driver version 580.65.06 for Linux kernel version 6.8.0-1029-gke
Resolving Linux kernel version...
"""
NO_HEADERS = "Could not resolve Linux kernel version\nStopping NVIDIA persistence daemon...\n"
UNSIGNED = """\
ERROR: Unable to load the kernel module 'nvidia.ko'. This happens if another driver, such as nouveau, is present.
Kernel module load error: Key was rejected by service
"""
NO_SMI = """\
running command chroot with args [/run/nvidia/driver nvidia-smi]
chroot: failed to run command 'nvidia-smi': No such file or directory
"""
OLD_TOOLKIT = """\
level=info msg="Starting nvidia-toolkit"
level=error msg="error running nvidia-toolkit: unable to load config: unsupported config version: 4"
"""
NO_ROOT = """\
nvidia-smi: 'not found', libnvidia-ml.so.1: 'not found', current contents: [dev, etc].
Check failed. Has the NVIDIA GPU driver been set up? It is expected to be installed under NVIDIA_DRIVER_ROOT (currently
set to '/') in the host filesystem.
"""
NO_DUMP = """\
level=info msg="Starting nvidia-toolkit"
level=error msg="error running nvidia-toolkit: failed to run chroot [/host containerd config dump]: exit status 127"
"""
NO_NVML = """\
level=info msg="Starting dcgm-exporter"
Error: Failed to initialize NVML
level=fatal msg="Error starting nv-hostengine: DCGM initialization error"
"""
NO_LIBRARY = """\
time=2026-09-19T20:06:59.543Z level=INFO msg="Starting dcgm-exporter" Version=4.8.4
time=2026-09-19T20:06:59.547Z level=ERROR msg="Cannot init NVML library; err: ERROR_LIBRARY_NOT_FOUND"
"""
NO_MODULE = """\
level=info msg="Starting dcgm-exporter"
level=info msg="DCGM successfully initialized!"
level=fatal msg="Error watching fields: This request is serviced by a module of DCGM that is not currently loaded"
"""
NO_EFA = """\
2026/02/03 15:23:32 Fetching EFA devices.
2026/02/03 15:23:32 Error to get IB device: %v. No valid EFA devices found
"""
NO_ADDRESS = """\
[INFO] IMEX version 580.95 is running
[ERROR] No matching network interface found for any IP addresses in the node configuration file
"""
OF_VGPU = 'level=info msg="Updating to vGPU config: A100-4C"\n'
NO_MDEV = (
    f'{OF_VGPU}level=fatal msg="error getting all vGPU devices: unable to read MDEV devices directory: open /sys"\n'
)
OPERANDS = [
    (INSTALLS + NO_HEADERS, "DriverNotReady", "headers of the node's kernel"),
    (INSTALLS + UNSIGNED, "DriverNotReady", "Secure Boot"),
    (NO_SMI, "OperatorValidatorNotReady", "/usr/bin/nvidia-smi"),
    (OLD_TOOLKIT, "ContainerToolkitNotReady", "remove toolkit.version"),
    (NO_EFA, "EfaPluginNotReady", "node selector"),
    (NO_ROOT, "DraDriverNotReady", "set nvidiaDriverRoot"),
    (NO_DUMP, "ContainerToolkitNotReady", "v1.17.1"),
    (NO_NVML, "DcgmExporterNotReady", "run it with the nvidia runtime"),
    (NO_LIBRARY, "DcgmExporterNotReady", "run it with the nvidia runtime"),
    (NO_MODULE, "DcgmExporterNotReady", "default-counters.csv"),
    (NO_ADDRESS, "ComputeDomainDaemonNotReady", "delete its pod"),
    (NO_MDEV, "SandboxDevicesNotReady", "nvidia-vgpu-manager-daemonset"),
]
DONE = "Mounting NVIDIA driver rootfs...\nDone, now waiting for signal\n"
SOUND_OPERANDS = {
    "it was installed at the second try": INSTALLS + NO_HEADERS + INSTALLS + DONE,
    "it compiles": INSTALLS,
    "it made vGPUs at the second try": f'{NO_MDEV}{OF_VGPU}msg="Successfully updated to vGPU config: A100-4C"\n',
    "another program": "Could not resolve Linux kernel version\nERROR: the system is not registered\n",
}


@pytest.mark.parametrize(("log", "cause", "step"), OPERANDS, ids=[row[2] for row in OPERANDS])
def test_copied_log_of_a_component_has_the_fix_of_its_error(log: str, cause: str, step: str, tmp_path: Path) -> None:
    code, document, _ = diagnosed(tmp_path, f"$ kubectl -n gpu-operator logs some-pod-x7k2p\n{log}")

    assert (code, causes(document)) == (1, [(cause, "log/paste-0.txt")])
    assert step in document["causes"][0]["remedy"][0]


@pytest.mark.parametrize("log", SOUND_OPERANDS.values(), ids=SOUND_OPERANDS)
def test_copied_log_of_a_component_that_does_not_fail_has_no_cause(log: str, tmp_path: Path) -> None:
    assert diagnosed(tmp_path, log)[0] == 2


def test_copied_log_of_a_component_that_is_listed_is_one_result(tmp_path: Path) -> None:
    row = "gpu-operator   nvidia-driver-daemonset-2g8hk   0/1   CrashLoopBackOff   12 (2m ago)   50m"
    listed = f"NAMESPACE   NAME   READY   STATUS   RESTARTS   AGE\n{row}"

    _, document, _ = diagnosed(tmp_path, f"```\n{listed}\n```\n```\n{INSTALLS}{NO_HEADERS}```\n")

    assert [name for name, _ in causes(document)] == ["DriverNotReady"]
    assert "headers" in document["causes"][0]["remedy"][0]


LINES = [
    (
        "0/6 nodes are available: 6 Insufficient nvidia.com/gpu. preemption: 0/6 nodes are available: 6 No victims.",
        "InsufficientResource",
    ),
    (
        "I get 0/3 nodes are available: 1 node(s) had untolerated taint {sku: gpu}, 2 Insufficient nvidia.com/gpu.",
        "TaintNotTolerated",
    ),
    (
        "kai-scheduler: no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs.",
        "InsufficientResource",
    ),
]


@pytest.mark.parametrize(("line", "cause"), LINES)
def test_line_of_a_scheduler_names_its_cause_as_likely(line: str, cause: str, tmp_path: Path) -> None:
    code, document, _ = diagnosed(tmp_path, line)

    assert (code, causes(document)) == (1, [(cause, "log/paste-0.txt")])
    assert document["causes"][0]["certainty"] == "likely"


def test_line_of_a_scheduler_about_other_resources_is_refused(tmp_path: Path) -> None:
    code, _, _ = diagnosed(tmp_path, "0/3 nodes are available: 3 Insufficient cpu.\n")
    assert code == 2


REFUSED = "Nov 27 10:00:01 n1 containerd[811]: containerd: drop-in config version 4 higher than root config version 2\n"


def test_line_of_a_containerd_that_refuses_its_drop_in_has_the_fix(tmp_path: Path) -> None:
    code, document, _ = diagnosed(tmp_path, REFUSED)

    assert (code, causes(document)) == (1, [("RuntimeConfigMalformed", "log/paste-0.txt")])
    assert any("RUNTIME_CONFIG_SOURCE=file" in text for text in document["causes"][0]["remedy"])


def test_line_of_a_containerd_that_loads_its_drop_in_is_no_fault(tmp_path: Path) -> None:
    code, _, stderr = diagnosed(tmp_path, REFUSED.replace("higher than", "loaded beside"))

    assert code == 2
    assert "nothing recognised" in stderr
