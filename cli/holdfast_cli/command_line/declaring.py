"""Makes commands out of dataclasses: a field is a flag, the docstring is the help, a string names the work.

The module that does the work is imported when the command runs. That is the only place where imports wait, so that
`--help` is quick and every other module imports what it uses at its top.
"""

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from holdfast_cli.errors import CommandError
from holdfast_cli.settings.schema import settings_of
from holdfast_cli.settings.setting import Setting, field_docs

GIVEN = "given"

_EXTRAS = {"textual": "top", "cryptography": "tls"}
"""Package -> the extra of holdfast-torch that has it. All others that a command may lack are the trainer's."""


@dataclass(frozen=True, kw_only=True)
class SettingFlags:
    """Flags of a command that takes settings of a run. A subclass names the command and adds flags of its own."""

    command_name: ClassVar[str]
    given: dict[str, object]
    """Field of RunSettings -> value, of the flags that the command line has."""


def command_of(flags: type[Any], work: str) -> Callable[..., None]:
    """Return a function that typer takes for a command. ``work``: MODULE:FUNCTION, called with a ``flags``."""

    def command(**given: object) -> None:
        _call(work, flags, given)

    return _declared(command, flags)


def group_of(flags: type[Any], work: str) -> Callable[..., None]:
    """Return a function that typer takes for the callback of a group. It works only if no sub-command is named."""

    def command(context: typer.Context, **given: object) -> None:
        if context.invoked_subcommand is None:
            _call(work, flags, given)
        elif flags(**given) != flags():
            raise CommandError(f"put the options behind `{context.invoked_subcommand}`")

    declared = _declared(command, flags)
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *inspect.signature(declared).parameters.values()]
    declared.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return declared


def load(work: str) -> Callable[[object], None]:
    """Import the module of ``MODULE:FUNCTION`` and return the function.

    Raises CommandError if a package is not installed. Those that the command itself needs always are.
    """
    module, _, function = work.partition(":")
    try:
        found: Callable[[object], None] = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("holdfast_"):
            raise
        raise CommandError(_how_to_get(str(error.name))) from None
    return found


def _how_to_get(package: str) -> str:
    distribution = package.partition(".")[0]
    extra = _EXTRAS.get(distribution)
    if extra is not None:
        return f"this needs {distribution}: install it with `pip install 'holdfast-torch[{extra}]'`"
    return f"this needs {package}: install the extra trainer of holdfast-torch"


def _call(work: str, flags: type[Any], given: dict[str, object]) -> None:
    if issubclass(flags, SettingFlags):
        names = [name for name, _ in settings_of(flags.command_name)]
        values = {name: given.pop(name, None) for name in names}
        # A flag that can be repeated is a list, and an empty one if it is not given.
        given[GIVEN] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if value is not None and value != []
        }
    load(work)(flags(**given))


def _declared(command: Callable[..., None], flags: type[Any]) -> Callable[..., None]:
    command.__doc__ = flags.__doc__
    command.__signature__ = inspect.Signature(list(_parameters(flags)))  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def setting_option(setting: Setting, command: str) -> OptionInfo:
    """Return the flag of a setting in a command."""
    option: OptionInfo = typer.Option(
        *setting.flags(command),
        help=setting.help,
        metavar=setting.metavar,
        min=setting.least,
        max=setting.most,
        show_default=setting.unset or True,
        rich_help_panel=setting.section.title(),
    )
    return option


def _parameters(flags: type[Any]) -> Iterator[inspect.Parameter]:
    if issubclass(flags, SettingFlags):
        for name, setting in settings_of(flags.command_name):
            yield _setting_parameter(name, setting, flags.command_name)
    hints, docs = get_type_hints(flags, include_extras=True), field_docs(flags)
    for field in fields(flags):
        name, hint, default = field.name, hints[field.name], field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if get_origin(hint) is Annotated:
            info = get_args(hint)[1]
            yield _parameter(name, hint, default, f"{info.help or docs.get(name, '')} {_facts(info, default)}")
        elif name != GIVEN:
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint)


def _setting_parameter(name: str, setting: Setting, command: str) -> inspect.Parameter:
    """Return the parameter of a setting. Its default is None, so that the file's value is seen if it is not given."""
    info = setting_option(setting, command)
    text = setting.observe_help if command == "observe" else ""
    if not text:
        shown = MISSING if setting.is_required(command) else setting.default_text or None
        text = f"{setting.help} {_facts(info, shown)}"
    taken = list[str] if get_origin(setting.value_type) is tuple else setting.value_type
    return _parameter(name, Annotated[taken | None, info], None, text)


def _parameter(name: str, hint: object, default: object, text: str) -> inspect.Parameter:
    value_type, info = get_args(hint)
    info = copy.copy(info)  # several commands share one declaration, with defaults of their own
    info.metavar = info.metavar or _choices(value_type)
    info.help = text.strip()
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[value_type, info],
    )


def _facts(info: OptionInfo | ArgumentInfo, default: object) -> str:
    """Return the default and the range in brackets. A default of MISSING: a value is required."""
    facts = []
    if default is MISSING:
        facts.append("required")
    elif isinstance(info.show_default, str):
        facts.append(f"default: {info.show_default}")
    elif default is not None and default is not False and not isinstance(default, list):
        facts.append(f"default: {default:g}" if isinstance(default, float) else f"default: {default}")
    if info.min is not None:
        facts.append(f"{info.min:g} or more" if info.max is None else f"{info.min:g} to {info.max:g}")
    return f"[{'; '.join(facts)}]" if facts else ""


def _choices(value_type: object) -> str | None:
    """Return the words that a flag takes, if its type is an enumeration."""
    kinds = [kind for kind in (value_type, *get_args(value_type)) if isinstance(kind, type) and issubclass(kind, Enum)]
    return "|".join(member.value for member in kinds[0]) if kinds else None
