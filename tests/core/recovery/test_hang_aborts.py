"""``--on-hang abort``: hung ranks of a run that another launcher starts are ended, and the launcher is followed."""

from dataclasses import dataclass
from itertools import count

import pytest

from holdfast_core.model import LauncherEnded, StopRequest
from holdfast_core.recovery.hang_aborts import REACTION_PATIENCE_S
from holdfast_core.recovery.lifecycle import EVIDENCE_PATIENCE_S
from holdfast_core.recovery.restart_patience import UNCERTAIN_RESTARTS
from holdfast_core.recovery.standstills import has_given_up
from holdfast_core.witnesses import FRESH_S
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.session_pb2 import RankWords, WitnessWords
from tests.core.runs import end_ranks, enter_phase, set_ranks
from tests.support.core_world import World

STEPS = 8


@dataclass
class LaunchedWorld(World):
    """A world whose ranks a launcher starts. Its agents know the processes of all ranks but ``unknown``."""

    mode: "store.Mode" = store.MODE_OBSERVE
    on_hang: "store.HangAction" = store.HANG_ACTION_ABORT
    unknown: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spec.ranks_per_node = 0
        self.spec.on_hang = self.on_hang
        self._pids = count(100)

    def launch(self, generation: int) -> None:
        for index, node in enumerate(self.node_states.values()):
            start = store.StartGeneration(first_rank=index * self.ranks_per_node, ranks=self.ranks_per_node, step=-1)
            self._start(node, store.NodeCommand(generation=generation, start=start))
            node.world_size = self.world_size
            for rank in node.ranks:
                rank.pid = next(self._pids)
                rank.start_ticks = 0 if rank.rank in self.unknown else 7000 + rank.pid
        self.tick()

    def _obey(self, node: store.NodeState, command: store.NodeCommand) -> None:
        if command.WhichOneof("kind") != "end_ranks":
            super()._obey(node, command)
        for asked in command.end_ranks.ranks:
            rank = self.rank(asked.rank)
            assert (node.node, rank.pid, rank.start_ticks) == (asked.node, asked.pid, asked.start_ticks)
            if rank.life != store.LIFE_EXITED:
                self.end(asked.rank)

    @property
    def ended(self) -> list[list[int]]:
        return [[rank.rank for rank in command.end_ranks.ranks] for command in self.sent("end_ranks")]

    @property
    def story(self) -> list[str]:
        return [action.what for action in self.incidents[-1].actions]


def launched(**how: object) -> LaunchedWorld:
    world = LaunchedWorld(**how)  # type: ignore[arg-type]
    world.launch(1)
    world.train(STEPS, snapshot=False)
    assert world.phase == "running"
    return world


def hanging(**how: object) -> LaunchedWorld:
    """Return a world whose ranks wait for rank 1."""
    world = launched(**how)
    world.hang(culprit=1)
    return world


def ended_after_s(world: LaunchedWorld, at_most_s: float = 400.0) -> float:
    began, before = world.now, len(world.ended)
    while len(world.ended) == before:
        assert world.now - began < at_most_s, "no rank is ended"
        world.tick(seconds=0.2)
    return world.now - began


def aborted() -> LaunchedWorld:
    """Return a world whose hung rank 1 has just been ended."""
    world = hanging()
    ended_after_s(world)
    return world


def relaunched(world: LaunchedWorld, generation: int) -> None:
    """Let the launcher start the next generation, which trains the same steps again, up to where it hung."""
    world.tick(seconds=3.0)
    world.launch(generation)
    world.train(STEPS, snapshot=False)


def test_a_hung_rank_is_ended_after_the_patience_of_a_restart_and_the_launcher_is_followed() -> None:
    world = hanging()
    assert ended_after_s(world) == pytest.approx(10.0, abs=0.7)
    assert (world.ended, world.phase) == ([[1]], "stopping")
    world.tick(seconds=3.0)
    world.launch(2)
    assert "the launcher started generation 2 after 3." in world.story[-1]
    world.train(2, snapshot=False)
    (incident,) = world.incidents
    assert (incident.state, world.phase) == (store.INCIDENT_STATE_RECOVERED, "running")
    assert (incident.abort.reaction, incident.abort.generation) == (store.LAUNCHER_REACTION_RESTARTED, 2)
    lines = iter(world.story)
    for line in (
        "abort: nothing has moved in the processes of rank 1",
        "evidence gathered",
        "ends rank 1 (process 101",
    ):
        assert any(line in what for what in lines)  # in this order
    assert (world.sent("stop"), world.sent("start")) == ([], [])


