"""Stacks and profiles for operators: each request is served once, and its answer is repeated when it is asked for."""

from pathlib import Path

import pytest

from holdfast_agent.commands import live_evidence
from holdfast_agent.commands.live_evidence import LiveEvidence
from holdfast_agent.evidence.live_stacks import LiveStacks
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from tests.support.answering_rank import answering
from tests.support.nodes import RecordedNode, begin, make_node

PROFILE = store.NodeCommand(generation=3, take_profile=store.TakeProfile(request="p", rank=1, steps=2, patience_s=30.0))
STACKS = store.NodeCommand(generation=3, take_stacks=store.TakeStacks(request="s", ranks=[1, 5]))


@pytest.fixture
def node(folder: Path) -> RecordedNode:
    node = make_node(folder)
    begin(node, 3, {0: 1, 1: 1})
    return node


@pytest.fixture
def live(node: RecordedNode) -> LiveEvidence:
    return LiveEvidence(node, node.link.emit)


async def served(
    node: RecordedNode, live: LiveEvidence, done: session.ProfileDone | None, *, accepted: bool = True
) -> list[session.ProfileSteps]:
    """Request a profile of rank 1, which has a session and answers. Return what it was asked."""
    rank = node.ranks[1]

    async def write_files(command: session.RankCommand) -> None:
        if done is not None:
            for name in done.files:
                if "/" not in name and name != "gone":
                    (Path(command.profile_steps.directory) / name).touch()
            await node.messages.receive(rank, session.RankMessage(profile_done=done))

    detail = "another one is under way"
    async with answering(node, rank, accepted=accepted, detail=detail, then=write_files) as got:
        await live.take_profile(PROFILE)
    return [command.profile_steps for command in got]


async def test_a_profile_is_asked_for_once_and_its_answer_is_repeated(node: RecordedNode, live: LiveEvidence) -> None:
    done = session.ProfileDone(
        request="p", files=["rank-00001.trace.json.gz", "../x", "gone"], first_step=4, last_step=5
    )
    [wanted] = await served(node, live, done)
    assert (wanted.request, wanted.steps, wanted.patience_s) == ("p", 2, 30.0)
    folder = Path(wanted.directory)
    assert folder == node.options.directory / "profiles" / "p"
    assert folder.stat().st_mode & 0o777 == 0o700
    [event] = node.link.emitted
    taken = event.profile_taken
    assert (event.generation, taken.rank, taken.first_step, taken.last_step) == (3, 1, 4, 5)
    assert list(taken.files) == [str(folder / "rank-00001.trace.json.gz")]  # neither outside nor missing
    await live.take_profile(PROFILE)
    assert [one.profile_taken for one in node.link.emitted] == [taken, taken]


async def test_a_refusal_of_the_rank_is_reported_and_leaves_no_folder(node: RecordedNode, live: LiveEvidence) -> None:
    await served(node, live, None, accepted=False)
    [event] = node.link.emitted
    assert event.profile_taken.problem == "rank 1: another one is under way"
    assert not (node.options.directory / "profiles" / "p").exists()


async def test_a_rank_without_a_session_is_asked_by_the_next_command_and_its_failure_is_reported_with_the_reason(
    node: RecordedNode, live: LiveEvidence
) -> None:
    await live.take_profile(PROFILE)
    assert node.link.emitted == []
    done = session.ProfileDone(request="p", problem="the disk\nis full", first_step=-1, last_step=-1)
    await served(node, live, done)
    [event] = node.link.emitted
    assert event.profile_taken.problem == "rank 1: the disk?is full"


async def test_a_rank_of_another_node_is_refused(node: RecordedNode, live: LiveEvidence) -> None:
    profile = store.TakeProfile(request="q", rank=7, steps=2, patience_s=30.0)
    await live.take_profile(store.NodeCommand(take_profile=profile))
    assert node.link.emitted[0].profile_taken.problem == "rank 7 is not alive on this node"


async def test_stacks_are_taken_once_for_each_request(
    node: RecordedNode, live: LiveEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    async def take(self: LiveStacks, command: store.TakeStacks) -> store.StacksTaken:
        looks.append(list(command.ranks))
        return store.StacksTaken(request=command.request)

    monkeypatch.setattr(LiveStacks, "take", take)
    await live.take_stacks(STACKS)
    await live.take_stacks(STACKS)
    assert looks == [[1, 5]]
    assert [event.stacks_taken.request for event in node.link.emitted] == ["s", "s"]


async def test_old_requests_are_forgotten(
    node: RecordedNode, live: LiveEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_evidence, "_KEPT", 1)
    for request in ("a", "b", "a"):
        await live.take_stacks(store.NodeCommand(take_stacks=store.TakeStacks(request=request)))
    assert [event.stacks_taken.request for event in node.link.emitted] == ["a", "b", "a"]
