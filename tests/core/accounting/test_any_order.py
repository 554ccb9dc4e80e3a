"""The uses sum to the wall time whatever happens, in whatever order, and what is settled stays.

Every seed is a story of ticks, steps, faults, wrong clocks, lost leaders and lost records. A failure names its seed.
"""

import math
import random

import pytest

from holdfast_core.accounting.ledger import settled_time_use, time_use
from holdfast_core.model import StopRequest
from holdfast_daemon.replay.recorded_tick import decode_state, encode_state
from holdfast_daemon.validation.message_rules import check_record
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import TIME_USES
from tests.support.core_world import World

PHASES = (
    common.PHASE_INIT,
    common.PHASE_DATA,
    common.PHASE_FORWARD_BACKWARD,
    common.PHASE_OPTIMIZER,
    common.PHASE_CHECKPOINT,
    common.PHASE_EVAL,
    common.PHASE_IDLE,
)
ACTS = 100


class Story:
    """A world in which things happen by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        created_unix_s = 1_000_000.0 - self.chance.choice([0.0, 0.5, 500.0, -20.0])
        mode = self.chance.choice([store.MODE_ACT, store.MODE_ACT, store.MODE_OBSERVE])
        nodes = self.chance.choice([1, 2])
        self.world = World(nodes=nodes, ranks_per_node=2, mode=mode, created_unix_s=created_unix_s)
        self.is_emptied = False
        """Whether the last act has emptied the store: the account is then a new one."""
        self.acts = [
            *(4 * [self.pass_time]), *(8 * [self.train]), *(3 * [self.report_junk]), self.enter_phase, self.enter_phase,
            self.kill, self.hang, self.be_away, self.lose_leader, self.carry_by_codec, self.empty_store, self.stop,
        ]  # fmt: skip

    def go(self) -> None:
        self.is_emptied = False
        self.chance.choice(self.acts)()

    def pass_time(self) -> None:
        for _ in range(self.chance.randrange(20)):
            self.world.tick(seconds=self.chance.choice([0.01, 0.1, 0.1, 1.0]))

    def train(self) -> None:
        for _ in range(self.chance.randrange(6)):
            if all(node.ranks for node in self.world.node_states.values()) and not self._has_dead():
                for phase in self.chance.sample(PHASES, self.chance.randrange(3)):
                    self.world.spent_s[phase] = self.chance.expovariate(2.0)
                step_s = self.chance.expovariate(1.0)
                self.world.train(1, step_s=step_s, tick_s=self.chance.choice([0.01, step_s, step_s + 1.0]))

    def _has_dead(self) -> bool:
        return any(rank.life == store.LIFE_EXITED for node in self.world.node_states.values() for rank in node.ranks)

    def report_junk(self) -> None:
        """Report a step that was counted, is far ahead, or was timed by a wrong clock."""
        record = self.world.state.record
        for _ in range(self.chance.randrange(1, 4)):
            summary = store.StepSummary(
                step=max(0, record.newest_step + self.chance.randrange(-3, 4)),
                generation=max(0, record.generation - self.chance.choice([0, 0, 0, 1])),
                duration_s=self.chance.choice([0.0, 0.3, 1e6]),
                ended_unix_s=max(0.0, self.world.now + self.chance.choice([-1e6, -50.0, -1.0, 0.0, 50.0, 1e8])),
                phase_s={self.chance.choice(PHASES): self.chance.choice([0.0, 0.2, 1e7])},
            )
            node = f"node{self.chance.randrange(self.world.nodes)}"
            self.world.node_states[node].reported_unix_s = self.world.now + self.chance.choice([0.0, -100.0, 100.0])
            self.world.events.append(store.Event(node=node, generation=summary.generation, step_summary=summary))
        self.world.tick(seconds=self.chance.choice([0.0, 0.1]))

    def enter_phase(self) -> None:
        phase = self.chance.choice(PHASES)
        for node in self.world.node_states.values():
            for rank in node.ranks:
                rank.progress.phase = phase
        self.pass_time()

    def kill(self) -> None:
        alive = [
            rank for node in self.world.node_states.values() for rank in node.ranks if rank.life == store.LIFE_RUNNING
        ]
        if alive:
            self.world.end(self.chance.choice(alive).rank, signal=9)
        self.pass_time()

    def hang(self) -> None:
        self.world.stand(self.chance.choice([1.0, 5.0, 60.0]))

    def be_away(self) -> None:
        self.world.tick(seconds=self.chance.choice([6.0, 60.0, 1e5]))

    def lose_leader(self) -> None:
        self.world.lose_leader()
        self.world.now += self.chance.choice([0.0, -3.0, 30.0])  # the next leader's clock

    def carry_by_codec(self) -> None:
        self.world.state = decode_state(encode_state(self.world.state))

    def empty_store(self) -> None:
        if self.chance.random() < 0.3:
            self.world.empty_store()
            self.is_emptied = True
            self.world.tick()

    def stop(self) -> None:
        if self.chance.random() < 0.1:
            self.world.tick(StopRequest(grace_s=self.chance.choice([0.0, 5.0])))


@pytest.mark.parametrize("seed", range(25))
def test_the_uses_sum_to_the_wall_time_and_what_is_settled_stays(seed: int) -> None:
    story = Story(seed)
    world = story.world
    world.tick()
    settled, book, latest = dict.fromkeys(TIME_USES, 0.0), store.TimeUse(), world.now
    for _ in range(ACTS):
        story.go()
        spent, after = time_use(world.state, world.now), settled_time_use(world.state)
        before, book = book, world.state.record.time_use
        if before.ended_unix_s and not story.is_emptied:
            assert book == before
        kept = all(after.get(use, 0.0) >= seconds for use, seconds in settled.items())
        assert kept or story.is_emptied
        settled = dict(after)
        assert tuple(spent) == TIME_USES
        assert min(spent.values()) >= 0.0
        latest = max(latest, world.now)
        wall_s = math.fsum(spent.values())
        expected_s = (
            book.ended_unix_s or max(world.now, book.since_unix_s + math.fsum(after.values()))
        ) - book.since_unix_s
        assert wall_s == pytest.approx(expected_s, rel=1e-6, abs=1e-6)
        assert book.since_unix_s + wall_s <= latest + 1e-6
        check_record(world.state.record, "r")
