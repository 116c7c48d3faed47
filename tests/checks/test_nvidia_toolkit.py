"""The configuration of NVIDIA's runtime program."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthcheck.checks.nvidia_toolkit import CHECK, MODES
from healthcheck.model import NotConfigured, Unobserved, UnobservedCause
from healthcheck.probes.container_runtime.facts import ConfigurationProblem, Toolkit
from tests.checks.runtimes import NVIDIA, RUNC, finding, judge, runtime, seen

FILE = "/etc/nvidia-container-runtime/config.toml"
OPERATORS = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
SWITCHES = "NVIDIA_VISIBLE_DEVICES of unprivileged containers is ignored; devices are also taken from volume mounts"
WELL = Toolkit(FILE, "auto", "/", "@/sbin/ldconfig")


@pytest.mark.parametrize("mode", ["", *MODES])
def test_every_mode_that_it_has_is_well(mode: str) -> None:
    assert judge(CHECK, runtime(NVIDIA, toolkit=replace(WELL, mode=mode))) == []


@pytest.mark.parametrize(
    ("path", "mend"),
    [
        (FILE, f"`nvidia-ctk config --config={FILE} --set nvidia-container-runtime.mode=auto --in-place`"),
        (OPERATORS, "delete this node's pod of nvidia-container-toolkit-daemonset: its replacement rewrites the file"),
    ],
)
@pytest.mark.parametrize("mode", ["CDI", "nvml", "jit"])
def test_another_is_found(path: str, mend: str, mode: str) -> None:
    assert judge(CHECK, runtime(NVIDIA, toolkit=replace(WELL, path=path, mode=mode))) == [
        finding(
            "ToolkitModeUnknown", f"{path}: mode is {mode!r}; valid modes are auto, cdi, csv, jit-cdi, legacy; {mend}"
        )
    ]


def test_the_operators_pod_is_not_made_anew_while_its_start_would_load_a_fault() -> None:
    toolkit = replace(WELL, path=OPERATORS, mode="CDI")
    [found] = judge(CHECK, runtime(NVIDIA, toolkit=toolkit, disabled_in="/etc/containerd/config.toml"))
    assert "first correct the faults RuntimeCriDisabled" in str(found)
    assert "delete" not in str(found)


def test_a_path_that_is_not_there_is_named() -> None:
    assert judge(CHECK, runtime(NVIDIA, toolkit=replace(WELL, missing=("/run/nvidia/driver", "/sbin/x")))) == [
        finding(
            "ToolkitPathMissing",
            f"{FILE} names /run/nvidia/driver, /sbin/x, not found; correct it, or install the driver there",
        )
    ]


def test_a_file_that_it_cannot_read_is_the_only_finding() -> None:
    broken = Toolkit(FILE, "odd", missing=("/x",), problem=ConfigurationProblem(FILE, "Expected ']'", 3, 7))
    message = f"{FILE}, line 3, column 7: Expected ']'; correct it, no restart is needed"
    assert judge(CHECK, runtime(NVIDIA, toolkit=broken)) == [finding("ToolkitConfigMalformed", message)]


def test_a_file_that_we_cannot_read_is_no_fault() -> None:
    ours = Toolkit(FILE, problem=ConfigurationProblem(FILE, "more than 1 MiB", only_ours=True))
    assert judge(CHECK, runtime(NVIDIA, toolkit=ours)) == [
        Unobserved(UnobservedCause.named("RuntimeConfigUnreadable"), f"{FILE}: more than 1 MiB", "runtime/containerd")
    ]


def test_where_nobody_reads_it_it_is_nobodys_business() -> None:
    broken = Toolkit(FILE, problem=ConfigurationProblem(FILE, "x"))
    assert judge(CHECK, runtime(RUNC, toolkit=broken)) == [
        NotConfigured(f"no handler starts the program that reads {FILE}")
    ]
    assert judge(CHECK, runtime(NVIDIA)) == [
        NotConfigured("no configuration of NVIDIA's runtime program: its defaults apply")
    ]


@pytest.mark.parametrize(
    ("toolkit", "message"),
    [
        (WELL, f"{FILE}: mode auto, driver root /"),
        (Toolkit(FILE), f"{FILE}: mode auto"),
        (
            replace(WELL, envvar_when_unprivileged=False, volume_mounts=True),
            f"{FILE}: mode auto, driver root /; {SWITCHES}",
        ),
        (Toolkit(FILE, problem=ConfigurationProblem(FILE, "x")), f"{FILE}: unreadable"),
    ],
)
def test_it_tells_the_mode_and_the_switches(toolkit: Toolkit, message: str) -> None:
    assert seen(CHECK, runtime(NVIDIA, toolkit=toolkit))[0].what == message
