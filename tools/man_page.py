"""The man page, gpu-healthcheck(1), from the help of every command and option. `make docs` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from cli.app import app

PAGE = Path(__file__).parents[1] / "cli" / "gpu-healthcheck.1"
_HEAD = """\
.\\" Generated from the commands by `make docs`.
.TH GPU\\-HEALTHCHECK 1
.SH NAME
gpu\\-healthcheck \\- GPU node health for Kubernetes
.SH SYNOPSIS
.B gpu\\-healthcheck
.I COMMAND
[options]
.br
.B kubectl gpu\\-healthcheck
.I COMMAND
[options]
.SH COMMANDS
"""
_FOOT = """\
.SH EXIT STATUS
0: done; 1: a fault was found, or work is left to do; 2: could not check, or the action failed;
3: usage error; 130: Ctrl\\-C.
.SH ENVIRONMENT
.TP
.B KUBECONFIG
Files with the clusters' addresses and credentials, as for kubectl.
.TP
.B CONFIG_DIR
Directory of the settings for check, replay and explain. Default: /etc/gpu\\-healthcheck.
"""


def page() -> str:
    group: Any = typer.main.get_command(app)
    context = group.make_context("gpu-healthcheck", ["version"], resilient_parsing=True)
    messages = [line for name in group.list_commands(context) for line in _command(group, context, name)]
    return _HEAD + "\n".join(messages) + "\n" + _FOOT


def _command(group: Any, parent: Any, name: str) -> Iterator[str]:
    _, command, _ = group.resolve_command(parent, [name])
    if command.hidden:
        return
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield f".SS {_text(' '.join([name, *command.collect_usage_pieces(context)]))}"
    yield "\n.PP\n".join(_text(" ".join(part.split())) for part in (command.help or "").split("\n\n"))
    for typed, result in (*command.arguments_of(context), *command.options_of(context)):
        yield f".TP\n.B {_text(typed)}\n{_text(' '.join(result.split())) or '.br'}"


def _text(words: str) -> str:
    """Return the text escaped for troff, with copyable hyphens."""
    escaped = words.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return re.sub(r"^(?=[.'])", r"\\&", escaped)
