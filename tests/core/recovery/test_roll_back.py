"""The roll-back after a bad loss: from which state the run starts again, what it leaves out, and when it stops."""

import math
from typing import Any

import pytest

from holdfast_proto.left_out import MOST_WINDOWS
from holdfast_proto.v1 import store_pb2 as store
from tests.core.recovery.test_loss_policy import report, running
from tests.core.recovery.test_lost_node_aborts import Losing
from tests.core.runs import send_event
from tests.support.core_world import World

NAN = math.nan
GOOD = 5
"""Step of the newest good state."""


def rolling(*, tiers: str = "non_finite", checkpoints: tuple[int, ...] = (GOOD,), **policy: int) -> World:
    """Return a run that has trained up to step 9 and is rolled back at the first bad loss."""
    world = running(dict.fromkeys(tiers.split(), ("roll_back", 0)))
    for name, value in policy.items():
        setattr(world.spec.loss_policy, name, value)
    train_to(world, 10)
    world.node_states["node0"].checkpoints[:] = checkpoints
    world.rank(0).snapshots[:] = []
    return world


def train_to(world: World, step: int) -> None:
    """Let the only rank finish all steps before ``step`` with a finite loss."""
    report(world, *[2.0] * (step - world.rank(0).progress.step))


def bad(world: World, *losses: float) -> None:
    """Let the rank finish a step with a bad loss, and wait for the next generation to train."""
    report(world, *(losses or (NAN,)))
    world.until("starting")
    world.train(1, snapshot=False)


def left_out(world: World) -> list[tuple[int, int]]:
    return [(one.first, one.steps) for one in world.state.record.left_out]


def newest_start(world: World) -> store.StartGeneration:
    return world.sent("start")[-1].start


def test_the_run_starts_again_from_the_newest_proven_state_without_the_data_since() -> None:
    world = rolling()
    world.rank(0).snapshots[:] = [8, 9]
    bad(world)
    start = newest_start(world)
    assert (start.source, start.step) == (store.SOURCE_MEMORY, 8), "the loss of step 9 was finite, and proves step 8"
    assert left_out(world) == [(9, 2)], "of step 9, and of step 10, whose loss was bad"
    assert [(one.first, one.steps) for one in start.left_out] == [(9, 2)]
    assert (world.phase, world.rank(0).progress.step) == ("running", 10)
    (incident,) = world.incidents
    assert (incident.state, incident.lost_steps, incident.notify) == (store.INCIDENT_STATE_RECOVERED, 2, True)
    assert [action.what for action in incident.actions][-4:] == [
        "rolls back, 1 of 10: to the newest state of all ranks from before step 9",
        "ranks of generation 1 are gone",
        "generation 2 starts from memory after step 8, without the data of steps 9-10",
        "training again",
    ]
    assert not world.state.record.HasField("roll_back")


def test_a_history_begins_that_keeps_what_is_left_out_and_its_nodes_need_no_record() -> None:
    world = rolling()
    bad(world)
    history = newest_start(world).history
    assert (history.number, history.parent, history.parent_step) == (2, 1, GOOD)
    assert [(one.first, one.steps) for one in history.left_out] == [(6, 5)]
    fresh = World(ranks_per_node=1, checkpoints=[GOOD])
    fresh.node_states["node0"].history = 2
    fresh.node_states["node0"].left_out.extend(history.left_out)
    fresh.until("starting")
    assert left_out(fresh) == [(6, 5)]
    assert list(newest_start(fresh).left_out) == list(history.left_out)


def test_the_next_window_begins_where_the_data_of_its_first_step_are() -> None:
    world = rolling()
    bad(world)
    train_to(world, 9)
    bad(world)
    assert left_out(world) == [(6, 9)], "steps 6 to 9 trained on data 11 to 14: both windows are one"
    train_to(world, 20)
    world.node_states["node0"].checkpoints[:] = [GOOD, 12]
    bad(world)
    assert left_out(world) == [(6, 9), (22, 8)], "steps 13 to 20"


def test_further_steps_of_data_are_left_out_if_the_policy_says_so() -> None:
    world = rolling(further_steps=100)
    bad(world)
    assert left_out(world) == [(6, 105)]


def test_losses_count_anew_after_a_roll_back_and_none_is_left_after_the_last_one() -> None:
    world = rolling(roll_backs=2)
    for _ in range(2):
        bad(world)
        train_to(world, 9)
    assert world.state.record.loss_counts.roll_backs == 2
    report(world, NAN)
    assert world.phase == "failed"
    assert "1 loss that is not finite, and the run has been rolled back already (2 of 2);" in world.state.record.outcome
    assert world.sent("finish")[0].finish.HasField("bad_loss")


@pytest.mark.parametrize("checkpoints", [(), (10,)], ids=["none", "only-newer-ones"])
def test_a_run_without_a_state_from_before_the_bad_loss_is_stopped_unless_it_began_from_the_seed(
    checkpoints: tuple[int, ...],
) -> None:
    world = rolling(checkpoints=checkpoints)
    world.rank(0).snapshots[:] = [9]
    report(world, NAN)
    if checkpoints:
        assert world.phase == "failed"
        assert "there is no state to return to from before the bad loss" in world.state.record.outcome
    else:
        world.until("starting")
        assert newest_start(world).source == store.SOURCE_SEED
        assert left_out(world) == [(0, 11)]


