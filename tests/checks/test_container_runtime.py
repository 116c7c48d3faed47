"""The files of the kubelet's container runtime, and the line that names the runtime."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from healthcheck.checks import CHECKS
from healthcheck.checks.container_runtime import CHECK
from healthcheck.model import Check, NotConfigured, Observation, TooEarly, Unobserved, UnobservedCause
from healthcheck.probes.container_runtime.distributions import K3S
from healthcheck.probes.container_runtime.facts import ConfigurationProblem, ContainerRuntime, Live, Misplaced, ReadFile
from tests.checks.runtimes import (
    BROKEN,
    DROP_IN,
    FILE,
    MEND,
    NVIDIA,
    RUNC,
    SOCKET,
    SPEC,
    STARTED,
    UNREADABLE,
    finding,
    judge,
    runtime,
    seen,
)

GROUP = [check for check in CHECKS if check.group == CHECK.group]
OF_THE_FILES = [check for check in GROUP if check.name not in ("container-runtime", "runtime-loaded")]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (BROKEN, f"{FILE}, line 3, column 7: Expected ']'; {MEND}"),
        (ConfigurationProblem(FILE, "a", 3), f"{FILE}, line 3: a; {MEND}"),
        (
            ConfigurationProblem(DROP_IN, "imported, but does not exist"),
            f"{DROP_IN}: imported, but does not exist; {MEND.replace(FILE, DROP_IN)}",
        ),
    ],
)
def test_a_file_that_it_cannot_take_is_found_with_its_place(problem: ConfigurationProblem, message: str) -> None:
    assert judge(CHECK, runtime(problem=problem)) == [finding("RuntimeConfigMalformed", message)]


def test_a_file_that_we_cannot_read_is_no_fault() -> None:
    assert judge(CHECK, runtime(problem=UNREADABLE)) == [
        Unobserved(UnobservedCause.named("RuntimeConfigUnreadable"), f"{FILE}: more than 1 MiB", "runtime/containerd")
    ]


@pytest.mark.parametrize("check", OF_THE_FILES, ids=lambda check: check.name)
def test_the_content_of_a_malformed_file_is_unknown(check: Check) -> None:
    assert judge(check, runtime(problem=BROKEN)) == [TooEarly(f"containerd can't read {FILE}", "runtime/containerd")]
    [blind] = judge(check, runtime(problem=UNREADABLE))
    assert isinstance(blind, Unobserved)


def test_where_the_file_is_made_from_a_template_that_one_is_named() -> None:
    template = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl"

    findings = judge(CHECK, runtime(problem=BROKEN, template=template, distribution=K3S, unit="k3s-agent.service"))

    assert findings == [
        finding(
            "RuntimeConfigMalformed",
            f"{FILE}, line 3, column 7: Expected ']'; correct {template}, the template of {FILE}, then restart"
            f" the service that generates {FILE}",
        )
    ]


OLD, NEW = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
PLACE = Misplaced(FILE, 3, OLD, NEW, (RUNC, NVIDIA), 3)


def test_a_handler_in_a_table_that_is_not_read_is_found_with_its_line() -> None:
    assert judge(CHECK, runtime(misplaced=(PLACE,))) == [
        finding(
            "RuntimeConfigMisplaced",
            f'{FILE}, line 12: nvidia under plugins."io.containerd.grpc.v1.cri";'
            f' version 3 needs plugins."io.containerd.cri.v1.runtime"; {MEND}',
        )
    ]


@pytest.mark.parametrize(
    ("version", "reader"), [("2.1.4", "containerd 2.1"), ("", "containerd 2.1 (assumed from version 2)")]
)
@pytest.mark.parametrize(
    ("text", "read_from", "why"),
    [
        (FILE, "2.3", f'with plugins."{NEW}" of {FILE} (2.3 and later read it)'),
        (FILE, "", f'with plugins."{NEW}" of {FILE}'),
        ("", "2.3", "with these files (2.3 and later read it)"),
    ],
)
def test_in_a_table_of_its_own_version_the_other_files_are_why_it_is_not_read(
    version: str, reader: str, text: str, read_from: str, why: str
) -> None:
    nvidia = replace(NVIDIA, file=DROP_IN, line=4)
    place = Misplaced(DROP_IN, 2, OLD, NEW, (nvidia,), 3, text, read_from)
    assert judge(CHECK, runtime(RUNC, misplaced=(place,), version=version, generation="2.1")) == [
        finding(
            "RuntimeConfigMisplaced",
            f'{DROP_IN}, line 4: nvidia under plugins."{OLD}", which {reader} does not read {why};'
            f' version 3 needs plugins."{NEW}"; {MEND.replace(FILE, DROP_IN)}',
        )
    ]


@pytest.mark.parametrize("place", [PLACE, replace(PLACE, handlers=(RUNC,))])
def test_what_is_also_in_its_right_place_or_not_nvidias_is_not(place: Misplaced) -> None:
    assert judge(CHECK, runtime(RUNC, NVIDIA, misplaced=(place,))) == []


@pytest.mark.parametrize("file", ["", FILE])
def test_without_the_cri_plugin_no_kubelet_can_use_it(file: str) -> None:
    disabled = finding("RuntimeCriDisabled", f"{FILE}: disabled_plugins contains the CRI plugin; {MEND}")
    assert judge(CHECK, runtime(NVIDIA, disabled_in=file)) == ([disabled] if file else [])


# Nodes on which no check of the group judges the runtime.


@pytest.mark.parametrize("check", GROUP, ids=lambda check: check.name)
def test_without_a_gpu_for_containers_it_is_nobodys_business(check: Check) -> None:
    assert judge(check, runtime(RUNC, for_gpus=False)) == [NotConfigured("no NVIDIA GPU that containers can use")]


@pytest.mark.parametrize("check", GROUP, ids=lambda check: check.name)
def test_where_nothing_tells_of_gpus_it_is_judged_as_with_some(check: Check) -> None:
    assert judge(check, runtime(RUNC, for_gpus=None)) == judge(check, runtime(RUNC))


def test_that_nothing_tells_of_gpus_is_said() -> None:
    (observation,) = seen(CHECK, runtime(NVIDIA, for_gpus=None))
    assert observation.what.endswith("; without /sys the GPUs are unknown, and the node is judged as one with GPUs")


@pytest.mark.parametrize("check", GROUP, ids=lambda check: check.name)
def test_without_a_runtime_of_the_kubelets_it_says_why(check: Check) -> None:
    none = ContainerRuntime(None, "no kubelet runs on this node")
    assert judge(check, none) == [NotConfigured("no kubelet runs on this node")]


@pytest.mark.parametrize("check", GROUP, ids=lambda check: check.name)
@pytest.mark.parametrize("for_gpus", [True, False, None])
def test_a_containerd_that_nobody_found_could_not_be_looked_at_where_gpus_are(
    check: Check, for_gpus: bool | None
) -> None:
    lost = ContainerRuntime(None, "at /run/foo/containerd.sock", for_gpus=for_gpus, not_found=True)
    (judgement,) = judge(check, lost)
    assert isinstance(judgement, Unobserved if for_gpus else NotConfigured)
    assert for_gpus is False or judgement.detail == "at /run/foo/containerd.sock"


# The line for people.

AT = f"containerd 1.7.27 at {SOCKET}"
UNKNOWN = f"containerd at {SOCKET}"
TWO_FILES = (ReadFile(FILE, STARTED), ReadFile(DROP_IN, STARTED))


@pytest.mark.parametrize(
    ("observed", "what"),
    [
        (runtime(RUNC, NVIDIA), f"{AT}, {FILE}: runc (default), nvidia"),
        (runtime(NVIDIA, files=TWO_FILES, default="nvidia"), f"{AT}, {FILE}, {DROP_IN}: nvidia (default)"),
        (
            runtime(NVIDIA, files=TWO_FILES, version=""),
            f"{UNKNOWN}, {FILE}, {DROP_IN} (merged like containerd 1, assumed from version 2): nvidia",
        ),
        (runtime(cdi=True, cdi_specs=(SPEC,)), f"{AT}, {FILE}: no handler; CDI with nvidia.com/gpu"),
        (runtime(files=()), f"{AT}, no {FILE}, so its defaults apply: no handler"),
        (
            runtime(NVIDIA, template="/t.tmpl", distribution=K3S),
            f"containerd 1.7.27 of k3s at {SOCKET}, {FILE} (made from /t.tmpl): nvidia",
        ),
        (
            runtime(RUNC, live=Live("containerd", "1.7.28", ("runc", "nvidia"), default="nvidia")),
            f"containerd 1.7.28 at {SOCKET}, {FILE}: runc, nvidia (default)",
        ),
        (
            runtime(replace(NVIDIA, privileged_without_host_devices=True)),
            f"{AT}, {FILE}: nvidia; privileged containers see only their own devices under nvidia",
        ),
    ],
)
def test_it_tells_the_runtime_the_files_and_the_handlers(observed: ContainerRuntime, what: str) -> None:
    assert seen(CHECK, observed) == [Observation(what, "", "--container-runtime-endpoint of kubelet")]


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"assumed": True, "known_from": "the place of k3s"}, "assumed: the place of k3s"),
        ({"assumed": True, "known_from": "assumed, since no kubelet"}, "assumed, since no kubelet"),
        ({"known_from": "default of kubelet"}, "default of kubelet"),
    ],
)
def test_what_is_only_likely_is_said_to_be(fields: dict[str, Any], source: str) -> None:
    assert seen(CHECK, runtime(NVIDIA, **fields))[0].source == source
