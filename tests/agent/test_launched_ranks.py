"""An agent gives the ranks of another launcher the state that the leader has chosen."""

import asyncio
import os
from itertools import count
from pathlib import Path

import pytest
from google.protobuf.message import Message

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.checkpoints.restorer import StartingPoint
from holdfast_agent.commands import command_runner
from holdfast_agent.observer import Observer
from holdfast_agent.processes import agent_record
from holdfast_agent.processes.rank import Rank
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import until
from tests.support.nodes import RUN, RecordedNode, make_node
from tests.support.snapshots import Snapshots


class Waiting:
    """A node with rank 0 of a world of one, which waits for its state and has a session."""

    def __init__(self, folder: Path) -> None:
        self.node: RecordedNode = make_node(folder, command=())
        self.node.spec.restores, self.node.spec.ranks_per_node = True, 0
        self.supervisor = self.node.supervisor()
        self.commands = self.node.commands(self.supervisor)
        self.rank = self.hello()
        self._ids = count(1)

    def hello(self, *, awaits: bool = True, generation: int = 1) -> Rank:
        said = session.Hello(run=RUN, generation=generation, world_size=1, pid=os.getpid(), awaits_start=awaits)
        rank = Observer(self.node, self.supervisor).admit(said)
        assert rank is not None
        rank.channel.outbox = asyncio.Queue()
        return rank

    async def start(self, run_generation: int = 5, *, generation: int = 1, **fields: int) -> list[str]:
        """Command the start from a state; return why that is refused."""
        start = store.StartGeneration(world_size=1, run_generation=run_generation, **fields)  # type: ignore[arg-type]
        return await self.give(generation, start=start)

    async def give(self, generation: int = 1, **kind: Message) -> list[str]:
        """Give a command; return why it is refused."""
        number = next(self._ids)
        command = store.NodeCommand(
            id=f"{number}",
            fence=9,
            generation=generation,
            instance="i",
            **kind,  # type: ignore[arg-type]
        )
        before = len(self.node.link.emitted)
        await self.commands.handle(command, number, f"{number}-0")
        return [event.command_refused.reason for event in self.node.link.emitted[before:]]

    def heard(self) -> list[session.AgentMessage]:
        """The messages that the rank has got since the last call."""
        outbox = self.rank.channel.outbox
        assert outbox is not None
        found = [outbox.get_nowait() for _ in range(outbox.qsize())]
        return [message for message in found if message is not None]


def fill(waiting: Waiting, *steps: int) -> None:
    """Let an earlier process of rank 0 leave a snapshot of each step in memory."""
    paths = waiting.node.memory.grant(0, 1 << 16, 1).paths
    for path, step in zip(paths, steps, strict=False):
        Snapshots(path.parent).fill(path, 0, step, persist=False)


async def test_a_waiting_rank_hears_of_its_slots_and_its_state_only_when_the_leader_has_chosen(folder: Path) -> None:
    waiting = Waiting(folder)
    fill(waiting, 30, 40)
    assert waiting.node.messages.greeting(waiting.rank) == []
    assert waiting.node.state(ready=False).ranks[0].awaits_start
    assert await waiting.start(source=store.SOURCE_MEMORY, step=30) == []
    grant, start = waiting.heard()
    assert len(grant.slot_grant.paths) == 2
    assert (start.start_from.generation, start.start_from.step) == (5, 30)
    assert start.start_from.slot == str(waiting.node.memory.slot_holding(0, 30))
    state = waiting.node.state(ready=False)
    assert (state.restored_generation, state.ranks[0].awaits_start) == (5, False)
    assert waiting.node.memory.complete_steps(0) == [30]  # what is newer will be trained again


async def test_a_rank_hears_that_the_state_for_its_world_is_written_also_on_a_node_that_writes_nothing(
    folder: Path,
) -> None:
    waiting = Waiting(folder)
    assert await waiting.give(persist_replicas=store.PersistReplicas(step=30, generation=1, world_size=1)) == []
    assert [message.start_from.preparing for message in waiting.heard()] == [True]


async def test_a_rank_that_has_lost_its_session_hears_it_again_and_so_does_one_of_an_adopted_node(folder: Path) -> None:
    waiting = Waiting(folder)
    fill(waiting, 30)
    await waiting.start(source=store.SOURCE_MEMORY, step=30)
    again = [message.WhichOneof("kind") for message in waiting.node.messages.greeting(waiting.hello())]
    assert again == ["slot_grant", "start_from"]
    saved = agent_record.load(waiting.node.options.record)
    assert saved is not None
    successor = make_node(folder, command=())
    successor.spec.restores = True
    successor.memory.adopt()
    successor.supervisor().adopt(saved)
    (_, start) = successor.messages.greeting(successor.ranks[0])
    assert (start.start_from.generation, start.start_from.step) == (5, 30)


