"""The help of a command: plain text in groups, at most 80 columns wide.

Typer's own formatter cuts long option names and takes text in square brackets for markup. This one prints every name
and every word whole: a line breaks at spaces only.
"""

import inspect
import textwrap
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast_cli.errors import CommandError

_ARGUMENTS = "Arguments"
_OTHER_OPTIONS = "Options"
_OTHER_COMMANDS = "Commands"
_WIDEST_NAME = 30
"""Columns. A longer name has a line of its own."""
_GAP = 2
_VERBATIM = "\b\n"
"""Begins a paragraph of a docstring that is printed as it is."""

_Rows = list[tuple[str, str]]


class _Formatter(Protocol):
    """The part of click's formatter that is used here, wherever typer keeps it."""

    width: int
    current_indent: int

    def write(self, string: str) -> None: ...

    def section(self, name: str) -> AbstractContextManager[None]: ...


class HelpCommand(TyperCommand):
    """A command whose options are printed in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words after the command. Say so if some of our options become those of the command to run."""
        given = list(args)
        rest = super().parse_args(ctx, args)
        if not ctx.allow_interspersed_args:
            self._hint_at_swallowed(ctx, given)
        return rest

    def _hint_at_swallowed(self, ctx: Any, given: list[str]) -> None:
        parameters = self.get_params(ctx)
        ours = {name for each in parameters if each.param_type_name == "option" for name in _names(each)}
        ours -= set(ctx.help_option_names)
        for each in parameters:
            words = ctx.params.get(each.name) if each.param_type_name == "argument" else None
            if words and (line := swallowed_line(ctx.command_path, given, list(words), ours)):
                typer.echo(f"holdfast: {line}", err=True)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command: optional ones in brackets, repeated ones with dots."""
        arguments = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument"]
        words = [(each.metavar if each.required else f"[{each.metavar}]", each.nargs) for each in arguments]
        return ["[OPTIONS]", *(f"{word}{'' if count == 1 else '...'}" for word, count in words)]

    def format_help_text(self, ctx: Any, formatter: _Formatter) -> None:  # noqa: ARG002 - click's interface
        """Write the docstring of the command."""
        _write_text(formatter, self.help or "")

    def format_options(self, ctx: Any, formatter: _Formatter) -> None:
        """Write one section for the arguments and one for each group of options."""
        _write_parameters(self, ctx, formatter)


class HelpGroup(TyperGroup):
    """A group of commands. It turns a CommandError into its line on stderr and its exit code."""

    def format_help_text(self, ctx: Any, formatter: _Formatter) -> None:  # noqa: ARG002 - click's interface
        """Write what the commands of the group are for."""
        _write_text(formatter, self.help or "")

    def format_options(self, ctx: Any, formatter: _Formatter) -> None:
        """Write the options, then the commands, each in groups."""
        _write_parameters(self, ctx, formatter)
        panels: dict[str, _Rows] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert command is not None
            panel = getattr(command, "rich_help_panel", None)
            summary = inspect.cleandoc(command.help or "").partition("\n\n")[0]
            panels.setdefault(panel if isinstance(panel, str) else _OTHER_COMMANDS, []).append((name, summary))
        _write_sections(formatter, panels)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An error that the user can act on ends it with one line."""
        try:
            return super().invoke(ctx)
        except CommandError as error:
            typer.echo(f"holdfast: {error}", err=True)
            raise typer.Exit(error.exit_code) from None


def _write_parameters(command: Any, ctx: Any, formatter: _Formatter) -> None:
    panels: dict[str, _Rows] = {_ARGUMENTS: []}
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "argument":
            panels[_ARGUMENTS].append((parameter.metavar, parameter.help))
        else:
            names = ", ".join(sorted(_names(parameter), key=len))
            shown = names if parameter.is_flag else f"{names} {parameter.metavar}"
            panels.setdefault(parameter.rich_help_panel or _OTHER_OPTIONS, []).append((shown, parameter.help))
    _write_sections(formatter, panels)


def _names(option: Any) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _write_sections(formatter: _Formatter, panels: dict[str, _Rows]) -> None:
    for title, rows in panels.items():
        if rows:
            with formatter.section(title):
                _write_rows(formatter, rows)


def _write_rows(formatter: _Formatter, rows: _Rows) -> None:
    """Write two columns: names, and what they are."""
    left = " " * formatter.current_indent
    column = min(max(len(name) for name, _ in rows), _WIDEST_NAME) + _GAP
    for name, text in rows:
        lines = _wrapped(text, formatter.width - len(left) - column)
        if len(name) > column - _GAP:
            formatter.write(f"{left}{name}\n")
            name = ""  # noqa: PLW2901
        for number, line in enumerate(lines):
            formatter.write(f"{left}{'' if number else name:{column}}{line}\n")


def _write_text(formatter: _Formatter, text: str) -> None:
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        is_verbatim = paragraph.startswith(_VERBATIM)
        lines: Iterable[str] = paragraph.removeprefix(_VERBATIM).splitlines()
        if not is_verbatim:
            lines = _wrapped(paragraph, formatter.width - _GAP)
        formatter.write("\n" + "".join(f"{' ' * _GAP}{line}\n" for line in lines))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


END_OF_OPTIONS = "--"


def swallowed_line(command_path: str, given: Sequence[str], passed_on: Sequence[str], ours: Collection[str]) -> str:
    """Return one line if words that are passed on have the names of our options; "" if all is clear.

    With ``--`` the user has said what belongs to the command. Without it, the command may still have options of the
    same names. So nothing is refused.

    Args:
        command_path: our own command, such as ``holdfast run``.
        given: all words after it.
        passed_on: the words of the command to run.
        ours: the names of our options.
    """
    if END_OF_OPTIONS in given:
        return ""
    names = [word for word in passed_on if word.partition("=")[0] in ours]
    if not names:
        return ""
    return (
        f"{', '.join(names)} after {passed_on[0]} is passed to it: put options of `{command_path}` before it, or write "
        f"`{END_OF_OPTIONS} {passed_on[0]}` if it has such an option itself"
    )
