"""Every rank of a 3D-parallel step hung before each of its calls: is it named, and it alone?

A small interpreter runs the calls of one training step until nothing moves, with the counters that hooks report.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from holdfast_daemon.core.waits.wait_graph import find
from holdfast_proto.v1 import common_pb2, store_pb2

SEND, RECV = common_pb2.DIRECTION_SEND, common_pb2.DIRECTION_RECV
STAGES, REPLICAS, SHARDS = 2, 2, 2
MICROBATCHES = 4


@dataclass(frozen=True)
class Collective:
    group: str
    members: tuple[int, ...]
    waits: bool = True


@dataclass(frozen=True)
class Message:
    direction: int
    peer: int


def rank_at(stage: int, replica: int, shard: int) -> int:
    return (stage * REPLICAS + replica) * SHARDS + shard


def one_step(stage: int, replica: int, shard: int) -> list[Collective | Message]:
    """1F1B over two stages, tensor collectives in each pass, gradients reduced at the end, then the norm."""
    tensor = Collective("tp", tuple(rank_at(stage, replica, s) for s in range(SHARDS)))
    data = tuple(rank_at(stage, r, shard) for r in range(REPLICAS))
    everybody = Collective("world", tuple(range(STAGES * REPLICAS * SHARDS)))
    other = rank_at(1 - stage, replica, shard)
    forward: list[Collective | Message]
    backward: list[Collective | Message]
    if stage == 0:
        forward, backward = [tensor, Message(SEND, other)], [Message(RECV, other), tensor]
        steady = (forward + backward) * (MICROBATCHES - 1)
        calls = forward + steady + backward
    else:
        forward, backward = [Message(RECV, other), tensor], [tensor, Message(SEND, other)]
        calls = (forward + backward) * MICROBATCHES
    buckets: list[Collective | Message] = [Collective("dp", data, waits=False)] * 3
    return [Collective("dp", data), *calls, *buckets, Collective("dp", data), everybody]


@dataclass
class Machine:
    """Runs the ranks' calls; ``stuck``: rank -> the number of calls that it still makes."""

    programs: dict[int, list[Collective | Message]]
    stuck: dict[int, int]
    eager_sends: bool
    at: Counter[int] = field(default_factory=Counter)
    entered: Counter[tuple[int, str]] = field(default_factory=Counter)
    messages: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    def run(self) -> None:
        while sum(self._advance(rank) for rank in self.programs):
            pass

    def _advance(self, rank: int) -> bool:
        """Enqueue the rank's next call if its last one lets it."""
        done = self.at[rank]
        if done == min(len(self.programs[rank]), self.stuck.get(rank, done + 1)):
            return False
        if done and not self._lets_go(rank, self.programs[rank][done - 1]):
            return False
        call = self.programs[rank][done]
        if isinstance(call, Collective):
            self.entered[rank, call.group] += 1
        else:
            self.messages[rank, call.peer, call.direction] += 1
        self.at[rank] += 1
        return True

    def _lets_go(self, rank: int, call: Collective | Message) -> bool:
        if isinstance(call, Message):
            return call.direction == SEND or self._matched(rank, call.peer, RECV)
        return not call.waits or self._met(rank, call)

    def _matched(self, rank: int, peer: int, direction: int) -> bool:
        other = RECV if direction == SEND else SEND
        return self.messages[peer, rank, other] >= self.messages[rank, peer, direction]

    def _met(self, rank: int, call: Collective) -> bool:
        return all(self.entered[member, call.group] >= self.entered[rank, call.group] for member in call.members)

    def states(self) -> dict[int, store_pb2.RankState]:
        return {rank: self._state(rank) for rank in self.programs}

    def _state(self, rank: int) -> store_pb2.RankState:
        state = store_pb2.RankState(rank=rank, life=store_pb2.LIFE_RUNNING, process_state="S")
        for call in dict.fromkeys(self.programs[rank]):
            if isinstance(call, Message):
                self._add_channel(state, call)
            elif call.waits:
                enqueued = self.entered[rank, call.group]
                completed = min(self.entered[member, call.group] for member in call.members)
                state.progress.groups.add(
                    group=call.group, members=call.members, enqueued=enqueued, completed=min(enqueued, completed)
                )
        return state

    def _add_channel(self, state: store_pb2.RankState, call: Message) -> None:
        enqueued = self.messages[state.rank, call.peer, call.direction]
        other = self.messages[call.peer, state.rank, RECV if call.direction == SEND else SEND]
        completed = enqueued if self.eager_sends and call.direction == SEND else min(enqueued, other)
        state.progress.channels.add(
            group="pp", peer=call.peer, direction=call.direction, enqueued=enqueued, completed=completed
        )


PROGRAMS = {
    rank_at(stage, replica, shard): one_step(stage, replica, shard) * 2
    for stage in range(STAGES)
    for replica in range(REPLICAS)
    for shard in range(SHARDS)
}


@pytest.mark.parametrize("eager_sends", [True, False], ids=["buffered_sends", "rendezvous_sends"])
@pytest.mark.parametrize("culprit", PROGRAMS)
def test_rank_stuck_before_any_call_of_a_step_is_the_only_root(culprit: int, eager_sends: bool) -> None:
    for calls in range(len(PROGRAMS[culprit])):
        machine = Machine(PROGRAMS, stuck={culprit: calls}, eager_sends=eager_sends)
        machine.run()
        finding = find(machine.states())
        assert (finding.roots, finding.cycle) == ((culprit,), ()), f"stuck after {calls} calls"


def test_undisturbed_step_ends_with_nobody_waiting() -> None:
    machine = Machine(PROGRAMS, stuck={}, eager_sends=False)
    machine.run()
    assert all(machine.at[rank] == len(program) for rank, program in PROGRAMS.items())
    finding = find(machine.states())
    assert finding.edges == () and finding.everyone_arrived == ()


def test_rank_that_reduces_two_groups_in_the_other_order_is_the_odd_one_of_a_cycle() -> None:
    first, second = Collective("a", (0, 1, 2, 3)), Collective("b", (0, 1, 2, 3))
    programs: dict[int, list[Collective | Message]] = {rank: [first, second] for rank in range(4)}
    programs[2] = [second, first]
    machine = Machine(programs, stuck={}, eager_sends=True)
    machine.run()
    finding = find(machine.states())
    assert finding.roots == ()
    assert finding.cycle == (2, 0)
