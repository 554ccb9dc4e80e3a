"""The simulated month. What each fault costs is worked out by hand, and no second is lost or counted twice."""

import copy
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.goodput_month import costs
from benchmarks.goodput_month.costs import CHECKPOINT, CONTROL_PLANE, HOOKS, RECOVERY, LargeJob, Measured
from benchmarks.goodput_month.month import (
    MONTH_S,
    PRODUCTIVE,
    REPEATED,
    SAVING,
    JobCosts,
    MonthFault,
    month_faults,
    spend_month,
)

CRASH, LOSS = "crash", "loss"
PAUSES = {CRASH: {"notice": 4.0, "start": 6.0}, LOSS: {"notice": 4.0, "start": 26.0}}
JOB = JobCosts("any", 100.0, 0.0, PAUSES, copied_after_s=120.0, empty_memory=frozenset({LOSS}))
"""It takes a state every 100 s, which another node has after 120 s."""

FOUND: dict[str, Any] = {
    RECOVERY: {
        "killed rank": {"holdfast": {"continued_s": 4.0}, "plain": {"continued_s": None}},
        "hung rank": {"holdfast": {"continued_s": 5.0}, "plain": {"continued_s": None}},
        "lost node": {"holdfast": {"continued_s": 8.0}, "plain": {"continued_s": 18.0}},
    },
    CHECKPOINT: {
        "state_bytes": 1e9,
        "stall_s": 0.06,
        "slowdowns": {
            "1": {"slowdown_s": 0.3, "dcp_slowdown_s": 0.9, "dcp_stager": "pinned", "durable_s": {"pinned": 2.0}}
        },
        "loads_s": {"memory": 0.25, "read": 0.5},
    },
    CONTROL_PLANE: {
        "sizes": [
            {"ranks": 1_000, "verdict_after_s": 0.5, "factor": 1.0},
            {"ranks": 3_000, "verdict_after_s": 1.0, "factor": 1.5},
        ]
    },
    HOOKS: {"p50_us": 6.0},
}
"""Made-up figures of the benchmarks."""


def lost(*faults: MonthFault, job: JobCosts = JOB) -> dict[str, float]:
    """Return what is not productive, once it is sure that all together is a month."""
    spent = spend_month(job, faults)
    assert sum(spent.values()) == pytest.approx(MONTH_S)
    del spent[PRODUCTIVE]
    return {use: seconds for use, seconds in spent.items() if seconds}


def test_a_month_without_faults_pays_for_saving_alone() -> None:
    assert lost() == {}
    assert lost(job=replace(JOB, saving_share=0.25)) == {SAVING: pytest.approx(MONTH_S / 5)}


def test_a_fault_costs_its_pause_and_the_steps_since_the_newest_state() -> None:
    assert lost(MonthFault(250.0, CRASH)) == {"notice": 4.0, "start": 6.0, REPEATED: 50.0}


def test_a_lost_node_takes_the_states_along_that_no_other_node_has() -> None:
    # After 250 s, the state after 200 s is not copied yet, and that after 100 s is: it was, 220 s after the start.
    assert lost(MonthFault(250.0, LOSS)) == {"notice": 4.0, "start": 26.0, REPEATED: 150.0}


def test_a_state_that_is_not_complete_is_none_to_continue_from() -> None:
    assert lost(MonthFault(250.0, CRASH), job=replace(JOB, kept_after_s=60.0))[REPEATED] == 150.0


def test_a_fault_in_a_pause_begins_it_anew_and_undoes_nothing_more() -> None:
    assert lost(MonthFault(250.0, CRASH), MonthFault(255.0, CRASH)) == {"notice": 8.0, "start": 7.0, REPEATED: 50.0}


def test_a_node_that_is_lost_in_a_pause_takes_the_state_along_that_training_was_to_continue_from() -> None:
    assert lost(MonthFault(250.0, CRASH), MonthFault(252.0, LOSS))[REPEATED] == 150.0


def test_a_fault_among_repeated_steps_repeats_only_those_that_were_done_again() -> None:
    # 250 s were trained. From 200 s on, 20 s are done again before the next fault, and then 50 s.
    assert lost(MonthFault(250.0, CRASH), MonthFault(280.0, CRASH))[REPEATED] == 70.0


