"""Taints that keep claims off devices, their owners, and their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.model import Certainty, FoundCause
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.sources.bundle import Bundle
from gpu_healthcheck.diagnosis.sources.collect import Collector
from gpu_healthcheck.diagnosis.sources.kinds import KINDS
from gpu_healthcheck.diagnosis.sources.saved import read_saved
from gpu_healthcheck.healthcheck.cluster.errors import ClusterError, Forbidden, NotFound
from gpu_healthcheck.healthcheck.node.state import CONDITION, UNHEALTHY
from tests.diagnosis.states import NOW, Object, condition, judged, node, recorded, results
from tests.diagnosis.test_unscheduled import claimed, devices, taint_rule, tainted, taken

ADDRESS = "0000:53:00.0"
RULE = f"gpu-0 of node/a has the taint {UNHEALTHY}=REBOOT:NoSchedule by devicetaintrule/gpu-healthcheck.a.gpu-0"


def found(*state: Object) -> FoundCause:
    (problem,) = judged(*state).problems
    assert problem.found.cause.name == "DevicesTainted"
    return problem.found


def at(address: str, entry: Object) -> Object:
    """The slice, with devices at that address."""
    for device in entry["spec"]["devices"]:
        device["attributes"]["resource.kubernetes.io/pciBusID"] = {"string": address}
    return entry


def sick(*subjects: str) -> Object:
    """A node with Xid 79 of our agent on these GPUs, or another fault."""
    rows = [{"reason": "Xid79" if subject.endswith(ADDRESS) else "Other", "subject": subject} for subject in subjects]
    fields = condition(CONDITION, "False", "Xid79", "GPU has fallen off the bus")
    return node("a", None, annotations=recorded(*rows, status="fail", severity="REBOOT"), conditions=[fields])


@pytest.mark.parametrize(
    ("where", "device", "reasons"),
    [
        (sick(f"gpu/{ADDRESS}", "gpu/0000:64:00.0"), at(ADDRESS, devices("gpu-0")), ": Xid79"),
        (sick(), devices("gpu-0"), ": Xid79"),
        (node("a", None), devices("gpu-0"), ""),
    ],
    ids=["by its address", "by the node's condition", "unknown"],
)
def test_rule_of_the_agent_names_finding_and_remedy(where: Object, device: Object, reasons: str) -> None:
    result = found(where, *claimed(), device, taint_rule())

    assert result.evidence == (
        "resourceclaim/team/one-gpu requests 1 of class gpu.nvidia.com",
        "1 devices match, 0 are free",
        f"{RULE}{reasons}",
    )
    assert result.certainty is Certainty.PROVEN
    assert result.remedy == (
        *(["See the action for Xid79: `gpu-healthcheck explain Xid79`"] if reasons else ()),
        "When the GPU is fixed: `gpu-healthcheck release a --reason 'after repair'`",
    )


def test_unprocessed_rule_is_likely() -> None:
    result = found(node("a", None), *claimed(), devices("gpu-0"), taint_rule(heeded=False))
    assert result.certainty is Certainty.LIKELY
    assert result.evidence[-1] == f"{RULE}, which the cluster's controllers have not processed"


def test_rule_of_another_author_names_the_rule() -> None:
    taint = {"key": "team/maintenance", "effect": "NoExecute"}
    result = found(node("a", None), *claimed(), devices("gpu-0"), taint_rule(name="it's mine", taint=taint))
    evidence = "gpu-0 of node/a has the taint team/maintenance:NoExecute by devicetaintrule/it's mine"
    assert result.evidence[-1] == evidence
    assert result.remedy[-1] == """To remove the taint: `kubectl delete devicetaintrule 'it'"'"'s mine'`"""


def test_taint_of_the_driver_names_its_slice() -> None:
    result = found(node("a", None), *claimed(), tainted(devices("gpu-0")))
    taint = "gpu.nvidia.com/xid=79:NoSchedule in its ResourceSlice, from gpu.nvidia.com"
    assert result.evidence[-1] == f"gpu-0 of node/a has the taint {taint}"
    assert "kubectl get resourceslices --field-selector=spec.nodeName=a" in result.remedy[-1]


def asking(**request: Any) -> list[Object]:
    """A pod, its claim with this request, and the class."""
    pod, claim, known = claimed()
    claim["spec"]["devices"]["requests"][0]["exactly"] |= request
    return [pod, claim, known]


@pytest.mark.parametrize(
    ("request_", "devices_", "cause"),
    [
        ({"tolerations": [{"key": UNHEALTHY, "operator": "Exists"}]}, [devices("gpu-0")], "ClaimNotSatisfied"),
        ({"tolerations": [{"key": UNHEALTHY, "value": "RESET"}]}, [devices("gpu-0")], "DevicesTainted"),
        ({"count": 2}, [devices("gpu-0", "gpu-1")], "DevicesTainted"),
        ({"count": 2}, [devices("gpu-0", "gpu-1", "gpu-2")], "ClaimNotSatisfied"),
        ({"allocationMode": "All"}, [devices("gpu-0", "gpu-1", "gpu-2")], "DevicesTainted"),
        ({"allocationMode": "All"}, [devices("gpu-0"), devices("gpu-0", on="b")], "ClaimNotSatisfied"),
        ({"allocationMode": "All"}, [devices("gpu-0", "gpu-1"), taken("gpu-1")], "DevicesAllAllocated"),
    ],
)
def test_claim_is_blocked_by_taints_only_if_too_few_devices_remain(
    request_: dict[str, Any], devices_: list[Object], cause: str
) -> None:
    diagnosis = judged(node("a", None), node("b", None), *asking(**request_), *devices_, taint_rule())
    assert [name for name, _ in results(diagnosis)] == [cause]


STATE = [node("a", None), *claimed(), devices("gpu-0"), taint_rule()]


def test_saved_taint_rules_give_the_same_result(tmp_path: Path) -> None:
    bundle = Bundle()
    for entry in STATE:
        bundle.keep(entry["kind"], entry)
    bundle.write(tmp_path / "state.tar.gz", NOW, {}, [kind.kind for kind in KINDS])
    assert results(diagnose(read_saved([tmp_path / "state.tar.gz"]))) == results(judged(*STATE))


def collected(state: list[Object], version: str, error: ClusterError | None = None) -> Snapshot:
    """From an API server that serves the rules in that version, and answers a list of them with `error`."""
    kinds = {kind.resource: kind.kind for kind in KINDS}

    def objects(path: str, resource: str, _: Mapping[str, str]) -> Iterator[Object]:
        if resource == "devicetaintrules":
            if f"/{version}/" not in path:
                raise NotFound("no such resource")
            if error is not None:
                raise error
        yield from (entry for entry in state if entry["kind"] == kinds[resource])

    return Collector(objects).collect()


@pytest.mark.parametrize("version", ["v1beta2", "v1alpha3"])
def test_rules_are_listed_in_the_version_that_is_served(version: str) -> None:
    assert [rule.device for rule in collected(STATE, version).device_rules] == ["gpu-0"]


@pytest.mark.parametrize("error", [None, Forbidden("no", "list", "devicetaintrules")], ids=["none served", "no right"])
def test_unserved_or_forbidden_rules_are_not_reported(error: ClusterError | None) -> None:
    diagnosis = diagnose(collected([node("a")], "" if error is None else "v1beta2", error))
    assert (diagnosis.problems, diagnosis.unseen) == ((), ())


def test_unexplained_claim_mentions_invisible_rules() -> None:
    state = [node("a", None), *claimed(), devices("gpu-0")]
    (problem,) = judged(*state, missing=["DeviceTaintRule"]).problems
    assert problem.found.cause.name == "ClaimNotSatisfied"
    assert "whether a DeviceTaintRule keeps work off devices is not visible" in problem.found.evidence[-1]
