"""What a setting is: its places in the file and on the command line, its type, its range and its help."""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_Value = TypeVar("_Value")
_SETTING = "setting"

LARGEST = 1_000_000_000
"""Largest value of a number without a limit of its own. It fits into every message and every timer."""

EVERYWHERE = "run observe publish"
"""Commands that begin a run."""


class FileSection(StrEnum):
    """A section of the file, and a group of flags in the help."""

    RUN = "run"
    CHECKPOINTS = "checkpoints"
    SNAPSHOTS = "snapshots"
    DETECTION = "detection"
    RECOVERY = "recovery"
    LOSS = "loss"
    STORE = "store"
    NOTIFY = "notify"
    CONSOLE = "console"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What users see of one field of RunSettings, or of one key of a channel."""

    section: FileSection
    name: str
    """Key in the section of the file; empty: the setting is for one start and has only a flag."""
    flag: str = ""
    """Name of the flag; empty: the setting is the command after ``--``, or only the file has it."""
    metavar: str | None = None
    """Placeholder of the value in the help; None for flags without a value and for enumerations."""
    commands: tuple[str, ...] = ("run", "publish")
    """Commands that take it."""
    is_needed_to_publish: bool = False
    """Whether `holdfast publish` does not start without it."""
    publish_flag: str = ""
    """Another name of the flag in `holdfast publish`."""
    observe_help: str = ""
    """Help in `holdfast observe` with the default there; empty: as everywhere."""
    least: float | None = None
    most: float | None = None
    unset: str = ""
    """What None stands for, in words."""
    is_location: bool = False
    """The text is a path or a URL. A relative path is relative to the folder of the file."""
    choices: tuple[str, ...] = ()
    """Words that a list may hold; empty: any."""
    example: str = '["python", "train.py"]'
    """A list for the error about a value that is none."""

    help: str = ""
    """Filled in, like ``value_type`` and ``default``, from the field."""
    value_type: Any = None
    """Type without None."""
    default: Any = None

    @property
    def key(self) -> str:
        """SECTION.NAME in the file; empty if the setting has only a flag."""
        return f"{self.section}.{self.name}" if self.name else ""

    @property
    def default_text(self) -> str:
        """Default for people; empty for flags that are off."""
        if self.default is None:
            return self.unset
        if self.default is False:
            return ""
        if isinstance(self.default, tuple):
            return ", ".join(self.default)
        if self.default is True:
            return "true"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def allowed(self) -> str:
        """Values that the setting takes, in words."""
        kind = self.value_type
        if kind is bool:
            return "true or false"
        if get_origin(kind) is tuple:
            words = ", ".join(self.choices)
            return f"a list of {words}" if words else f"a list of strings, such as {self.example}"
        if issubclass(kind, Enum):
            return ", ".join(f'"{member.value}"' for member in kind)
        if kind not in (int, float):
            return "a string that is not empty"
        noun = "a whole number" if kind is int else "a number"
        if self.least is None:
            return noun
        return (
            f"{noun}, {self.least:g} or more" if self.most is None else f"{noun} from {self.least:g} to {self.most:g}"
        )

    @property
    def shown(self) -> str:
        """Name by which a message calls it: its flag, else its key."""
        return self.flag or self.key

    def range_problem(self, value: float) -> str | None:
        """Return what to use instead if a number is out of range, in words; else None."""
        if self.least is not None and value < self.least:
            return f"use {self.allowed}"
        if value > (LARGEST if self.most is None else self.most):
            return f"use at most {LARGEST}" if self.most is None else f"use {self.allowed}"
        return None

    def flags(self, command: str) -> tuple[str, ...]:
        """Return the names of the flag in a command. `config` takes those of all commands."""
        if self.value_type is bool and self.name:  # a file can switch it on: the flag must be able to switch it off
            return (f"{self.flag}/--no{self.flag.removeprefix('-')}",)
        if not self.publish_flag or command == "run":
            return (self.flag,)
        return (self.publish_flag,) if command == "publish" else (self.flag, self.publish_flag)

    def is_required(self, command: str) -> bool:
        """Whether a command does not start without it."""
        return self.is_needed_to_publish and command == "publish"

    def is_taken_by(self, command: str) -> bool:
        """Whether a command takes it."""
        return command in self.commands or command == "config"


def setting(default: _Value, key: str, flag: str = "", *, by: str = "run publish", **facts: Any) -> _Value:
    """Return the field of a dataclass that is a setting. The docstring below the field is its help.

    Args:
        default: value without flag and file.
        key: SECTION.NAME in the file, or SECTION alone if the file cannot have it.
        flag: ``--NAME METAVAR``; empty: only the file has it.
        by: commands that take it.
        facts: further fields of Setting.
    """
    section, _, name = key.partition(".")
    flag_name, _, metavar = flag.partition(" ")
    declared = Setting(
        section=FileSection(section),
        name=name,
        flag=flag_name,
        metavar=metavar or None,
        commands=tuple(by.split()),
        **facts,
    )
    made: _Value = field(default=default, metadata={_SETTING: declared})
    return made


def declared_settings(table: type[Any]) -> Iterator[tuple[str, Setting]]:
    """Yield field -> Setting, with type, default and help, of a dataclass whose fields are made by `setting`."""
    hints, docs = get_type_hints(table), field_docs(table)
    for each in fields(table):
        kind = hints[each.name]
        if isinstance(kind, UnionType):
            kind = next(one for one in get_args(kind) if one is not NoneType)
        facts = {"value_type": kind, "default": each.default, "help": docs.get(each.name, "")}
        yield each.name, replace(each.metadata[_SETTING], **facts)


def field_docs(table: type[Any]) -> dict[str, str]:
    """Return field -> the docstring below it, for a class and those that it inherits from.

    Python does not keep these docstrings. So they are read from the source of the module, as pydantic reads them for
    `use_attribute_docstrings`.
    """
    found: dict[str, str] = {}
    for each in reversed(table.__mro__[:-1]):
        found |= _docs_of_module(each.__module__).get(each.__name__, {})
    return found


@cache
def _docs_of_module(module: str) -> dict[str, dict[str, str]]:
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:  # an installation without sources: its flags work, and have no help
        return {}
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_docs_in(node)) for node in classes}


def _docs_in(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, below in pairwise(node.body):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
