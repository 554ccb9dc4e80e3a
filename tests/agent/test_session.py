import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast_agent import session
from holdfast_agent.agent import PROMPT_PAUSE_S, QUIET_PAUSE_S, prompt_pause_s
from holdfast_agent.processes.rank import STALLED_AFTER_S
from holdfast_proto.limits import PROTOCOL
from holdfast_proto.snapshot import DATA_OFFSET, Meta, Slot, TensorEntry
from holdfast_proto.v1 import session_pb2 as pb
from holdfast_proto.v1 import session_pb2_grpc
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_FORWARD_BACKWARD, GroupProgress, LoggedNumber, Progress
from tests.support.coroutines import until
from tests.support.nodes import RUN, RecordedNode, begin, make_node

GENERATION = 3


class FakeRank:
    """A rank's side of one session."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def say(self, **kind: Any) -> None:
        """Send one message: ``say(report=...)``."""
        await self._stream.write(pb.RankMessage(**kind))

    async def hear(self) -> pb.AgentMessage:
        """Return the agent's next message."""
        message = await asyncio.wait_for(self._stream.read(), 30)
        assert isinstance(message, pb.AgentMessage), "the agent has ended the session"
        return message


def hello(rank: int, *, run: str = RUN, generation: int = GENERATION, protocol: int = PROTOCOL) -> pb.Hello:
    where = {"dp": rank, "tp": 0}
    greeting = pb.Hello(run=run, generation=generation, rank=rank, world_size=2, device="cuda:1", coordinates=where)
    greeting.protocol = protocol
    return greeting


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[RecordedNode]:
    """A node with two ranks of a generation, and its service."""
    node = make_node(folder)
    begin(node, GENERATION, {0: 1, 1: 1})
    server = await session.serve(node.messages, node.errors, node.options.session_socket, node.admit)
    try:
        yield node
    finally:
        await server.stop(grace=None)


@contextlib.asynccontextmanager
async def session_of(node: RecordedNode, greeting: pb.Hello) -> AsyncIterator[FakeRank]:
    async with grpc.aio.insecure_channel(f"unix:{node.options.session_socket}") as channel:
        rank = FakeRank(session_pb2_grpc.RankAgentStub(channel).Session())  # type: ignore[no-untyped-call]
        await rank.say(hello=greeting)
        yield rank


@contextlib.asynccontextmanager
async def welcomed(node: RecordedNode, rank: int) -> AsyncIterator[FakeRank]:
    async with session_of(node, hello(rank)) as fake:
        assert (await fake.hear()).welcome.report_interval_s > 0
        yield fake


def report(step: int, **fields: Any) -> pb.Report:
    return pb.Report(progress=Progress(step=step, phase=PHASE_FORWARD_BACKWARD), **fields)


async def test_a_rank_that_sends_hello_runs(folder: Path) -> None:
    async with served(folder) as node:
        assert node.options.session_socket.stat().st_mode & 0o777 == 0o600
        assert node.ranks[1].life == store.LIFE_STARTING
        async with welcomed(node, 1):
            rank = node.ranks[1]
            assert rank.life == store.LIFE_RUNNING
            assert (rank.device, rank.coordinates) == ("cuda:1", {"dp": 1, "tp": 0})
            assert node.ranks[0].life == store.LIFE_STARTING


@pytest.mark.parametrize(
    "greeting",
    [hello(2), hello(0, generation=GENERATION - 1), hello(0, generation=GENERATION + 1), hello(0, run="another")],
    ids=["unknown rank", "older generation", "newer generation", "another run"],
)
async def test_who_is_not_one_of_the_generation_is_refused(folder: Path, greeting: pb.Hello) -> None:
    async with served(folder) as node:
        async with session_of(node, greeting) as rank:
            with pytest.raises(grpc.aio.AioRpcError, match="is not one of this agent's") as caught:
                await rank.hear()
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert [rank.life for rank in node.ranks.values()] == [store.LIFE_STARTING] * 2


