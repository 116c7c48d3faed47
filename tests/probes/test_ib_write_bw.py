"""Output of ib_write_bw: tables and errors of perftest's source, and noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.host.command import ProgramEnd
from gpu_healthcheck.healthcheck.model import Unobserved
from gpu_healthcheck.healthcheck.probes.ib_loopback import NOT_RUN, is_refused, read_side
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, LoopbackResult, Measured
from tests.captures.saving import saved_and_read

LINE = b"-" * 87 + b"\n"
HEAD = b" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
ROW = b" 65536      20000            391.85             391.80 \t\t   0.747299\n"
ABOUT = (
    b"                    RDMA_Write BW Test\n"
    b" Dual-port       : OFF\t\tDevice         : rocep1s0\n"
    b" local address: LID 0000 QPN 0x0032 PSN 0x5f2841 RKey 0x002440 VAddr 0x007f2e5f64b000\n"
    b" GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:01:39\n"
)
TABLE = LINE + ABOUT + LINE + HEAD + ROW + LINE
WARNING = "Conflicting CPU frequency values detected: 3200.000000 != 800.000000. CPU Frequency is not max.\n"


def ended(code: int, err: str = "", out: bytes = b"") -> ProgramEnd:
    return ProgramEnd(code, out, err.encode())


@pytest.mark.parametrize(
    ("out", "gbits", "size"),
    [
        (TABLE, 391.8, 65536),
        (HEAD + b" 65536      20000             0.00               2.15   \t\t   0.004101\n", 2.15, 65536),
        (HEAD + b" 2          5000           0.042350            0.042185            2.636533\n", 0.042185, 2),
        (HEAD + WARNING.encode() + ROW, 391.8, 65536),
    ],
)
def test_the_speed_is_the_average_in_the_table(out: bytes, gbits: float, size: int) -> None:
    assert read_side(ended(0, WARNING, out)) == Measured(gbits * 125, size)


@pytest.mark.parametrize(
    "out",
    [b"", LINE + ABOUT, HEAD, ROW, HEAD.replace(b"Gb", b"MiB") + ROW, HEAD + b" 65536 20000 inf inf nan\n"],
)
def test_a_run_without_a_measurement_in_gbits_is_could_not_check(out: bytes) -> None:
    assert read_side(ended(0, out=out)) == Unobserved(
        NOT_RUN, "ib_write_bw ended without an error and without a measurement"
    )


FAILED = " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n"
FAILED_SINCE_2025 = " Completion with error at client\n Failed status-transport retry counter exceeded (12): wr_id 0\n"
BROKEN = [
    (FAILED, "Completion with error at client, Failed status 12: wr_id 0 syndrom 0x81"),
    (WARNING + FAILED, "Completion with error at client, Failed status 12: wr_id 0 syndrom 0x81"),
    (
        FAILED_SINCE_2025,
        "Completion with error at client, Failed status-transport retry counter exceeded (12): wr_id 0",
    ),
]


@pytest.mark.parametrize(("err", "text"), BROKEN)
@pytest.mark.parametrize("code", [0, 1])
def test_a_write_that_fails_is_the_port_s(code: int, err: str, text: str) -> None:
    assert read_side(ended(code, err, TABLE)) == Broken(f"ib_write_bw ended with exit code {code}: {text}")


COULD_NOT_RUN = [
    ("ib_write_bw: unrecognized option '--bind_source_ip'\n Invalid Command or flag.\n", None),
    ("IB device rocep1s0 not found\n Unable to find the Infiniband/RoCE device\n", "IB device rocep1s0 not found"),
    (" Couldn't get context for the device\n", None),
    ("Couldn't allocate MR\n Couldn't create IB resources\n", "Couldn't allocate MR"),
    ("Failed to modify QP 4711 to RTR\n Unable to Connect the HCA's through the link\n", None),
    ("Couldn't listen to port 18515\nUnable to open file descriptor for socket connection\n", None),
    (WARNING + "a \x1b[31mred word\n", "a \\x1b[31mred word"),
    ("", ""),
]


@pytest.mark.parametrize(("err", "text"), COULD_NOT_RUN)
def test_another_error_is_could_not_check(err: str, text: str | None) -> None:
    reason = err.split("\n", maxsplit=1)[0].strip() if text is None else text

    assert read_side(ended(1, err)) == Unobserved(
        NOT_RUN, "ib_write_bw ended with exit code 1" + (f": {reason}" if reason else "")
    )


LEFT_ALONE = "ethernet_read_keys: Couldn't read remote address\n Unable to read to socket/rdma_cm\n"


@pytest.mark.parametrize(("code", "err"), [(1, LEFT_ALONE), (-15, ""), (-9, "a last word\n")])
def test_side_left_by_the_other_has_no_result(code: int, err: str) -> None:
    assert read_side(ended(code, err)) is None


def test_a_client_without_a_listening_server_is_refused() -> None:
    refused = "Couldn't connect to 127.0.0.1:18515\nUnable to open file descriptor for socket connection\n"

    assert [is_refused(ended(1, refused)), is_refused(ended(1, FAILED)), is_refused(ended(0))] == [True, False, False]


LINES = st.sampled_from([TABLE, HEAD, ROW, FAILED.encode(), LEFT_ALONE.encode(), b"\n"])
WRITTEN = st.lists(st.one_of(LINES, st.binary(max_size=80))).map(b"".join)


@given(st.sampled_from([0, 1, 127, -9, -11]), WRITTEN, WRITTEN)
def test_any_output_is_read_and_can_be_saved(code: int, out: bytes, err: bytes) -> None:
    found: LoopbackResult | None = read_side(ProgramEnd(code, out, err))

    assert found is None or saved_and_read(Loopback("a", found)) == Loopback("a", found)


@pytest.mark.parametrize("noise", [b"1 " * 500_000, b"x" * 1_000_000, b" #bytes" * 100_000, b"\xff" * 1_000_000])
def test_a_flood_is_read_no_further_than_a_table_can_be_long(noise: bytes) -> None:
    assert read_side(ProgramEnd(0, noise + b"\n" + TABLE, noise)) == Measured(391.8 * 125, 65536)