def test_the_evidence_is_there_before_the_rank_is_ended() -> None:
    kinds = [command.WhichOneof("kind") for _, command in aborted().commands]
    assert kinds.index("end_ranks") > max(at for at, kind in enumerate(kinds) if kind == "gather_evidence")


def test_nothing_is_ended_by_default() -> None:
    world = hanging(on_hang=store.HANG_ACTION_REPORT)
    world.rank(1).process_state = "T"
    world.stand(400.0)
    assert (world.ended, world.phase, world.incidents[0].state) == ([], "running", store.INCIDENT_STATE_STANDSTILL)


def test_a_run_of_holdfasts_own_is_restarted_and_its_ranks_are_not_ended_one_by_one() -> None:
    world = World()
    world.spec.on_hang = store.HANG_ACTION_ABORT
    world.until("starting")
    world.train(STEPS)
    world.hang(culprit=1)
    world.until("stopping")
    assert world.sent("end_ranks") == []
    assert world.sent("stop")


def test_a_stopped_rank_is_ended_soon_unless_all_are_stopped() -> None:
    world = hanging()
    world.rank(1).process_state = "T"
    assert ended_after_s(world) < 3.0
    paused = launched()
    set_ranks(paused, process_state="T")
    assert ended_after_s(paused) == pytest.approx(60.0, abs=0.7)


@pytest.mark.parametrize("phase", [common.PHASE_EVAL, common.PHASE_CHECKPOINT])
def test_a_long_evaluation_in_which_a_rank_works_is_left_alone(phase: "common.Phase") -> None:
    world = hanging()
    world.rank(1).progress.phase = phase
    world.moving = {1}
    world.stand(170.0)
    world.moving.clear()
    world.train(3, snapshot=False)
    assert (world.ended, world.phase) == ([], "running")


def test_ranks_that_wait_for_data_and_whose_loaders_live_are_left_alone() -> None:
    world = launched()
    enter_phase(world, common.PHASE_DATA)
    set_ranks(world, workers=2)
    world.stand(2000.0)
    assert (world.ended, world.phase) == ([], "running")


def test_of_several_culprits_each_is_ended_on_its_node() -> None:
    world = hanging(nodes=2, ranks_per_node=2)
    group = world.rank(2).progress.groups[0]
    group.enqueued = group.completed
    ended_after_s(world)
    assert {(name, *[rank.rank for rank in command.end_ranks.ranks]) for name, command in world.commands
            if command.HasField("end_ranks")} == {("node0", 1), ("node1", 2)}  # fmt: skip


def test_without_a_culprit_one_rank_is_ended_once_time_alone_decides() -> None:
    world = launched()
    world.hang(culprit=-1)  # all are in the call, and nothing moves: for a restart that sign is likely
    assert ended_after_s(world) == pytest.approx(60.0, abs=0.7)
    assert world.ended == [[0]]
    assert any("no rank that can be ended is known to be the cause" in what for what in world.story)


def test_a_culprit_whose_process_is_not_known_for_sure_is_not_ended() -> None:
    world = hanging(unknown=frozenset({1}))
    assert ended_after_s(world) == pytest.approx(60.0, abs=0.7)
    assert world.ended == [[0]]
    none = launched(unknown=frozenset(range(4)))
    none.hang(culprit=1)
    none.stand(400.0)
    assert (none.ended, none.story.count("no rank is ended: none lives whose process is known for sure")) == ([], 1)


def test_a_run_that_moves_while_the_evidence_is_gathered_is_left_alone() -> None:
    world = hanging()
    world.obeys = False  # no evidence comes
    world.until("gathering")
    world.train(1, snapshot=False)
    world.stand(EVIDENCE_PATIENCE_S + 1.0)
    world.train(1, snapshot=False)
    assert (world.ended, world.phase, world.incidents[0].state) == ([], "running", store.INCIDENT_STATE_RESOLVED)