async def test_a_rank_of_another_version_is_told_what_to_do(folder: Path) -> None:
    async with served(folder) as node, session_of(node, hello(0, protocol=PROTOCOL - 1)) as rank:
        with pytest.raises(grpc.aio.AioRpcError, match=f"rank 0 speaks protocol {PROTOCOL - 1}.*install one version"):
            await rank.hear()
        assert node.ranks[0].life == store.LIFE_STARTING
        assert node.errors.refused["rank_messages"] == 1


async def test_a_node_is_quiet_while_all_its_ranks_train(folder: Path) -> None:
    node = make_node(folder)
    assert not node.is_quiet, "it has no ranks"
    begin(node, GENERATION, {0: 1, 1: 1})
    node.ranks[0].steps_done = 3
    assert not node.is_quiet, "rank 1 starts"
    node.ranks[1].steps_done = 1
    assert node.is_quiet
    node.pass_time(STALLED_AFTER_S)
    assert not node.is_quiet, "they stand still"
    node.ranks[0].moves()
    node.ranks[1].moves()
    assert node.is_quiet
    node.ranks[0].process_state = "T"
    assert not node.is_quiet, "rank 0 is stopped"
    node.ranks[0].process_state = "S"
    node.ranks[1].finished = True
    assert not node.is_quiet, "rank 1 is about to end"


async def test_of_nodes_whose_ranks_train_the_first_look_at_the_checkpoints(folder: Path) -> None:
    node = make_node(folder)
    assert node.must_look(lookers=2), "it has no ranks"
    begin(node, GENERATION, {0: 1, 1: 1})
    for rank in node.ranks.values():
        rank.steps_done = 1
    node.start.ranks = 2
    for first_rank, must_look in ((0, True), (2, True), (4, False)):
        node.start.first_rank = first_rank
        assert node.must_look(lookers=2) is must_look
    node.pass_time(STALLED_AFTER_S)
    assert node.must_look(lookers=2), "its ranks stand still"


def test_large_runs_send_the_store_no_more_states_when_all_ranks_stand_still() -> None:
    assert prompt_pause_s(1) == prompt_pause_s(512) == PROMPT_PAUSE_S
    assert prompt_pause_s(1250) == pytest.approx(0.49, abs=0.01)
    assert prompt_pause_s(12_500) == QUIET_PAUSE_S


async def test_reports_become_the_nodes_state_and_a_summary_of_each_step(folder: Path) -> None:
    async with served(folder) as node, welcomed(node, 0) as first, welcomed(node, 1) as second:
        node.pass_time(4.0)
        phase_s: dict[int, float] = {PHASE_DATA: 0.2}
        step = pb.StepRecord(step=5, loss=2.0, tokens=10, ended_unix_s=9.0, phase_s=phase_s, samples=b"samples0")
        await first.say(report=report(6, steps=[step]))
        await until(lambda: node.reports_total == 1, "the first report is in")
        assert node.changed.is_set()  # a recovery may end with it
        assert node.link.emitted == []
        await second.say(report=report(6, steps=[step]))
        await until(lambda: node.link.emitted, "the step is complete")
        (event,) = node.link.emitted
        assert event.generation == GENERATION
        assert (event.step_summary.step, event.step_summary.loss_sum, event.step_summary.tokens) == (5, 4.0, 20)
        assert [(use.dp, use.rank) for use in event.step_summary.samples] == [(0, 0), (1, 1)]
        for rank in node.state(ready=True).ranks:
            assert (rank.progress.step, rank.progress.phase) == (6, PHASE_FORWARD_BACKWARD)
            assert (rank.steps_done, rank.first_step_ended_unix_s) == (1, 9.0)
            assert (rank.stalled_s, rank.silent_s) == (0.0, 0.0)


async def test_reports_from_a_generation_that_is_over_count_for_nothing(folder: Path) -> None:
    async with served(folder) as node, welcomed(node, 0) as old:
        begin(node, GENERATION + 1, {0: 1, 1: 1})
        await old.say(report=report(6))
        await old.say(slot_request=pb.SlotRequest(bytes_per_slot=1))
        async with session_of(node, hello(1, generation=GENERATION + 1)) as new:
            await new.hear()
            await new.say(report=report(2))
            await until(lambda: node.reports_total, "the report of the new rank is in")
        assert node.reports_total == 1
        assert [rank.progress.step for rank in node.ranks.values()] == [-1, 2]
        assert node.memory.slots(0) == []


