import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast_base.run_processes import identify
from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_cli.control import rank_pids
from holdfast_cli.errors import CommandError, InterruptionError, SettingsError
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.command_lines import agent_command
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.redis_server import answers
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.store import connect
from holdfast_cli.local_run.supervised_folder import SupervisedFolder
from holdfast_cli.run_folder.ended import load_last_status, outcome_of
from holdfast_cli.run_folder.paths import RunPaths
from holdfast_cli.run_folder.record import find_record, load_record
from holdfast_cli.run_folder.run_end import end_run
from holdfast_proto import keys
from holdfast_proto.run_files import run_key
from holdfast_proto.run_key import RunKeyFile
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RunStatus
from tests.cli.conftest import FAKES
from tests.support.coroutines import PATIENCE_S, wait_until
from tests.support.fakes import write_status
from tests.support.local_runs import restart_redis, resume_restart, suspend_restart, warm_parent_pid

Options = Callable[..., LocalRunOptions]


def is_alive(pid: int) -> bool:
    identity = identify(pid)
    return identity is not None and identity.is_alive()


def everything_of(run: LocalRun) -> list[int]:
    """Return the pids of all processes of a run, recorded or not."""
    components = [run.stack.pids().get(name) for name in ("redis", "daemon", "agent")]
    helper = int((run.paths.directory / "helper.pid").read_text())
    return [pid for pid in (*components, *rank_pids(run.status()).values(), helper) if pid is not None]


def finish(run_directory: Path) -> None:
    status = RunStatus(run=run_directory.name, phase=store.RUN_PHASE_FINISHED, generation=1, newest_step=9)
    write_status(run_directory, status)


def test_a_run_comes_up_and_leaves_nothing_but_its_directory(options: Options, tmp_path: Path) -> None:
    with LocalRun(options()) as run:
        assert run.status().phase == store.RUN_PHASE_RUNNING
        assert warm_parent_pid(run) == int((run.paths.directory / "helper.pid").read_text())
        pids = everything_of(run)
        assert len(pids) == 5
        assert all(is_alive(pid) for pid in pids)
        assert run.paths.runtime.stat().st_mode & 0o777 == 0o700
    assert [pid for pid in pids if is_alive(pid)] == []
    assert not run.paths.runtime.exists()
    assert list((tmp_path / "shm").iterdir()) == []
    assert find_record(tmp_path / "runs", None).outcome == "stopped"


@pytest.mark.parametrize(("umask", "parent"), [(0, 0o700), (0o022, 0o755)])
def test_no_other_user_can_look_into_a_run_whatever_the_umask(options: Options, umask: int, parent: int) -> None:
    old = os.umask(umask)
    try:
        with LocalRun(options()) as run:
            data = run.paths.redis_data
            made = wait_until(lambda: list(data.rglob("*.aof")), "the append-only file")
            modes = {path: path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}
            assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
            assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
            folders = [path for path in made[0].parents if path.is_relative_to(run.paths.directory.parent)][2:]
            assert [path.stat().st_mode & 0o777 for path in folders] == [0o700, parent]
    finally:
        os.umask(old)


def test_the_spec_is_published_before_the_components_start(options: Options) -> None:
    with LocalRun(options(ranks=4, checkpoint_every=20)) as run:
        client = connect(run.store_url)
        data: Any = client.get(keys.spec("testing"))
        key = RunKeyFile(run_key(run.paths.directory, "testing"), "testing").read()
        spec = store.RunSpec.FromString(key.seal.open(keys.spec("testing"), data).content)
        assert client.smembers(keys.RUNS) == {b"testing"}
        client.close()
    assert (spec.run, spec.nodes, spec.ranks_per_node, list(spec.command)) == ("testing", 1, 4, ["python", "train.py"])
    assert (spec.snapshot_every, spec.checkpoint_every, spec.checkpoints_kept) == (10, 20, 3)
    assert spec.checkpoint_directory == str(run.paths.directory / "checkpoints")
    assert spec.instance


def test_the_agent_gets_the_settings_of_checkpoints(options: Options, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path, tmp_path, tmp_path, "local")
    written = options(checkpoint_full_every=3, checkpoint_compression=Compression.NEVER)
    words = agent_command(paths, written, [])
    assert words[words.index("--checkpoint-full-every") + 1] == "3"
    assert words[words.index("--checkpoint-compression") + 1] == "never"


