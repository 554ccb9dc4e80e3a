"""``holdfast observe --on-hang abort`` with a real torchrun: it ends the culprit, and torchrun restarts the ranks."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_cli.run_folder.ended import load_incidents
from holdfast_cli.run_folder.record import load_record
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store
from tests.chaos.conftest import Runs
from tests.chaos.test_observe import Observed, observed

pytestmark = pytest.mark.system

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
ABORT = ("--on-hang", "abort", "--restart-patience", "0.1")
"""With the preset fast: 1 s for a sign that is likely, 6 s for none in a step and 18 s for none in a pause."""

Script = Callable[..., list[str]]

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import holdfast_hooks
from holdfast_hooks import Phase

what, steps = sys.argv[1], int(sys.argv[2])
# A store of its own for each start, so that nothing of the start before is left in it.
store = f"file://{sys.argv[3]}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
one = rank == 1

def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass

with holdfast_hooks.attach() as hooks:
    for step in hooks.steps(until=steps):
        time.sleep(0.02)
        if one and step == 10 and what == "healthy":
            hooks.enter(Phase.EVAL)
            work(12.0)
            hooks.enter(Phase.FORWARD_BACKWARD)
        if one and step == 12 and what == "healthy":
            work(4.0)
        dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return a function that gives torchrun's words for a run of the script."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    def words(what: str, steps: int, *, restarts: int = 1) -> list[str]:
        return [*TORCHRUN, "--max-restarts", str(restarts), str(path), what, str(steps), str(tmp_path / "store")]

    return words


def incidents_of(watched: Observed) -> list[store.Incident]:
    record = load_record(watched.directory)
    assert record is not None
    return load_incidents(record)


def aborted_of(watched: Observed) -> store.Incident:
    """Return the incident in which Holdfast has ended a rank. The ends that follow from it are no incidents.

    A busy machine may have reports of slow steps, too.
    """
    found = incidents_of(watched)
    (aborted,) = (incident for incident in found if incident.abort.ranks)
    others = [incident for incident in found if incident is not aborted]
    is_over = (store.INCIDENT_STATE_NOTED, store.INCIDENT_STATE_RESOLVED)
    assert all(incident.state in is_over for incident in others), others
    assert not any(incident.verdict.kind == store.VERDICT_KIND_DEAD_RANK for incident in others), others
    return aborted


def story_of(incident: store.Incident) -> str:
    return "\n".join(action.what for action in incident.actions)


def assert_ended_and_restarted(incident: store.Incident, rank: int) -> None:
    assert list(incident.verdict.culprits) == [rank]
    assert [ended.rank for ended in incident.abort.ranks] == [rank]
    story = story_of(incident)
    assert incident.state == store.INCIDENT_STATE_RECOVERED, story
    steps = ("abort: ", "evidence gathered", f"ends rank {rank} (process ", "the launcher started generation 2 after ")
    places = [story.find(step) for step in steps]
    assert -1 < places[0] < places[1] < places[2] < places[3], story
    assert incident.evidence


@pytest.mark.gate
def test_a_stopped_rank_is_ended_and_torchrun_restarts_the_run(runs: Runs, script: Script) -> None:
    with observed(runs, "stopped", *script("none", 200), options=ABORT) as watched:
        pids = watched.pids_at_step(3)
        os.kill(pids[1], signal.SIGSTOP)
        code, log = watched.end()
    assert code == 0, log
    incident = aborted_of(watched)
    assert_ended_and_restarted(incident, 1)
    assert incident.abort.ranks[0].pid == pids[1]
    assert "stopped finished, generation 2" in log


def test_a_launcher_that_does_not_restart_ends_and_a_wrapper_learns_that_a_requeue_may_help(
    runs: Runs, script: Script
) -> None:
    options = (*ABORT, "--exit-code", "verdict")
    with observed(runs, "ended", *script("none", 1_000_000, restarts=0), options=options) as watched:
        pids = watched.pids_at_step(3)
        os.kill(pids[0], signal.SIGSTOP)
        code, log = watched.end()
    assert code == ExitCode.REQUEUE, log
    incident = aborted_of(watched)
    assert incident.state == store.INCIDENT_STATE_FAILED
    assert "the launcher ended with exit code 1 after " in story_of(incident)
    assert "a requeue may help" in log


@pytest.mark.gate
@pytest.mark.safety
def test_a_slow_and_healthy_rank_is_left_alone(runs: Runs, script: Script) -> None:
    with observed(runs, "healthy", *script("healthy", 40), options=ABORT) as watched:
        code, log = watched.end()
    assert code == 0, log
    assert "healthy finished, generation 1" in log
    assert not any(incident.HasField("abort") for incident in incidents_of(watched))
