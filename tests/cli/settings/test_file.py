import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_cli.errors import SettingsError
from holdfast_cli.settings.file import parse_file, read_file
from holdfast_cli.settings.schema import PresetName

FOLDER = Path("/jobs/llama")
FILE = FOLDER / "holdfast.toml"


def values_of(text: str) -> dict[str, Any]:
    return parse_file(text, FILE).values


def refusal_of(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_file(text, FILE)
    message = str(caught.value)
    assert "\n" not in message
    place, _, problem = message.partition(": ")
    assert place.partition(":")[0] == str(FILE)
    return problem


def test_values_have_the_types_of_the_schema() -> None:
    text = """
    [run]
    command = ["python", "train.py"]
    allow_faults = true
    [checkpoints]
    every = 50
    every_minutes = 15
    compression = "never"
    [detection]
    preset = "fast"
    """
    assert values_of(text) == {
        "command": ("python", "train.py"),
        "faults_allowed": True,
        "checkpoint_every": 50,
        "checkpoint_every_minutes": 15.0,
        "checkpoint_compression": Compression.NEVER,
        "preset": PresetName.FAST,
    }
    assert isinstance(values_of(text)["checkpoint_every_minutes"], float)


def test_relative_paths_are_relative_to_the_folder_of_the_file() -> None:
    text = """
    run.directory = "runs"
    checkpoints.location = "checkpoints"
    checkpoints.secondary = "s3://bucket/prefix"
    checkpoints.staging = "/scratch"
    store.redis_password_file = "../secret"
    """
    assert values_of(text) == {
        "directory": FOLDER / "runs",
        "checkpoint_directory": str(FOLDER / "checkpoints"),
        "checkpoints_secondary": "s3://bucket/prefix",
        "checkpoint_staging": Path("/scratch"),
        "redis_password_file": FOLDER / "../secret",
    }


def test_the_lines_of_keys_are_known() -> None:
    found = parse_file('store.redis = "unix:///r"\n\n[checkpoints]\n# every = 1\nevery = 20\n', FILE)
    assert found.where("redis_url") == f"{FILE}:1"
    assert found.where("checkpoint_every") == f"{FILE}:5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[checkpoint]", "[checkpoint] is not a section: the nearest is [checkpoints]; use one of run, checkpoints"),
        ("ranks = 8", "ranks is not a key: the nearest is run.ranks"),
        ("run = 3", "run is a section: write [run], and its keys below"),
        ("[run]\nrank = 8", "run.rank is not a key: the nearest is run.ranks; [run] takes name, command, ranks"),
        ("[checkpoints]\nfull_evry = 5", "checkpoints.full_evry is not a key: the nearest is checkpoints.full_every"),
        ("[run]\ncheckpoint_every = 5", "run.checkpoint_every is not a key: the nearest is checkpoints.every; [run]"),
        ("[checkpoints]\nadopt = true", "checkpoints.adopt is refused: it is for one start: use the flag --adopt"),
        ("[run", "not valid TOML: "),
        (f"[run]\nranks = {'1' * 10_000}", "not valid TOML: "),
        ("a = " + "[" * 100_000, "not valid TOML: "),
    ],
)  # fmt: skip
def test_an_unknown_key_or_section_is_refused_with_the_nearest_known_one(text: str, message: str) -> None:
    assert refusal_of(text).startswith(message)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[run]\nranks = 2\n[loss]\nspike_budgt = 3", 4),
        ("[loss]\nspike = 'never'", 2),
        ("[loss]\n# spike_budget = 1\nspike_budget = -1", 3),
        ("[console]\nenabled = false\nport = 99999", 3),
        ("[console]\nadress = '::1'", 2),
        ("[run]\nranks = 0", 2),
        ("store.redis = 7", 1),
        ("\n[lsos]\nspike = 'stop'", 2),
        ("\nloss = 3", 2),
        ("\n\nranks = 3", 3),
        ("[notify]\nevery = 3", 2),
    ],
)
def test_a_refusal_names_the_line_in_every_section(text: str, line: int) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_file(text, FILE)
    assert str(caught.value).startswith(f"{FILE}:{line}: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("checkpoints.every = -1", "checkpoints.every = -1: use a whole number, 0 or more"),
        ("checkpoints.every = 2.5", "checkpoints.every = 2.5: use a whole number, 0 or more"),
        ("checkpoints.every = true", "checkpoints.every = true: use a whole number, 0 or more"),
        ("checkpoints.every = 10000000000", "checkpoints.every = 10000000000: use at most 1000000000"),
        ("run.preemption_grace_s = 1e300", "run.preemption_grace_s = 1e+300: use at most 1000000000"),
        ("run.ranks = 0", "run.ranks = 0: use a whole number from 1 to 4096"),
        ("run.allow_faults = 1", "run.allow_faults = 1: use true or false"),
        ("run.name = 7", "run.name = 7: use a string that is not empty"),
        ('run.command = "python train.py"', 'run.command = "python train.py": use a list of strings'),
        ("run.command = []", "run.command = a list: use a list of strings"),
        ("recovery.restart_patience = nan", "recovery.restart_patience = nan: use a number from 0.01 to 1000"),
        ("recovery.restart_patience = 2000", "recovery.restart_patience = 2000: use a number from 0.01 to 1000"),
        ('detection.preset = "quick"', 'detection.preset = "quick": use "fast", "default", "patient"'),
        ('checkpoints.location = ""', 'checkpoints.location = "": use a string that is not empty'),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(line: str, message: str) -> None:
    assert refusal_of(line).startswith(message)


@pytest.mark.parametrize(
    "line",
    [
        'store.password = "hunter2"',
        'store.redis_password = "hunter2"',
        'checkpoints.s3_secret_key = "hunter2"',
        'store.redis = "redis://:hunter2@host/0"',
        'store.redis = "redis://host/0?password=hunter2"',
        'checkpoints.location = "s3://key:hunter2@bucket/prefix"',
        'store.redis = ["redis://:hunter2@host/0"]',
    ],
)
def test_a_secret_is_refused_and_never_repeated(line: str) -> None:
    assert "hunter2" not in refusal_of(line)


def test_the_fix_for_a_password_is_that_of_the_setting() -> None:
    assert "store.redis_password_file" in refusal_of('store.redis = "redis://:hunter2@host/0"')
    assert "from the environment or from files" in refusal_of('checkpoints.location = "s3://key:hunter2@bucket"')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_link_to_nothing_is_not_ignored() -> None:
    Path("holdfast.toml").symlink_to("gone.toml")
    with pytest.raises(SettingsError, match=r"holdfast.toml: No such file"):
        read_file(None)


def test_without_a_file_there_are_no_settings(folder: Path) -> None:
    assert read_file(None) is None
    (folder / "holdfast.toml").write_text("[run]\nranks = 2\n")
    found = read_file(None)
    assert found is not None
    assert (found.values, found.where("ranks")) == ({"ranks": 2}, "holdfast.toml:2")


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none.toml: No such file or directory: name a file"):
        read_file(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not text in UTF-8"):
        read_file(tmp_path / "binary.toml")


SENSITIVE = {
    "run.command": '[run]\ncommand = ["x"]\n',
    "store.redis": '[store]\nredis = "redis://host:1/0"\n',
    "store.redis_password_file": '[store]\nredis_password_file = "f"\n',
    "notify.heartbeat_url_file": '[notify]\nheartbeat_url_file = "f"\n',
    "notify.heartbeat_fail_url_file": '[notify]\nheartbeat_fail_url_file = "f"\n',
    "notify.command.argv": '[notify.command]\nargv = ["x"]\n',
    "notify.slack.url_file": '[notify.slack]\nurl_file = "f"\n',
    "notify.webhook.bearer_token_file": '[notify.webhook]\nurl = "https://h/"\nbearer_token_file = "f"\n',
    "notify.email.password_file": '[notify.email]\npassword_file = "f"\n',
}


@pytest.mark.parametrize("key", SENSITIVE)
def test_a_foreign_file_that_nobody_named_starts_no_program_and_reads_no_secret(key: str, folder: Path) -> None:
    file = Path("holdfast.toml")
    file.write_text(SENSITIVE[key])
    file.chmod(0o646)
    with pytest.raises(SettingsError) as caught:
        read_file(None)
    line = str(caught.value)
    assert f": {key} is refused, because it starts a program or reads a secret, and every user can write" in line
    assert line.startswith("holdfast.toml:") and line.endswith(": if you trust it, name it: --config holdfast.toml")
    if key != "notify.email.password_file":  # the rest of that channel is missing
        assert read_file(file) is not None


@pytest.mark.usefixtures("folder")
def test_harmless_keys_of_a_foreign_file_are_obeyed() -> None:
    Path("holdfast.toml").write_text("[checkpoints]\nevery = 20\n")
    Path("holdfast.toml").chmod(0o666)
    found = read_file(None)
    assert found is not None and found.values == {"checkpoint_every": 20}


@pytest.mark.parametrize(
    ("owner", "mode", "expected"),
    [
        ((0, 0), 0o664, ""),
        ((1000, 1000), 0o664, ""),
        ((1000, 60_001), 0o644, ""),
        ((1000, 60_001), 0o664, r"group 60001 can write the file \(mode 0664, owner .*\)"),
        ((1000, 1000), 0o666, r"every user can write the file \(mode 0666, owner .*\)"),
        ((60_002, 60_002), 0o600, r"the file belongs to user 60002 \(uid 60002\)"),
    ],
)
def test_a_file_is_foreign_if_another_user_owns_it_or_can_write_it(
    owner: tuple[int, int], mode: int, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("holdfast.toml").write_text(SENSITIVE["run.command"])
    status = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, *owner, 0, 0, 0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "fstat", lambda _: status)
    if expected:
        with pytest.raises(SettingsError, match=expected):
            read_file(None)
    else:
        assert read_file(None) is not None
