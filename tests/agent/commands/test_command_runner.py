import asyncio
import contextlib
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.commands import command_runner
from holdfast_agent.commands.command_runner import CommandRunner
from holdfast_agent.processes import agent_record
from holdfast_proto.snapshot import Meta, Slot
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault
from tests.support.answering_rank import answering
from tests.support.coroutines import until
from tests.support.nodes import RecordedNode, begin, make_node

FENCE = 1000
GENERATION = 3


class Desk:
    """A leader's place, which gives commands to a node. Its two ranks live as long as this process."""

    def __init__(self, folder: Path) -> None:
        self.node: RecordedNode = make_node(folder)
        begin(self.node, GENERATION, {0: 1, 1: 1})
        self.supervisor = self.node.supervisor()
        self._count = 0

    async def give(
        self, *, fence: int = FENCE, generation: int = GENERATION, name: str = "", instance: str = "i", **kind: Any
    ) -> None:
        """Give one command. By default it is to gather evidence."""
        self._count += 1
        what = kind or {"gather_evidence": store.GatherEvidence(incident=f"incident-{self._count}")}
        command = store.NodeCommand(
            id=name or f"id-{self._count}", fence=fence, generation=generation, instance=instance, **what
        )
        await self.commands.handle(command, self._count, f"{self._count}-0")

    @cached_property
    def commands(self) -> CommandRunner:
        """The runner of its commands. It needs the test's loop."""
        return self.node.commands(self.supervisor)

    @property
    def unacknowledged(self) -> int:
        """Return the number of commands that ranks have not answered."""
        return sum(rank.channel.unacknowledged for rank in self.node.ranks.values())

    @property
    def reported(self) -> list[str | None]:
        """Kinds of the emitted events, oldest first."""
        return self.node.link.kinds()


@pytest.fixture
def desk(folder: Path) -> Desk:
    return Desk(folder)


async def test_a_command_of_the_leader_is_carried_out_and_remembered(desk: Desk) -> None:
    await desk.give()
    assert desk.reported == ["evidence_captured"]
    assert desk.node.link.emitted[0].generation == GENERATION
    assert desk.node.fence == FENCE
    saved = agent_record.load(desk.node.options.record)
    assert saved is not None
    assert (saved.fence, saved.last_command, saved.generation) == (FENCE, "1-0", GENERATION)


async def test_a_command_with_an_older_fence_is_refused_and_reported(desk: Desk) -> None:
    await desk.give()
    await desk.give(fence=FENCE - 1)
    assert desk.reported == ["evidence_captured", "command_refused"]
    refused = desk.node.link.emitted[1].command_refused
    assert (refused.command_fence, refused.known_fence) == (FENCE - 1, FENCE)
    assert str(FENCE) in refused.reason
    assert desk.supervisor.record.last_command == "2-0"  # not to be read again
    await desk.give(fence=FENCE + 1)
    await desk.give(fence=FENCE, finish=store.FinishRun())
    assert desk.reported[2:] == ["evidence_captured", "command_refused"]
    assert (desk.node.fence, desk.commands.finished.done()) == (FENCE + 1, False)


async def test_a_fault_that_comes_with_an_old_command_is_refused_by_name(desk: Desk) -> None:
    fault = Fault(kind="kill", rank=1)
    await desk.give(generation=GENERATION - 1, inject_fault=fault)
    assert desk.reported == ["command_refused", "fault_refused"]
    refused = desk.node.link.emitted[1]
    assert (refused.generation, refused.fault_refused.fault) == (GENERATION - 1, fault)
    assert f"this node is at {GENERATION}" in refused.fault_refused.reason


async def test_a_start_of_the_generation_that_runs_changes_nothing(desk: Desk) -> None:
    ranks = dict(desk.node.ranks)
    await desk.give(start=store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_SEED))
    assert desk.node.ranks == ranks
    assert desk.reported == []


async def test_a_command_that_is_repeated_is_carried_out_once(desk: Desk) -> None:
    for _ in range(3):
        await desk.give(name="the same")
    assert desk.reported == ["evidence_captured"]
    assert desk.supervisor.record.last_command == "3-0"


async def test_finish_ends_the_agent_with_the_runs_outcome_whatever_the_generation(desk: Desk) -> None:
    assert not desk.commands.finished.done()
    await desk.give(generation=GENERATION - 2, finish=store.FinishRun(outcome="finished"))
    await desk.give(generation=GENERATION, finish=store.FinishRun(outcome="and again"))
    assert desk.commands.finished.result().outcome == "finished"
    assert desk.reported == []


async def test_leaving_is_asked_of_every_rank_that_lives(desk: Desk) -> None:
    desk.node.ranks[1].exit = store.RankExit(code=0)
    for rank in desk.node.ranks.values():
        rank.channel.outbox = asyncio.Queue()
    await desk.give(leave=store.LeaveAt(step=20))
    first, second = (rank.channel.outbox for rank in desk.node.ranks.values())
    assert first is not None and second is not None
    message = first.get_nowait()
    assert message is not None and message.command.stop_at.step == 20
    assert first.empty() and second.empty()


