from pathlib import Path

import pytest

from holdfast_cli.errors import SettingsError, UsageError
from holdfast_cli.settings.file import FileSettings, parse_file
from holdfast_cli.settings.resolving import Origin, merge
from holdfast_cli.settings.schema import RunSettings

TEXT = """
[run]
name = "llama"
command = ["python", "train.py"]
ranks = 8
[checkpoints]
keep = 5
[store]
redis = "redis://head:6379"
"""


@pytest.fixture
def file() -> FileSettings:
    return parse_file(TEXT, Path("holdfast.toml"))


def test_a_flag_overrides_the_file_and_the_file_the_default(file: FileSettings) -> None:
    found = merge("run", {"ranks": 2}, file)
    assert (found.settings.ranks, found.settings.checkpoints_kept, found.settings.snapshot_every) == (2, 5, 10)
    assert found.origins["ranks"] == Origin("flag", "--ranks")
    assert found.origins["checkpoints_kept"] == Origin("file", "holdfast.toml:7")
    assert found.origins["snapshot_every"] == Origin("default")


def test_a_flag_of_zero_or_false_overrides_the_file_too() -> None:
    file = parse_file("[run]\nallow_faults = true\n[checkpoints]\nevery = 20\n", Path("f"))
    found = merge("config", {"checkpoint_every": 0, "faults_allowed": False}, file).settings
    assert (found.checkpoint_every, found.faults_allowed) == (0, False)


def test_the_words_after_the_dashes_replace_the_command_of_the_file(file: FileSettings) -> None:
    assert merge("run", {}, file).settings.command == ("python", "train.py")
    assert merge("run", {"command": ("x",)}, file).settings.command == ("x",)


def test_a_command_takes_the_keys_that_it_has_flags_for(file: FileSettings) -> None:
    found = merge("observe", {}, file)
    assert found.settings == RunSettings(run="llama", redis_url="redis://head:6379", checkpoints_kept=5)
    assert "ranks" not in found.origins


def test_a_command_is_needed_from_somewhere() -> None:
    with pytest.raises(UsageError, match=r"^there is no COMMAND to run: give it after --, or set command in \[run\]"):
        merge("run", {}, None)


@pytest.mark.parametrize(
    ("field", "flag", "key"),
    [
        ("run", "--run", "name in [run]"),
        ("nodes", "--nodes", "nodes in [run]"),
        ("ranks", "--ranks-per-node", "ranks in [run]"),
        ("redis_url", "--redis", "redis in [store]"),
        ("checkpoint_directory", "--checkpoints", "location in [checkpoints]"),
    ],
)
def test_publish_names_the_flag_and_the_key_of_what_is_missing(field: str, flag: str, key: str) -> None:
    given = {
        "run": "big", "nodes": 1, "ranks": 1, "redis_url": "redis://h", "checkpoint_directory": "/c", "command": ("x",),
    }  # fmt: skip
    merge("publish", given, None)
    del given[field]
    with pytest.raises(UsageError) as caught:
        merge("publish", given, None)
    assert str(caught.value) == f"{flag} is missing: give the flag, or set {key} of holdfast.toml"


def test_a_run_of_several_nodes_is_not_started_on_one_machine() -> None:
    file = parse_file('[run]\nnodes = 4\ncommand = ["x"]\n', Path("f.toml"))
    with pytest.raises(SettingsError, match=r"^f.toml: run.nodes = 4: .* use `holdfast publish`"):
        merge("run", {}, file)


def test_an_error_about_flags_names_the_lines_of_the_file_that_set_them() -> None:
    file = parse_file('[checkpoints]\nevery = 15\n[run]\ncommand = ["x"]\n', Path("f.toml"))
    found = merge("config", {"snapshot_every": 10}, file)
    message = "--checkpoint-every 15: use a multiple of --snapshot-every 10"
    assert found.located(message) == f"{message} (checkpoints.every at f.toml:2)"
    assert found.located("--checkpoint-every-minutes -1: use 0") == "--checkpoint-every-minutes -1: use 0"
