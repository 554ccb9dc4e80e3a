"""Fault after fault, of every kind, on one real run over several nodes. It ends with the bits of an undisturbed one.

Its account of the time is compared with the journals of its ranks.
"""

import os
import random
import time
from pathlib import Path

import pytest

from holdfast_proto.v1.control_pb2 import NODE_ROLE_SPARE, RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, RUN_PHASE_RUNNING, Incident
from holdfast_proto.vocabulary import ENDED
from tests.chaos.test_random_faults import SEED
from tests.multinode.cluster import PATIENCE_S, RANKS_PER_NODE, Cluster, FinishedStep, cluster, undisturbed_weights
from tests.multinode.cluster_faults import FAULTS, ClusterFault
from tests.multinode.trainer import PACE_S
from tests.support.local_runs import wait_for
from tests.support.tmpfs import mounted_tmpfs

pytestmark = pytest.mark.system

WORLD_SIZE = 2 * RANKS_PER_NODE
SPARES = 1
FAULT_EVERY_S = 60.0
"""Time from a fault to the next one, on average."""
PRODUCTIVE_SLACK, REPEATED_SLACK = 0.05, 0.5
"""Largest relative difference between the account and what the journals say. The account also counts the step that a
fault cuts short as repeated, and the first step after a restart, of which the journals do not know when it began."""
HURRIED_STEP_S = 0.1
"""More than a step takes at full speed."""
STEPS_AFTER = 5
"""Steps that the ranks must train after a fault."""


def trains(status: RunStatus) -> bool:
    """Return whether all ranks train. A run that has ended fails the test."""
    assert status.phase not in ENDED, status.outcome
    return status.phase == RUN_PHASE_RUNNING and len(status.ranks) == WORLD_SIZE


def recoveries(run: Cluster) -> dict[str, Incident]:
    """Return the incidents that the run has recovered from, by their ids."""
    return {incident.id: incident for incident in run.control.incidents() if incident.recovered_unix_s}


def live_through(run: Cluster, fault: ClusterFault, dice: random.Random, known: int) -> int:
    """Let a fault strike, and wait until the ranks train again. Only if they have to, may they start again.

    ``known``: the last generation before, which must still train. Returns the one that trains after it.
    """
    wait_for(lambda: any(node.role == NODE_ROLE_SPARE for node in run.control.nodes()), "a spare")
    before = run.until(lambda status: trains(status) and status.newest_step >= 0, "training")
    recovered = recoveries(run)
    assert before.generation == known
    victim = dice.choice(before.ranks)
    print(f"after step {before.newest_step}, rank {victim.rank} on {victim.node}: {fault.name}", flush=True)
    with fault.harm(run, victim):
        time.sleep(fault.lasts_s)
        wait_for(lambda: fault.shows(run, victim, known), f"what this does: {fault.name}")
    reached = before.newest_step if fault.restarts else run.journal()[-1].step

    def is_over(status: RunStatus) -> bool:
        has_restarted = status.generation > known
        return trains(status) and has_restarted >= fault.restarts and status.newest_step > reached + STEPS_AFTER

    after = run.until(is_over, f"training after this: {fault.name}")
    if not fault.restarts:
        assert after.generation == known, fault.name
    if fault.sources:
        wait_for(lambda: recoveries(run).keys() - recovered, f"the recovery from this: {fault.name}")
        assert [*recoveries(run).values()][-1].source in fault.sources, fault.name
    for name, process in run.processes.items():
        assert process.poll() is None, f"{name} has ended after this: {fault.name}"
    return after.generation


def time_of_steps(journal: list[FinishedStep]) -> tuple[float, float]:
    """Return the seconds of steps that were new to the run, and of those that were repeated, but the first ones."""
    new_s = repeated_s = 0.0
    ends: dict[tuple[int, int], float] = {}
    for line in journal:
        ends[line.generation, line.step] = line.ended_unix_s  # the last rank's
    reached = -1
    for (generation, step), ended_unix_s in sorted(ends.items()):
        lasted_s = ended_unix_s - ends.get((generation, step - 1), ended_unix_s)
        new_s, repeated_s = (new_s, repeated_s + lasted_s) if step <= reached else (new_s + lasted_s, repeated_s)
        reached = max(reached, step)
    return new_s, repeated_s


def live_through_many(folder: Path, count: int, seed: int) -> None:
    """Let a run live through ``count`` faults, each kind as often as any other."""
    print(f"{SEED}={seed}")
    dice = random.Random(seed)
    steps = round(count * FAULT_EVERY_S / PACE_S)
    patience_s = PATIENCE_S + steps * HURRIED_STEP_S
    expected = undisturbed_weights(folder / "plain", steps, patience_s=patience_s)
    place = folder / "run"
    place.mkdir()
    deck = [fault for _ in range(-(-count // len(FAULTS))) for fault in dice.sample(FAULTS, len(FAULTS))][:count]
    settings = {"replicate_every_s": 1.0, "checkpoint_every": 100, "flags": ["--allow-faults"]}
    with (
        mounted_tmpfs(place / "checkpoints", "64m", lazily_unmounted=True),
        cluster(place, nodes=3 + SPARES, steps=steps, **settings) as run,
    ):
        for node in range(3, 3 + SPARES):
            run.start_agent(node)
        generation = 1
        for fault in deck:
            pause_s = dice.uniform(0.2, 1.2) * FAULT_EVERY_S
            time.sleep(pause_s)
            generation = live_through(run, fault, dice, generation)
        run.hurry()
        status = run.until(lambda now: now.phase == RUN_PHASE_FINISHED, "the end", patience_s)
        assert [(place / f"weights-{rank}").read_bytes() == expected for rank in range(WORLD_SIZE)] == [True] * 4
        check_account(run, status)


def check_account(run: Cluster, status: RunStatus) -> None:
    """Compare the account with the journals."""
    account, wall_s = dict(status.time_use_s), status.wall_s
    print(f"{status.incidents} incidents, {status.restarts} restarts in {wall_s:.0f} s")
    for use, seconds in sorted(account.items(), key=lambda item: -item[1]):
        print(f"{use:>18}: {seconds:8.1f} s, {seconds / wall_s:7.2%}")
    new_s, repeated_s = time_of_steps(run.journal())
    print(f"by the journals: new steps {new_s:.1f} s, repeated ones {repeated_s:.1f} s")
    assert sum(account.values()) == pytest.approx(wall_s)
    assert account["productive"] == pytest.approx(new_s, rel=PRODUCTIVE_SLACK)
    assert account["repeated_steps"] == pytest.approx(repeated_s, rel=REPEATED_SLACK)


@pytest.mark.timeout(2400)
def test_a_run_over_nodes_outlives_every_kind_of_fault_to_the_same_bits(tmp_path: Path) -> None:
    live_through_many(tmp_path, len(FAULTS), int(os.environ.get(SEED, "1")))


@pytest.mark.soak
@pytest.mark.timeout(10800)
def test_a_run_over_nodes_outlives_a_hundred_faults_to_the_same_bits(tmp_path: Path) -> None:
    live_through_many(tmp_path, 100, int(os.environ.get(SEED, int.from_bytes(os.urandom(4)))))
