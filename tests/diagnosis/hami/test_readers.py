"""HAMi's texts on nodes and pods, of each version, as they are read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from diagnosis.snapshot.hami_node import (
    Card,
    HamiNode,
    HandshakeState,
    MigProfile,
    RegistrationFormat,
    read_hami_node,
)
from diagnosis.snapshot.hami_pod import (
    BindPhase,
    CardOptions,
    ContainerShare,
    MigInstance,
    read_card_options,
    read_grant,
)
from diagnosis.snapshot.json_fields import Fields
from diagnosis.snapshot.nodes import read_node
from tests.diagnosis.states import node
from tests.hostile import ANY_TEXT

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
REGISTER = "hami.io/node-nvidia-register"
V100 = {"id": "GPU-1", "count": 10, "devmem": 32768, "devcore": 100, "type": "NVIDIA-Tesla V100-PCIE-32GB"}
"""As Go writes the first card the first one NUMA node: what is 0 or false is left out."""
A100 = V100 | {"id": "GPU-2", "index": 1, "numa": 1, "mode": "mig", "health": True}
PROFILE = {"name": "1g.10gb", "memoryMB": 9856, "core": 14, "sliceCount": 1, "placements": [{"size": 1}, {"start": 6}]}


def on_node(**annotations: str) -> HamiNode:
    return read_hami_node({f"hami.io/{key.replace('_', '-')}": text for key, text in annotations.items()})


CARDS: list[tuple[str, RegistrationFormat, list[Card]]] = [
    (
        json.dumps([V100, A100 | {"migProfiles": [PROFILE]}]),
        RegistrationFormat.JSON,
        [
            Card("GPU-1", 0, 10, 32768, 100, V100["type"], healthy=False, numa=0, mode=""),  # type: ignore[arg-type]
            Card(
                "GPU-2",
                1,
                10,
                32768,
                100,
                str(V100["type"]),
                healthy=True,
                numa=1,
                mode="mig",
                profiles=(MigProfile("1g.10gb", 9856, 14, 1, ((0, 1), (6, 0))),),
            ),
        ],
    ),
    ("[]", RegistrationFormat.JSON, []),
    (
        "GPU-1,10,32768,100,NVIDIA-V100,0,true:GPU-2,10,32768,100,NVIDIA-V100,1,false:",
        RegistrationFormat.TEXT,
        [
            Card("GPU-1", 0, 10, 32768, 100, "NVIDIA-V100", healthy=True),
            Card("GPU-2", 1, 10, 32768, 100, "NVIDIA-V100", healthy=False, numa=1),
        ],
    ),
    (
        "GPU-1,4,49152,200,NVIDIA-NVIDIA A40,-1,true,3,mig:",
        RegistrationFormat.TEXT,
        [Card("GPU-1", 3, 4, 49152, 200, "NVIDIA-NVIDIA A40", healthy=True, numa=-1, mode="mig")],
    ),
]


@pytest.mark.parametrize(("text", "form", "cards"), CARDS, ids=["json", "no card", "7 fields", "9 fields"])
def test_each_versions_registration_is_read(text: str, form: RegistrationFormat, cards: list[Card]) -> None:
    parsed = read_hami_node({REGISTER: text}).registration
    assert parsed is not None
    assert (parsed.form, list(parsed.cards), parsed.unreadable) == (form, cards, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "GPU-1,10,32768,100,NVIDIA-V100,0,true",
        "GPU-1,10,32768,100,NVIDIA-V100,0:",
        "GPU-1,10,32768,100,NVIDIA-V100,0,true:GPU-2,ten,32768,100,NVIDIA-V100,0,true:",
        "GPU-1,10,32768,100,NVIDIA-V100,0,perhaps:",
        "GPU-1,10,99999999999,100,NVIDIA-V100,0,true:",
        '[{"id": "GPU-1", "count": "ten"}]',
        '[{"id": "GPU-1", "devmem": -1}]',
        '[{"id": "GPU-1", "devmem": 1.5}]',
        "[null]",
        "[" * 5000,
    ],
)
def test_a_registration_that_hami_refuses_is_one_that_nobody_can_read(text: str) -> None:
    parsed = read_hami_node({REGISTER: text}).registration
    assert parsed is not None
    assert parsed.unreadable
    assert not parsed.cards


@pytest.mark.parametrize("text", [CARDS[0][0], CARDS[2][0]], ids=["json", "text"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n    ", "\\n"])
def test_line_ends_in_a_registration_change_nothing(text: str, line_end: str) -> None:
    broken = line_end.join((text[:30], text[30:52], text[52:], ""))
    entry = node("a", metadata={"annotations": {REGISTER: broken}})
    assert read_node(Fields(entry)).hami == on_node(node_nvidia_register=text)


def test_other_vendors_register_in_the_same_forms() -> None:
    node = on_node(node_dcu_register="D1,4,16384,100,DCU,0,true,0,hami-core:", node_register_Ascend910B="[]")
    assert [(each.vendor, each.form, len(each.cards)) for each in node.registrations] == [
        ("Ascend910B", RegistrationFormat.JSON, 0),
        ("dcu", RegistrationFormat.TEXT, 1),
    ]


HANDSHAKES: list[tuple[str, HandshakeState, datetime | None, bool]] = [
    (
        "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.77",
        HandshakeState.REPORTED,
        datetime(2024, 1, 23, 4, 30, 4, tzinfo=UTC),
        True,
    ),
    (
        "Reported 2024-01-23 12:30:04.4 +0800 CST m=+1",
        HandshakeState.REPORTED,
        datetime(2024, 1, 23, 4, 30, 4, tzinfo=UTC),
        True,
    ),
    ("Requesting_2024.01.23 04:30:04", HandshakeState.REQUESTING, datetime(2024, 1, 23, 4, 30, 4, tzinfo=UTC), False),
    ("Requesting_2026-07-16 10:08:42", HandshakeState.REQUESTING, datetime(2026, 7, 16, 10, 8, 42, tzinfo=UTC), False),
    ("Deleted_2026-07-16 10:08:42", HandshakeState.DELETED, datetime(2026, 7, 16, 10, 8, 42, tzinfo=UTC), False),
    ("1784196522", HandshakeState.OTHER, datetime(2026, 7, 16, 10, 8, 42, tzinfo=UTC), True),
    ("Requesting_2026-13-16 10:08:42", HandshakeState.REQUESTING, None, False),
    ("anything", HandshakeState.OTHER, None, False),
]


@pytest.mark.parametrize(("text", "state", "at", "zoned"), HANDSHAKES)
def test_each_versions_handshake_is_read(text: str, state: HandshakeState, at: datetime | None, zoned: bool) -> None:
    parsed = on_node(node_handshake=text).handshake
    assert parsed is not None
    assert (parsed.said, parsed.at) == (state, at)
    assert parsed.at is None or parsed.zoned == zoned


def test_the_handshake_of_another_vendor_is_not_nvidias() -> None:
    assert on_node(node_handshake_dcu="Requesting_2026-07-16 10:08:42").handshake is None


@pytest.mark.parametrize(
    ("text", "at", "pod"),
    [
        ("2026-11-22T11:50:00Z,team,trainer-0", datetime(2026, 11, 22, 11, 50, tzinfo=UTC), "pod/team/trainer-0"),
        ("2026-11-22T19:50:00+08:00", datetime(2026, 11, 22, 11, 50, tzinfo=UTC), ""),
        ("soon,team", None, ""),
    ],
)
def test_a_lock_tells_since_when_and_for_whom(text: str, at: datetime | None, pod: str) -> None:
    lock = read_hami_node({"hami.io/mutex.lock": text}).lock
    assert lock is not None
    assert (lock.at, lock.pod) == (at, pod)


def test_a_pods_grant_is_read_container_by_container() -> None:
    pod_grant = read_grant(
        {
            "hami.io/vgpu-node": "gpu-1",
            "hami.io/vgpu-time": "1784196522",
            "hami.io/vgpu-devices-allocated": ";GPU-1,NVIDIA,4096,30:GPU-2,NVIDIA,4096,30:;GPU-1,NVIDIA,1,0:;",
            "hami.io/vgpu-devices-to-allocate": ";;",
            "hami.io/dcu-devices-allocated": "D1,DCU,1024,10:;",
            "hami.io/bind-phase": "allocating",
            "hami.io/bind-time": "1784196523",
            "hami.io/vgpu-mig-allocations": json.dumps(
                [{"containerIndex": 1, "gpuUUID": "GPU-1", "profile": "1g.10gb", "placement": {"size": 1}}]
            ),
        }
    )
    assert pod_grant is not None
    assert (pod_grant.node, pod_grant.phase) == ("gpu-1", BindPhase.ALLOCATING)
    assert pod_grant.containers == (
        (),
        (ContainerShare("GPU-1", 4096, 30), ContainerShare("GPU-2", 4096, 30)),
        (ContainerShare("GPU-1", 1, 0),),
    )
    assert pod_grant.mig == (MigInstance("GPU-1", 0, 1),)


def test_a_pod_that_hami_never_saw_has_no_grant() -> None:
    assert read_grant({"nvidia.com/use-gputype": "A100"}) is None


@pytest.mark.parametrize("text", ["GPU-1,NVIDIA,4096:;", "GPU-1,NVIDIA,many,0:;", ",NVIDIA,1,0:;", "x" * 100_000])
def test_a_grant_that_hami_refuses_has_no_cards(text: str) -> None:
    pod_grant = read_grant({"hami.io/vgpu-devices-allocated": text})
    assert pod_grant is not None
    assert pod_grant.containers == ()


def test_card_options_are_those_of_the_pod() -> None:
    written = {
        "nvidia.com/use-gputype": "A100,h100",
        "nvidia.com/nouse-gpuuuid": " GPU-1 , GPU-2",
        "nvidia.com/numa-bind": "T",
        "nvidia.com/vgpu-mode": "mig",
        "hami.io/gpu-scheduler-policy": "mutex",
    }
    options = read_card_options(written | {"other.io/key": "x"})
    assert options == CardOptions(
        use_types=("A100", "h100"),
        avoid_uuids=(" GPU-1 ", " GPU-2"),
        numa_bind=True,
        mode="mig",
        gpu_policy="mutex",
        written=written,
    )


def test_cards_that_a_person_cordoned_are_listed() -> None:
    assert on_node(device_cordon=" GPU-1, ,GPU-2").cordoned == {"GPU-1", "GPU-2"}


@given(text=ANY_TEXT)
def test_no_text_breaks_a_reader(text: str) -> None:
    keys = (REGISTER, "hami.io/node-handshake", "hami.io/mutex.lock", "hami.io/device-cordon")
    entries: list[Any] = [read_hami_node(dict.fromkeys(keys, text))]
    pod = dict.fromkeys(("hami.io/vgpu-devices-allocated", "hami.io/vgpu-node"), text)
    entries += [read_grant(pod), read_card_options({"nvidia.com/vgpu-mode": text}).mode]
    assert len(repr(entries)) < 20_000
