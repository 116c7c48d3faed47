"""`gpu-healthcheck completion`: the script that enables completion in a shell or in kubectl."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from enum import StrEnum
from io import StringIO
from typing import Annotated

import typer

from gpu_healthcheck.cli.command_help import COMPLETION
from gpu_healthcheck.cli.options import one_of
from gpu_healthcheck.healthcheck.host.streams import write_document

PROGRAM = "gpu-healthcheck"
_PLUGIN = "kubectl-gpu_healthcheck"
"""Name of the plugin in every installation; krew installs only this name."""
_UNBROKEN = "9999"
"""Terminal width for typer. On a narrower terminal, typer breaks a description, and the shell reads the rest as
another completion.
"""
_FILES, _NO_FILES = 0, 4
"""Cobra's directives: the shell may offer files; it must not (ShellCompDirectiveNoFileComp)."""
_FOR_KUBECTL = f"""\
#!/bin/sh
# Save as kubectl_complete-gpu_healthcheck on the PATH: kubectl 1.26 or newer calls it.
exec {_PLUGIN} __complete "$@"
"""
_FOR_BASH = f"""\
_gpu_healthcheck_completion() {{
    local IFS=$'\\n' rest=$COMP_LINE trimmed typed word words=()
    # bash breaks words at colons, as in the ARN of an EKS context: join what no blank separates.
    for word in "${{COMP_WORDS[@]:0:COMP_CWORD+1}}"; do
        trimmed=${{rest#"${{rest%%[![:space:]]*}}"}}
        if [[ $trimmed != "$rest" || ${{#words[@]}} -eq 0 ]]; then
            words+=("$word")
        else
            words[${{#words[@]}}-1]+=$word
        fi
        rest=${{trimmed#"$word"}}
    done
    COMPREPLY=($(env COMP_WORDS="${{words[*]}}" COMP_CWORD=$((${{#words[@]}} - 1)) {COMPLETION}=complete_bash $1))
    # bash replaces only the text behind the last colon.
    typed=${{words[${{#words[@]}}-1]#--*=}}
    if [[ $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${{COMPREPLY[@]#"${{typed%"${{typed##*:}}"}}"}}")
    fi
}}
complete -o default -F _gpu_healthcheck_completion {PROGRAM}
"""


class Shell(StrEnum):
    """Shell, or kubectl, that a completion script is for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    KUBECTL = "kubectl"


ShellName = Annotated[
    Shell, typer.Argument(metavar="SHELL", help="bash, zsh, fish; or kubectl: a file for the PATH.", **one_of(Shell))
]


def completion(shell: ShellName) -> None:
    """Print the completion script of a shell.

    For bash and zsh: eval "$(gpu-healthcheck completion bash)"; for fish: gpu-healthcheck completion fish | source.
    """
    if shell in (Shell.BASH, Shell.KUBECTL):
        write_document(_FOR_BASH if shell is Shell.BASH else _FOR_KUBECTL)
        return
    from typer import completion as typers  # noqa: PLC0415 - the help does not need it

    script = vars(typers)["get_completion_script"](prog_name=PROGRAM, complete_var=COMPLETION, shell=shell.value)
    write_document(f"{script}\n")


def prepare() -> None:
    """Prepare the answer to a shell's request for completions."""
    from typer import completion as typers  # noqa: PLC0415 - the help does not need it

    vars(typers)["completion_init"]()
    os.environ["COLUMNS"] = _UNBROKEN


def answer_kubectl(words: Sequence[str], app: typer.Typer) -> None:
    """Print completions in Cobra's protocol: a line per word, a tab and its meaning, and a final directive.

    typer prints the same lines for fish. The last of `words` is incomplete.
    """
    *before, typed = words or ("",)
    line = " ".join([shlex.join([PROGRAM, *before]), shlex.quote(typed) if typed else ""])
    os.environ |= {COMPLETION: "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
    prepare()
    with redirect_stdout(StringIO()) as io, suppress(SystemExit):
        app(prog_name=PROGRAM)
    offered = io.getvalue().strip()
    write_document(f"{offered}\n:{_NO_FILES}\n" if offered else f":{_FILES}\n")
