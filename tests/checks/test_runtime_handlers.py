"""Handlers in a container runtime's files: default, type, program, cgroup driver, and NVIDIA's configuration."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from healthcheck.checks import cgroup_driver, default_runtime, nvidia_toolkit, runtime_binary, runtime_type
from healthcheck.model import Check, Judgement, NotConfigured, Unobserved, UnobservedCause
from healthcheck.model.node_facts import PodRuntimeClass
from healthcheck.probes.container_runtime.facts import (
    CRIO,
    DOCKER,
    ConfigurationProblem,
    ContainerRuntime,
    Kubelet,
    RuntimeBinary,
    Toolkit,
)
from tests.checks.evidence import P5
from tests.checks.runtimes import (
    AKS,
    DROP_IN,
    FILE,
    MEND,
    NVIDIA,
    OFFERED,
    PROGRAM,
    RUNC,
    SPEC,
    finding,
    judge,
    reasons,
    runtime,
    seen,
)

DEFAULT, TYPE, BINARY = default_runtime.CHECK, runtime_type.CHECK, runtime_binary.CHECK
CGROUP, TOOLKIT = cgroup_driver.CHECK, nvidia_toolkit.CHECK
OLD = ("io.containerd.runtime.v1.linux", "io.containerd.runc.v1")
KATA = "io.containerd.kata.v2"
SYSTEMD, CGROUPFS, SILENT = (Kubelet("kubelet", 902, systemd_cgroup=one) for one in (True, False, None))
BARE = replace(NVIDIA, binary="")
TOOLKITS, OPERATORS = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
WELL = Toolkit(TOOLKITS, "auto", "/", "@/sbin/ldconfig")


def of_type(kind: str, binary: str = PROGRAM, ignored: str = "", **more: Any) -> ContainerRuntime:
    return runtime(RUNC, replace(NVIDIA, runtime_type=kind, binary=binary, ignored_binary=ignored), **more)


def with_program(program: RuntimeBinary) -> ContainerRuntime:
    return runtime(RUNC, NVIDIA, programs=(program,))


def with_driver(driver: bool | None, kubelet: Kubelet | None = SYSTEMD, name: str = "nvidia", **more: Any) -> Any:
    return runtime(replace(NVIDIA, name=name, systemd_cgroup=driver, **more), kubelet=kubelet)


def with_toolkit(toolkit: Toolkit | None, **more: Any) -> ContainerRuntime:
    return runtime(NVIDIA, toolkit=toolkit, **more)


INSTALL, NOWHERE = "install the NVIDIA container toolkit", "does not exist in any usual folder of programs"
AT_NVIDIA = f"{FILE}, line 12: nvidia"
FOUND: list[tuple[Check, ContainerRuntime, str, str]] = [
    (
        DEFAULT,
        runtime(AKS, default="nvidia"),
        "DefaultRuntimeUndefined",
        f"{FILE}: the default is 'nvidia'; defined are nvidia-container-runtime, runc; {MEND}",
    ),
    (
        DEFAULT,
        runtime(RUNC, default="nvidia", default_in=DROP_IN),
        "DefaultRuntimeUndefined",
        f"{DROP_IN}: the default is 'nvidia'; defined are runc; {MEND.replace(FILE, DROP_IN)}",
    ),
    *(
        (
            TYPE,
            of_type(old, version=version, schema=schema),
            "RuntimeTypeRemoved",
            f"{AT_NVIDIA} has runtime_type {old}, which containerd 2 does not have; {MEND}",
        )
        for old in OLD
        for version, schema in (("2.0.0", 2), ("2.1-k3s1", 2), ("", 3), ("x", 3))
    ),
    *(
        (
            TYPE,
            observed,
            "RuntimeTypeIgnoresBinary",
            f"{AT_NVIDIA} has runtime_type {kind}, which does not start {PROGRAM}; {MEND}",
        )
        for kind, observed in (
            (KATA, of_type(KATA)),
            (OLD[0], of_type(OLD[0], "", PROGRAM)),
            (OLD[0], of_type(OLD[0], "/usr/bin/runc", PROGRAM)),
        )
    ),
    (
        BINARY,
        with_program(RuntimeBinary(PROGRAM)),
        "RuntimeBinaryMissing",
        f"{AT_NVIDIA} starts {PROGRAM}, which does not exist; reinstall the NVIDIA container toolkit",
    ),
    (
        BINARY,
        with_program(RuntimeBinary(PROGRAM, PROGRAM)),
        "RuntimeBinaryNotExecutable",
        f"{AT_NVIDIA} starts {PROGRAM}, which is not executable; run `chmod 0755 {PROGRAM}`",
    ),
    (
        BINARY,
        with_program(RuntimeBinary(PROGRAM, PROGRAM, True, "aarch64")),
        "RuntimeBinaryOfAnotherArchitecture",
        f"{AT_NVIDIA} starts {PROGRAM}, built for aarch64 on a machine with x86_64; {INSTALL} for x86_64",
    ),
    (
        BINARY,
        runtime(OFFERED, programs=(RuntimeBinary(OFFERED.binary),)),
        "RuntimeBinaryMissing",
        f"{FILE}, line 12: {OFFERED.name} starts {OFFERED.binary}, which {NOWHERE}; re{INSTALL}",
    ),
    (
        BINARY,
        runtime(BARE),
        "RuntimeBinaryMissing",
        f"{AT_NVIDIA} has no BinaryName, so it starts runc; set BinaryName to NVIDIA's program, {PROGRAM}: {MEND}",
    ),
    *(
        (
            CGROUP,
            with_driver(driver, kubelet),
            "CgroupDriverMismatch",
            f"{FILE}, line 12: SystemdCgroup of nvidia is {text}, but the kubelet's driver is {other}; {MEND}",
        )
        for driver, kubelet, text, other in (
            (False, SYSTEMD, "false or not set", "systemd"),
            (None, SYSTEMD, "false or not set", "systemd"),
            (True, CGROUPFS, "true", "cgroupfs"),
        )
    ),
    *(
        (
            TOOLKIT,
            with_toolkit(replace(WELL, path=path, mode="CDI")),
            "ToolkitModeUnknown",
            f"{path}: mode is 'CDI'; valid modes are auto, cdi, csv, jit-cdi, legacy; {fix}",
        )
        for path, fix in (
            (
                TOOLKITS,
                f"`nvidia-ctk config --config={TOOLKITS} --set nvidia-container-runtime.mode=auto --in-place`",
            ),
            (
                OPERATORS,
                "delete this node's pod of nvidia-container-toolkit-daemonset: its replacement rewrites the file",
            ),
        )
    ),
    (
        TOOLKIT,
        with_toolkit(replace(WELL, missing=("/run/nvidia/driver", "/sbin/x"))),
        "ToolkitPathMissing",
        f"{TOOLKITS} names /run/nvidia/driver, /sbin/x, not found; correct it, or install the driver there",
    ),
    (
        TOOLKIT,
        with_toolkit(
            Toolkit(TOOLKITS, "odd", missing=("/x",), problem=ConfigurationProblem(TOOLKITS, "Expected ']'", 3, 7))
        ),
        "ToolkitConfigMalformed",
        f"{TOOLKITS}, line 3, column 7: Expected ']'; correct it, no restart is needed",
    ),
]


@pytest.mark.parametrize(("check", "observed", "reason", "detail"), FOUND)
def test_each_fault_is_found_with_its_place_and_fix(
    check: Check, observed: ContainerRuntime, reason: str, detail: str
) -> None:
    assert judge(check, observed) == [finding(reason, detail)]


@pytest.mark.parametrize("kind", [CRIO, DOCKER])
def test_a_driver_for_all_handlers_counts_for_all(kind: str) -> None:
    observed = [runtime(NVIDIA, kind=kind, systemd_cgroup=driver) for driver in (True, None, False)]
    detail = f"{FILE}: the cgroup driver is cgroupfs, but the kubelet's is systemd; {MEND}"

    assert [judge(CGROUP, one) for one in observed] == [
        *([], []),
        [finding("CgroupDriverMismatch", detail, kind.lower())],
    ]


UNDEFINED, MISSING, MISMATCH = "DefaultRuntimeUndefined", "RuntimeBinaryMissing", "CgroupDriverMismatch"
NONE_THERE = (RuntimeBinary(PROGRAM), RuntimeBinary(OFFERED.binary))
ONE_THERE = (RuntimeBinary(PROGRAM, PROGRAM, True), RuntimeBinary(OFFERED.binary))
JUDGED: list[tuple[Check, ContainerRuntime, list[str]]] = [
    # The built-in handler. containerd 1 has none beside a table of handlers; of unknown version, it may be 2.
    *((DEFAULT, runtime(NVIDIA, default=default), []) for default in ("runc", "nvidia")),
    (DEFAULT, runtime(NVIDIA, built_in=()), [UNDEFINED]),
    (DEFAULT, runtime(NVIDIA, built_in=(), version=""), []),
    *(
        (DEFAULT, runtime(kind=kind, built_in=(), default=default), [UNDEFINED] if default == "nvidia" else [])
        for kind in (CRIO, DOCKER)
        for default in ("runc", "crun", "nvidia")
    ),
    # containerd 1 has the older types, and of other handlers only the default one counts.
    *((TYPE, of_type(old, version="1.7.27"), []) for old in OLD),
    (TYPE, of_type(OLD[1], version="", schema=2), []),
    *(
        (TYPE, runtime(RUNC, NVIDIA, replace(RUNC, name="old", runtime_type=OLD[1]), **more), found)
        for more, found in (
            ({"version": "2.1.4"}, []),
            ({"version": "2.1.4", "default": "old"}, ["RuntimeTypeRemoved"]),
        )
    ),
    (TYPE, of_type(KATA, ""), []),
    (TYPE, of_type(""), []),
    (TYPE, of_type(OLD[0], PROGRAM, PROGRAM), []),
    # Programs of this machine, of an unknown one, of others, and of handlers that are only offered.
    *(
        (BINARY, runtime(NVIDIA, programs=(RuntimeBinary(PROGRAM, PROGRAM, True, own),), architecture=machine), [])
        for own, machine in (("x86_64", "x86_64"), ("", "x86_64"), ("aarch64", ""))
    ),
    (BINARY, runtime(NVIDIA, OFFERED, programs=ONE_THERE), []),
    (BINARY, runtime(NVIDIA, OFFERED, programs=ONE_THERE, default=OFFERED.name), [MISSING]),
    (BINARY, runtime(NVIDIA, OFFERED, programs=NONE_THERE), [MISSING]),
    (BINARY, runtime(replace(RUNC, name="kata", binary="/not/there"), NVIDIA), []),
    (BINARY, runtime(BARE, cdi=True, cdi_specs=(SPEC,)), []),
    (BINARY, runtime(BARE, kind=CRIO), []),
    (BINARY, runtime(replace(BARE, runtime_type=KATA)), []),
    (BINARY, runtime(NVIDIA, programs=()), []),
    # The kubelet's driver, or the one that containerd 2 reports to it: the default handler's, or another's.
    (CGROUP, with_driver(True), []),
    (CGROUP, with_driver(None, CGROUPFS), []),
    (CGROUP, with_driver(False, SILENT), []),
    (CGROUP, with_driver(False, None), []),
    (CGROUP, runtime(replace(RUNC, systemd_cgroup=False), NVIDIA), [MISMATCH]),
    # A dumped configuration, whose default is NVIDIA's handler.
    *(
        (CGROUP, runtime(replace(RUNC, systemd_cgroup=driver), NVIDIA, default="nvidia", version=version), [])
        for driver in (None, False)
        for version in ("1.7.27", "2.1.4", "")
    ),
    (
        CGROUP,
        runtime(replace(RUNC, systemd_cgroup=False), replace(NVIDIA, systemd_cgroup=False), default="nvidia"),
        [MISMATCH],
    ),
    (CGROUP, runtime(replace(RUNC, name="kata", systemd_cgroup=False), NVIDIA), []),
    *(
        (CGROUP, runtime(RUNC, replace(NVIDIA, systemd_cgroup=False), version=version, kubelet=SILENT), found)
        for version, found in (("2.1.4", [MISMATCH]), ("1.7.27", []))
    ),
    (CGROUP, runtime(replace(RUNC, systemd_cgroup=None), NVIDIA, version="2.1.4", kubelet=SILENT), [MISMATCH]),
    (CGROUP, runtime(replace(RUNC, systemd_cgroup=None), version="2.1.4", kubelet=SILENT), []),
    (CGROUP, with_driver(None, runtime_type=OLD[0]), [MISMATCH]),
    (CGROUP, with_driver(None, runtime_type=KATA), []),
    *((TOOLKIT, with_toolkit(replace(WELL, mode=mode)), []) for mode in ("", *nvidia_toolkit.MODES)),
]


@pytest.mark.parametrize(("check", "observed", "found"), JUDGED)
def test_only_a_handler_that_would_fail_is_found(check: Check, observed: ContainerRuntime, found: list[str]) -> None:
    assert reasons(judge(check, observed)) == found


@pytest.mark.parametrize(("handler", "found"), [("runc", [MISMATCH]), ("nvidia", []), ("kata", [])])
def test_runc_counts_with_another_default_if_a_runtime_class_names_it(handler: str, found: list[str]) -> None:
    observed = runtime(replace(RUNC, systemd_cgroup=False), NVIDIA, default="nvidia")
    classes = (PodRuntimeClass("plain", handler, for_this_node=False),)
    assert reasons(judge(CGROUP, observed, replace(P5, runtime_classes=classes))) == found


def test_handlers_with_one_fault_are_one_finding() -> None:
    other = replace(NVIDIA, name="nvidia-cdi", binary=f"{PROGRAM}.cdi", line=20)
    [found] = judge(BINARY, runtime(NVIDIA, other, programs=(*NONE_THERE, RuntimeBinary(other.binary))))
    assert f"line 12: nvidia starts {PROGRAM}," in str(found)
    assert "line 20: nvidia-cdi starts" in str(found)


def test_the_operators_pod_is_not_made_anew_while_its_start_would_load_a_fault() -> None:
    [found] = judge(TOOLKIT, with_toolkit(replace(WELL, path=OPERATORS, mode="CDI"), disabled_in=FILE))
    assert "first correct the faults RuntimeCriDisabled" in str(found)
    assert "delete" not in str(found)


UNREADABLE = Toolkit(TOOLKITS, problem=ConfigurationProblem(TOOLKITS, "more than 1 MiB", only_ours=True))


@pytest.mark.parametrize(
    ("check", "observed", "judgement"),
    [
        (TYPE, runtime(NVIDIA, kind=CRIO), NotConfigured("CRI-O has no runtime types")),
        (
            TOOLKIT,
            runtime(RUNC, toolkit=WELL),
            NotConfigured(f"no handler starts the program that reads {TOOLKITS}"),
        ),
        (
            TOOLKIT,
            with_toolkit(None),
            NotConfigured("no configuration of NVIDIA's runtime program: its defaults apply"),
        ),
        (
            TOOLKIT,
            with_toolkit(UNREADABLE),
            Unobserved(
                UnobservedCause.named("RuntimeConfigUnreadable"), f"{TOOLKITS}: more than 1 MiB", "runtime/containerd"
            ),
        ),
    ],
)
def test_what_does_not_apply_or_could_not_be_read_is_no_fault(
    check: Check, observed: ContainerRuntime, judgement: Judgement
) -> None:
    assert judge(check, observed) == [judgement]


SWITCHES = "NVIDIA_VISIBLE_DEVICES of unprivileged containers is ignored; devices are also taken from volume mounts"


@pytest.mark.parametrize(
    ("check", "observed", "text"),
    [
        (DEFAULT, runtime(NVIDIA, default="nvidia"), "nvidia"),
        (TYPE, runtime(RUNC, NVIDIA), "io.containerd.runc.v2"),
        (TYPE, runtime(), "none named"),
        (BINARY, runtime(NVIDIA), PROGRAM),
        (BINARY, runtime(NVIDIA, programs=(RuntimeBinary("x"),)), "no x"),
        (BINARY, runtime(programs=()), "no program named"),
        (BINARY, runtime(NVIDIA, programs=()), "this captured tree does not contain the named programs"),
        (CGROUP, runtime(NVIDIA), "the kubelet's cgroup driver is systemd"),
        (CGROUP, with_driver(True, None), "the kubelet uses the runtime's cgroup driver, or its own is unknown"),
        (TOOLKIT, with_toolkit(WELL), f"{TOOLKITS}: mode auto, driver root /"),
        (TOOLKIT, with_toolkit(Toolkit(TOOLKITS)), f"{TOOLKITS}: mode auto"),
        (
            TOOLKIT,
            with_toolkit(Toolkit(TOOLKITS, envvar_when_unprivileged=False, volume_mounts=True)),
            f"{TOOLKITS}: mode auto; {SWITCHES}",
        ),
        (TOOLKIT, with_toolkit(Toolkit(TOOLKITS, problem=ConfigurationProblem("x", "y"))), f"{TOOLKITS}: unreadable"),
    ],
)
def test_each_check_describes_what_it_observed(check: Check, observed: ContainerRuntime, text: str) -> None:
    assert seen(check, observed)[0].what == text