def test_faults_are_as_frequent_as_published_and_each_cause_counts() -> None:
    assert sum(costs.SHARES.values()) == pytest.approx(1.0)
    llama = costs.RANK_S_TO_FAILURE / 16_384
    assert 54 * 86_400 / llama == pytest.approx(419)
    found = [list(month_faults(llama, costs.SHARES, random.Random(seed))) for seed in range(40)]
    assert sum(map(len, found)) / 40 == pytest.approx(419 * 30 / 54, rel=0.05)
    kinds = Counter(fault.kind for month in found for fault in month)
    assert {kind: count / kinds.total() for kind, count in kinds.items()} == pytest.approx(costs.SHARES, abs=0.02)


def test_what_holdfast_costs_is_put_together_from_what_was_measured() -> None:
    # Ranks of 14 GB: a node's eight take 448 s to its partner, so that is how often replica snapshots are made. A
    # snapshot waits for up to 388 s for that.
    job = costs.holdfast(LargeJob(2_000, 2e12), Measured(FOUND), 10)
    assert (job.state_every_s, job.copied_after_s) == (60.0, 836.0)
    # A snapshot delays training by 14 x 0.06 s, and each of the others by 14 x 0.3 s.
    assert job.saving_share == pytest.approx(0.84 / 60 + 4.2 / 448 + 4.2 / 900 + 6e-6 / 6)
    # The verdict takes 1 s: halfway between 0.5 s and 1.5 s. A load takes 14 x 0.25 s, and 2,000 communicators 5.6 s.
    crash = {costs.NOTICE: 1.0, costs.CHECK: 0.0, costs.START: 4.0, costs.COMMUNICATORS: 5.6, costs.LOAD: 3.5}
    hang = crash | {costs.NOTICE: 61.0, costs.START: 5.0}
    hardware = crash | {costs.NOTICE: 19.0, costs.CHECK: 40.0, costs.START: 8.0, costs.LOAD: 451.5}
    expected = {costs.CRASH: crash, costs.HANG: hang, costs.HARDWARE: hardware}
    assert {kind: pytest.approx(pause) for kind, pause in job.pauses.items()} == expected
    assert job.empty_memory == {costs.HARDWARE}
    # Saving a state delays training by 0.84 + 4.2 s.
    best = costs.holdfast(LargeJob(2_000, 2e12), Measured(FOUND), None)
    assert best.state_every_s == pytest.approx((2 * 5.04 * costs.RANK_S_TO_FAILURE / 2_000) ** 0.5, abs=6.0)


def test_plain_torchrun_pays_for_its_checkpoints_and_waits_for_its_watchdog() -> None:
    large, measured = LargeJob(2_000, 2e12), Measured(FOUND)
    job = costs.plain(large, measured, 900.0)
    assert (job.state_every_s, job.kept_after_s) == (900.0, 28.0)
    assert job.saving_share == pytest.approx(12.6 / 900)
    crash = {costs.NOTICE: 0.0, costs.CHECK: 0.0, costs.START: 18.0, costs.COMMUNICATORS: 5.6, costs.LOAD: 7.0}
    expected = {costs.CRASH: crash, costs.HANG: crash | {costs.NOTICE: 600.0}, costs.HARDWARE: crash}
    assert {kind: pytest.approx(pause) for kind, pause in job.pauses.items()} == expected
    best = costs.plain(large, measured, None)
    assert best.state_every_s == pytest.approx((2 * 12.6 * costs.RANK_S_TO_FAILURE / 2_000) ** 0.5)


def changed(benchmark: str, *way: str | int, to: float | None) -> dict[str, Any]:
    """Return the figures with another one at the end of the way."""
    found = copy.deepcopy(FOUND)
    place = found[benchmark]
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = to
    return found


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (changed(RECOVERY, "hung rank", "holdfast", "continued_s", to=None), "holdfast has not continued after this"),
        (changed(RECOVERY, "lost node", "plain", "continued_s", to=None), "plain has not continued after this"),
        (changed(CONTROL_PLANE, "sizes", 1, "verdict_after_s", to=None), "3,000 ranks have no verdict"),
        (changed(CONTROL_PLANE, "sizes", 1, "ranks", to=1_999), "no size of at least 2,000 ranks was measured"),
    ],
)
def test_what_was_not_measured_is_named_and_nothing_takes_its_place(found: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        costs.ways_to_run(LargeJob(2_000, 2e12), Measured(found))