async def test_a_command_comes_down_and_its_acknowledgement_goes_up(folder: Path) -> None:
    async with served(folder) as node, welcomed(node, 0) as first, welcomed(node, 1) as second:
        acks = [node.ranks[rank].command(pb.RankCommand(snapshot_at=pb.SnapshotAt(step=10 + rank))) for rank in (0, 1)]
        commands = [(await rank.hear()).command for rank in (first, second)]
        assert [command.snapshot_at.step for command in commands] == [10, 11]
        assert {command.generation for command in commands} == {GENERATION}
        await second.say(ack=pb.CommandAck(id=commands[1].id, accepted=False, detail="too late"))
        await first.say(ack=pb.CommandAck(id=commands[0].id, accepted=True))
        answers = await asyncio.wait_for(asyncio.gather(*acks), 30)
        assert [(answer.accepted, answer.detail) for answer in answers] == [(True, ""), (False, "too late")]
        assert not any(rank.channel.unacknowledged for rank in node.ranks.values())


async def test_a_command_for_a_rank_without_a_session_is_given_up_immediately(folder: Path) -> None:
    async with served(folder) as node:
        assert node.ranks[0].command(pb.RankCommand()).cancelled()
        async with welcomed(node, 0):
            pass
        await until(lambda: node.ranks[0].channel.outbox is None, "the session has ended")
        assert node.ranks[0].command(pb.RankCommand()).cancelled()


async def test_of_two_sessions_of_a_rank_the_newer_one_gets_the_commands(folder: Path) -> None:
    async with served(folder) as node, contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(welcomed(node, 0))
        newer = await stack.enter_async_context(welcomed(node, 0))
        node.ranks[0].command(pb.RankCommand(stop_at=pb.StopAt(step=4)))
        assert (await newer.hear()).command.stop_at.step == 4


async def test_a_rank_that_asks_for_slots_gets_as_many_and_finds_them_again(folder: Path) -> None:
    async with served(folder) as node:
        async with welcomed(node, 1) as rank:
            await rank.say(slot_request=pb.SlotRequest(bytes_per_slot=100_000, slots=2))
            grant = (await rank.hear()).slot_grant
            assert (len(grant.paths), grant.on_disk, grant.reason) == (2, False, "")
            assert all(Path(path).stat().st_size >= 100_000 for path in grant.paths)
        async with welcomed(node, 1) as rank:
            assert (await rank.hear()).slot_grant.paths == grant.paths
        assert node.link.emitted == []


@pytest.mark.parametrize(
    ("spec", "slots"),
    [
        ({}, 3),
        ({"nodes": 1}, 2),
        ({"replicate_every_s": 0.0}, 2),
        ({"snapshot_every": 0}, 2),
        ({"command": [], "restores": True}, 3),
        ({"command": []}, 2),
    ],
    ids=str,
)
async def test_a_rank_whose_snapshots_have_replicas_gets_one_slot_more(
    folder: Path, spec: dict[str, Any], slots: int
) -> None:
    async with served(folder) as node, welcomed(node, 1) as rank:
        replicated = {"nodes": 2, "replicate_every_s": 10.0, "snapshot_every": 10, "command": ["x"], **spec}
        node.spec = store.RunSpec(run=RUN, **replicated)
        await rank.say(slot_request=pb.SlotRequest(bytes_per_slot=100_000, slots=2))
        assert len((await rank.hear()).slot_grant.paths) == slots


async def test_absurd_slots_are_refused_and_those_that_fit_nowhere_with_what_to_change(folder: Path) -> None:
    async with served(folder) as node, welcomed(node, 0) as rank:
        await rank.say(slot_request=pb.SlotRequest(bytes_per_slot=2**64 - 1, slots=2**32 - 1))
        absurd = (await rank.hear()).slot_grant
        assert (list(absurd.paths), bool(absurd.reason)) == ([], True)
        assert node.link.kinds() == []
        await rank.say(slot_request=pb.SlotRequest(bytes_per_slot=1 << 50))
        grant = (await rank.hear()).slot_grant
        assert list(grant.paths) == []
        assert "snapshots need" in grant.reason
        assert grant.reason.endswith("free space there")
        assert "\n" not in grant.reason
        assert node.link.kinds() == ["snapshot_memory_refused"]
        refused = node.link.emitted[0].snapshot_memory_refused
        assert refused.needed_bytes >= 3 << 50 > refused.free_bytes
        assert refused.directory == str(node.options.shm_directory)


