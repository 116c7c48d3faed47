"""The cgroup drivers of kubelet and container runtime."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthcheck.checks.cgroup_driver import CHECK
from healthcheck.probes.container_runtime.facts import CRIO, DOCKER, Kubelet
from tests.checks.runtimes import FILE, MEND, NVIDIA, RUNC, finding, judge, reasons, runtime, seen

SYSTEMD, CGROUPFS, SILENT = (Kubelet("kubelet", 902, systemd_cgroup=one) for one in (True, False, None))


@pytest.mark.parametrize(
    ("handlers", "kubelet", "well"),
    [
        (True, SYSTEMD, True),
        (False, CGROUPFS, True),
        (False, SYSTEMD, False),
        (True, CGROUPFS, False),
        (None, SYSTEMD, False),
        (None, CGROUPFS, True),
        (False, SILENT, True),
        (False, None, True),
    ],
)
def test_nvidias_handler_has_to_have_the_kubelets(handlers: bool | None, kubelet: Kubelet | None, well: bool) -> None:
    observed = runtime(replace(NVIDIA, systemd_cgroup=handlers), kubelet=kubelet)
    message, kubelets = ("true", "cgroupfs") if handlers else ("false or not set", "systemd")
    findings = [
        finding(
            "CgroupDriverMismatch",
            f"{FILE}, line 12: SystemdCgroup of nvidia is {message}, but the kubelet's driver is {kubelets}; {MEND}",
        )
    ]
    assert judge(CHECK, observed) == ([] if well else findings)


@pytest.mark.parametrize(("name", "well"), [("runc", False), ("kata", True)])
def test_runcs_counts_and_others_do_not(name: str, well: bool) -> None:
    other = replace(RUNC, name=name, systemd_cgroup=False)
    assert (judge(CHECK, runtime(other, NVIDIA)) == []) is well


@pytest.mark.parametrize(("nvidias", "well"), [(True, True), (False, False)])
def test_a_kubelet_that_asks_containerd_2_has_the_default_handlers(nvidias: bool, well: bool) -> None:
    handlers = (RUNC, replace(NVIDIA, systemd_cgroup=nvidias))
    assert (judge(CHECK, runtime(*handlers, version="2.1.4", kubelet=SILENT)) == []) is well
    assert judge(CHECK, runtime(*handlers, version="1.7.27", kubelet=SILENT)) == []


def test_where_the_default_handler_has_no_options_containerd_2_answers_with_anothers() -> None:
    bare = replace(RUNC, systemd_cgroup=None)
    assert reasons(judge(CHECK, runtime(bare, NVIDIA, version="2.1.4", kubelet=SILENT))) == ["CgroupDriverMismatch"]
    assert judge(CHECK, runtime(bare, version="2.1.4", kubelet=SILENT)) == []


@pytest.mark.parametrize("kind", [CRIO, DOCKER])
@pytest.mark.parametrize(("whole", "well"), [(True, True), (False, False), (None, True)])
def test_a_driver_for_all_handlers_counts_for_all(kind: str, whole: bool | None, well: bool) -> None:
    observed = runtime(NVIDIA, kind=kind, systemd_cgroup=whole)
    findings = [
        finding(
            "CgroupDriverMismatch",
            f"{FILE}: the cgroup driver is cgroupfs, but the kubelet's is systemd; {MEND}",
            kind.lower(),
        )
    ]
    assert judge(CHECK, observed) == ([] if well else findings)


@pytest.mark.parametrize(("kind", "well"), [("io.containerd.runtime.v1.linux", False), ("io.containerd.kata.v2", True)])
def test_only_shims_of_runc_have_the_option(kind: str, well: bool) -> None:
    handler = replace(NVIDIA, runtime_type=kind, systemd_cgroup=None)
    assert (judge(CHECK, runtime(RUNC, handler)) == []) is well


def test_it_tells_the_kubelets() -> None:
    assert seen(CHECK, runtime(NVIDIA))[0].what == "the kubelet's cgroup driver is systemd"
    assert seen(CHECK, runtime(NVIDIA, kubelet=None))[0].what.endswith("or its own is unknown")
