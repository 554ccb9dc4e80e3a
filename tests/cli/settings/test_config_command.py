import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_base.text import HIDDEN
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.record import find_record
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED
from tests.cli.conftest import holdfast
from tests.support.fakes import write_status


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_show_prints_each_value_and_its_source(folder: Path) -> None:
    (folder / "holdfast.toml").write_text("[checkpoints]\nevery = 20\n")
    lines = holdfast("config", "show", "--ranks", "4").stdout.splitlines()
    shown = {line.split()[0]: line for line in lines if "=" in line}
    assert shown["ranks"].split("#") == [f"{'ranks = 4':40}  ", " flag --ranks"]
    assert shown["keep"].split("#")[1] == " default"
    assert next(line for line in lines if line.startswith("every = 20")).endswith("# holdfast.toml:2")


def test_what_show_prints_is_a_file_with_the_same_settings(folder: Path) -> None:
    def values(*flags: str) -> dict[str, object]:
        shown = json.loads(holdfast("config", "show", *flags, "--json").stdout)
        return {key: one["value"] for key, one in shown.items()}

    flags = ["--preset", "fast", "--checkpoints", "/c", "--ranks", "2", "--restart-patience", "0.5"]
    flags += ["--console-host", "https://a.example.com"]
    printed = holdfast("config", "show", *flags, "--", "python", "a b.py").stdout
    (folder / "again.toml").write_text(printed)
    assert values(*flags) | {"run.command": ["python", "a b.py"]} == values("--config", "again.toml")
    assert values(*flags)["console.hosts"] == ["https://a.example.com"]


def test_show_as_json_names_source_and_line(folder: Path) -> None:
    (folder / "job.toml").write_text('[run]\nname = "llama"\n')
    shown = json.loads(holdfast("config", "show", "--config", "job.toml", "--keep", "7", "--json").stdout)
    assert shown["run.name"] == {"value": "llama", "source": "file", "where": "job.toml:2"}
    assert shown["checkpoints.keep"] == {"value": 7, "source": "flag", "where": "--keep"}
    assert shown["snapshots.shm_directory"] == {"value": "/dev/shm", "source": "default", "where": ""}


def test_show_does_not_print_a_password(folder: Path) -> None:
    result = holdfast("config", "show", "--redis", "redis://:hunter2@host/0")
    assert result.exit_code == 78
    assert "hunter2" not in result.output


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_show_hides_secrets_of_the_command(folder: Path, form: tuple[str, ...]) -> None:
    shown = holdfast("config", "show", *form, "--", "python", "train.py", "--api-key", "s3cret").stdout
    assert "s3cret" not in shown and HIDDEN in shown


