import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast_cli.control import rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.main import app
from holdfast_proto.run_files import rank_log
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from tests.cli.conftest import fake_command, holdfast, identity_of, run_record
from tests.support.coroutines import PATIENCE_S
from tests.support.fakes import write_status

Options = Callable[..., LocalRunOptions]


@pytest.fixture
def going(options: Options) -> Iterator[LocalRun]:
    with LocalRun(options()) as run:
        yield run


def where(run: LocalRun) -> tuple[str, str]:
    return "--directory", str(run.options.directory)


def test_without_any_run_status_says_how_to_start_one(tmp_path: Path) -> None:
    result = holdfast("status", "--directory", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"holdfast: no run under {tmp_path}/: start one with `holdfast run`")
    assert result.stderr.count("\n") == 1


def test_an_unreachable_daemon_is_one_line_with_the_fix(tmp_path: Path) -> None:
    result = holdfast("status", "--control", str(tmp_path / "none.sock"))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "no daemon answers at" in result.stderr and "--run" in result.stderr


def test_a_run_whose_daemon_does_not_serve_yet_is_starting(tmp_path: Path) -> None:
    me = identity_of(os.getpid())
    (tmp_path / "new").mkdir()
    control = str(tmp_path / "none.sock")
    record = run_record(tmp_path / "new", run="new", pid=me.pid, start_ticks=me.start_ticks, control=control)
    record.save()
    line = "holdfast: run new is starting, and its daemon does not answer yet: try again in a few seconds\n"
    assert holdfast("status", "--directory", str(tmp_path)).stderr == line
    replace(record, components={"daemon": {"pid": 1}}).save()
    assert "no daemon answers" in holdfast("status", "--directory", str(tmp_path)).stderr


@pytest.mark.parametrize("command", ["run", "observe"])
def test_an_empty_name_is_refused(command: str) -> None:
    result = holdfast(command, "--run", "", "--", "true")
    assert result.exit_code == 78
    assert result.stderr.startswith("holdfast: --run: run name ''")


def test_a_launcher_that_cannot_be_started_is_refused_before_anything_starts(tmp_path: Path) -> None:
    result = holdfast("observe", "--directory", str(tmp_path / "runs"), "--", "nosuchlauncher", "train.py")
    assert result.exit_code == 78
    assert result.stderr.startswith("holdfast: nosuchlauncher cannot be started: no such program on the PATH")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("nosuch", "--ranks", "2"), "--ranks after nosuch is passed to it: put options of `holdfast run` before it"),
        (("nosuch", "--preset=fast", "--ranks", "2"), "--preset=fast, --ranks after nosuch is passed to it"),
        (("--ranks", "2", "--", "nosuch", "--ranks", "2"), ""),
        (("--ranks", "2", "nosuch", "--steps", "2", "--help"), ""),
    ],
)
def test_an_option_behind_the_command_is_the_commands_and_a_hint_says_so(words: tuple[str, ...], hint: str) -> None:
    result = CliRunner().invoke(app, ["run", *words], prog_name="holdfast")
    hints, refusal = result.stderr.splitlines()[:-1], result.stderr.splitlines()[-1]
    assert [line.removeprefix("holdfast: ").startswith(hint) for line in hints] == ([True] if hint else [])
    assert refusal.startswith("holdfast: nosuch cannot be started")


def test_the_refusal_of_a_daemon_is_passed_on(going: LocalRun) -> None:
    result = holdfast("status", "--control", str(going.paths.control), "--run", "other")
    assert (result.exit_code, result.stderr) == (1, "holdfast: the daemon refused: there is no run other\n")


def test_a_password_in_the_url_is_refused_by_every_command_that_takes_one(tmp_path: Path) -> None:
    url = "redis://:hunter2@127.0.0.1/0"
    folders = ("--directory", str(tmp_path))
    for arguments in (
        ("run", "--redis", url, *folders, "--", "true"),
        ("agent", "--run", "r", "--redis", url, *folders, "--runtime-directory", str(tmp_path)),
        ("daemon", "--redis", url, *folders, "--control", str(tmp_path / "s")),
    ):
        result = holdfast(*arguments)
        assert result.exit_code == 78
        assert "--redis-password-file" in result.stderr
        assert "hunter2" not in result.output
        assert result.stderr.count("\n") == 1


def test_status_of_the_newest_run_is_found_by_itself_and_has_words_for_people_and_numbers_for_scripts(
    going: LocalRun,
) -> None:
    result = holdfast("status", *where(going))
    assert result.exit_code == 0
    assert "testing  running  generation 1" in result.stdout
    status = json.loads(holdfast("status", "--json", *where(going)).stdout)
    assert (status["run"], status["phase"], status["generation"], status["store_up"]) == ("testing", "running", 1, True)
    assert (status["ranks"][0]["life"], status["ranks"][0]["pid"]) == ("running", rank_pids(going.status())[0])
    assert "loss" not in status


def test_a_checkpoint_is_requested_and_waited_for(going: LocalRun) -> None:
    result = holdfast("checkpoint", "now", *where(going))
    assert result.stdout == "checkpoint of step 4 committed\n"
    assert going.status().newest_checkpoint == 4


