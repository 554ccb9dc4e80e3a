"""What a setting is: its places in the file and on the command line, its type, its range and its help."""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, get_origin

LARGEST = 1_000_000_000
"""Largest value of a number without a limit of its own. It fits into every message and every timer."""


class FileSection(StrEnum):
    """A section of the file, and a group of flags in the help."""

    RUN = "run"
    CHECKPOINTS = "checkpoints"
    SNAPSHOTS = "snapshots"
    DETECTION = "detection"
    RECOVERY = "recovery"
    STORE = "store"
    CONSOLE = "console"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What users see of one field of RunSettings."""

    section: FileSection
    name: str
    """Key in the section of the file; empty: the setting is for one start and has only a flag."""
    flag: str
    """Name of the flag; empty: the setting is the command after ``--``."""
    help: str
    metavar: str | None = None
    """Placeholder of the value in the help; None for flags without a value and for enumerations."""
    commands: tuple[str, ...] = ("run", "publish")
    """Commands that take it."""
    required_by: tuple[str, ...] = ()
    """Commands that do not start without it."""
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

    value_type: Any = None
    """Type without None. Filled in, like ``default``, from the field."""
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
            return 'a list of strings, such as ["python", "train.py"]'
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
        return command in self.required_by

    def is_taken_by(self, command: str) -> bool:
        """Whether a command takes it."""
        return command in self.commands or command == "config"
