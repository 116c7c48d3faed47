"""HAMi's codes for why a card or a node does not take a pod, and the forms in which it tells them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Code(Enum):
    """The value is HAMi's own word, in the order in which it looks at a card."""

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


def told(counts: Mapping[Code, int], cards: int) -> str:
    """As HAMi puts it: `3/8 CardInsufficientMemory, 5/8 CardInsufficientCore`. Its own order is by chance."""
    order = list(Code)
    return ", ".join(
        f"{number}/{cards} {code.value}" for code, number in sorted(counts.items(), key=lambda one: order.index(one[0]))
    )