def test_incidents_are_listed_and_one_is_shown(going: LocalRun) -> None:
    assert "no incidents" in holdfast("incidents", *where(going)).stdout
    status = going.status()
    found = store.Incident(id="i-1", verdict=store.Verdict(message="rank 5 was killed", culprits=[5]))
    status.newest_incident.CopyFrom(found)
    write_status(going.paths.directory, status)
    assert "rank 5 was killed" in holdfast("incidents", *where(going)).stdout
    assert "rank 5 was killed" in holdfast("incidents", "show", "i-1", *where(going)).stdout
    assert json.loads(holdfast("incidents", "--json", *where(going)).stdout)[0]["verdict"]["culprits"] == [5]
    unknown = holdfast("incidents", "show", "i-9", *where(going))
    assert unknown.exit_code == 1
    assert "no incident i-9" in unknown.stderr


def run_arguments(options: LocalRunOptions) -> list[str]:
    return [
        "run", "--run", "testing", "--directory", str(options.directory), "--shm-directory", str(options.shm_directory),
    ]  # fmt: skip


def prepare_status(options: LocalRunOptions, **fields: Any) -> None:
    directory = options.directory / "testing"
    directory.mkdir(parents=True)
    fields = {"newest_step": 9, "newest_snapshot": -1, "loss": 1.5, **fields}
    write_status(directory, RunStatus(run="testing", generation=1, **fields))


def test_a_finished_run_names_its_logs_first_its_end_last_and_exits_zero(options: Options) -> None:
    prepare_status(options(), phase=store.RUN_PHASE_FINISHED)
    result = holdfast(*run_arguments(options()), "--ranks", "2", "--", "true", "--ranks", "x")
    assert result.exit_code == 0
    first, *_, last = result.stdout.splitlines()
    assert first == f"testing writes its logs to {options().directory / 'testing' / 'logs'}: see `holdfast logs`"
    assert "testing finished: 10 steps · loss 1.5000" in last
    again = holdfast(*run_arguments(options()), "--json", "--", "true")
    assert json.loads(again.stdout)["phase"] == "finished"


def test_with_tee_a_run_prints_what_its_ranks_print_since_it_was_started(options: Options) -> None:
    prepare_status(options(), phase=store.RUN_PHASE_RUNNING)
    directory = options().directory / "testing"
    log = rank_log(directory, 1, 0)
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier start\n")
    arguments = fake_command(*run_arguments(options()), "--tee", "--", "true")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert any("testing running" in line for line in iter(run.stdout.readline, ""))
        with log.open("a") as stream:
            stream.write("\x1b[32mstep 1\x1b[0m\nstep 2 has not en")
        lines = [run.stdout.readline()]
        write_status(directory, RunStatus(run="testing", phase=store.RUN_PHASE_FINISHED, generation=1, newest_step=9))
        rest, errors = run.communicate(timeout=PATIENCE_S)
    printed = "".join([*lines, rest])
    assert "[rank 0] \x1b[32mstep 1\x1b[0m\n" in printed, errors
    assert "[rank 0] step 2 has not en\n" in printed and "earlier start" not in printed


@pytest.mark.parametrize("phase", [store.RUN_PHASE_FINISHED, store.RUN_PHASE_FAILED])
def test_a_run_whose_ranks_never_attached_says_so_once(options: Options, phase: "store.RunPhase") -> None:
    ended = RankView(life=store.LIFE_EXITED, exit=store.RankExit(code=0, never_attached=True))
    prepare_status(options(), phase=phase, outcome="why", newest_step=-1, ranks=[ended])
    result = holdfast(*run_arguments(options()), "--", "true")
    assert result.stderr.count("no rank has called holdfast_hooks.attach()") == 1


def test_a_failed_run_prints_its_decisive_reason_and_where_the_logs_are(options: Options) -> None:
    overcome = store.Incident(verdict=store.Verdict(message="rank 5 was killed"), state=store.INCIDENT_STATE_RECOVERED)
    prepare_status(options(), phase=store.RUN_PHASE_FAILED, outcome="rank 3 fails each time", newest_incident=overcome)
    result = holdfast(*run_arguments(options()), "--", "true")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        f"holdfast: run testing failed: rank 3 fails each time (logs: {options().directory / 'testing' / 'logs'}); "
        "there is no checkpoint, so 10 steps are lost"
    )


def test_an_ended_run_still_has_a_status_but_takes_no_requests(options: Options) -> None:
    prepare_status(options(), phase=store.RUN_PHASE_FINISHED)
    assert holdfast(*run_arguments(options()), "--", "true").exit_code == 0
    folder = ("--directory", str(options().directory))
    assert json.loads(holdfast("status", "--json", *folder).stdout)["newest_step"] == 9
    assert "ended: finished" in holdfast("status", *folder).stdout
    assert "no incidents" in holdfast("incidents", *folder).stdout
    refused = holdfast("checkpoint", "now", *folder)
    assert refused.exit_code == 1
    assert "run testing has ended: finished" in refused.stderr


def test_run_without_a_command_says_what_is_missing() -> None:
    result = holdfast("run")
    assert result.exit_code == 2
    assert "COMMAND" in result.stderr


def test_stop_ends_a_run_that_another_process_supervises(options: Options) -> None:
    settings = options()
    arguments = fake_command(*run_arguments(settings), "--", "true")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert any("testing running" in line for line in iter(supervisor.stdout.readline, ""))
        result = holdfast("stop", "--directory", str(settings.directory))
        _, errors = supervisor.communicate(timeout=PATIENCE_S)
    assert result.stdout == "testing: stopped\n"
    assert supervisor.returncode == 128 + signal.SIGTERM
    assert errors.splitlines()[-1].startswith("holdfast: interrupted")
    again = holdfast("stop", "--directory", str(settings.directory))
    assert "had already ended" in again.stdout
