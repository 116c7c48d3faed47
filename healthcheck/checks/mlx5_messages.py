"""Check: messages of the driver mlx5 about a device whose firmware stopped, and about the link of a port.

The forms are those of drivers/net/ethernet/mellanox/mlx5/core: health.c, cmd.c, en_main.c and main.c, of Linux 4.15 to
6.17.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from msgspec import Struct

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.roce_fabric import GROUP
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    KernelEvent,
    Nature,
    NotConfigured,
    Reason,
    Severity,
)
from gpu_healthcheck.healthcheck.model.node_facts import LINK
from gpu_healthcheck.healthcheck.probes import kernel_log

UNRECOVERABLE = Reason(
    "Mlx5Unrecoverable",
    Severity.REBOOT,
    "An mlx5 device of the GPU fabric failed: the driver could not recover it, or it reports a hardware error.",
    "Drain and reboot the node; power it off and on, or replace it, if the message recurs. It ends by itself when the"
    " driver reports a later recovery.",
    threshold="a line of the driver, at once; MONITOR until a check cycle has shown the devices of the GPU fabric",
    source="kernel, drivers/net/ethernet/mellanox/mlx5/core/health.c",
)
NOT_RESPONDING = Reason(
    "Mlx5NotResponding",
    Severity.MONITOR,
    "An mlx5 device of the GPU fabric does not respond: its firmware stopped its heartbeat or had a fatal error, a "
    "command or a send queue timed out, or the driver could not start it.",
    "Watch the port: drain and reboot the node if it is down or the message recurs.",
    threshold="a line of the driver, at once",
    source="kernel, drivers/net/ethernet/mellanox/mlx5/core/health.c, cmd.c, en_main.c and main.c",
)
RECOVERED, LINK_UP, LINK_DOWN = "Mlx5Recovered", "Mlx5LinkUp", "Mlx5LinkDown"
"""Names of messages that are not faults."""
NOT_COUNTED_YET = "mlx5_core: device not counted yet"
"""Rule of a message before the first check cycle has shown the devices of the GPU fabric."""
_BEGINS = "mlx5_core "
_ADDRESS = r"mlx5_core (?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_WHERE = r": (?:[0-9a-f:.]{12,16}:)?(?:\w{1,64}:\d{1,6}:(?:\(pid -?\d{1,10}\):)? )?"
"""Function, line and process of the message; earlier kernels write the address again, and some messages have none."""
_END = r"[.:]?\s*\Z"
_LONGEST_DETAIL = 200


class _Message(Struct, frozen=True):
    reason: Reason | str
    form: re.Pattern[str]


def _message(reason: Reason | str, pattern: str) -> _Message:
    return _Message(reason, re.compile(_ADDRESS + pattern + _END))


@cache
def _messages() -> tuple[_Message, ...]:
    """Return the known messages, compiled with the first line of the driver: few nodes have one."""
    return (
        _message(UNRECOVERABLE, _WHERE + r"Health issue observed, unrecoverable hardware error, severity\(\d\) [A-Z]+"),
        _message(UNRECOVERABLE, _WHERE + "synd 0x8: unrecoverable hardware error"),
        _message(UNRECOVERABLE, _WHERE + "health recovery failed"),
        _message(UNRECOVERABLE, _WHERE + "health recovery flow aborted, PCI reads still not working"),
        _message(NOT_RESPONDING, _WHERE + "device's health compromised - reached miss count"),
        _message(
            NOT_RESPONDING,
            _WHERE
            + r"(?:cmd\[\d{1,4}\]: )?[A-Z0-9_ ]{2,64}\(0x[0-9a-f]{1,8}\) (?:Async, )?"
            + r"timeout\. Will cause a leak of a command resource",
        ),
        _message(NOT_RESPONDING, _WHERE + r"Fatal error \d{1,3} detected"),
        _message(NOT_RESPONDING, _WHERE + r"mlx5_(?:init|load)_one failed with error code -?\d{1,4}"),
        _message(NOT_RESPONDING, r" \S{1,15}: TX timeout detected"),
        # Before Linux 5.13 the words were misspelt.
        _message(RECOVERED, _WHERE + r"health re(?:covery succeeded|vovery succeded)"),
        _message(LINK_DOWN, r" \S{1,15}: Link down"),
        _message(LINK_UP, r" \S{1,15}: Link up"),
    )


def judge(evidence: Evidence, expected: Expectation) -> Iterator[Judgement]:
    for record in evidence[kernel_log.RING]:
        if record.text.startswith(_BEGINS) and (event := read_message(record, expected)):
            yield event
    if not (expected.is_capture or expected.first.rdma):
        yield NotConfigured("no port of an mlx5 device was active yet")


def read_message(record: kernel_log.Record, expected: Expectation) -> KernelEvent | None:
    """Parse one line of the driver. Return None if it matches no known message."""
    for message in _messages():
        if found := message.form.match(record.text):
            return _event(record, message.reason, found["address"], expected)
    return None


def _event(record: kernel_log.Record, reason: Reason | str, address: str, expected: Expectation) -> KernelEvent:
    detail = " ".join(record.text.removeprefix(_BEGINS).split())[:_LONGEST_DETAIL]
    ports = expected.first.rdma
    port = ports.get(address) if ports is not None else None
    subject = f"rdma/{port.name if port else address}"
    if isinstance(reason, str):
        return KernelEvent(reason, subject, record.seq, record.at, detail=detail)
    event = KernelEvent(reason.name, subject, record.seq, record.at, None, detail)
    is_unknown = ports is None and not expected.is_capture
    if ports is not None and (port is None or port.released == LINK):
        return event  # not of the GPU fabric, or no longer used
    severity, rule = (Severity.MONITOR, NOT_COUNTED_YET) if is_unknown else (reason.severity, reason.name)
    finding = Finding(reason.name, severity, subject, detail, rule=rule, seq=record.seq, at=record.at)
    return KernelEvent(reason.name, subject, record.seq, record.at, finding, detail)


CHECK = Check(
    "mlx5-messages",
    GROUP,
    (kernel_log.RING,),
    judge,
    (UNRECOVERABLE, NOT_RESPONDING),
    Nature.EVENT,
    (_BEGINS,),
)