def test_check_accepts_what_run_accepts(folder: Path) -> None:
    (folder / "holdfast.toml").write_text("[run]\nranks = 2\n[checkpoints]\nevery = 20\n")
    result = holdfast("config", "check")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "holdfast.toml: 2 settings, nothing is wrong",
        "not checked: the command, because the file has none; folders, ports and servers, which a start tries",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[checkpoints]\nevry = 20\n", "the nearest is checkpoints.every"),
        ("[checkpoints]\nevery = 15\n", "written from a snapshot (checkpoints.every at holdfast.toml:2)"),
        ("[snapshots]\nevery = 0\n", "raise --snapshot-every, or set --checkpoint-every 0"),
        ('[checkpoints]\nlocation = "holdfast.toml"\n', "holdfast.toml: is a file: name a folder or a URL"),
        ('[checkpoints]\nlocation = "a"\nsecondary = "a"\n', "--checkpoints-secondary is the place of --checkpoints"),
        ('[checkpoints]\nstaging = "a"\n', "has no effect without a URL in --checkpoints"),
        ("[checkpoints]\nsecondary_keep = 2\n", "has no effect without --checkpoints-secondary"),
        ('[run]\nname = "a/b"\n', "run name 'a/b'"),
        ('[loss]\nblip = "roll_back"\n', "it is for spike, divergence, non_finite: use note, notify or stop"),
        ('[loss]\nspike = "roll_back"\n[snapshots]\nevery = 0\n[checkpoints]\nevery = 0\n', "no states to return to"),
        ('[loss]\nleave_out = ["7-6"]\n', "--leave-out: '7-6' names no data"),
        ('[store]\nredis = "http://host"\n', "use redis://"),
        ('[notify.slack]\nurl_file = "none"\n', "holdfast.toml:1: [notify.slack]: url_file: none: "),
    ],
)
def test_check_and_run_refuse_a_wrong_file_in_one_line(folder: Path, text: str, reason: str) -> None:
    (folder / "holdfast.toml").write_text(text)
    for command in (("config", "check"), ("run", "--", "true")):
        result = holdfast(*command)
        assert (result.exit_code, result.stderr.count("\n")) == (78, 1), result.output
        assert reason in result.stderr
    assert [path.name for path in folder.iterdir()] == ["holdfast.toml"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ('["no-such-trainer", "--fast"]', "no-such-trainer cannot be started: no such program on the PATH"),
        ('["python", "missing.py"]', "missing.py cannot be started: no such file in "),
        ('["torchrun", "train.py"]', "torchrun starts ranks, and Holdfast would start them itself"),
        ('["python", "-m", "holdfast_trainer", "--parallel.tp=-7"]', "parallel.tp"),
    ],
)
def test_check_and_run_refuse_the_same_command(folder: Path, command: str, reason: str) -> None:
    (folder / "holdfast.toml").write_text(f"[run]\nranks = 2\ncommand = {command}\n")
    checked, started = holdfast("config", "check"), holdfast("run")
    assert (checked.exit_code, started.exit_code) == (78, 78), started.output
    assert checked.stderr.startswith("holdfast: holdfast.toml:3: ") and checked.stderr.count("\n") == 1
    assert reason in checked.stderr and reason in started.stderr


def test_check_says_what_only_the_nodes_can_check(folder: Path) -> None:
    notify = '[notify.slack]\nurl_file = "of the daemon"\n'
    (folder / "holdfast.toml").write_text(f'[run]\nnodes = 2\ncommand = ["no-such-trainer"]\n{notify}')
    result = holdfast("config", "check")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1] == (
        "not checked: whether the nodes can start the command; the files and programs of [notify], which are on the "
        "daemon's machine; folders, ports and servers, which a start tries"
    )
    (folder / "holdfast.toml").write_text('[run]\nnodes = 2\ncommand = ["torchrun", "train.py"]\n')
    assert "torchrun starts ranks" in holdfast("config", "check").stderr


def test_a_folder_that_cannot_be_looked_at_is_reported_in_one_line(folder: Path) -> None:
    result = holdfast("run", "--checkpoints", "x" * 300, "--", "true")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "File name too long" in result.stderr
    assert list(folder.iterdir()) == []


def test_check_without_a_file_is_refused(folder: Path) -> None:
    result = holdfast("config", "check")
    refusal = "holdfast: holdfast.toml: No such file or directory: name a file with --config\n"
    assert (result.exit_code, result.stderr) == (78, refusal)


def test_a_run_starts_from_a_file_alone(options: Callable[..., LocalRunOptions], folder: Path) -> None:
    settings = options()
    (folder / "holdfast.toml").write_text(f"""
[run]
name = "testing"
command = ["true"]
directory = "{settings.directory.name}"
[checkpoints]
location = "elsewhere"
[snapshots]
shm_directory = "{settings.shm_directory}"
""")
    directory = settings.directory / "testing"
    directory.mkdir(parents=True)
    ended = RunStatus(run="testing", phase=RUN_PHASE_FINISHED, generation=1, newest_step=9, newest_snapshot=-1)
    write_status(directory, ended)
    result = holdfast("run")
    assert result.exit_code == 0, result.output
    assert "testing finished" in result.stdout
    assert find_record(settings.directory, None).checkpoint_directory == str(folder / "elsewhere")


def test_publish_takes_what_it_needs_from_the_file(folder: Path) -> None:
    (folder / "holdfast.toml").write_text(f"""
[run]
name = "big"
command = ["python", "train.py"]
nodes = 2
ranks = 8
[checkpoints]
location = "shared"
[store]
redis = "unix://{folder}/none.sock"
""")
    result = holdfast("publish")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"holdfast: the run cannot be published at --redis unix://{folder}/none.sock: ")
