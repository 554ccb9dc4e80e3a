"""``holdfast`` commands in pages: find them, and parse them with the real command line without running them."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from holdfast_cli.main import app
from holdfast_trainer.config import TrainerConfig

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
_LANGUAGES = ("", "sh", "console")
_SPAN = re.compile(r"`(holdfast [^`]+)`")
_SUBSTITUTION = re.compile(r"\$\([^)]*\)")
_SEPARATORS = {"|", "&&", "||", ";", "&"}


def block_commands(page: str) -> Iterator[list[str]]:
    """Yield the words of every ``holdfast`` command in the code blocks of a page, without the word ``holdfast``."""
    blocks = (block for language, block in _BLOCK.findall(page) if language in _LANGUAGES)
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            if re.search(r"\bholdfast ", line):
                yield from _commands_in(_SUBSTITUTION.sub("x", line.strip().removeprefix("$ ")))


def span_commands(page: str) -> Iterator[list[str]]:
    """Yield the words of every ``holdfast`` command that the prose of a page names."""
    prose = _BLOCK.sub("", page)
    for span in _SPAN.findall(prose):
        yield shlex.split(span)[1:]


def _commands_in(line: str) -> Iterator[list[str]]:
    """Yield the commands in one line of a shell: after variables, between separators, in the strings of a launcher."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # no command, but a line of output with one quotation mark
        return
    for start, word in enumerate(words):
        if word == "holdfast" and all("=" in before or before in _SEPARATORS for before in words[:start][-1:]):
            end = next((at for at in range(start, len(words)) if words[at] in _SEPARATORS), len(words))
            yield words[start + 1 : end]
        elif word.startswith("holdfast "):
            yield from _commands_in(word)


def complaint(words: list[str]) -> str:
    """Return the complaint of ``holdfast`` about a command, or "" if it accepts the command. Runs nothing."""
    command = typer.main.get_command(app)
    _disarm(command)
    if unknown := _unknown_trainer_flags(words):
        return f"the trainer has no {', '.join(unknown)}"
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            command(words, prog_name="holdfast")
        except SystemExit as end:
            return said.getvalue() if end.code else ""
    raise AssertionError("the command did not end")


def _disarm(command: Any) -> None:
    """Make a command, and those in it, do nothing after they have parsed their words."""
    command.callback = lambda *_, **__: None
    for one in getattr(command, "commands", {}).values():
        _disarm(one)


def _unknown_trainer_flags(words: list[str]) -> list[str]:
    """Return the flags in a command that are for the trainer and that the trainer does not have."""
    unknown = []
    if words[:1] == ["plan"] or "holdfast_trainer" in words:
        for word in words:
            if flag := re.fullmatch(r"--(\w+)\.(\w+)(=.*)?", word):
                section = TrainerConfig.model_fields.get(flag[1])
                if section is None or flag[2] not in section.annotation.model_fields:  # type: ignore[union-attr]
                    unknown.append(word)
    return unknown


def unknown_parts(words: list[str]) -> list[str]:
    """Return the unknown parts of a command that prose names. Such a command may leave out what it requires."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and words[0].islower() and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return [words[0]]
        command, words = command.commands[words[0]], words[1:]
    ours = words[: words.index("--")] if "--" in words else words
    known = {"--help", *(name for parameter in command.params for name in parameter.opts)}
    flags = [word.partition("=")[0] for word in ours if word.startswith("--")]
    return [flag for flag in flags if flag not in known and "." not in flag]
