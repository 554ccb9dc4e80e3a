from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, get_origin

from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.run_spec import run_spec
from holdfast_cli.settings.schema import LossActionName, RunSettings, schema, settings_of
from holdfast_cli.settings.setting import FileSection, field_docs
from holdfast_proto.message_json import enum_name, enum_names
from holdfast_proto.v1.store_pb2 import LOSS_ACTION_STOP, HangAction, Mode, Preset, RunSpec
from holdfast_proto.vocabulary import DEFAULTS, TIER_WORDS, rule_of


def spec_of(**changes: Any) -> RunSpec:
    options = LocalRunOptions(run="r", command=("x",), **changes)
    return run_spec(options, nodes=1, checkpoints="c", created_unix_s=0.0, instance="i")


def test_every_setting_has_a_key_or_is_for_one_start() -> None:
    without = {field for field, setting in schema().items() if not setting.key}
    assert without == {"from_scratch", "adopt", "continue_from", "notify_channels"}
    keys = [setting.key for setting in schema().values() if setting.key]
    assert len(keys) == len(set(keys))
    assert {key.partition(".")[0] for key in keys} == set(FileSection)


def test_every_setting_has_a_flag_of_its_own_but_the_command_and_those_that_only_a_file_can_say() -> None:
    without = {field for field, setting in schema().items() if not setting.flag}
    of_file = {field for field in without if schema()[field].section in (FileSection.LOSS, FileSection.NOTIFY)}
    assert without == {"command"} | of_file
    assert {field for field in schema() if field.startswith("notify_")} < without
    for command in ("run", "observe", "publish", "config"):
        flags = [flag for _, setting in settings_of(command) for flag in setting.flags(command)]
        assert len(flags) == len(set(flags))


def test_the_types_are_those_that_a_file_can_give() -> None:
    for setting in schema().values():
        kind = setting.value_type
        assert get_origin(kind) is tuple or kind in (str, int, float, bool, Path) or issubclass(kind, Enum)


def test_every_default_is_in_its_range() -> None:
    for setting in schema().values():
        if setting.default is not None and setting.least is not None:
            assert setting.least <= setting.default <= (setting.most or float("inf"))


def test_the_loss_has_the_defaults_of_the_daemon() -> None:
    for tier in TIER_WORDS:
        assert rule_of(spec_of(), tier) == rule_of(RunSpec(), tier)


def test_the_rules_of_the_loss_reach_the_spec() -> None:
    for word in DEFAULTS:
        spec = spec_of(**{f"loss_{word}": LossActionName.STOP, f"loss_{word}_budget": 7})
        stopping = {TIER_WORDS[tier] for tier in TIER_WORDS if rule_of(spec, tier) == (LOSS_ACTION_STOP, 7)}
        assert stopping == {word}


def test_every_word_of_an_enumeration_reaches_the_spec() -> None:
    for field, kind in (("mode", Mode), ("preset", Preset), ("on_hang", HangAction)):
        words = list(schema()[field].value_type)
        sent = [enum_name(kind, getattr(spec_of(**{field: word}), field)) for word in words]
        assert sent == [word.value for word in words] == list(enum_names(kind))


@dataclass(frozen=True)
class Base:
    first: int = 1
    """A number
    over two lines."""
    second: int = 2
    """Replaced below."""
    third: int = 3


@dataclass(frozen=True)
class Derived(Base):
    second: int = 4
    """The help of the subclass."""


def test_the_docstring_below_a_field_is_its_help() -> None:
    assert field_docs(Base) == {"first": "A number over two lines.", "second": "Replaced below."}
    assert field_docs(Derived) == {"first": "A number over two lines.", "second": "The help of the subclass."}


def test_the_options_of_a_local_run_have_the_defaults_of_the_schema() -> None:
    options = LocalRunOptions(run="r", command=("x",))
    for field in fields(RunSettings):
        if field.name not in ("run", "command"):
            assert getattr(options, field.name) == field.default


def test_what_a_file_can_switch_on_a_flag_can_switch_off() -> None:
    assert schema()["faults_allowed"].flags("run") == ("--allow-faults/--no-allow-faults",)
    assert schema()["adopt"].flags("run") == ("--adopt",)
