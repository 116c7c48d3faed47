"""The words of files that hold flags."""

from __future__ import annotations

import pytest

from healthcheck.probes.container_runtime.config_files import arguments


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"--a=b\n--c d\n", ("--a=b", "--c", "d")),
        (b"A=\"--a=b --c='d e'\"\n", ("--a=b", "--c=d e")),
        (b"A=--a=b\n# --c\n", ("--a=b",)),
        (b'--a="b c"\n', ("--a=b c",)),
        (b'--a="b\n--c\n', ('--a="b', "--c")),
        (b"\xff", ("\N{REPLACEMENT CHARACTER}",)),
        (b"", ()),
    ],
)
def test_files_of_flags_are_read_as_systemd_and_snaps_do(raw: bytes, words: tuple[str, ...]) -> None:
    assert arguments(raw) == words
