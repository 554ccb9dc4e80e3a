"""Ray Train under Holdfast: nothing changes without it, a hung worker is named, and a restart by Ray is followed."""

import contextlib
import json
import os
import pickle
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_cli.control import ControlClient
from holdfast_cli.run_folder.record import load_record
from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.phases import Phase
from holdfast_proto.rank_context import VARIABLE, ObservedNode, RankContext
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.session_pb2 import WitnessWords, WitnessWordsTaken
from holdfast_proto.v1.session_pb2_grpc import RankAgentServicer, add_RankAgentServicer_to_server
from holdfast_proto.v1.store_pb2 import VERDICT_KIND_HUNG_COLLECTIVE, Verdict
from tests.support.framework_runs import JOBS, PATIENCE_S, RANKS, hurry_file, logged
from tests.support.local_runs import wait_for
from tests.support.programs import framework

framework("ray.train")
ray = framework("ray")

pytestmark = [pytest.mark.frameworks, pytest.mark.system, pytest.mark.timeout(600)]

TRAINED = ["forward_backward", "data"]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOB = JOBS / "ray_job.py"
STEPS = 30
START_PATIENCE_S = 400.0
"""Ray starts ten processes one after another, each of which imports Ray."""
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else Ray makes one in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # one process less
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_worker_niceness": "0",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "1",  # Ray waits so long for workers that hang
}