async def test_a_bad_loss_is_passed_on_once_to_every_rank_with_a_session(desk: Desk) -> None:
    first, second = desk.node.ranks.values()
    found = session.SpikeFound(tier="divergence", step=20)
    async with answering(desk.node, first) as of_first:
        await desk.give(name="a", spike_found=found)  # the second has no session, which stops nothing
        async with answering(desk.node, second) as of_second:
            await desk.give(name="b", spike_found=found)
            await desk.give(name="b", spike_found=found)  # the leader repeats it
            await until(lambda: len(of_first) == 2 and of_second, "all have answered")
    assert [command.spike_found for command in (*of_first, *of_second)] == [found] * 3
    assert {command.generation for command in (*of_first, *of_second)} == {GENERATION}
    assert desk.reported == []


async def test_a_checkpoint_that_cannot_be_kept_is_reported(desk: Desk) -> None:
    await desk.give(keep_checkpoint=store.KeepCheckpoint(step=20, reason="loss spike"))
    await until(lambda: desk.reported, "the failure is reported")
    failed = desk.node.link.emitted[0].checkpoint_failed
    assert failed.step == 20
    assert failed.reason.startswith("it cannot be kept")


async def test_snapshots_in_memory_become_a_checkpoint_on_command(desk: Desk) -> None:
    meta = Meta({}, ())
    for number in desk.node.ranks:
        with Slot(desk.node.memory.grant(number, 1 << 13, ranks_on_node=2).paths[0]) as slot:
            slot.begin(generation=GENERATION, step=20, rank=number)
            slot.commit(meta, data_bytes=0, persist=False)
    await desk.give(persist_snapshot=store.PersistSnapshot(step=20))
    await until(lambda: desk.reported, "the checkpoint is reported")
    assert (desk.reported, desk.node.inventory.committed) == (["checkpoint_committed"], [20])
    desk.node.checkpoints.close()


async def test_a_checkpoint_is_asked_of_every_rank(desk: Desk) -> None:
    first, second = desk.node.ranks.values()
    async with answering(desk.node, first) as of_first, answering(desk.node, second) as of_second:
        await desk.give(take_checkpoint=store.TakeCheckpoint(step=20))
        await until(lambda: of_first and of_second and not desk.unacknowledged, "all have answered")
    assert [command.snapshot_at.step for command in (*of_first, *of_second)] == [20, 20]
    assert desk.reported == []


@pytest.mark.parametrize(("answers", "reason"), [(True, "rank 1: too late"), (False, "rank 1 has no session")])
async def test_a_checkpoint_that_one_rank_does_not_take_has_failed_with_its_reason(
    desk: Desk, answers: bool, reason: str
) -> None:
    first, second = desk.node.ranks.values()
    async with contextlib.AsyncExitStack() as sessions:
        await sessions.enter_async_context(answering(desk.node, first))
        if answers:
            await sessions.enter_async_context(answering(desk.node, second, accepted=False, detail="rank 1: too late"))
        await desk.give(take_checkpoint=store.TakeCheckpoint(step=20))
        await until(lambda: desk.reported, "the failure is reported")
    failed = desk.node.link.emitted[0].checkpoint_failed
    assert (failed.step, failed.reason) == (20, f"not every rank took its snapshot: {reason}")


@pytest.mark.parametrize("instance", ["yesterday", ""])
async def test_yesterdays_end_of_a_run_of_this_name_does_not_end_todays(desk: Desk, instance: str) -> None:
    for _ in range(3):
        await desk.give(instance=instance, fence=2 * FENCE, finish=store.FinishRun(outcome="stopped"))
    assert not desk.commands.finished.done()
    assert desk.reported == ["command_refused"]  # one of many is enough
    assert desk.node.errors.refused["commands"] == 3
    assert desk.node.fence == 0  # a leader of another run locks no other leader out
    assert desk.supervisor.record.last_command == "3-0"
    await desk.give(finish=store.FinishRun(outcome="finished"))
    assert desk.commands.finished.result().outcome == "finished"


async def test_command_that_makes_no_sense_is_refused_and_the_next_one_obeyed(desk: Desk) -> None:
    await desk.give(start=store.StartGeneration(ranks=10**9, world_size=2), generation=GENERATION + 1)
    await desk.give(gather_evidence=store.GatherEvidence(incident="../../../etc"))
    desk.commands.refuse_entry("3-0", "no command")
    assert desk.reported == ["command_refused"] * 3
    assert (desk.node.fence, desk.node.generation, desk.supervisor.record.last_command) == (0, GENERATION, "3-0")
    assert [rank.is_alive for rank in desk.node.ranks.values()] == [True, True]
    await desk.give()
    assert desk.reported[-1] == "evidence_captured"


