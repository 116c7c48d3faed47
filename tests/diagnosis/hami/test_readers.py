"""HAMi's annotations on nodes and pods, in the formats of each version."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from gpu_healthcheck.diagnosis.snapshot.hami_node import Card, HamiNode, RegistrationFormat, read_hami_node
from gpu_healthcheck.diagnosis.snapshot.hami_pod import (
    BindPhase,
    CardOptions,
    ContainerShare,
    read_card_options,
    read_grant,
)
from gpu_healthcheck.diagnosis.snapshot.nodes import read_node
from tests.diagnosis.states import node
from tests.hostile import ANY_TEXT

REGISTER = "hami.io/node-nvidia-register"
V100 = {"id": "GPU-1", "count": 10, "devmem": 32768, "devcore": 100, "type": "NVIDIA-Tesla V100-PCIE-32GB"}
"""As Go writes the first card on the first NUMA node: what is 0 or false is left out."""
A100 = V100 | {"id": "GPU-2", "index": 1, "numa": 1, "mode": "mig", "health": True}
PROFILES = [{"name": "1g.10gb", "memoryMB": 9856, "placements": [{"size": 1}]}, {"name": "3g.40gb", "memoryMB": 40192}]


def on_node(**annotations: str) -> HamiNode:
    return read_hami_node({f"hami.io/{key.replace('_', '-')}": text for key, text in annotations.items()})


CARDS: list[tuple[str, RegistrationFormat, list[Card]]] = [
    (
        json.dumps([V100, A100 | {"migProfiles": PROFILES}]),
        RegistrationFormat.JSON,
        [
            Card("GPU-1", 0, 10, 32768, 100, "NVIDIA-Tesla V100-PCIE-32GB", healthy=False, mode=""),
            Card("GPU-2", 1, 10, 32768, 100, "NVIDIA-Tesla V100-PCIE-32GB", True, 1, "mig", largest_profile=40192),
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
def test_registration_has_cards(text: str, form: RegistrationFormat, cards: list[Card]) -> None:
    registration = read_hami_node({REGISTER: text}).registration
    assert registration is not None
    assert (registration.form, list(registration.cards), registration.unreadable) == (form, cards, "")


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
def test_malformed_registration_is_unreadable(text: str) -> None:
    registration = read_hami_node({REGISTER: text}).registration
    assert registration is not None
    assert registration.unreadable
    assert not registration.cards


@pytest.mark.parametrize("text", [CARDS[0][0], CARDS[2][0]], ids=["json", "text"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n    ", "\\n"])
def test_line_ends_in_a_registration_are_removed(text: str, line_end: str) -> None:
    broken = line_end.join((text[:30], text[30:52], text[52:], ""))
    entry = node("a", metadata={"annotations": {REGISTER: broken}})
    assert read_node(entry).hami == on_node(node_nvidia_register=text)


def test_registrations_of_other_vendors_are_read() -> None:
    node = on_node(node_dcu_register="D1,4,16384,100,DCU,0,true,0,hami-core:", node_register_Ascend910B="[]")
    assert [(each.vendor, each.form, len(each.cards)) for each in node.registrations] == [
        ("Ascend910B", RegistrationFormat.JSON, 0),
        ("dcu", RegistrationFormat.TEXT, 1),
    ]


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.77", None),
        ("Requesting_2024.01.23 04:30:04", datetime(2024, 1, 23, 4, 30, 4, tzinfo=UTC)),
        ("Requesting_2026-07-16 10:08:42", datetime(2026, 7, 16, 10, 8, 42, tzinfo=UTC)),
        ("Deleted_2026-07-16 10:08:42", datetime(2026, 7, 16, 10, 8, 42, tzinfo=UTC)),
        ("1784196522", None),
        ("Requesting_2026-13-16 10:08:42", None),
    ],
)
def test_handshake_is_unanswered_since_the_request(text: str, since: datetime | None) -> None:
    handshake = on_node(node_handshake=text).handshake
    assert handshake is not None
    assert (handshake.annotation, handshake.unanswered_since) == (text, since)


def test_handshake_of_another_vendor_is_ignored() -> None:
    assert on_node(node_handshake_dcu="Requesting_2026-07-16 10:08:42").handshake is None


@pytest.mark.parametrize(
    ("text", "at", "pod"),
    [
        ("2026-11-22T11:50:00Z,team,trainer-0", datetime(2026, 11, 22, 11, 50, tzinfo=UTC), "pod/team/trainer-0"),
        ("2026-11-22T19:50:00+08:00", datetime(2026, 11, 22, 11, 50, tzinfo=UTC), ""),
        ("soon,team", None, ""),
    ],
)
def test_lock_has_its_time_and_owner(text: str, at: datetime | None, pod: str) -> None:
    lock = read_hami_node({"hami.io/mutex.lock": text}).lock
    assert lock is not None
    assert (lock.at, lock.pod) == (at, pod)


def test_grant_has_the_shares_of_each_container() -> None:
    grant = read_grant(
        {
            "hami.io/vgpu-node": "gpu-1",
            "hami.io/vgpu-time": "1784196522",
            "hami.io/vgpu-devices-allocated": ";GPU-1,NVIDIA,4096,30:GPU-2,NVIDIA,4096,30:;GPU-1[0-2],NVIDIA,1,0:;",
            "hami.io/vgpu-devices-to-allocate": ";;",
            "hami.io/dcu-devices-allocated": "D1,DCU,1024,10:;",
            "hami.io/bind-phase": "allocating",
            "hami.io/bind-time": "1784196523",
        }
    )
    assert grant is not None
    assert (grant.node, grant.phase) == ("gpu-1", BindPhase.ALLOCATING)
    assert grant.containers == (
        (),
        (ContainerShare("GPU-1", 4096, 30), ContainerShare("GPU-2", 4096, 30)),
        (ContainerShare("GPU-1[0-2]", 1, 0),),
    )
    assert [share.card for share in grant.shares] == ["GPU-1", "GPU-2", "GPU-1"]


def test_pod_without_annotations_of_the_scheduler_has_no_grant() -> None:
    assert read_grant({"nvidia.com/use-gputype": "A100"}) is None


@pytest.mark.parametrize("text", ["GPU-1,NVIDIA,4096:;", "GPU-1,NVIDIA,many,0:;", ",NVIDIA,1,0:;", "x" * 100_000])
def test_malformed_grant_has_no_cards(text: str) -> None:
    grant = read_grant({"hami.io/vgpu-devices-allocated": text})
    assert grant is not None
    assert grant.containers == ()


def test_card_options_are_those_of_the_pod() -> None:
    annotations = {
        "nvidia.com/use-gputype": "A100, ,h100",
        "nvidia.com/nouse-gputype": ",",
        "nvidia.com/nouse-gpuuuid": " GPU-1 , GPU-2",
        "nvidia.com/numa-bind": "T",
        "nvidia.com/vgpu-mode": "mig",
        "hami.io/gpu-scheduler-policy": "mutex",
    }
    assert read_card_options(annotations | {"other.io/key": "x"}) == CardOptions(
        use_types=("A100", "h100"),
        avoid_uuids=("GPU-1", "GPU-2"),
        numa_bind=True,
        mode="mig",
        gpu_policy="mutex",
        annotations=annotations,
    )


def test_cordoned_cards_are_listed() -> None:
    assert on_node(device_cordon=" GPU-1, ,GPU-2").cordoned == {"GPU-1", "GPU-2"}


@given(text=ANY_TEXT)
def test_any_text_is_read(text: str) -> None:
    keys = (REGISTER, "hami.io/node-handshake", "hami.io/mutex.lock", "hami.io/device-cordon")
    results: list[Any] = [read_hami_node(dict.fromkeys(keys, text))]
    pod = dict.fromkeys(("hami.io/vgpu-devices-allocated", "hami.io/vgpu-node"), text)
    results += [read_grant(pod), read_card_options({"nvidia.com/vgpu-mode": text}).mode]
    assert len(repr(results)) < 20_000