async def test_a_state_for_ranks_that_the_launcher_has_replaced_is_not_given_to_the_new_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, fetched = Waiting(folder), asyncio.Event()

    async def fetch(*_: object) -> StartingPoint:
        await fetched.wait()
        return StartingPoint()

    monkeypatch.setattr(NodeCheckpoints, "starting_point", staticmethod(fetch))
    monkeypatch.setattr(command_runner, "TURN_S", 0.01)
    await waiting.start(source=store.SOURCE_SEED, pid=waiting.rank.pid)
    waiting.rank.pid += 1  # the launcher replaces it, and counts the restart on another node
    fetched.set()
    await waiting.start(source=store.SOURCE_SEED, pid=waiting.rank.pid - 1)  # the leader has not seen it yet
    await waiting.start(6, source=store.SOURCE_SEED, pid=waiting.rank.pid)
    await until(lambda: not waiting.rank.awaits_start, "the new rank has a state")
    assert [one.start_from.generation for one in waiting.heard() if not one.start_from.preparing] == [6]


async def test_a_rank_that_says_hello_after_the_others_got_their_state_is_not_shown_as_waiting(folder: Path) -> None:
    waiting = Waiting(folder)
    await waiting.start(source=store.SOURCE_SEED)
    waiting.hello()
    assert not waiting.node.state(ready=False).ranks[0].awaits_start


async def test_an_adopted_node_has_no_state_for_ranks_that_wait_again(folder: Path) -> None:
    waiting = Waiting(folder)
    await waiting.start(source=store.SOURCE_SEED)
    waiting.node.ranks[0].exit = store.RankExit()
    waiting.hello(generation=2)
    saved = agent_record.load(waiting.node.options.record)
    assert saved is not None
    successor = make_node(folder, command=())
    successor.supervisor().adopt(saved)
    assert (successor.restored_generation, successor.given) == (5, None)


async def test_a_rank_that_trains_never_loses_its_snapshots_to_a_command(folder: Path) -> None:
    waiting = Waiting(folder)
    fill(waiting, 30, 40)
    await waiting.start(source=store.SOURCE_MEMORY, step=40)
    waiting.heard()
    fill(waiting, 50, 60)
    await waiting.start(6, source=store.SOURCE_SEED)
    assert (waiting.heard(), waiting.node.memory.complete_steps(0)) == ([], [50, 60])


async def test_a_rank_hears_that_its_state_is_prepared_and_a_repeated_command_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, fetched, asked = Waiting(folder), asyncio.Event(), []

    async def fetch(start: store.StartGeneration, *_: object) -> StartingPoint:
        asked.append(start.step)
        await fetched.wait()
        return StartingPoint()

    monkeypatch.setattr(NodeCheckpoints, "starting_point", staticmethod(fetch))
    monkeypatch.setattr(command_runner, "TURN_S", 0.01)
    await waiting.start(source=store.SOURCE_SEED)
    await waiting.start(source=store.SOURCE_SEED)
    assert [message.start_from.preparing for message in waiting.heard()] == [True]
    fetched.set()
    await until(lambda: waiting.node.restored_generation, "the state is there")
    await until(lambda: waiting.rank.channel.outbox and not waiting.rank.channel.outbox.empty(), "the rank hears it")
    assert [message.start_from.step for message in waiting.heard()] == [-1]
    assert len(asked) == 1


async def test_a_state_that_is_not_there_is_reported_and_the_rank_waits_on(folder: Path) -> None:
    waiting = Waiting(folder)
    await waiting.start(source=store.SOURCE_MEMORY, step=30)
    state = waiting.node.state(ready=False)
    assert (state.failed_generation, state.restored_generation) == (5, 0)
    assert "no snapshot of step 30" in state.failure
    assert (waiting.heard(), state.ranks[0].awaits_start) == ([], True)


async def test_the_next_world_of_the_launcher_waits_again(folder: Path) -> None:
    waiting = Waiting(folder)
    await waiting.start(source=store.SOURCE_SEED)
    waiting.node.ranks[0].exit = store.RankExit()
    waiting.rank = waiting.hello(generation=2)
    state = waiting.node.state(ready=False)
    assert (state.restored_generation, state.ranks[0].awaits_start) == (5, True)
    assert await waiting.start(6, generation=2, source=store.SOURCE_SEED) == []
    assert [one.start_from.step for one in waiting.heard()] == [-1]


async def test_ranks_that_wait_when_the_agent_ends_hear_why(folder: Path) -> None:
    waiting = Waiting(folder)
    waiting.node.messages.refuse_start("no checkpoint can be read")
    assert [one.start_from.refusal for one in waiting.heard()] == ["no checkpoint can be read"]


async def test_without_restore_such_ranks_are_only_watched(folder: Path) -> None:
    waiting = Waiting(folder)
    waiting.node.spec.restores = False
    (reason,) = await waiting.start(ranks=1, source=store.SOURCE_SEED)
    assert "another launcher has started its ranks" in reason
