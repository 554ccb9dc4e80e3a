"""A node of a launcher's run is lost: the ranks that wait for its ranks notice nothing, so one of them is ended."""

import pytest

from holdfast_core.recovery.lifecycle import EVIDENCE_PATIENCE_S
from holdfast_proto.v1 import store_pb2 as store
from tests.core.recovery.test_hang_aborts import STEPS, LaunchedWorld, ended_after_s, move

WITHDRAWN = "no rank is ended: the node is back, or the ranks that waited for it have moved"


class Losing(LaunchedWorld):
    """Two nodes of two ranks that train. Holdfast restores their state, and their launcher has restarts left."""

    def __init__(self, *, on_hang: "store.HangAction" = store.HANG_ACTION_RESTART, restarts_left: int = 3,
                 restores: bool = True, unknown: frozenset[int] = frozenset()) -> None:  # fmt: skip
        super().__init__(nodes=2, ranks_per_node=2, on_hang=on_hang, unknown=unknown)
        self.spec.restores = restores
        for node in self.node_states.values():
            node.restarts_left = restarts_left
        self.launch(1)
        self.train(STEPS, snapshot=False)
        assert self.phase == "running"

    def lose(self) -> store.NodeState:
        """Lose the second node. Return its last state."""
        return self.node_states.pop("node1")

    def lose_without_evidence(self) -> store.NodeState:
        """Lose the second node, and let evidence be on its way for as long as it takes."""
        gone = self.lose()
        self.obeys = False
        self.until("gathering")
        return gone

    @property
    def kinds(self) -> list[int]:
        return [incident.verdict.kind for incident in self.incidents]


@pytest.mark.parametrize("on_hang", [store.HANG_ACTION_RESTART, store.HANG_ACTION_ABORT])
def test_one_rank_that_waits_for_a_lost_node_is_ended_once(on_hang: "store.HangAction") -> None:
    world = Losing(on_hang=on_hang)
    world.lose()
    ended_after_s(world)
    world.stand(30.0)
    assert [(name, [rank.rank for rank in command.end_ranks.ranks]) for name, command in world.commands
            if command.HasField("end_ranks")] == [("node0", [0])]  # fmt: skip
    assert (world.phase, world.kinds) == ("stopping", [store.VERDICT_KIND_LOST_NODE])
    assert any("evidence gathered" in what for what in world.story)
    assert any(what.startswith("ends rank 0 (process 100 on node0)") for what in world.story)


@pytest.mark.parametrize(
    "how",
    [{"on_hang": store.HANG_ACTION_REPORT}, {"restarts_left": 0}, {"restores": False}],
    ids=["report", "no-restarts", "not-restored"],
)
def test_no_rank_is_ended_unless_the_launcher_is_to_restart_the_run(how: dict[str, int]) -> None:
    world = Losing(**how)  # type: ignore[arg-type]
    world.lose()
    world.stand(100.0)
    assert (world.ended, world.kinds) == ([], [store.VERDICT_KIND_LOST_NODE])


def test_a_node_that_is_back_before_the_end_of_a_rank_is_taken_back_and_may_be_lost_again() -> None:
    world = Losing()
    gone = world.lose_without_evidence()
    world.node_states["node1"] = gone
    world.until("running")
    world.train(2, snapshot=False)
    assert (world.ended, world.kinds) == ([], [store.VERDICT_KIND_LOST_NODE, store.VERDICT_KIND_STANDSTILL])
    assert {incident.state for incident in world.incidents} == {store.INCIDENT_STATE_RESOLVED}
    assert world.incidents[0].actions[-1].what == WITHDRAWN
    before = world.kinds
    world.obeys = True
    world.lose()
    ended_after_s(world)
    assert (world.ended, world.kinds) == ([[0]], [*before, store.VERDICT_KIND_LOST_NODE])


def test_ranks_that_move_while_the_evidence_is_gathered_are_left_alone() -> None:
    world = Losing()
    world.lose_without_evidence()
    world.stand(EVIDENCE_PATIENCE_S - 1.0)
    for _ in range(20):
        move(world, 1)
    assert (world.ended, world.phase, world.story[-1]) == ([], "running", WITHDRAWN)


def test_a_rank_that_moves_before_the_command_arrives_is_not_ended() -> None:
    world = Losing()
    world.lose_without_evidence()
    world.until("stopping")
    move(world, 1)
    (incident,) = world.incidents
    assert (world.phase, incident.state) == ("running", store.INCIDENT_STATE_RESOLVED)
    assert not incident.HasField("abort")
    commands = len(world.ended)
    move(world, 30)
    assert len(world.ended) == commands


def test_ranks_that_end_by_themselves_need_no_end() -> None:
    world = Losing()
    world.lose_without_evidence()
    world.end(1, code=1)
    world.until("stopping")
    world.stand(30.0)
    assert (world.ended, world.incidents[0].HasField("abort")) == ([], False)


def test_a_rank_whose_process_is_not_known_for_sure_is_not_ended() -> None:
    world = Losing(unknown=frozenset(range(4)))
    world.lose()
    world.until("stopping")
    world.stand(30.0)
    assert (world.ended, world.incidents[0].HasField("abort"), len(world.incidents)) == ([], False, 1)
