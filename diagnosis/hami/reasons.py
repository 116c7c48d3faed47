"""Codes with which HAMi explains why a card or a node does not fit a pod, and their text forms. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Code(Enum):
    """Reason code. The value is HAMi's own word; the order is that of its checks of a card."""

    NO_SUCH_NUMBER = "NodeInsufficientDevice"
    UNHEALTHY = "CardNotHealth"
    CORDONED = "CardCordoned"
    TYPE = "CardTypeMismatch"
    NUMA = "NumaNotFit"
    UUID = "CardUuidMismatch"
    SLOTS = "CardTimeSlicingExhausted"
    QUOTA = "ResourceQuotaNotFit"
    MEMORY = "CardInsufficientMemory"
    CORES = "CardInsufficientCore"
    EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
    COMPUTE = "CardComputeUnitsExhausted"
    CUSTOM = "CardNotFoundCustomFilterRule"
    MIG = "CardMigTopologyInfeasible"
    TOO_FEW = "AllocatedCardsInsufficientRequest"


UNREGISTERED = "node unregistered"


def reason_text(counts: Mapping[Code, int], cards: int) -> str:
    """Format counts as HAMi does: `3/8 CardInsufficientMemory, 5/8 CardInsufficientCore`.

    HAMi's own order is random.
    """
    order = list(Code)
    return ", ".join(
        f"{number}/{cards} {code.value}"
        for code, number in sorted(counts.items(), key=lambda pair: order.index(pair[0]))
    )
