"""Output of fi_pingpong in all forms of its source: tables, errors by the failed call, and noise."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.host.command import ProgramEnd
from gpu_healthcheck.healthcheck.model import Unobserved
from gpu_healthcheck.healthcheck.probes.efa.loopback import NOT_RUN, read_side
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, LoopbackResult, Measured, together
from tests.captures.saving import saved_and_read

HEAD = b"bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
TABLE = HEAD + (
    b"64      10      =10      1.2k        0.04s      0.03    2011.25       0.00\n"
    b"256     10      =10      5k          0.00s     36.83       6.95       0.14\n"
    b"1k      10      =10      20k         0.00s    130.45       7.85       0.13\n"
    b"4k      10      =10      80k         0.00s    518.48       7.90       0.13\n"
    b"64k     10      =10      1.2m        0.02s     67.99     963.85       0.00\n"
    b"1m      10      =10      20m         0.00s   5282.50     198.50       0.01\n"
)
"""Of version 1.17 on the tcp provider, as it was written."""
CORRUPT = b"Error at iteration=3 size=65536 byte=4711\n"
CLOSING = "[error] util/pingpong.c:1999: fi_close (-16) fid 3\n"


def call(name: str, number: int, text: str = "as it is said") -> str:
    """As PP_PRINTERR writes it; the place is padded to four digits."""
    return f"{name}(): util/pingpong.c:{460:<4d}, ret=-{number} ({text})\n"


def error(text: str) -> str:
    return f"[error] util/pingpong.c:{408:<4d}: {text}\n"


def ended(code: int, err: str = "", out: bytes = b"") -> ProgramEnd:
    return ProgramEnd(code, out, err.encode())


def test_the_speed_is_that_of_the_largest_message() -> None:
    assert read_side(ended(0, out=TABLE)) == Measured(5282.5, 1 << 20)


@pytest.mark.parametrize(
    ("row", "bandwidth", "size"),
    [
        (b"1m      1k      =1k      1.9g        0.46s   4544.51     230.74       0.00", 4544.51, 1 << 20),
        (b"1.5m    100     =100     300m        0.10s    812.00     230.74       0.00", 812.0, 3 << 19),
        (b"6m      100     =100     1.1g        1.00s   1200.00     230.74       0.00", 1200.0, 6 << 20),
        (b"64      10m     =10m     1.1g      123.45s     10.36       6.17       0.16", 10.36, 64),
        (b"1g      1       =1       2g          1.00s   2147.48 1000000.00       0.00", 2147.48, 1 << 30),
        (b"1m      100     -3       200m        0.10s   2000.00     500.00       0.00", 2000.0, 1 << 20),
        (
            b"client: rdm ping  1m      100     =100     200m        0.10s   2000.00     500.00       0.00",
            2000.0,
            1 << 20,
        ),
        (b"1m      100     =100     200m        0.10s12345678.25     500.00       0.00", 12345678.25, 1 << 20),
    ],
)
def test_every_form_of_a_row_is_read(row: bytes, bandwidth: float, size: int) -> None:
    assert read_side(ended(0, out=HEAD + row + b"\n")) == Measured(bandwidth, size)


def test_unacknowledged_messages_are_a_fault() -> None:
    row = b"1m      100     +3       200m        0.10s   2000.00     500.00       0.00\n"

    assert read_side(ended(0, out=TABLE + row)) == Broken("3 of 100 messages were not acknowledged")


@pytest.mark.parametrize(
    "out",
    [
        b"",
        HEAD,
        b"1m      100     =100     200m        0.00s       inf       0.00        inf\n",
        b"1m      100     =100     200m\n",
        b"a table of other numbers\n1 2 3 4 5 6 7 8\n",
    ],
)
def test_run_without_a_measurement_is_unobserved(out: bytes) -> None:
    """A message longer than the endpoint takes is left out without a word, with the exit code 0."""
    assert read_side(ended(0, out=out)) == Unobserved(
        NOT_RUN, "fi_pingpong ended without an error and without a measurement"
    )


@pytest.mark.parametrize("code", [255, 0])
def test_data_that_came_back_changed_is_corrupt_whatever_else_is_there(code: int) -> None:
    found = read_side(ended(code, CLOSING, TABLE + CORRUPT))

    assert found == Broken("data was changed in a message of 65536 bytes", corrupt=True)


@pytest.mark.parametrize(
    ("code", "err", "message"),
    [
        (5, error("cq_readerr: Unresponsive remote"), "ended with exit code 5: cq_readerr: Unresponsive remote"),
        (0, error("cq_readerr: Unknown error"), "ended with exit code 0: cq_readerr: Unknown error"),
        (
            5,
            error("cq_readerr: RNR") + error("Failed to get transmit completion") + CLOSING,
            "ended with exit code 5: cq_readerr: RNR",
        ),
        (110, call("transmit", errno.ETIMEDOUT), "ended with exit code 110: transmit: as it is said"),
        (5, call("inject", errno.EIO), "ended with exit code 5: inject: as it is said"),
        (5, call("receive", errno.EIO), "ended with exit code 5: receive: as it is said"),
        (5, call("pp_get_cq_comp", errno.EIO), "ended with exit code 5: pp_get_cq_comp: as it is said"),
        (62, call("fi_enable", errno.ETIME), "ended with exit code 62: fi_enable: as it is said"),
        (19, call("fi_domain", errno.ENODEV), "ended with exit code 19: fi_domain: as it is said"),
        (6, call("fi_domain", errno.ENXIO), "ended with exit code 6: fi_domain: as it is said"),
        (5, "a provider's warning\n" + call("fi_endpoint", errno.EIO) + CLOSING, None),
    ],
)
def test_refusal_of_the_device_is_its_fault(code: int, err: str, message: str | None) -> None:
    found = read_side(ended(code, err))

    assert found == Broken(f"fi_pingpong {message or 'ended with exit code 5: fi_endpoint: as it is said'}")


COULD_NOT_RUN = [
    (61, call("fi_getinfo", errno.ENODATA, "No data available"), "fi_getinfo: No data available"),
    (19, call("fi_getinfo", errno.ENODEV), "fi_getinfo: as it is said"),
    (12, call("fi_endpoint", errno.ENOMEM), "fi_endpoint: as it is said"),
    (12, call("receive", errno.ENOMEM), "receive: as it is said"),
    (13, call("fi_domain", errno.EACCES), "fi_domain: as it is said"),
    (1, call("fi_domain", errno.EPERM), "fi_domain: as it is said"),
    (38, call("fi_av_open", errno.ENOSYS), "fi_av_open: as it is said"),
    (98, call("bind", errno.EADDRINUSE, "Address already in use"), "bind: Address already in use"),
    (22, call("setsockopt(SO_REUSEADDR)", errno.EINVAL), "setsockopt(SO_REUSEADDR): as it is said"),
    (111, error("failed to connect: Connection refused"), "failed to connect: Connection refused"),
    (110, error("failed to connect: Connection timed out"), "failed to connect: Connection timed out"),
    (1, error("getaddrinfo : Name or service not known"), "getaddrinfo : Name or service not known"),
    (1, "fi_pingpong: invalid option -- 'c'\nUsage:\n  fi_pingpong [OPTIONS]\tstart server\n -h  help\n", "-h  help"),
    (1, "Unknown endpoint : rdm\n", "Unknown endpoint : rdm"),
    (127, "fi_pingpong: error while loading shared libraries: libfabric.so.1\n", None),
    (134, "", ""),
    (1, "a \x1b[31mred\x07 word\n", "a \\x1b[31mred\\x07 word"),
]


@pytest.mark.parametrize(("code", "err", "message"), COULD_NOT_RUN)
def test_missing_library_permission_or_port_is_unobserved(code: int, err: str, message: str | None) -> None:
    text = err.strip() if message is None else message

    found = read_side(ended(code, err))

    assert found == Unobserved(NOT_RUN, f"fi_pingpong ended with exit code {code}" + (f": {text}" if text else ""))


@pytest.mark.parametrize(
    ("code", "err"),
    [
        (103, error("ctrl/read: no data or remote connection closed")),
        (104, call("ctrl/read", errno.ECONNRESET)),
        (32, call("ctrl/send", errno.EPIPE)),
        (-15, ""),
        (-9, "a last word\n"),
    ],
)
def test_side_left_by_the_other_has_no_result(code: int, err: str) -> None:
    assert read_side(ended(code, err)) is None


def test_crash_is_unobserved() -> None:
    assert read_side(ended(-11)) == Unobserved(NOT_RUN, "fi_pingpong was ended by SIGSEGV")


FAST, SLOW = Measured(5000.0, 1 << 20), Measured(4999.0, 1 << 20)
LOST, CHANGED, BLIND = Broken("lost"), Broken("changed", corrupt=True), Unobserved(NOT_RUN, "no library")


@pytest.mark.parametrize(
    ("server", "client", "both"),
    [
        (FAST, SLOW, FAST),
        (None, FAST, FAST),
        (FAST, None, FAST),
        (None, None, None),
        (BLIND, FAST, BLIND),
        (BLIND, Unobserved(NOT_RUN, "refused"), BLIND),
        (LOST, BLIND, LOST),
        (None, LOST, LOST),
        (LOST, CHANGED, CHANGED),
        (CHANGED, LOST, CHANGED),
    ],
)
def test_worse_result_of_both_sides_counts(
    server: LoopbackResult | None, client: LoopbackResult | None, both: LoopbackResult | None
) -> None:
    assert together(server, client) == both


LINES = st.sampled_from([TABLE, HEAD, CORRUPT, call("transmit", 5).encode(), error("cq_readerr: x").encode(), b"\n"])
WRITTEN = st.lists(st.one_of(LINES, st.binary(max_size=80))).map(b"".join)


@given(st.sampled_from([0, 1, 5, 61, 111, 255, -9, -11]), WRITTEN, WRITTEN)
def test_whatever_it_writes_is_read_and_can_be_written_down(code: int, out: bytes, err: bytes) -> None:
    found = read_side(ProgramEnd(code, out, err))

    assert found is None or saved_and_read(Loopback("a", found)) == Loopback("a", found)


@pytest.mark.parametrize("noise", [b"1 " * 500_000, b"x" * 1_000_000, b"1m 1 =1 " * 100_000, b"\xff" * 1_000_000])
def test_a_flood_is_read_no_further_than_a_table_can_be_long(noise: bytes) -> None:
    assert read_side(ProgramEnd(0, noise + b"\n" + TABLE, noise)) == Measured(5282.5, 1 << 20)
