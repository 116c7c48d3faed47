"""Collect the devices that DRA drivers publish, and the taints that keep claims off some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product

from msgspec import Struct

from diagnosis.facts.placement import tolerates
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.dra import DeviceTaintRule, SliceDevice
from diagnosis.snapshot.grouping import grouped
from diagnosis.snapshot.nodes import Taint
from diagnosis.snapshot.pods import Toleration
from healthcheck.node.device_pools import is_whole
from healthcheck.node.state import KEEPS_AWAY


class PublishedDevice(Struct, frozen=True):
    """Published device. `name` has the form used in a claim's allocation: driver/pool/device."""

    name: str
    driver: str
    pool: str
    node: str
    device: SliceDevice


class BlockingTaint(Struct, frozen=True):
    """Taint that keeps a claim off a device. If `rule` is None, it is part of the driver's ResourceSlice."""

    offer: PublishedDevice
    taint: Taint
    rule: DeviceTaintRule | None = None


@lru_cache(maxsize=1)
def offered(snapshot: Snapshot) -> tuple[PublishedDevice, ...]:
    slices = (resource_slice for pool in snapshot.pools.values() for resource_slice in pool)
    return tuple(
        PublishedDevice(f"{piece.driver}/{piece.pool}/{device.name}", piece.driver, piece.pool, piece.node, device)
        for piece in slices
        for device in piece.devices
    )


def published_anew(snapshot: Snapshot, driver: str) -> Iterator[str]:
    """Yield pools that may offer more than their visible slices show. `driver`: '' for any."""
    for (of, name), pool in snapshot.pools.items():
        if driver in ("", of) and not is_whole(pool):
            yield (
                f"the driver is publishing its pool {of}/{name} again: {len(pool)} of {pool[0].count} ResourceSlices"
            )


def shut(
    snapshot: Snapshot, some: Iterable[PublishedDevice], tolerations: Iterable[Toleration]
) -> dict[str, BlockingTaint]:
    """Return, by device name, the first taint that no toleration covers."""
    found = {}
    for offer in some:
        for taint in _taints(snapshot, offer):
            if taint.taint.effect in KEEPS_AWAY and not tolerates(tolerations, taint.taint):
                found[offer.name] = taint
                break
    return found


def _taints(snapshot: Snapshot, offer: PublishedDevice) -> Iterator[BlockingTaint]:
    """Yield the taints on the device, those of rules first, because the author of a rule can explain it."""
    for place in product(("", offer.driver), ("", offer.pool), ("", offer.device.name)):
        for rule in _rules(snapshot).get(place, ()):
            yield BlockingTaint(offer, rule.taint, rule)
    for taint in offer.device.taints:
        yield BlockingTaint(offer, taint)


@lru_cache(maxsize=1)
def _rules(snapshot: Snapshot) -> Mapping[tuple[str, str, str], list[DeviceTaintRule]]:
    """Return the rules by driver, pool and device; '' for any."""
    return grouped(((rule.driver, rule.pool, rule.device), rule) for rule in snapshot.device_rules if rule.selects)