def test_a_rank_that_moves_before_the_command_arrives_takes_the_abort_back() -> None:
    world = hanging()
    world.until("gathering")
    world.obeys = False
    world.until("stopping")
    world.train(2, snapshot=False)
    assert world.phase == "running"
    (incident,) = world.incidents
    assert incident.state == store.INCIDENT_STATE_RESOLVED
    assert not incident.HasField("abort")


def test_the_command_is_repeated_until_the_rank_has_ended() -> None:
    world = hanging()
    world.until("gathering")
    world.obeys = False
    world.stand(EVIDENCE_PATIENCE_S + 10.0)
    assert len(world.ended) > 2
    assert len({command.end_ranks.SerializeToString() for command in world.sent("end_ranks")}) == 1
    world.obeys = True
    world.stand(5.0)
    repeated = len(world.ended)
    world.stand(10.0)
    assert len(world.ended) == repeated


def test_the_end_of_the_launcher_closes_the_incident_with_its_code() -> None:
    world = aborted()
    end_ranks(world, 0, 2, 3, signal=15)
    world.tick(seconds=0.5)
    world.tick(LauncherEnded(1))
    world.tick(StopRequest())
    (incident,) = world.incidents  # the ends that followed are no incidents of their own
    assert incident.state == store.INCIDENT_STATE_FAILED
    assert incident.actions[-1].what.startswith("the launcher ended with exit code 1 after 0.")
    assert (incident.abort.reaction, incident.abort.code) == (store.LAUNCHER_REACTION_ENDED, 1)


@pytest.mark.parametrize("attaches", [True, False])
def test_ranks_that_were_started_again_and_have_not_attached_are_a_restart(*, attaches: bool) -> None:
    world = aborted()
    world.node_states["node0"].relaunched = True
    world.stand(2 * REACTION_PATIENCE_S)
    assert "the launcher started ranks again after 0." in world.story[-1]
    if attaches:
        world.launch(2)
        assert "the launcher started generation 2 after 12" in world.story[-1]
    else:  # they have failed before, and it gives up
        world.tick(LauncherEnded(1))
        assert world.story[-1] == "the launcher ended with exit code 1"
    assert world.incidents[-1].abort.reaction == store.LAUNCHER_REACTION_RESTARTED
    assert not any(what.startswith("nothing happened") for what in world.story)


def test_a_launcher_that_does_nothing_is_reported_once() -> None:
    world = aborted()
    world.stand(3 * REACTION_PATIENCE_S)
    assert [what for what in world.story if what.startswith("nothing happened for 60 s: rank 1 did end")]
    assert (sum(what.startswith("nothing happened") for what in world.story), len(world.incidents)) == (1, 1)


@pytest.mark.parametrize("state", ["S", "T"])
def test_after_three_aborts_at_one_step_the_run_is_left_as_it_is(state: str) -> None:
    world = launched()
    for generation in range(2, 2 + UNCERTAIN_RESTARTS):
        world.hang(culprit=1)
        world.rank(1).process_state = state
        ended_after_s(world, 200.0)
        relaunched(world, generation)
    world.hang(culprit=1)
    world.rank(1).process_state = state
    world.stand(400.0)
    assert len(world.ended) == UNCERTAIN_RESTARTS
    assert has_given_up(world.state.record)
    assert any("no rank is ended again: 3 aborts at this step" in what for what in world.story)


def test_the_time_doubles_with_each_abort_at_one_step_and_progress_beyond_it_resets_that() -> None:
    world = aborted()
    relaunched(world, 2)
    world.hang(culprit=1)
    assert ended_after_s(world) == pytest.approx(20.0, abs=0.7)
    relaunched(world, 3)
    world.train(5, snapshot=False)
    world.hang(culprit=1)
    assert ended_after_s(world) == pytest.approx(10.0, abs=0.7)


def test_a_new_leader_continues_an_abort() -> None:
    world = hanging()
    world.until("gathering")
    world.obeys = False
    world.until("stopping")
    world.lose_leader()
    world.obeys = True
    world.tick()
    assert world.rank(1).life == store.LIFE_EXITED
    world.launch(2)
    world.train(2, snapshot=False)
    assert (world.incidents[0].state, world.phase) == (store.INCIDENT_STATE_RECOVERED, "running")


