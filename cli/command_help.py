"""A command's help in kubectl's format: plain lines, arguments and options by their names, no types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

COMPLETION = "_GPU_HEALTHCHECK_COMPLETE"
"""Variable in which typer's scripts pass the shell that requests completions."""


class Command(TyperCommand):
    """Command with this project's help: options as they are typed, without types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*(name for name, _ in self.arguments_of(ctx)), "[options]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write(formatter, "Arguments", self.arguments_of(ctx))
        _write(formatter, "Options", self.options_of(ctx))

    def options_of(self, ctx: Any) -> list[tuple[str, str]]:
        """Return each option as it is typed, with its purpose."""
        return _records(self, ctx)

    def arguments_of(self, ctx: Any) -> Iterable[tuple[str, str]]:
        for param in self.get_params(ctx):
            if isinstance(param, TyperArgument):
                yield param.metavar or param.name or "", param.help or ""


class Group(TyperGroup):
    """Group of commands with this project's help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        del ctx
        return ["COMMAND [options]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write(formatter, "Options", _records(self, ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Print each command with the complete first line of its help."""
        known = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = (
            (name, (command.help or "").partition("\n")[0]) for name, command in known if command and not command.hidden
        )
        _write(formatter, "Commands", rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"{ctx.command_path} COMMAND -h lists the options of a command.\n")


def _records(command: TyperCommand | TyperGroup, ctx: Any) -> list[tuple[str, str]]:
    records = (param.get_help_record(ctx) for param in command.get_params(ctx) if isinstance(param, TyperOption))
    return [record for record in records if record is not None]


def _write(formatter: Any, title: str, rows: Any) -> None:
    if rows := list(rows):
        with formatter.section(title):
            formatter.write_dl(rows)