def test_a_start_that_finds_no_good_state_any_more_ends_the_run_and_never_uses_a_bad_one() -> None:
    world = rolling()
    world.obeys = False
    report(world, NAN)
    assert world.phase == "stopping"
    node = world.node_states["node0"]
    node.checkpoints[:] = [10]
    node.stopped = True
    world.tick()
    assert world.phase == "failed"
    assert "cannot return to a state from before step 9" in world.state.record.outcome
    assert not world.sent("persist_snapshot"), "the newest snapshot may hold the bad state"


def test_a_spike_returns_to_before_its_first_high_loss() -> None:
    world = rolling(tiers="spike")
    train_to(world, 60)
    world.node_states["node0"].checkpoints[:] = [GOOD, 50, 61]
    report(world, *[50.0] * 3)
    world.until("starting")
    assert (newest_start(world).step, left_out(world)) == (50, [(51, 12)])


def test_a_restart_that_is_under_way_takes_the_good_state() -> None:
    world = rolling()
    world.rank(0).snapshots[:] = [9]
    world.end(0, signal=9)
    world.obeys = False
    world.until("gathering")
    summary = store.StepSummary(step=10, generation=world.state.record.generation, loss_sum=NAN, loss_count=1)
    summary.nonfinite.add(rank=0, quantity="loss")
    send_event(world, generation=summary.generation, step_summary=summary)
    assert world.phase == "gathering"
    world.obeys = True
    world.until("starting")
    assert (newest_start(world).step, left_out(world)) == (GOOD, [(6, 5)])
    assert len(world.sent("stop")) == 1


def test_a_new_leader_continues_a_roll_back() -> None:
    world = rolling()
    world.obeys = False
    report(world, NAN)
    world.lose_leader()
    world.obeys = True
    world.until("starting")
    assert (newest_start(world).step, left_out(world)) == (GOOD, [(6, 5)])


def test_mode_observe_passes_the_loss_on_to_the_script_instead() -> None:
    world = running({"non_finite": ("roll_back", 0)}, mode=store.MODE_OBSERVE)
    report(world, NAN)
    assert (world.phase, world.sent("stop")) == ("running", [])
    assert world.incidents[0].actions[-1].what == "the run is not rolled back: its mode is observe"
    assert [command.spike_found.tier for command in world.sent("spike_found")] == ["non_finite"]


@pytest.mark.parametrize(("action", "tells"), [("note", False), ("notify", True)])
def test_a_script_hears_of_a_loss_that_people_are_notified_of(action: str, tells: bool) -> None:
    world = running({"non_finite": (action, 0)})
    report(world, NAN)
    said = [(command.spike_found.tier, command.spike_found.step) for command in world.sent("spike_found")]
    assert said == ([("non_finite", 3)] if tells else [])


class LaunchedLoss(Losing):
    """The ranks of a launcher, and a policy that rolls back."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.spec.loss_policy.non_finite.CopyFrom(store.LossRule(action=store.LOSS_ACTION_ROLL_BACK, budget=0))
        for node in self.node_states.values():
            node.checkpoints[:] = [1]

    def lose_loss(self) -> None:
        summary = store.StepSummary(step=self.rank(0).progress.step, generation=1, loss_sum=NAN, loss_count=1)
        summary.nonfinite.add(rank=0, quantity="loss")
        for name in self.node_states:
            self.events.append(store.Event(node=name, generation=1, unix_s=self.now, step_summary=summary))
        self.tick()


def test_under_a_launcher_one_rank_is_ended_so_that_it_starts_all_of_them_again() -> None:
    world = LaunchedLoss()
    world.lose_loss()
    ended = [rank for command in world.sent("end_ranks") for rank in command.end_ranks.ranks]
    assert [(rank.rank, rank.stalled_s) for rank in ended] == [(0, 0.0)], "it is ended although it trains"
    assert world.phase == "stopping"


def test_ranks_that_cannot_be_ended_are_judged_again() -> None:
    world = LaunchedLoss()
    world.obeys = False
    world.lose_loss()
    world.train(1)
    for _ in range(130):
        world.train(1, tick_s=0.5)
    assert world.phase == "running"
    assert not world.state.record.HasField("roll_back")
    assert world.incidents[0].actions[-1].what == "the run is not rolled back: its ranks train on"


def test_the_number_of_windows_is_bounded() -> None:
    world = rolling()
    for number in range(MOST_WINDOWS):
        world.state.record.left_out.add(first=1000 + 2 * number, steps=1)
    report(world, NAN)
    assert world.phase == "failed"
    assert "1024 windows of data are left out already" in world.state.record.outcome


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"on_hang": store.HANG_ACTION_ABORT}, "its launcher has started its ranks, and --on-hang is not restart"),
        ({"restarts_left": 0}, "its launcher has no restarts left"),
        ({"unknown": frozenset(range(4))}, "no rank has said which process it is, so none can be ended"),
        ({"restores": False}, "another launcher has started its ranks, and Holdfast only watches them"),
    ],
)
def test_a_launcher_that_would_not_start_them_again_is_left_alone(how: dict[str, Any], reason: str) -> None:
    world = LaunchedLoss(**how)
    world.lose_loss()
    assert not world.sent("end_ranks")
    assert world.phase == "running"
    assert world.incidents[-1].actions[-1].what == f"the run is not rolled back: {reason}"