def say(world: LaunchedWorld, text: str, *ranks: int) -> None:
    words = WitnessWords(witness="Ray Train", words=[RankWords(ranks=ranks, text=text)])
    world.events.append(store.Event(node="node0", generation=world.state.record.generation, witness_words=words))


@pytest.mark.parametrize("comes_first", [True, False])
def test_what_a_launcher_says_of_a_dead_rank_is_in_the_incident_whichever_comes_first(*, comes_first: bool) -> None:
    world = launched()
    if comes_first:
        say(world, "ActorDiedError: killed by the memory monitor", 1)
        world.tick()
    world.end(1, code=1)
    world.stand(3.0)
    if not comes_first:
        say(world, "ActorDiedError: killed by the memory monitor", 1)
        world.tick()
    (incident,) = world.incidents
    assert list(incident.verdict.culprits) == [1]
    line = "Ray Train says of rank 1: ActorDiedError: killed by the memory monitor"
    assert ([what for what in world.story if "Ray" in what], world.state.witness_words) == ([line], ())


def test_words_that_no_incident_follows_are_forgotten() -> None:
    world = launched()
    for number in range(12):
        say(world, "ValueError: bad sample", 0, number)
        say(world, "ValueError: bad sample", 0, number)
        world.train(1, snapshot=False)
    lines = [f"Ray Train says of ranks 0, {number}: ValueError: bad sample" for number in range(4, 12)]
    assert [words.line for words in world.state.witness_words] == lines
    said = world.now
    while world.now < said + FRESH_S + 1:
        world.train(2, snapshot=False)
    assert world.incidents == []
    world.end(1, code=1)
    world.stand(3.0)
    assert not [what for what in world.story if "Ray" in what]
    assert world.state.witness_words == ()


def stalled_until(world: LaunchedWorld, incidents: int) -> None:
    for _ in range(300):
        if len(world.incidents) >= incidents:
            return
        world.tick()
    raise AssertionError(f"{len(world.incidents)} incidents instead of {incidents}")


def move(world: LaunchedWorld, steps: int) -> None:
    """Let the ranks of the nodes that are not missing train."""
    for _ in range(steps):
        for node in world.node_states.values():
            for rank in node.ranks:
                rank.progress.step += 1
                rank.stalled_s = 0.0
        world.tick()


def test_a_lost_node_whose_ranks_train_on_is_taken_back_and_reported_again_if_they_stop() -> None:
    world = launched(nodes=2, on_hang=store.HANG_ACTION_UNSPECIFIED)
    world.node_states.pop("node1")
    stalled_until(world, 1)
    move(world, 4)
    (first,) = world.incidents
    assert first.state == store.INCIDENT_STATE_RESOLVED
    stalled_until(world, 2)
    assert world.incidents[1].verdict.message.startswith("the run stands still, and nothing is known of ranks 4, 5, 6")
    world.stand(10.0)
    assert [one.state for one in world.incidents] == [store.INCIDENT_STATE_RESOLVED, store.INCIDENT_STATE_NOTED]


def test_of_two_lost_nodes_the_one_whose_ranks_train_on_is_taken_back() -> None:
    world = launched(nodes=3, on_hang=store.HANG_ACTION_UNSPECIFIED)
    gone = world.node_states.pop("node2")
    stalled_until(world, 1)
    move(world, 4)
    world.node_states["node2"] = gone
    world.tick()
    states = {tuple(one.verdict.culprits): one.state for one in world.incidents}
    assert states[8, 9, 10, 11] == store.INCIDENT_STATE_RESOLVED


def test_words_about_a_second_failure_are_in_the_incident_of_that_failure() -> None:
    world = launched()
    world.end(1, code=1)
    world.stand(3.0)
    say(world, "ActorDiedError: killed", 1)
    world.tick(seconds=3.0)
    world.launch(2)
    world.train(2, snapshot=False)
    world.end(0, code=1)
    world.stand(3.0)
    say(world, "ActorDiedError: killed", 0)
    say(world, "ActorDiedError: killed", 1)
    world.tick()
    told = [[what.what for what in one.actions if "Ray" in what.what] for one in world.incidents]
    first, second = (f"Ray Train says of rank {rank}: ActorDiedError: killed" for rank in (1, 0))
    assert told == [[first], [second, first]]