def take_snapshot(path: Path, rank: int, step: int) -> None:
    """Fill a slot as a rank does, for a checkpoint."""
    entry = TensorEntry("weight", "uint8", (64,), DATA_OFFSET, 64, (64,), (0,))
    with Slot(path) as slot:
        slot.begin(generation=GENERATION, step=step, rank=rank)
        slot.buffer[DATA_OFFSET : DATA_OFFSET + 64] = bytes([rank + 1]) * 64
        slot.commit(Meta({"weight": 0}, (entry,)), data_bytes=64, persist=True)


async def test_a_pinned_snapshot_of_every_rank_becomes_a_checkpoint_and_is_released(folder: Path) -> None:
    async with served(folder) as node:
        async with welcomed(node, 0) as first, welcomed(node, 1) as second:
            for number, rank in enumerate((first, second)):
                await rank.say(slot_request=pb.SlotRequest(bytes_per_slot=1 << 14, slots=2))
                path = Path((await rank.hear()).slot_grant.paths[0])
                take_snapshot(path, number, step=9)
                taken = pb.SnapshotTaken(step=9, slot=0, persist=True, stall_s=0.01, bytes=64)
                await rank.say(report=report(10, snapshots=[taken]))
            await until(lambda: node.link.emitted, "the checkpoint is committed")
            assert node.link.kinds() == ["checkpoint_committed"]
            assert node.link.emitted[0].checkpoint_committed.step == 9
            await node.saver.drain(30)
        state = node.state(ready=True)
        assert list(state.checkpoints) == [9]
        assert [list(rank.snapshots) for rank in state.ranks] == [[9], [9]]
        headers = [node.memory.header(node.memory.slots(rank)[0]) for rank in (0, 1)]
        assert [header.persist for header in headers if header] == [False, False]
        assert node.snapshots_total == 2


async def test_junk_of_one_rank_is_refused_and_both_sessions_continue(folder: Path) -> None:
    junk: list[dict[str, Any]] = [
        {"report": report(-(2**60), steps=[pb.StepRecord(step=2**63 - 1, duration_s=float("nan"), tokens=2**64 - 1)])},
        {"report": pb.Report(progress=Progress(step=4, phase=99, groups=[GroupProgress(member_runs=[2**31, 1, 1])]))},  # type: ignore[arg-type]
        {"report": report(5, memory=pb.MemoryStatus(ooms=2**64 - 1), reporter_cpu_s=float("-inf"))},
        {"ack": pb.CommandAck(id=2**64 - 1)},
        {"hello": hello(0)},
    ]
    async with served(folder) as node, welcomed(node, 0) as bad, welcomed(node, 1) as good:
        for message in junk:
            await bad.say(**message)
        await bad.say(report=report(6, steps=[pb.StepRecord(step=5, duration_s=0.1)]))
        await good.say(report=report(6, steps=[pb.StepRecord(step=5, duration_s=0.2)]))
        await until(lambda: all(rank.newest_step == 5 for rank in node.ranks.values()), "both have reported")
        assert [rank.progress.step for rank in node.ranks.values()] == [6, 6]
        assert node.errors.refused["rank_messages"] >= 5
        assert not any(node.errors.unexpected.values())
        state = node.state(ready=True)
        assert [rank.life for rank in state.ranks] == [store.LIFE_RUNNING] * 2


async def test_slots_that_cannot_be_created_are_answered_and_the_session_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(folder) as node, welcomed(node, 0) as rank:

        def fail(*_: object, extra: int) -> None:
            raise RuntimeError("a case without a handler")

        monkeypatch.setattr(node.memory, "grant", fail)
        await rank.say(slot_request=pb.SlotRequest(bytes_per_slot=100))
        assert "a case without a handler" in (await rank.hear()).slot_grant.reason
        await rank.say(report=report(3))
        await until(lambda: node.ranks[0].progress.step == 3, "the session continues")
        assert node.errors.unexpected["rank_messages"] == 1


