"""Judgements of the container runtime: its loader's words, its report, and the handlers of both."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import (
    CHECKS,
    cgroup_driver,
    container_runtime,
    default_runtime,
    nvidia_runtime,
    nvidia_toolkit,
    runtime_binary,
    runtime_classes,
    runtime_loaded,
    runtime_type,
)
from gpu_healthcheck.healthcheck.checks.runtime_fixes import give_handler
from gpu_healthcheck.healthcheck.model import Check, Judgement, NotConfigured, Observation, TooEarly, Unobserved
from gpu_healthcheck.healthcheck.model.node_facts import PodRuntimeClass
from gpu_healthcheck.healthcheck.probes.container_runtime.cri import NOT_HERE, NOT_YET
from gpu_healthcheck.healthcheck.probes.container_runtime.distributions import GKE, K3S
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    CRIO,
    DOCKER,
    NOT_FOUND,
    UNREADABLE,
    ConfigurationProblem,
    ContainerRuntime,
    Handler,
    Kubelet,
    Live,
    NvidiaDefinition,
    RuntimeBinary,
    Toolkit,
)
from tests.checks.evidence import P5
from tests.checks.runtimes import (
    AKS,
    BROKEN,
    DROP_IN,
    FILE,
    FIX,
    NVIDIA,
    OFFERED,
    PROGRAM,
    RESTART,
    RUNC,
    SOCKET,
    SPEC,
    finding,
    judge,
    reasons,
    running,
    runtime,
    seen,
)

FILES, LOADED, NVIDIAS = container_runtime.CHECK, runtime_loaded.CHECK, nvidia_runtime.CHECK
DEFAULT, TYPE, BINARY = default_runtime.CHECK, runtime_type.CHECK, runtime_binary.CHECK
CGROUP, TOOLKIT, CLASSES = cgroup_driver.CHECK, nvidia_toolkit.CHECK, runtime_classes.CHECK
HOOK = "/run/containers/oci/hooks.d/oci-nvidia-hook.json"
GROUP = [check for check in CHECKS if check.group == "7-container-runtime"]
OF_CONTENT = [check for check in GROUP if check not in (FILES, LOADED)]
GIVE = give_handler(runtime(RUNC))
KATA, OLDEST = "io.containerd.kata.v2", "io.containerd.runtime.v1.linux"
TYPED = 'set runtime_type = "io.containerd.runc.v2"'
TOOLKIT_FILE = "/etc/nvidia-container-runtime/config.toml"
CONTAINERD_2 = Live("containerd", "2.1.4")
OTHER, OTHERS_FILE = "/etc/other/config.toml", "/etc/other/conf.d/99-nvidia.toml"


def defined(file: str, config: str, kind: str = "containerd") -> tuple[NvidiaDefinition]:
    return (NvidiaDefinition(file, "nvidia", config, kind),)


def of_type(kind: str, **more: Any) -> ContainerRuntime:
    return runtime(RUNC, replace(NVIDIA, runtime_type=kind), **more)


def refused(message: str, line: int = 0, column: int = 0, **more: Any) -> ContainerRuntime:
    return runtime(on_disk=None, refusal=ConfigurationProblem(FILE, message, line, column), **more)


FOUND: list[tuple[Check, ContainerRuntime, str, str]] = [
    (FILES, refused("expected ']'", 3, 7), "RuntimeConfigMalformed", f"{FILE}, line 3, column 7: expected ']'; {FIX}"),
    (
        FILES,
        refused("drop-in config version 3 higher than root config version 2", live=CONTAINERD_2),
        "RuntimeConfigMalformed",
        (
            f"{FILE}: drop-in config version 3 higher than root config version 2; all files need a version that "
            f"containerd 2.1.4 reads, none above that of {FILE}: containerd config migrate prints that file with the "
            "newest one, and "
            f"with RUNTIME_CONFIG_SOURCE=file NVIDIA's toolkit keeps to the file's version; {FIX}"
        ),
    ),
    (
        FILES,
        runtime(NVIDIA, RUNC, cri_disabled=True),
        "RuntimeCriDisabled",
        f"{FILE}: disabled_plugins contains the CRI plugin; {FIX}",
    ),
    (
        FILES,
        runtime(RUNC, definitions=defined(DROP_IN, FILE), live=CONTAINERD_2, schema=3, section="io.x"),
        "RuntimeConfigMisplaced",
        (
            f"{DROP_IN} defines nvidia, but containerd 2.1.4 does not take it from there: it needs version 3 with "
            f'plugins."io.x", in a file that no later one replaces; correct {DROP_IN}'
        ),
    ),
    (
        LOADED,
        runtime(NVIDIA, RUNC, live=running(RUNC)),
        "RuntimeConfigNotLoaded",
        f"{FILE}: nvidia is defined, but the running containerd does not know it; {RESTART}",
    ),
    (
        LOADED,
        runtime(NVIDIA, RUNC, live=running(replace(NVIDIA, binary="/old"), RUNC)),
        "RuntimeConfigNotLoaded",
        f"{FILE}: nvidia starts {PROGRAM}, but in the running containerd /old; {RESTART}",
    ),
    (
        LOADED,
        runtime(NVIDIA, RUNC, live=running(replace(NVIDIA, runtime_type=KATA), RUNC)),
        "RuntimeConfigNotLoaded",
        f"{FILE}: nvidia has runtime_type io.containerd.runc.v2, but in the running containerd {KATA}; {RESTART}",
    ),
    (
        LOADED,
        runtime(NVIDIA, RUNC, live=running(replace(NVIDIA, systemd_cgroup=False), RUNC)),
        "RuntimeConfigNotLoaded",
        f"{FILE}: SystemdCgroup of nvidia is true, but in the running containerd false; {RESTART}",
    ),
    (
        LOADED,
        runtime(NVIDIA, RUNC, default="nvidia", live=running(NVIDIA, RUNC)),
        "RuntimeConfigNotLoaded",
        f"{FILE}: the default is nvidia, but in the running containerd runc; {RESTART}",
    ),
    (
        LOADED,
        runtime(NVIDIA, RUNC, cdi=True, live=running(NVIDIA, RUNC)),
        "RuntimeConfigNotLoaded",
        f"{FILE}: CDI is on, but in the running containerd off; {RESTART}",
    ),
    (
        LOADED,
        runtime(RUNC, live=running(NVIDIA, RUNC)),
        "NvidiaRuntimeNotKept",
        f"{FILE} no longer defines nvidia, but the runtime still runs with it: {GIVE}",
    ),
    (LOADED, runtime(NVIDIA, RUNC, live=running(NVIDIA, RUNC, not_ready="x")), "RuntimeNotReady", f"x; {RESTART}"),
    (NVIDIAS, runtime(RUNC), "NvidiaRuntimeMissing", f"{FILE}: {GIVE}"),
    (
        NVIDIAS,
        runtime(RUNC, kind=CRIO, path="/etc/crio/crio.conf"),
        "NvidiaRuntimeMissing",
        f"/etc/crio/crio.conf: {give_handler(runtime(RUNC, kind=CRIO))}",
    ),
    (
        NVIDIAS,
        runtime(RUNC, definitions=defined(DROP_IN, "")),
        "NvidiaRuntimeMissing",
        f"{DROP_IN} has it, but no file imports that file: name it in `imports` of {FILE}; {FIX}",
    ),
    (
        NVIDIAS,
        runtime(RUNC, kind=CRIO, path="/etc/crio/crio.conf", definitions=defined("/etc/crio/conf.d/99.toml", "", CRIO)),
        "NvidiaRuntimeMissing",
        "/etc/crio/conf.d/99.toml has it, but CRI-O does not read that folder: move it to /etc/crio/crio.conf.d",
    ),
    (
        NVIDIAS,
        runtime(RUNC, definitions=defined(OTHERS_FILE, OTHER)),
        "NvidiaRuntimeElsewhere",
        f"{OTHERS_FILE} has it, but another containerd reads that file; the kubelet's containerd reads {FILE}: {GIVE}",
    ),
    (
        NVIDIAS,
        runtime(RUNC, definitions=defined(OTHERS_FILE, OTHER, CRIO)),
        "NvidiaRuntimeElsewhere",
        f"{OTHERS_FILE} has it, but CRI-O reads that file; the kubelet's containerd reads {FILE}: {GIVE}",
    ),
    (
        DEFAULT,
        runtime(RUNC, default="nvidia"),
        "DefaultRuntimeUndefined",
        f"{FILE}: the default is 'nvidia'; defined are runc; {FIX}",
    ),
    (TYPE, of_type(""), "RuntimeTypeMissing", f"{FILE}: nvidia has no runtime_type; {TYPED}; {FIX}"),
    (
        TYPE,
        of_type("io.containerd.runc.v1", live=CONTAINERD_2),
        "RuntimeTypeRemoved",
        f"{FILE}: nvidia has runtime_type io.containerd.runc.v1, which containerd 2 does not have; {TYPED}; {FIX}",
    ),
    (
        TYPE,
        of_type(KATA),
        "RuntimeTypeIgnoresBinary",
        f"{FILE}: nvidia has runtime_type {KATA}, which does not start {PROGRAM}; {TYPED}; {FIX}",
    ),
    (
        BINARY,
        runtime(NVIDIA, programs=(RuntimeBinary(PROGRAM),)),
        "RuntimeBinaryMissing",
        f"{FILE}: nvidia starts {PROGRAM}, which does not exist; reinstall the NVIDIA container toolkit",
    ),
    (
        BINARY,
        runtime(replace(NVIDIA, binary="")),
        "RuntimeBinaryMissing",
        f"{FILE}: nvidia has no BinaryName, so it starts runc; set BinaryName to NVIDIA's program, {PROGRAM}: {FIX}",
    ),
    (
        BINARY,
        runtime(NVIDIA, programs=(RuntimeBinary(PROGRAM, PROGRAM),)),
        "RuntimeBinaryNotExecutable",
        f"{FILE}: nvidia starts {PROGRAM}, which is not executable; run `chmod 0755 {PROGRAM}`",
    ),
    (
        BINARY,
        runtime(NVIDIA, programs=(RuntimeBinary(PROGRAM, PROGRAM, True, "aarch64"),)),
        "RuntimeBinaryOfAnotherArchitecture",
        (
            f"{FILE}: nvidia starts {PROGRAM}, built for aarch64 on a machine with x86_64; install the NVIDIA "
            "container toolkit for x86_64"
        ),
    ),
    (
        CGROUP,
        runtime(replace(NVIDIA, systemd_cgroup=False)),
        "CgroupDriverMismatch",
        f"{FILE}: SystemdCgroup of nvidia is false or not set, but the kubelet's driver is systemd; {FIX}",
    ),
    (
        CGROUP,
        runtime(RUNC, replace(NVIDIA, systemd_cgroup=None), live=CONTAINERD_2),
        "CgroupDriverMismatch",
        f"{FILE}: SystemdCgroup of nvidia is false or not set, but the kubelet's driver is systemd; {FIX}",
    ),
    (
        TOOLKIT,
        runtime(NVIDIA, toolkit=Toolkit(TOOLKIT_FILE, problem=ConfigurationProblem(TOOLKIT_FILE, "a", 2, 1))),
        "ToolkitConfigMalformed",
        f"{TOOLKIT_FILE}, line 2, column 1: a; correct it, no restart is needed",
    ),
    (
        TOOLKIT,
        runtime(NVIDIA, toolkit=Toolkit(TOOLKIT_FILE, "CDI")),
        "ToolkitModeUnknown",
        (
            f"{TOOLKIT_FILE}: mode is 'CDI'; valid modes are auto, cdi, csv, jit-cdi, legacy; `nvidia-ctk config "
            f"--config={TOOLKIT_FILE} --set nvidia-container-runtime.mode=auto --in-place`"
        ),
    ),
    (
        TOOLKIT,
        runtime(NVIDIA, toolkit=Toolkit(TOOLKIT_FILE, missing=("/run/driver",))),
        "ToolkitPathMissing",
        f"{TOOLKIT_FILE} names /run/driver, not found; correct it, or install the driver there",
    ),
]


@pytest.mark.parametrize(("check", "observed", "reason", "detail"), FOUND)
def test_fault_is_reported_with_its_file_and_fix(
    check: Check, observed: ContainerRuntime, reason: str, detail: str
) -> None:
    assert judge(check, observed) == [finding(reason, detail, f"{observed.kind.lower()}")]


HEALTHY: list[tuple[Check, ContainerRuntime]] = [
    *((check, runtime(NVIDIA, RUNC, live=running(NVIDIA, RUNC))) for check in GROUP),
    (FILES, runtime(NVIDIA, definitions=defined(FILE, FILE))),
    (FILES, runtime(RUNC, definitions=defined(DROP_IN, ""))),
    (LOADED, runtime(NVIDIA, RUNC, live=Live("containerd", "1.5"))),
    (LOADED, runtime(NVIDIA, RUNC, live=running(NVIDIA, RUNC, Handler("kata"), cdi=None))),
    (NVIDIAS, runtime(AKS)),
    (NVIDIAS, runtime(RUNC, cdi=True, cdi_specs=(SPEC,))),
    (NVIDIAS, runtime(RUNC, distribution=GKE)),
    *((check, runtime(RUNC, kind=CRIO, hook=HOOK)) for check in (NVIDIAS, CLASSES)),
    (NVIDIAS, runtime(RUNC, definitions=defined(DROP_IN, FILE))),
    (NVIDIAS, runtime(RUNC, live=running(NVIDIA, RUNC))),
    (NVIDIAS, runtime(NVIDIA, definitions=defined(OTHERS_FILE, OTHER))),
    (DEFAULT, runtime(NVIDIA, default="")),
    (DEFAULT, runtime(NVIDIA, kind=CRIO, default="crun")),
    (DEFAULT, runtime(default="nvidia", cri_disabled=True)),
    (TYPE, of_type("io.containerd.runc.v1")),
    (TYPE, of_type(OLDEST)),
    (TYPE, runtime(NVIDIA, RUNC, Handler("kata"))),
    (TYPE, runtime(on_disk=None, live=running(NVIDIA, RUNC))),
    (BINARY, runtime(NVIDIA, programs=())),
    (BINARY, runtime(NVIDIA, replace(OFFERED, name="offered"), programs=(RuntimeBinary(PROGRAM, PROGRAM, True),))),
    (BINARY, runtime(replace(NVIDIA, binary=""), cdi=True, cdi_specs=(SPEC,))),
    (BINARY, runtime(replace(NVIDIA, runtime_type=KATA), programs=())),
    (CGROUP, runtime(replace(NVIDIA, systemd_cgroup=False), kubelet=Kubelet("kubelet", 1, systemd_cgroup=False))),
    (CGROUP, runtime(replace(NVIDIA, systemd_cgroup=False), kubelet=Kubelet("kubelet", 1))),
    (CGROUP, runtime(NVIDIA, replace(RUNC, systemd_cgroup=False), default="nvidia")),
    (CGROUP, runtime(replace(NVIDIA, systemd_cgroup=False), kind=CRIO)),
    (CGROUP, runtime(replace(NVIDIA, systemd_cgroup=False, runtime_type=KATA))),
    (TOOLKIT, runtime(NVIDIA, toolkit=Toolkit(TOOLKIT_FILE, "cdi"))),
]


@pytest.mark.parametrize(("check", "observed"), HEALTHY)
def test_healthy_or_unknown_value_is_not_reported(check: Check, observed: ContainerRuntime) -> None:
    expected = replace(P5, runtime_classes=(PodRuntimeClass("nvidia", "nvidia", for_this_node=True),))
    assert reasons(judge(check, observed, expected)) == []


@pytest.mark.parametrize(("handler", "found"), [("runc", ["CgroupDriverMismatch"]), ("kata", [])])
def test_runc_is_judged_with_another_default_if_a_runtime_class_names_it(handler: str, found: list[str]) -> None:
    expected = replace(P5, runtime_classes=(PodRuntimeClass("a", handler, for_this_node=True),))
    observed = runtime(NVIDIA, replace(RUNC, systemd_cgroup=False), default="nvidia")
    assert reasons(judge(CGROUP, observed, expected)) == found


def test_handlers_with_the_same_fault_are_one_finding() -> None:
    observed = runtime(replace(NVIDIA, runtime_type=""), replace(AKS, runtime_type=""))
    (only,) = judge(TYPE, observed)
    assert only == finding(
        "RuntimeTypeMissing",
        f"{FILE}: nvidia has no runtime_type; {TYPED}; {FIX}; "
        f"{FILE}: nvidia-container-runtime has no runtime_type; {TYPED}; {FIX}",
    )


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"cri_disabled": True}, "RuntimeCriDisabled"),
    ({"default": "kata"}, "DefaultRuntimeUndefined"),
    ({"programs": (RuntimeBinary(PROGRAM),)}, "RuntimeBinaryMissing"),
    ({"kubelet": Kubelet("kubelet", 1, systemd_cgroup=False)}, "CgroupDriverMismatch"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_no_restart_is_advised_with_a_fault_in_the_files(fault: dict[str, Any], reason: str) -> None:
    live = running(NVIDIA, RUNC, not_ready="x")
    (only,) = judge(LOADED, runtime(NVIDIA, RUNC, live=live, **fault))[:1]
    assert "`" not in str(only)
    assert reason in str(only)


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        (refused("a"), "first correct the faults RuntimeConfigMalformed in its files: a restart would load them"),
        (
            runtime(on_disk=None, why_not_loaded="y"),
            f"first check {FILE}, which its own loader could not judge here: a restart would load it",
        ),
    ],
)
def test_no_restart_is_advised_with_files_that_the_loader_did_not_accept(
    observed: ContainerRuntime, message: str
) -> None:
    not_ready = replace(observed, live=running(NVIDIA, RUNC, not_ready="x"))
    assert judge(LOADED, not_ready)[0] == finding("RuntimeNotReady", f"x; {message}")


def test_no_restart_takes_away_the_only_way_to_a_gpu() -> None:
    observed = runtime(RUNC, Handler("kata"), live=running(RUNC, cdi=True), cdi_specs=(SPEC,))
    assert "first define CDI in its files again" in str(judge(LOADED, observed)[0])


@pytest.mark.parametrize("check", OF_CONTENT, ids=lambda check: check.name)
def test_content_of_refused_files_is_unknown(check: Check) -> None:
    observed = runtime(on_disk=None, refusal=BROKEN)
    assert judge(check, observed) == [TooEarly(f"containerd's own loader refuses {FILE}", "runtime/containerd")]


@pytest.mark.parametrize("check", GROUP, ids=lambda check: check.name)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"for_gpus": False}, NotConfigured("no NVIDIA GPU that containers can use")),
        ({"path": "", "why_none": "no kubelet"}, NotConfigured("no kubelet")),
        ({"path": "", "why_none": "gone", "not_found": True}, Unobserved(NOT_FOUND, "gone")),
        ({"on_disk": None, "why_not_live": NOT_HERE}, NotConfigured(f"could not check: {NOT_HERE}")),
    ],
)
def test_runtime_that_cannot_be_judged_has_its_reason(
    fields: dict[str, Any], expected: Judgement, check: Check
) -> None:
    assert judge(check, runtime(**fields)) == [expected]


@pytest.mark.parametrize("check", OF_CONTENT, ids=lambda check: check.name)
def test_without_any_answer_the_content_could_not_be_checked(check: Check) -> None:
    silent = runtime(on_disk=None, why_not_live="x: refused", why_not_loaded="y")
    assert judge(check, silent) == [Unobserved(UNREADABLE, "x: refused; y")]
    waiting = runtime(on_disk=None, why_not_live=NOT_YET, why_not_loaded=NOT_YET)
    assert judge(check, waiting) == [TooEarly(NOT_YET, "runtime/containerd")]
    docker = runtime(on_disk=None, kind=DOCKER, live=Live("docker", "27.3.1"), why_not_loaded="y")
    assert judge(check, docker) == [NotConfigured("Docker does not report its handlers over the CRI")]


def test_files_that_the_loader_could_not_judge_are_unobserved() -> None:
    observed = runtime(on_disk=None, why_not_loaded="its loader could not be asked: x", live=running(NVIDIA))
    assert judge(FILES, observed) == [Unobserved(UNREADABLE, "its loader could not be asked: x", "runtime/containerd")]


OBSERVED = [
    (
        FILES,
        runtime(NVIDIA, RUNC, live=running(NVIDIA, RUNC)),
        f"containerd 1.7.27 at {SOCKET}, {FILE}: nvidia, runc (default)",
    ),
    (
        FILES,
        runtime(RUNC, distribution=K3S, template="/t", for_gpus=None, files=()),
        (
            f"containerd of k3s at {SOCKET}, no {FILE}, so its defaults apply (made from /t): runc (default); without "
            "/sys the GPUs are unknown, and the node is judged as one with GPUs"
        ),
    ),
    (
        FILES,
        runtime(NVIDIA, cdi=True, cdi_specs=(SPEC,)),
        f"containerd at {SOCKET}, {FILE}: nvidia; CDI with nvidia.com/gpu",
    ),
    (LOADED, runtime(NVIDIA, live=running(NVIDIA)), "containerd 1.7.27 answers with nvidia"),
    (NVIDIAS, runtime(NVIDIA, live=running(NVIDIA)), "handler nvidia as it runs"),
    (DEFAULT, runtime(NVIDIA, RUNC), "runc"),
    (TYPE, runtime(NVIDIA, RUNC), "io.containerd.runc.v2"),
    (BINARY, runtime(NVIDIA, RUNC), PROGRAM),
]


@pytest.mark.parametrize(("check", "observed", "text"), OBSERVED)
def test_observation_names_the_runtime_and_its_handlers(check: Check, observed: ContainerRuntime, text: str) -> None:
    (only,) = seen(check, observed)
    assert isinstance(only, Observation)
    assert only.what == text