def test_the_record_names_the_components_and_prometheus_finds_them(options: Options, tmp_path: Path) -> None:
    with LocalRun(options()) as run:
        record = find_record(tmp_path / "runs", None)
        assert record.components["agent"] == {"pid": run.stack.pids().get("agent"), "metrics_port": 12345}
        assert record.components["redis"] == {"pid": run.stack.pids().get("redis")}
        file = tmp_path / "runs" / ".prometheus" / "testing.json"
        targets = json.loads(file.read_text())
    assert targets == [
        {"targets": ["127.0.0.1:12345"], "labels": {"component": "agent", "run": "testing"}},
        {"targets": ["127.0.0.1:12345"], "labels": {"component": "daemon", "run": "testing"}},
    ]
    assert not file.exists()  # or Prometheus would take an ended run for a dead one


def test_a_run_whose_targets_cannot_be_written_runs(options: Options, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".prometheus").touch()
    with LocalRun(options()) as run:
        assert run.status().phase == store.RUN_PHASE_RUNNING
        log = (run.paths.logs / "holdfast.log").read_text()
    assert "Prometheus will not find the run: " in log


def _is_another(run: LocalRun, name: str, before: int) -> bool:
    return run.stack.pids().get(name) not in (None, before)


def test_a_killed_daemon_and_agent_come_back_and_the_run_can_be_waited_for(options: Options) -> None:
    with LocalRun(options()) as run:
        for name in ("daemon", "agent"):
            before = run.stack.pids().get(name)
            assert before is not None
            os.kill(before, signal.SIGKILL)
            wait_until(partial(_is_another, run, name, before), f"{name} restarted")
        finish(run.paths.directory)
        assert run.wait(timeout_s=PATIENCE_S).phase == store.RUN_PHASE_FINISHED
    assert find_record(run.options.directory, None).outcome == "finished"


def test_a_suspended_component_stays_away_until_resumed(options: Options) -> None:
    with LocalRun(options()) as run:
        suspend_restart(run, "daemon")
        os.kill(run.stack.pids().get("daemon") or 0, signal.SIGKILL)
        wait_until(lambda: "daemon: started again once, is down" in run.stack.notes(), "the exit is noticed")
        with pytest.raises(CommandError, match="no daemon answers"):
            run.status()
        resume_restart(run, "daemon")
        wait_until(lambda: run.stack.pids().get("daemon"), "restart")


@pytest.mark.parametrize("empty", [False, True])
def test_killed_redis_comes_back_with_its_data_unless_emptied(options: Options, empty: bool) -> None:
    with LocalRun(options()) as run:
        before = run.stack.pids().get("redis")
        client = connect(run.store_url)
        client.set("kept", "value")
        client.execute_command("WAITAOF", 1, 0, 5000)  # type: ignore[no-untyped-call]
        client.close()
        restart_redis(run, empty=empty)
        assert answers(run.store_url)
        assert run.stack.pids().get("redis") != before
        client = connect(run.store_url)
        assert client.get("kept") == (None if empty else b"value")
        client.close()


def test_a_run_name_is_taken_while_its_run_continues(options: Options) -> None:
    with LocalRun(options()) as run:
        with pytest.raises(CommandError) as caught, LocalRun(options()):
            pass
        assert str(caught.value).startswith(f"run testing is already running (pid {os.getpid()}): choose another --run")
        assert run.status().phase == store.RUN_PHASE_RUNNING
    (run.paths.directory / "status.pb").unlink()
    with LocalRun(options()) as again:
        assert again.stack.pids().get("agent") is not None


def test_runs_of_one_name_in_different_folders_do_not_meet(options: Options, tmp_path: Path) -> None:
    with LocalRun(options()) as first:
        with LocalRun(options(directory=tmp_path / "other")) as second:
            assert second.paths.memory != first.paths.memory
        assert list(first.paths.memory.iterdir()) != []
        assert all(is_alive(pid) for pid in everything_of(first))