async def test_one_rank_that_cannot_be_read_does_not_keep_the_others_from_ageing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(folder) as node:

        def fail(elapsed_s: float) -> None:
            raise RuntimeError("a case without a handler")

        monkeypatch.setattr(node.ranks[0], "pass_time", fail)
        node.pass_time(0.5)
        assert (node.ranks[1].stalled_s, node.errors.unexpected["tick"]) == (0.5, 1)
        before = node.state(ready=True)
        monkeypatch.setattr(node.ranks[0], "state", fail)
        after = node.state(ready=True)
        assert after.ranks == before.ranks  # the last state that could be had


async def tell(node: RecordedNode, *words: pb.RankWords, run: str = RUN, launcher: str = "Ray Train") -> None:
    async with grpc.aio.insecure_channel(f"unix:{node.options.session_socket}") as channel:
        said = pb.WitnessWords(run=run, witness=launcher, words=words)
        await session_pb2_grpc.RankAgentStub(channel).Tell(said, timeout=30)  # type: ignore[no-untyped-call]


async def test_what_a_launcher_says_of_its_ranks_is_passed_on_without_what_makes_no_sense(folder: Path) -> None:
    async with served(folder) as node:
        good = pb.RankWords(ranks=[0, 1], text="ActorDiedError: killed")
        await tell(node, good)
        assert node.link.emitted == [], "ranks that the agent has started have no other launcher"
        node.spec.command[:] = []
        node.messages._deaf_until_s = 0.0
        bad = [
            pb.RankWords(text="no rank"),
            pb.RankWords(ranks=[1, 0], text="x"),
            pb.RankWords(ranks=[2**31], text="x"),
            pb.RankWords(ranks=[0]),
            pb.RankWords(ranks=[0], text="a\nb"),
            pb.RankWords(ranks=[0], text="x" * 401),
        ]
        await tell(node, *bad, good, *bad)
        node.messages._deaf_until_s = 0.0
        await tell(node, *[good] * 9)
        node.messages._deaf_until_s = 0.0
        assert [list(event.witness_words.words) for event in node.link.emitted] == [[good], [good] * 8]
        await tell(node, good, launcher="a\x1b[2J")
        node.messages._deaf_until_s = 0.0
        await tell(node, good, run="another")
        node.messages._deaf_until_s = 0.0
        await tell(node, good)
        node.messages._deaf_until_s += 60.0
        for _ in range(5):
            await tell(node, good)
        assert len(node.link.emitted) == 3, "a flood of words is heard once"


async def test_numbers_that_ranks_log_are_passed_on_from_the_lowest_rank(folder: Path) -> None:
    async with served(folder) as node, welcomed(node, 0) as first, welcomed(node, 1) as second:
        await first.say(report=report(1, logged=[LoggedNumber(name="kl", value=0.5, step=1)]))
        await until(lambda: len(node.link.emitted) == 1, "the numbers of rank 0")
        await second.say(report=report(1, logged=[LoggedNumber(name="kl"), LoggedNumber(name="expert", step=1)]))
        await until(lambda: len(node.link.emitted) == 2, "the numbers of rank 1")
        (of_first,), (of_second,) = (event.numbers_logged.numbers for event in node.link.emitted)
        assert of_first == LoggedNumber(name="kl", value=0.5, step=1, rank=0)
        assert of_second == LoggedNumber(name="expert", step=1, rank=1)


async def test_a_rank_may_train_in_another_thread_than_the_one_that_has_attached(folder: Path) -> None:
    async with served(folder) as node, welcomed(node, 1) as rank:
        assert node.ranks[1].thread_id == node.ranks[1].pid
        await rank.say(report=report(0, training_thread=77))
        await rank.say(report=report(1))
        await until(lambda: node.ranks[1].progress.step == 1, "the report")
        assert node.ranks[1].thread_id == 77