class Noted:
    """Hooks that note what is asked of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_open = False

    def begin_step(self) -> None:
        self.calls.append("begin")

    def end_step(self) -> None:
        self.calls.append("end")

    def enter(self, phase: Phase) -> None:
        self.calls.append(phase.name.lower())

    def __exit__(self, *error: object) -> None:
        self.calls.append(f"exit {error[1]!r}")


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_lasts_until_the_next_batch_and_the_last_one_until_the_next_pass(*, fails: bool) -> None:
    from holdfast_hooks.frameworks.ray_train import WorkerWatch

    hooks: Any = Noted()
    with contextlib.suppress(ZeroDivisionError), WorkerWatch(hooks) as watch:
        assert list(watch.batches("abc", per_step=2)) == list("abc")
        hooks.calls.append("report")
        assert list(watch.batches("d")) == ["d"]
        _ = 1 / (not fails)
    first = ["data", "begin", *TRAINED, *TRAINED, "end", "begin", *TRAINED, "idle", "report"]
    second = ["data", "end", "begin", *TRAINED, "idle"]
    last = ["exit ZeroDivisionError('division by zero')"] if fails else ["end", "exit None"]
    assert hooks.calls == [*first, *second, *last]


def test_a_cluster_that_runs_already_gets_the_context_and_keeps_the_users_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast_hooks.frameworks.ray_train import HoldfastUserCallback, reach_workers

    own = {"env_vars": {"MINE": "1"}, "working_dir": "here"}
    config = ray.train.RunConfig(name="mine", worker_runtime_env=own)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert reach_workers(config) is config
    context = context_of("unix:/a")
    monkeypatch.setenv(VARIABLE, context)
    reached = reach_workers(config)
    assert reached.worker_runtime_env == {**own, "env_vars": {"MINE": "1", VARIABLE: context}}
    assert [type(callback) for callback in reached.callbacks] == [HoldfastUserCallback]
    assert reach_workers(reached).callbacks == reached.callbacks
    assert config.callbacks == []
    assert (reached.name, config.worker_runtime_env) == ("mine", {"env_vars": {"MINE": "1"}, "working_dir": "here"})


def test_holdfast_run_is_refused_because_ray_starts_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast_hooks.frameworks.ray_train import reach_workers, watch_worker

    context = RankContext(run="r", generation=1, agent="unix:/a", black_box="/b")
    monkeypatch.setenv(VARIABLE, context.to_environment()[VARIABLE])
    for refuses in (watch_worker, lambda: reach_workers(ray.train.RunConfig())):
        with pytest.raises(ConfigurationError, match="put `holdfast observe --` in front"):
            refuses()


def context_of(agent: str) -> str:
    return ObservedNode(run="r", agent=agent, black_boxes="/b").to_environment()[VARIABLE]


class Told(RankAgentServicer):
    """An agent that notes what a launcher tells it."""

    def __init__(self) -> None:
        self.said: list[WitnessWords] = []

    def Tell(self, request: WitnessWords, context: object) -> WitnessWordsTaken:  # noqa: N802 - gRPC's
        self.said.append(request)
        return WitnessWordsTaken()


def test_what_ray_says_of_dead_workers_is_told_in_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast_hooks.frameworks.ray_train import HoldfastUserCallback

    monkeypatch.setenv(
        VARIABLE, ObservedNode(run="r", agent=f"unix:{tmp_path}/a", black_boxes="/b").to_environment()[VARIABLE]
    )
    callback = pickle.loads(pickle.dumps(HoldfastUserCallback()))  # as Ray copies it into its controller
    monkeypatch.delenv(VARIABLE)
    told = Told()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    add_RankAgentServicer_to_server(told, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{tmp_path}/a")
    server.start()
    died = RuntimeError("The actor died\n\tunexpectedly \x1b[2J" + "x" * 500)
    try:
        callback.after_exception(None, {1: died, 0: ValueError("bad"), 3: died})
    finally:
        server.stop(None).wait()
    [said] = told.said
    assert (said.run, said.witness) == ("r", "Ray Train")
    assert [list(words.ranks) for words in said.words] == [[0], [1, 3]]
    texts = [words.text for words in said.words]
    assert texts[0] == "ValueError: bad"
    assert texts[1].startswith("RuntimeError: The actor died unexpectedly ?[2Jx")
    assert (len(texts[1]), texts[1][-1]) == (400, "…")


def test_of_a_worker_that_is_gone_the_line_has_the_reason_and_not_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.core.generated.common_pb2 import ActorDiedErrorContext
    from ray.exceptions import ActorDiedError
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

    from holdfast_hooks.frameworks import ray_train

    reason = "Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: Task was killed due to low memory."
    died = ActorDiedError(
        ActorDiedErrorContext(
            error_message=reason,
            class_name="RayTrainWorker",
            actor_id=b"\x01" * 16,
            pid=123456,
            node_ip_address="10.0.0.12",
            ray_namespace="0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f",
        )
    )
    line = ray_train._one_line(WorkerHealthCheckFailedError("A worker health check failed. Worker(" + "x" * 500, died))
    assert line == f"ActorDiedError: The actor died unexpectedly before finishing this task. {reason}"

    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise type(self)

    monkeypatch.setenv(VARIABLE, context_of(f"unix:{tmp_path}/a"))
    ray_train.HoldfastUserCallback().after_exception(None, {0: UnspeakableError()})  # and it does not raise


def test_without_an_agent_the_callback_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from holdfast_hooks.frameworks.ray_train import HoldfastUserCallback

    monkeypatch.delenv(VARIABLE, raising=False)
    HoldfastUserCallback().after_exception(None, {0: ValueError("bad")})
    assert not caplog.messages
    monkeypatch.setenv(
        VARIABLE, ObservedNode(run="r", agent=f"unix:{tmp_path}/a", black_boxes="/b").to_environment()[VARIABLE]
    )
    HoldfastUserCallback().after_exception(None, {0: ValueError("bad")})
    [line] = caplog.messages
    assert line.startswith("what Ray says of its workers does not reach Holdfast: ")
    assert "UNAVAILABLE" in line
    assert "\n" not in line


def ends(out: Path) -> list[dict[str, Any]]:
    return [json.loads((out / f"end-{rank}.json").read_text()) for rank in range(RANKS)]


@contextlib.contextmanager
def observed(
    folder: Path, name: str, *driver: str, options: Sequence[str] = (), **variables: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield `holdfast observe` with a driver of Ray. At the end, it passes a signal on to a driver that still runs."""
    holdfast = [sys.executable, "-m", "holdfast_cli", "observe", "--run", name, "--preset", "fast"]
    with said_in(folder, name).open("w") as file:
        process = subprocess.Popen(
            [*holdfast, *options, "--directory", str(folder), "--", sys.executable, *driver],
            env={**os.environ, **SETTINGS, **variables},
            stderr=file,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def said_in(folder: Path, name: str) -> Path:
    return folder / f"{name}.stderr"


def test_the_example_runs_in_a_cluster_of_its_own_and_holdfast_sees_its_steps(tmp_path: Path) -> None:
    driver = (str(EXAMPLES / "ray_train.py"), "2")
    # A socket's path may have 107 characters, and Ray needs most of them.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as place:
        own = {"HOME": str(tmp_path), "RAY_TMPDIR": place}
        with observed(tmp_path, "example", *driver, **own) as process:
            code = process.wait(START_PATIENCE_S)
    said = said_in(tmp_path, "example").read_text()
    assert code == 0, said[-4000:]
    assert "32 steps · loss" in said
    assert "example finished, generation 1: finished" in said


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a run without Holdfast, whose cluster lives on."""
    out = tmp_path_factory.mktemp("alone")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    process = subprocess.Popen(
        [sys.executable, str(JOB), str(out), "--keep", "--steps", str(STEPS)],
        env={**variables, **SETTINGS},
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        wait_for(lambda: (out / "address").exists() or process.poll() is not None, "the end of the run")
        assert process.poll() is None, "it has failed"
        yield out
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)


def test_without_holdfast_the_line_changes_nothing(cluster: Path) -> None:
    changes = [(end["wrapped"], end["still_wrapped"], end["hooked"]) for end in ends(cluster)]
    assert changes == [(False, False, False)] * RANKS


@pytest.mark.gate
def test_a_hung_worker_is_named_with_its_line_and_the_workers_that_ray_starts_next_are_followed(
    tmp_path: Path, cluster: Path
) -> None:
    out, hurry = tmp_path / "out", hurry_file(tmp_path, "watched")
    job = (str(JOB), str(out), "--address", (cluster / "address").read_text())
    flags = ("--steps", str(STEPS), "--hang-at", "12")
    with observed(tmp_path, "watched", *job, *flags, PACED_HURRY=str(hurry)) as process:

        def daemon() -> ControlClient | None:
            record = load_record(tmp_path / "watched")
            return None if record is None else ControlClient(Path(record.control), record.run, timeout_s=2.0)

        def named() -> Verdict | None:
            assert process.poll() is None, "it has ended"
            verdicts = [incident.verdict for incident in control.incidents()]
            return next((verdict for verdict in verdicts if "hang_here" in verdict.message), None)

        def restarted() -> RunStatus | None:
            assert process.poll() is None, "it has ended"
            status = control.status()
            return status if status.generation == 2 and status.newest_step >= 0 else None

        control = wait_for(daemon, "the daemon")
        verdict = wait_for(named, "the verdict with the place")
        assert verdict.kind == VERDICT_KIND_HUNG_COLLECTIVE
        assert list(verdict.culprits) == [1]
        assert verdict.message.startswith("rank 1 sleeps in forward_backward of step 12, at hang_here (ray_job.py:")
        hung = control.status()
        assert hung.newest_step == 11
        assert logged(hung) == {"train_loss": hung.loss, "step": 9.0}
        os.kill(hung.ranks[1].pid, signal.SIGKILL)
        followed = wait_for(restarted, "generation 2")
        story = [action.what for incident in control.incidents() for action in incident.actions]
        assert [what for what in story if what.startswith("Ray Train says of rank") and "Worker exit type" in what], (
            story
        )
        assert {rank.pid for rank in followed.ranks}.isdisjoint(rank.pid for rank in hung.ranks)
        hurry.touch()
        assert process.wait(PATIENCE_S) == 0
    assert [(end["wrapped"], end["still_wrapped"]) for end in ends(out)] == [(True, False)] * RANKS
    assert [end["weights"] for end in ends(out)] == [end["weights"] for end in ends(cluster)]


@pytest.mark.soak
def test_without_a_line_a_hung_worker_is_named_with_the_line_in_which_it_hangs(tmp_path: Path) -> None:
    """Ray makes the process group in another thread of the worker than the one that trains."""
    flags = ("--no-line", "--steps", str(STEPS), "--hang-at", "12")
    hurry = str(hurry_file(tmp_path, "auto"))
    job = (str(JOB), str(tmp_path / "out"), *flags)
    with observed(tmp_path, "auto", *job, options=("--auto",), PACED_HURRY=hurry) as process:

        def named() -> Verdict | None:
            assert process.poll() is None, said_in(tmp_path, "auto").read_text()[-4000:]
            record = load_record(tmp_path / "auto")
            if record is None:
                return None
            incidents = ControlClient(Path(record.control), record.run, timeout_s=2.0).incidents()
            return next((one.verdict for one in incidents if "hang_here" in one.verdict.message), None)

        verdict = wait_for(named, "the verdict with the place")
    assert list(verdict.culprits) == [1]
    assert "at hang_here (ray_job.py:" in verdict.message
