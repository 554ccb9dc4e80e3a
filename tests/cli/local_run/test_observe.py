import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast_cli.errors import SettingsError
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.launcher_watch import Launcher, LauncherWatch
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.sweep import sweep
from holdfast_proto.rank_context import VARIABLE
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.agent_record_pb2 import AgentRecord, RankRecord
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from tests.cli.conftest import fake_command, identity_of, run_record
from tests.support.coroutines import PATIENCE_S
from tests.support.fakes import write_status

Options = Callable[..., LocalRunOptions]


@pytest.fixture
def observe(options: Options) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """A function that starts ``holdfast observe`` on a run that is in some phase."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *command: str, phase: store.RunPhase = store.RUN_PHASE_FINISHED, flags: tuple[str, ...] = ()
    ) -> "subprocess.Popen[str]":
        directory = options().directory / "testing"
        directory.mkdir(parents=True)
        write_status(directory, RunStatus(run="testing", generation=1, newest_step=9, phase=phase))
        arguments = ["observe", "--run", "testing", "--directory", str(options().directory), *flags, "--", *command]
        pipe = subprocess.PIPE
        process = subprocess.Popen(fake_command(*arguments), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_launcher_gets_the_nodes_variable_and_its_exit_code_is_ours(observe: Any) -> None:
    launcher = f"import os, sys; print(os.environ['{VARIABLE}']); sys.exit(3)"
    process = observe(sys.executable, "-c", launcher)
    printed, log = process.communicate(timeout=PATIENCE_S)
    assert json.loads(printed)["observed_node"]["run"] == "testing"
    assert "testing finished, generation 1" in log
    assert process.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_the_launchers_to_answer(observe: Any, number: signal.Signals) -> None:
    script = f"trap 'exit 7' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.02; done"
    process = observe("sh", "-c", script, phase=store.RUN_PHASE_RUNNING)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 7


@pytest.mark.parametrize(
    ("said", "code"),
    [("ended 3\n", 3), ("nonsense\nsignal 15\n", 128 + signal.SIGTERM), ("", 128 + signal.SIGKILL)],
    ids=["it ends", "a signal ends it", "it is killed"],
)
def test_a_launcher_that_runs_already_gets_the_variables_and_says_how_it_ends(
    observe: Any, said: str, code: int
) -> None:
    process = observe(flags=("--launcher-stdin", "--restore", "--snapshot-every", "5"))
    node = json.loads(json.loads(process.stdout.readline())[VARIABLE])["observed_node"]
    assert (node["run"], node["restores"], node["snapshot_every"]) == ("testing", True, 5)
    process.communicate(said, timeout=PATIENCE_S)
    assert process.returncode == code


def test_a_flag_that_asks_for_what_only_restore_does_is_refused(observe: Any) -> None:
    process = observe("true", flags=("--keep", "5"))
    _, log = process.communicate(timeout=PATIENCE_S)
    assert "--keep has no effect without --restore" in log
    assert process.returncode == 78


def test_without_a_launcher_the_line_for_its_shell_is_printed_and_a_signal_ends_it(observe: Any) -> None:
    process = observe(phase=store.RUN_PHASE_RUNNING)
    assert process.stdout.readline().startswith(f"export {VARIABLE}='")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_launcher_that_a_signal_ended_has_the_exit_code_that_shells_give() -> None:
    launcher = Launcher(["sh", "-c", "kill -9 $$"], {})
    while launcher.exit_code is None:
        pass
    assert launcher.exit_code == 128 + signal.SIGKILL


def test_a_launcher_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="no-such-launcher cannot be run"):
        Launcher(["no-such-launcher"], {})


def watch_of(look: Callable[[], RunStatus], complain: Callable[[str], None]) -> LauncherWatch:
    """Return the watch of a run that looks so."""
    run = cast(LocalRun, SimpleNamespace(look=look, launcher_ended=lambda code: None))
    return LauncherWatch(run, Interruption(), show=lambda _: None, complain=complain)


def test_a_launcher_continues_when_we_cannot() -> None:
    def look() -> RunStatus:
        raise SettingsError("--metrics-port 80: taken")

    complaints: list[str] = []
    watch = watch_of(look, complaints.append)
    assert watch.until_exit(Launcher(["sh", "-c", "sleep 0.5; exit 5"], {})) == 5
    assert complaints == ["--metrics-port 80: taken"]


def test_ranks_that_outlive_a_launcher_which_a_signal_has_ended_are_named() -> None:
    ranks = [RankView(rank=0, pid=7, life=store.LIFE_RUNNING), RankView(rank=1, pid=8, life=store.LIFE_EXITED)]
    status = RunStatus(run="testing", generation=1, phase=store.RUN_PHASE_FINISHED, ranks=ranks)
    complaints: list[str] = []
    watch = watch_of(lambda: status, complaints.append)
    assert watch.until_exit(Launcher(["sh", "-c", "exit 0"], {})) == 0
    assert complaints == []
    assert watch.until_exit(Launcher(["sh", "-c", "kill -USR1 $$"], {})) == 128 + signal.SIGUSR1
    assert complaints == [
        "SIGUSR1 has ended the launcher, and its ranks still run, unwatched from now on: rank 0 (pid 7)"
    ]


@pytest.mark.parametrize(("command", "survives"), [((), True), (("python", "train.py"), False)])
def test_only_ranks_that_we_have_started_are_swept(tmp_path: Path, command: tuple[str, ...], survives: bool) -> None:
    with subprocess.Popen(["sleep", "600"]) as rank:
        entry = RankRecord(pid=rank.pid, start_ticks=identity_of(rank.pid).start_ticks)
        (tmp_path / "node-local").mkdir()
        saved = AgentRecord(spec=store.RunSpec(run="r", command=command), ranks=[entry])
        (tmp_path / "node-local" / "record.pb").write_bytes(saved.SerializeToString())
        places = {f"{name}_directory": str(tmp_path / name) for name in ("runtime", "shm")}
        sweep(run_record(tmp_path, run="r", instance="none", pid=os.getpid(), start_ticks=0, **places))
        assert (rank.poll() is None) == survives
        rank.kill()
