"""Man page gpu-healthcheck(1), which `make docs` writes from the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_healthcheck.cli.app import COMMANDS, PROGRAMS, command_of

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
3: usage error; 130: Ctrl\\-C. Of gate only: 69: no answer, with \\-\\-fail\\-closed; 75: the pod may not start.
.SH ENVIRONMENT
.TP
.B KUBECONFIG
Files with the clusters' addresses and credentials, as for kubectl.
.TP
.B CONFIG_DIR
Directory of the settings for check, replay and explain. Default: /etc/gpu\\-healthcheck.
"""


def page() -> str:
    shown = {name: entry for name, entry in _help_entries().items() if not entry["hidden"]}
    return _HEAD + "\n".join(line for name in shown for line in _section(name, shown[name])) + "\n" + _FOOT


def _help_entries() -> Mapping[str, Mapping[str, Any]]:
    """Return the help of each command, from the declaration of its arguments and options."""
    return {name: _entry(name) for name in (*COMMANDS, *PROGRAMS)}


def _entry(name: str) -> Mapping[str, Any]:
    command = command_of(name)
    context = command.make_context(name, [], resilient_parsing=True, help_option_names=["--help", "-h"])
    return {
        "help": command.help or "",
        "hidden": command.hidden,
        "arguments": [*command.arguments_of(context)],
        "options": command.options_of(context),
    }


def _section(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield f".SS {_text(' '.join([name, *(typed for typed, _ in entry['arguments']), '[options]']))}"
    yield "\n.PP\n".join(_text(" ".join(part.split())) for part in entry["help"].split("\n\n"))
    for typed, purpose in (*entry["arguments"], *entry["options"]):
        yield f".TP\n.B {_text(typed)}\n{_text(' '.join(purpose.split())) or '.br'}"


def _text(words: str) -> str:
    """Return the text escaped for troff, with copyable hyphens."""
    escaped = words.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return re.sub(r"^(?=[.'])", r"\\&", escaped)
