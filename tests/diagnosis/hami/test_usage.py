"""How much of their shares pods use, by HAMi's own metrics of each version."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import replace

from gpu_healthcheck.diagnosis.answers.allocation import allocation
from gpu_healthcheck.diagnosis.answers.chain import Chain
from gpu_healthcheck.diagnosis.answers.hami_chain import hami_chains
from gpu_healthcheck.diagnosis.causes.diagnose import diagnose
from gpu_healthcheck.diagnosis.hami.cards import MeasuredUse, card_row, measured_use
from gpu_healthcheck.diagnosis.report.document import cluster_document
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.hami_use import CORES, MEMORY, read_cores, read_memory
from gpu_healthcheck.diagnosis.sources.measured_use import with_shares
from tests.diagnosis.hami.hami_states import hami, hami_node, vgpu_pod
from tests.diagnosis.states import node, snapshot
from tests.hostile import ANY_TEXT
from tests.prometheus import PrometheusStandIn, Series, series

MIB = 1 << 20
NEW = {"namespace": "team", "pod": "x", "device_uuid": "GPU-a-0"}
OLD = {"podnamespace": "team", "podname": "x", "deviceuuid": "GPU-a-0"}
KEPT = {"namespace": "kube-system", "pod": "hami-device-plugin-a", "exported_namespace": "team", "exported_pod": "x"}
STATE = [*hami(hami_node("a")), vgpu_pod("x", on="a")]


def seen(memory: list[Series], cores: list[Series]) -> Snapshot:
    return replace(snapshot(*STATE), share_use=(*read_memory(memory), *read_cores(cores)))


@pytest.mark.parametrize("labels", [NEW, OLD, KEPT | {"device_uuid": "GPU-a-0"}], ids=["2.9", "2.8", "kept"])
def test_series_of_each_version_belong_to_a_pod(labels: dict[str, str]) -> None:
    fields = measured_use(seen([series(512 * MIB, **labels)], [series(37, **labels)]))
    assert fields == {("pod/team/x", "GPU-a-0"): MeasuredUse(512, 37)}
    assert str(fields["pod/team/x", "GPU-a-0"]) == "512 MiB, 37 %"


@pytest.mark.parametrize(
    "labels",
    [
        NEW | {"pod": "y"},
        NEW | {"device_uuid": "GPU-b-0"},
        {"device_uuid": "GPU-a-0"},
        {"namespace": "team", "pod": "x"},
    ],
    ids=["no pod of that name", "a card that it was not given", "no pod", "no card"],
)
def test_series_without_a_granted_share_is_ignored(labels: dict[str, str]) -> None:
    assert measured_use(seen([series(512 * MIB, **labels)], [])) == {}


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e400", "x", "9" * 50])
def test_value_that_is_no_amount_is_ignored(value: str) -> None:
    assert read_memory([series(value, **NEW)]) == ()


@given(ANY_TEXT)
def test_malformed_series_are_ignored(text: str) -> None:
    odd: list[object] = [text, None, {"metric": text}, {"metric": {"device_uuid": text}, "value": [0, text]}]
    assert len(read_memory(odd)) <= len(odd)


def test_used_and_allocated_amounts_are_both_shown() -> None:
    state = seen([series(512 * MIB, **NEW)], [])
    [shown] = allocation(state).nodes
    assert card_row(shown.cards[0], True, shown.used).pods == ("team/x (1024 MiB, 10 %; 512 MiB in use)",)
    [result] = cluster_document(allocation(state))["nodes"]
    assert result["cards"][0]["in_use"] == {"pod/team/x": {"memory_mib": 512, "cores_percent": None}}
    [chain] = _chains(state)
    assert chain.steps[-1].seen == "they run; 512 MiB of GPU-a-0 in use"


def test_monitor_is_queried_only_with_hami() -> None:
    with PrometheusStandIn({MEMORY: [series(512 * MIB, **NEW)]}) as world:
        assert measured_use(with_shares(snapshot(*STATE), world.url)) == {("pod/team/x", "GPU-a-0"): MeasuredUse(512)}
        assert with_shares(snapshot(node("a")), world.url).share_use == ()
    assert world.asked == [MEMORY, CORES]


def _chains(state: Snapshot) -> tuple[Chain, ...]:
    return hami_chains(state, (pod for pod in state.pods if pod.meta.name == "x"), diagnose(state).problems)