async def test_command_whose_handling_fails_is_counted_and_the_next_one_obeyed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:

    def fail(rank: int, step: int, world_size: int) -> None:
        raise KeyError("a case without a handler")

    monkeypatch.setattr(desk.node.saver, "persist", fail)
    await desk.give(persist_snapshot=store.PersistSnapshot(step=5))
    assert desk.node.errors.unexpected["commands"] == 1
    assert desk.supervisor.record.last_command == "1-0"
    await desk.give()
    assert desk.reported == ["evidence_captured"]


async def test_start_that_fails_unexpectedly_is_reported_as_a_failed_generation(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.node.ranks.clear()

    def fail(*_: object) -> None:
        raise RuntimeError("a case without a handler")

    monkeypatch.setattr(desk.node.memory, "keep_only", fail)
    start = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_SEED)
    await desk.give(start=start, generation=GENERATION + 1)
    assert desk.node.failed_generation == GENERATION + 1
    assert "a case without a handler" in desk.node.failure
    assert desk.node.errors.unexpected["commands"] == 1


async def test_job_begun_by_a_command_that_fails_is_counted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:

    async def fail(step: int, reason: str) -> None:
        raise TypeError("a case without a handler")

    monkeypatch.setattr(desk.node.saver, "keep", fail)
    await desk.give(keep_checkpoint=store.KeepCheckpoint(step=5))
    await until(lambda: desk.node.errors.unexpected["commands"], "it is counted")


async def test_what_nccls_ras_says_is_passed_on_when_it_comes_and_evidence_does_not_wait_for_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    words = [session.RankWords(ranks=[1], text="its process gives no answer")]

    def ask(pid: int, pids: Sequence[int]) -> list[session.RankWords]:
        assert (pid, list(pids)) == (1, [70, 71])
        assert answer.wait(60.0)
        return words

    monkeypatch.setattr(command_runner, "ask_of", ask)
    await desk.give(gather_evidence=store.GatherEvidence(suspicion="a", ras_pids=[70, 71]))
    assert desk.reported == ["evidence_captured"]
    answer.set()
    await until(lambda: len(desk.reported) > 1, "RAS has answered")
    said = desk.node.link.emitted[1].witness_words
    assert (said.run, said.witness, list(said.words)) == (desk.node.spec.run, "NCCL's RAS", words)


async def test_what_nccls_ras_says_of_ranks_that_a_restart_has_ended_meanwhile_is_not_passed_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:

    def ask(_pid: int, _pids: Sequence[int]) -> list[session.RankWords]:
        desk.node.ranks[1].exit = store.RankExit(signal=9)
        return [session.RankWords(ranks=[1], text="its process gives no answer")]

    monkeypatch.setattr(command_runner, "ask_of", ask)
    await desk.give(gather_evidence=store.GatherEvidence(suspicion="a", ras_pids=[70, 71]))
    await until(lambda: not desk.commands._jobs.running, "RAS has answered")
    assert desk.node.ranks[1].exit is not None
    assert desk.reported == ["evidence_captured"]


async def test_an_agent_that_ends_waits_for_no_start_that_is_not_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def start(_: int, __: store.StartGeneration) -> None:
        begun.set()
        await never.wait()

    monkeypatch.setattr(command_runner, "TURN_S", 0.01)
    monkeypatch.setattr(desk.supervisor, "_start", start)
    begin_again = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_SEED)
    await desk.give(start=begin_again, generation=GENERATION + 1)
    await begun.wait()
    await desk.commands.end_moves()
    desk.node.ranks.clear()
    await asyncio.wait_for(desk.supervisor.stop(), 60.0)


async def test_a_node_that_is_to_stop_a_generation_it_never_had_says_that_it_will_not_start_it(desk: Desk) -> None:
    desk.node.ranks.clear()
    await desk.give(stop=store.StopGeneration())
    assert desk.node.failed_generation == 0
    await desk.give(stop=store.StopGeneration(), generation=GENERATION + 1)
    assert (desk.node.generation, desk.node.failed_generation) == (GENERATION, GENERATION + 1)


async def test_a_rank_that_nothing_ends_does_not_keep_later_commands_from_the_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = asyncio.Event()
    started: list[int] = []

    async def start(generation: int, _: store.StartGeneration) -> None:
        started.append(generation)

    monkeypatch.setattr(command_runner, "TURN_S", 0.01)
    monkeypatch.setattr(desk.supervisor, "_stop", gone.wait)
    monkeypatch.setattr(desk.supervisor, "_start", start)
    await desk.give(stop=store.StopGeneration())
    begin_again = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_SEED)
    await desk.give(start=begin_again, generation=GENERATION + 1)
    await desk.give()
    assert (desk.reported, started) == (["evidence_captured"], [])
    gone.set()
    await until(lambda: started == [GENERATION + 1], "the ranks are gone, and the next generation starts")