def test_an_agent_that_calls_its_configuration_wrong_ends_the_start_with_its_line(
    options: Options, tmp_path: Path
) -> None:
    complaint = "--checkpoints /nowhere: cannot be written"
    wrong = options(environment={"FAKE_AGENT_COMPLAINT": complaint})
    with pytest.raises(SettingsError) as caught, LocalRun(wrong):
        pass
    assert str(caught.value) == complaint
    assert list((tmp_path / "shm").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait_and_nothing_is_left(options: Options, number: signal.Signals) -> None:
    with Interruption() as asked, pytest.raises(InterruptionError) as caught, LocalRun(options(), asked) as run:
        pids = everything_of(run)
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        run.wait(timeout_s=PATIENCE_S)
    assert caught.value.exit_code == 128 + number
    assert [pid for pid in pids if is_alive(pid)] == []
    last = load_last_status(run.paths.directory)
    assert last is not None
    assert (last.phase, last.outcome, last.newest_step) == (store.RUN_PHASE_FAILED, "stopped by an operator", 3)
    assert {(rank.life, rank.pid) for rank in last.ranks} == {(store.LIFE_EXITED, 0)}
    assert not run.paths.runtime.exists()


@pytest.mark.parametrize(("grace_s", "signals"), [(0.2, 1), (600.0, 2)], ids=["the deadline", "a second SIGTERM"])
def test_a_run_that_does_not_stop_as_planned_is_ended(options: Options, grace_s: float, signals: int) -> None:
    sent: list[RunStatus] = []

    def observe(status: RunStatus) -> None:
        if len(sent) < signals and status.phase == (store.RUN_PHASE_LEAVING if sent else store.RUN_PHASE_RUNNING):
            sent.append(status)
            os.kill(os.getpid(), signal.SIGTERM)

    settings = options(preemption_grace_s=grace_s, environment={"FAKE_DAEMON_DAWDLES": "1"})
    with Interruption() as asked, pytest.raises(InterruptionError) as caught, LocalRun(settings, asked) as run:
        pids = everything_of(run)
        run.wait(observe, timeout_s=PATIENCE_S)
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert ("--preemption-grace-s" in str(caught.value)) == (signals == 1)
    assert [pid for pid in pids if is_alive(pid)] == []


SUPERVISE = """
import sys
from pathlib import Path
from holdfast_cli.local_run import command_lines
from holdfast_cli.local_run.command_lines import agent_command
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
fakes, directory, memory = sys.argv[1:]
command_lines.HOLDFAST = (sys.executable, fakes)
options = LocalRunOptions(run="testing", command=("x",), directory=Path(directory), shm_directory=Path(memory))
with LocalRun(options) as run:
    pids = [run.stack.pids().get(name) for name in ("redis", "daemon", "agent")]
    print(*pids, (run.paths.directory / "helper.pid").read_text(), flush=True)
    run.wait()
"""


def test_a_killed_supervisor_takes_its_components_along_and_the_rest_can_be_cleared_up(
    options: Options, tmp_path: Path
) -> None:
    settings = options()
    arguments = [sys.executable, "-c", SUPERVISE, FAKES[1], str(settings.directory), str(settings.shm_directory)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        *components, helper = (int(word) for word in supervisor.stdout.readline().split())
        supervisor.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in components), "components die with their parent")
    assert is_alive(helper)
    targets = settings.directory / ".prometheus" / "testing.json"
    assert targets.exists()
    record = find_record(settings.directory, "testing")
    assert "cleared up" in end_run(record, 5.0)
    assert not is_alive(helper)
    assert list((tmp_path / "shm").iterdir()) == []
    assert find_record(settings.directory, "testing").outcome == "cut short"
    assert not targets.exists()


def test_a_start_that_is_refused_leaves_the_result_of_the_one_before(options: Options) -> None:
    with LocalRun(options()) as run:
        finish(run.paths.directory)
        wait_until(lambda: run.status().phase == store.RUN_PHASE_FINISHED, "the end is known")
        directory = run.paths.directory
    record, status = load_record(directory), load_last_status(directory)
    assert status is not None
    refused = SupervisedFolder(options())
    assert load_last_status(directory) is None  # nothing of the start before is said of this one
    refused.leave(outcome_of(None), None)
    assert (load_record(directory), load_last_status(directory)) == (record, status)


def test_a_first_start_that_is_refused_is_said_to_have_stopped_before_it_began(options: Options) -> None:
    refused = SupervisedFolder(options())
    refused.leave(outcome_of(None), None)
    assert find_record(options().directory, "testing").outcome == "stopped before it began"


def test_a_damaged_status_of_an_ended_run_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "last-status.pb").write_bytes(b"\xff" * 300)
    assert load_last_status(tmp_path) is None


def test_settings_that_make_no_sense_are_refused_with_the_flag_to_change(options: Options) -> None:
    for changes, flag in (
        ({"run": "no/slash"}, "--run"),
        ({"command": ()}, "after --"),
        ({"ranks": 0}, "--ranks"),
        ({"checkpoint_every": 15}, "--checkpoint-every"),
        ({"checkpoint_every_minutes": -1.0}, "--checkpoint-every-minutes"),
        ({"preemption_grace_s": -1.0}, "--preemption-grace-s"),
        ({"checkpoint_full_every": 0}, "--checkpoint-full-every"),
        ({"redis_url": "redis://:secret@host"}, "--redis-password-file"),
    ):
        with pytest.raises(SettingsError, match=flag):
            options(**changes)
