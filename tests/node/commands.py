"""The command line on a real node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.stage import Stage


def words_of(stage: Stage, word: str, *options: str) -> tuple[str, ...]:
    """`gpu-healthcheck WORD NODE OPTIONS`."""
    return (sys.executable, "-m", "cli", word, stage.node.name, *options)


def command(stage: Stage, word: str, *options: str) -> subprocess.CompletedProcess[str]:
    return stage.node.run(*words_of(stage, word, *options), check=False)


@contextmanager
def running(stage: Stage, *words: str, until: str) -> Iterator[subprocess.Popen[str]]:
    """A command on the node that has said these words and goes on; it prints the rest."""
    with subprocess.Popen(stage.node.argv(*words), stdout=PIPE, stderr=STDOUT, text=True) as process:
        assert process.stdout is not None
        seen = ""
        try:
            while until not in (line := process.stdout.readline()):
                seen += line
                assert line, f"{words} ended: {seen}"
            yield process
        except BaseException:
            process.kill()  # its wait may be long, and leaving waits for it
            raise


def interrupt(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> None:
    """Press Ctrl-C, or send another signal: `nsenter` is the parent of the command."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), number)
