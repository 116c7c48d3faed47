"""Observations of a cycle on GPUs and container runtime, in the record's format for a diagnosis."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.text.boundary import as_json
from gpu_healthcheck.healthcheck.verdict.inventory import (
    LONGEST,
    DeviceFilesRow,
    Inventory,
    RuntimeRow,
    ToolkitRow,
    read,
    within_limit,
)

WHOLE = Inventory(
    pci=8,
    nvml=7,
    driver="570.133.20",
    device_files=DeviceFilesRow(gpus=8, others=("nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")),
    runtime=RuntimeRow(
        config="/var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml",
        socket="/var/lib/k8s-containerd/k8s-containerd/run/containerd/containerd.sock",
        default="runc",
        cdi=False,
        handlers=("runc",),
        others=("/etc/containerd/config.toml",),
        nvidia_in=("/etc/containerd/config.toml",),
    ),
    toolkit=ToolkitRow(config="/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml", mode="cdi"),
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["pci", "nvml", "driver", "device_files", "gpus", "runtime", "toolkit", "handlers", "cdi", "config", "others"]
)


@pytest.mark.parametrize("inventory", [WHOLE, Inventory(), Inventory(runtime=RuntimeRow(handlers=()))])
def test_written_text_is_read_back(inventory: Inventory) -> None:
    assert read(json.loads(json.dumps(as_json(inventory)))) == inventory
    assert within_limit(inventory) == inventory


def test_it_is_never_longer_than_it_may_be() -> None:
    long = "x" * 5000
    runtime = RuntimeRow(
        config=long,
        socket=long,
        default=long,
        cdi=True,
        handlers=(long,) * 99,
        others=(long,) * 9,
        nvidia_in=(long,) * 9,
    )
    inventory = within_limit(Inventory(pci=8, nvml=8, driver=long, runtime=runtime, toolkit=ToolkitRow(long, long)))
    assert len(json.dumps(as_json(inventory)).encode()) <= LONGEST
    assert (inventory.pci, inventory.nvml) == (8, 8)


@given(st.dictionaries(_KEYS, _ANYTHING | st.dictionaries(_KEYS, _ANYTHING)))
def test_foreign_content_is_bounded_and_typed(raw: dict[str, object]) -> None:
    inventory = within_limit(read(raw))
    assert len(json.dumps(as_json(inventory)).encode()) <= LONGEST
    assert read(as_json(inventory)) == inventory
