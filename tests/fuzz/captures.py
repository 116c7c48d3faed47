"""Saved logs of any bytes: nothing ends the reading, no line about a GPU goes uncounted, no quote is believed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress

from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.captures.blocks import CaptureError, InputFile
from gpu_healthcheck.healthcheck.captures.kernel_logs import KernelLogReader, PassedOver
from gpu_healthcheck.healthcheck.probes.kernel_log import Record
from tests.captures.renderings import BOOTED, FORMS, capture
from tests.checks.grammar import fault_lines, quoted_lines
from tests.fuzz.damage import byte_damages, damaged

_texts = st.one_of(fault_lines(), quoted_lines(), st.text(max_size=80)).map(
    lambda text: text.encode("utf-8", "replace").decode()
)
_rendered = st.builds(
    lambda name, at, text: capture(FORMS[name], [Record(0, at, 0, text)]),
    st.sampled_from(sorted(FORMS)),
    st.floats(0, 1e6),
    _texts,
)
_prefixes = st.text("abN1209:[]<>.- \t_{}\"'/\\nov月í", max_size=40) | st.sampled_from(
    ["Nov 20 08:00:01 host app: ", "lis 20 08:00:01 host kernel: ", "node-3 | ", "2026-11-20T08:00:01Z ", "    "]
)
lines = st.one_of(
    st.binary(max_size=200),
    _rendered,
    st.builds(lambda prefix, text: f"{prefix}{text}\n".encode("utf-8", "replace"), _prefixes, _texts),
    st.builds(damaged, _rendered, st.lists(byte_damages, max_size=4)),
)


class _Read:
    def __init__(self, content: bytes) -> None:
        self.passed_over = PassedOver()
        self.texts: list[str] = []
        reader = KernelLogReader(BOOTED, 1, self.passed_over)
        with suppress(CaptureError):
            for batch in reader.read("f", InputFile(io.BytesIO(content)).blocks()):
                self.texts += [line.record.text for line in batch.lines]
        self.recognised = reader.recognised


def any_log_is_read(parts: Sequence[bytes]) -> None:
    read = _Read(b"".join(parts))
    assert read.recognised or not read.texts
    assert all(len(text) <= 4096 for text in read.texts)


def no_line_of_the_driver_s_goes_uncounted(prefix: str, text: str) -> None:
    """One line is read, or counted as quoted, unread or refused."""
    line = f"{prefix}{text}".replace("\n", " ").replace("\r", " ").replace("\0", " ")
    if len(line.encode("utf-8", "replace")) > 4096 or not line.strip():
        return
    read = _Read(f"[    1.000000] usb 1-1: gone\n{line}\n".encode("utf-8", "replace"))
    passed = read.passed_over
    assert len(read.texts) + passed.quoted + passed.unread + passed.refused >= ("NVRM: Xid (" in line)


def another_program_s_line_is_never_the_kernel_s(tag: str, pid: str, text: str) -> None:
    message = text.replace("\n", " ").replace("\r", " ")
    for head in (
        "Nov 20 08:00:01 host",
        "lis 20 08:00:01 host",
        "<12>1 2026-11-20T08:00:01Z host",
        "1763625601.000001 h",
    ):
        read = _Read(f"Nov 20 08:00:00 host kernel: usb 1-1: gone\n{head} {tag}{pid}: {message}\n".encode())
        assert read.texts == []


logs = {"parts": st.lists(lines, max_size=12)}
one_line = {"prefix": _prefixes, "text": fault_lines()}
speakers = {
    "tag": st.from_regex(r"[a-z][a-z0-9_.-]{0,15}", fullmatch=True).filter(lambda tag: tag != "kernel"),
    "pid": st.sampled_from(["", "[1]", "[4194304]"]),
    "text": fault_lines(),
}
