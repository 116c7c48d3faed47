"""Result of one loopback test of a network device, whichever program ran it."""

from __future__ import annotations

from msgspec import Struct

from healthcheck.model import Unobserved


class Measured(Struct, frozen=True, tag=True):
    """Result in which all data arrived. `bandwidth` is in MB/s (10^6 bytes), with messages of `size` bytes."""

    bandwidth: float
    size: int


class Broken(Struct, frozen=True, tag=True):
    """Result if data was lost or changed, or the device refused to move it. `says` is the program's message."""

    says: str
    corrupt: bool = False


LoopbackResult = Measured | Broken | Unobserved


class Loopback(Struct, frozen=True):
    """Result of one device. `device` is its name in /sys/class/infiniband: `rdmap16s0`."""

    device: str
    answer: LoopbackResult


class LoopbackReading(Struct, frozen=True):
    """Results of all devices. `absent` is the reason if no test ran."""

    loopbacks: tuple[Loopback, ...] = ()
    absent: str = ""


def together(server: LoopbackResult | None, client: LoopbackResult | None) -> LoopbackResult | None:
    """Return the worse result of both sides; None if neither has one.

    At equal weight, the server's counts: if the server could not start, the client knows only that there is no
    listener.
    """
    answers = [measured for measured in (server, client) if measured is not None]
    return max(answers, key=_weight, default=None)


def _weight(answer: LoopbackResult) -> int:
    match answer:
        case Broken(corrupt=True):
            return 3
        case Broken():
            return 2
        case Unobserved():
            return 1
        case _:
            return 0
