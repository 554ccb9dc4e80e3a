"""Requests for stacks and profiles: sent, repeated, answered once, and given up with one line."""

import pytest

from holdfast_core import live_requests
from holdfast_core.model import Action, LiveAnswered, ProfileRequest, StacksRequest
from holdfast_daemon.replay.recorded_tick import decode_request, decode_state, encode_request, encode_state
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World

STACKS = StacksRequest("s")
PROFILE = ProfileRequest("p", rank=3, steps=2, patience_s=30.0)


@pytest.fixture
def world() -> World:
    world = World(nodes=2, ranks_per_node=2)
    world.until("starting")
    world.train(3)
    world.until("running")
    return world


def answers(actions: list[Action]) -> list[LiveAnswered]:
    return [action for action in actions if isinstance(action, LiveAnswered)]


def until_answered(world: World, ticks: int = 1000) -> LiveAnswered:
    for _ in range(ticks):
        found = answers(world.tick())
        if found:
            [answer] = found
            assert not world.state.live_requests
            return answer
    raise AssertionError("no answer")


def asked(world: World, kind: str) -> list[tuple[str, store.NodeCommand]]:
    return [sent for sent in world.commands if sent[1].WhichOneof("kind") == kind]


def taken(node: str, *ranks: int) -> store.Event:
    stacks = store.StacksTaken(request="s", ranks=[store.RankStacks(rank=rank) for rank in ranks])
    return store.Event(node=node, generation=1, stacks_taken=stacks)


def test_each_node_is_asked_for_its_ranks_and_the_answer_waits_for_all(world: World) -> None:
    assert not answers(world.tick(STACKS))
    sent = {node: list(command.take_stacks.ranks) for node, command in asked(world, "take_stacks")}
    assert sent == {"node0": [0, 1], "node1": [2, 3]}
    world.events.append(taken("node1", 2, 3))
    assert not answers(world.tick())
    world.events.append(taken("node1", 2, 3))  # of a repeated command
    world.events.append(taken("node0", 0, 1))
    answer = until_answered(world)
    assert (answer.id, answer.refusal, [event.node for event in answer.events]) == ("s", "", ["node1", "node0"])
    world.events.append(taken("node0", 0, 1))
    assert not answers(world.tick())


def test_a_command_without_an_answer_is_repeated_to_that_node_alone(world: World) -> None:
    world.tick(STACKS)
    world.events.append(taken("node0", 0, 1))
    world.stand(3.0)
    nodes = [node for node, _ in asked(world, "take_stacks")]
    assert nodes.count("node0") == 1
    assert nodes.count("node1") >= 2
    assert {command.id for _, command in asked(world, "take_stacks")} == {""}  # the outbox gives each its own


def test_a_node_that_stays_silent_costs_its_own_stacks_only(world: World) -> None:
    world.tick(STACKS)
    world.events.append(taken("node0", 0, 1))
    answer = until_answered(world)
    assert answer.refusal == ""
    [_, missing] = answer.events
    assert [rank.rank for rank in missing.stacks_taken.ranks] == [2, 3]
    assert "no answer within 30 s from node1" in missing.stacks_taken.ranks[0].problem


def test_ranks_that_do_not_exist_and_runs_that_have_ended_are_refused(world: World) -> None:
    [answer] = answers(world.tick(StacksRequest("s", ranks=(1, 7, 9))))
    assert answer.refusal == "ranks 7, 9: no such rank is alive: name one of 0, 1, 2, 3"
    [answer] = answers(world.tick(ProfileRequest("p", rank=4, steps=1, patience_s=5.0)))
    assert answer.refusal == "rank 4: no such rank is alive: name one of 0, 1, 2, 3"
    assert not asked(world, "take_stacks")
    [answer] = answers(World().tick(STACKS))
    assert answer.refusal == "no rank is alive now, the run is waiting: try again when one is"


def test_more_ranks_than_fit_into_one_answer_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_requests, "MOST_STACKS", 3)
    [answer] = answers(world.tick(STACKS))
    assert "4 ranks are more than 3" in answer.refusal


def test_a_profile_is_answered_with_the_files_of_its_node(world: World) -> None:
    world.tick(PROFILE)
    [(node, command)] = asked(world, "take_profile")
    assert (node, command.take_profile.rank, command.take_profile.steps) == ("node1", 3, 2)
    profile = store.ProfileTaken(request="p", rank=3, files=["/a/b"])
    world.events.append(store.Event(node="node1", generation=1, profile_taken=profile))
    [event] = until_answered(world).events
    assert event.profile_taken == profile


def test_a_rank_that_hangs_is_reported_with_its_place_and_the_command_to_look_with(world: World) -> None:
    world.spec.mode = store.MODE_OBSERVE
    world.tick(PROFILE)
    refusal = until_answered(world).refusal
    assert refusal.startswith("no step of rank 3 has ended within 30 s: it is in step ")
    assert "without progress for 3" in refusal
    assert refusal.endswith("see where with `holdfast stacks --rank 3`")


def test_a_slow_rank_is_reported_with_the_flag_that_helps(world: World) -> None:
    world.spec.mode = store.MODE_OBSERVE
    world.tick(PROFILE)
    for node in world.node_states.values():
        for rank in node.ranks:
            rank.progress.step += 1
    assert "raise --timeout or lower --steps" in until_answered(world).refusal


@pytest.mark.parametrize(("finished", "said"), [(False, "has ended before"), (True, "has left training before")])
def test_a_rank_that_is_gone_ends_the_request(world: World, finished: bool, said: str) -> None:
    world.spec.mode = store.MODE_OBSERVE
    world.tick(PROFILE)
    world.end(3, **({"code": 0} if finished else {"signal": 9}))
    world.rank(3).exit.finished = finished
    world.rank(3).exit.exited_unix_s = world.now
    assert not answers(world.tick())  # its profile may be on the way
    assert f"rank 3 {said} its profile was complete" in until_answered(world, ticks=15).refusal


def test_a_restart_ends_the_request(world: World) -> None:
    world.tick(PROFILE)
    world.end(0, signal=9)
    assert "the ranks were restarted" in until_answered(world, ticks=50).refusal


def test_a_rank_that_has_left_training_is_refused(world: World) -> None:
    world.rank(3).left_training = True
    world.tick()
    [answer] = answers(world.tick(PROFILE))
    assert answer.refusal == "rank 3 has left training: no step of it will end"


def test_requests_are_part_of_recordings(world: World) -> None:
    world.tick(STACKS, PROFILE)
    assert {*world.state.live_requests} == {"s", "p"}
    assert decode_state(encode_state(world.state)).live_requests == world.state.live_requests
    for request in (StacksRequest("s", (1, 2), native=True), PROFILE):
        assert decode_request(encode_request(request)) == request
