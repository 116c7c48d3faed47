"""The command line in the process of the tests: all of it but the start of Python, which costs more than the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from io import BytesIO, TextIOWrapper
from unittest import mock

import pytest

from gpu_healthcheck.cli import app


def typed(
    words: Sequence[str], environment: Mapping[str, str], answers: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Run `gpu-healthcheck WORDS` with exactly these variables, with a result as of `subprocess.run`.

    The answers are its standard input.
    """
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["gpu-healthcheck", *words]),
        mock.patch.object(sys, "stdin", TextIOWrapper(BytesIO(answers.encode()), "utf-8")),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        # It watches the descriptors of this process, which are not these streams.
        mock.patch.object(app, "end_with_whoever_reads"),
        pytest.raises(SystemExit) as end,
    ):
        app.run()
    return subprocess.CompletedProcess(["gpu-healthcheck", *words], int(end.value.code or 0), _all(out), _all(err))


def _all(stream: TextIOWrapper) -> bytes:
    stream.seek(0)
    return bytes(stream.buffer.read())
