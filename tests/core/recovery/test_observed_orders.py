"""Worlds that another launcher forms one after another, seen by leaders in any order: the last one always trains.

Worlds may end before all their ranks have said hello, nodes are lost, spares take their places, torchrun counts
restarts on some nodes only, states of nodes arrive late or together, commands arrive late, and leaders change.
"""

import random

import pytest

from holdfast_core import coordinator
from holdfast_core.model import Observation, Send
from holdfast_proto.v1 import store_pb2 as store
from tests.core.recovery.test_launched_restore import Restored


class Job:
    """A job of random nodes with random trouble."""

    def __init__(self, seed: int, *, restores: bool, leader_changes: float) -> None:
        self.luck = random.Random(seed)
        self.size, self.local = self.luck.choice([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
        self.spec = Restored(nodes=self.size).spec
        self.spec.restores = self.restores = restores
        self.leader_changes = leader_changes
        self.state = coordinator.begin(self.spec)
        self.now, self.pid = 1_000_000.0, 100
        self.nodes: dict[str, store.NodeState] = {}
        self.newest: dict[str, store.NodeState] = {}
        self.commands: list[tuple[str, store.StartGeneration]] = []
        self.given: dict[str, int] = {}  # the generation whose state a node has passed on to its ranks
        self.seen_rate, self.late_rate = self.luck.choice([0.3, 0.7, 1.0]), self.luck.choice([0.0, 0.4, 0.8])
        self.spares = [f"n{number}" for number in range(self.size + 4)]
        self.members = [self.spares.pop(0) for _ in range(self.size)]
        self.numbers = dict.fromkeys([*self.members, *self.spares], 1)

    def tick(self, *hidden: str) -> None:
        """Let the leader see the nodes, and the nodes carry out the commands that arrive."""
        self.now += 0.5
        newest = {name: store.NodeState.FromString(one.SerializeToString()) for name, one in self.nodes.items()}
        for node in newest.values():
            node.reported_unix_s = self.now
        stale = {name: one for name, one in self.newest.items() if name in newest and self.luck.random() < 0.2}
        shown = {name: one for name, one in {**newest, **stale}.items() if name not in hidden}
        self.newest = newest
        self.state, actions = coordinator.step(self.state, self.now, Observation(nodes=shown))
        sent = [one for one in actions if isinstance(one, Send) and one.command.HasField("start")]
        self.commands += [(one.node, one.command.start) for one in sent]
        late = [one for one in self.commands if self.luck.random() < self.late_rate]
        for name, start in [one for one in self.commands if one not in late]:
            if name in self.nodes:
                self.obey(name, start)
        self.commands = late

    def obey(self, name: str, start: store.StartGeneration) -> None:
        """Give a node's ranks their state, as its agent does."""
        node = self.nodes[name]
        lowest = min(node.ranks, key=lambda rank: rank.rank)
        if start.pid == lowest.pid and start.run_generation > node.restored_generation and not lowest.steps_done:
            node.restored_generation = start.run_generation
            self.given[name] = start.run_generation
            for rank in node.ranks:
                rank.awaits_start = False

    def look(self, *hidden: str) -> None:
        """Let the leader change, or see what has happened, or neither."""
        if self.luck.random() < self.leader_changes:
            record = store.CoordinatorState.FromString(self.state.record.SerializeToString())
            self.state = coordinator.begin(self.spec, record, dict(self.state.incidents))
        if self.luck.random() < self.seen_rate:
            self.tick(*hidden)

    def start(self, ranks: int) -> None:
        """Let the launcher start the next world, of which this number of ranks say hello."""
        hellos = [(name, local) for name in self.members for local in range(self.local)]
        self.luck.shuffle(hellos)
        started: set[str] = set()
        self.newest = {}  # to start takes longer than a state needs to arrive
        for name, local in hellos[:ranks]:
            if name not in started:
                started.add(name)
                self.given.pop(name, None)
                passed_on = self.nodes.get(name, store.NodeState()).restored_generation
                self.nodes[name] = store.NodeState(
                    run="r", node=name, instance="i", generation=self.numbers[name], restored_generation=passed_on
                )
                self.nodes[name].world_size = self.size * self.local
            self.pid += 1
            number = self.members.index(name) * self.local + local
            waits = self.restores and name not in self.given
            self.nodes[name].ranks.add(rank=number, pid=self.pid, life=store.LIFE_RUNNING, awaits_start=waits)
            self.look(*self.luck.sample(sorted(self.nodes), self.luck.random() < 0.1))

    def train(self, steps: int) -> None:
        """Let the ranks train, if all have their state."""
        ranks = [rank for name in self.members for rank in self.nodes[name].ranks]
        for _ in range(0 if any(rank.awaits_start for rank in ranks) else steps):
            for rank in ranks:
                rank.steps_done += 1
                rank.progress.step += 1
                rank.first_step_ended_unix_s = rank.first_step_ended_unix_s or self.now
            self.look()

    def fail(self) -> None:
        """End the world: some nodes are lost, and the ranks of the others end."""
        lost = [name for name in self.members if self.luck.random() < 0.3][: len(self.spares)]
        failed = [name for name in self.members if name not in lost and self.luck.random() < 0.5]
        for name in self.luck.sample(self.members, self.size):
            if name in lost:
                self.nodes.pop(name, None)
            for rank in self.nodes[name].ranks if name in self.nodes else ():
                rank.exit.CopyFrom(store.RankExit(code=1, exited_unix_s=self.now))
                rank.life, rank.awaits_start = store.LIFE_EXITED, False
            self.look()
        for name in failed or ([] if lost else self.members[:1]):
            self.numbers[name] += 1
        self.members = [self.spares.pop(0) if name in lost else name for name in self.members]


@pytest.mark.parametrize("leader_changes", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("restores", [True, False])
def test_the_last_world_is_one_generation_with_one_state_whatever_came_before(
    *, restores: bool, leader_changes: float
) -> None:
    for seed in range(60):
        job = Job(seed, restores=restores, leader_changes=leader_changes)
        ranks = job.size * job.local
        for _ in range(job.luck.randint(1, 5)):
            job.start(job.luck.choice([ranks, ranks, job.luck.randint(1, ranks)]))
            if all(name in job.nodes and len(job.nodes[name].ranks) == job.local for name in job.members):
                job.train(job.luck.randint(0, 4))
            job.fail()
        job.start(ranks)
        job.late_rate = 0.0
        for _ in range(10):
            job.tick()
        job.seen_rate = 1.0
        job.train(3)
        record = job.state.record
        shown = {name for name, node in job.state.nodes.items() if node.generation == record.generation}
        assert (seed, shown, record.phase) == (seed, set(job.members), store.RUN_PHASE_RUNNING)
        assert (seed, len({job.given.get(name) for name in job.members})) == (seed, 1)
