"""One tick of the core: a working copy of the state, and the actions that the tick leads to."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

from holdfast_core.model import Action, CoreState, Send
from holdfast_core.world import World, parts_of
from holdfast_proto.v1 import store_pb2 as store

Timed: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Takes the name of a part of the tick and returns a context that times it. The core itself has no clock."""

MOST_REPORTED_ONCE = 1024
"""Reports of a generation that are remembered, the newest: a generation may last for months."""

LEAD_S = 2.0
"""Time from a decision to the last rank that knows of it: a report, a tick and a command, and room for a busy node."""


class Tick:
    """The state that the handlers of one tick share and edit.

    Earlier states stay as they are: every edit replaces the state. Protobuf messages in it are replaced too, because
    a recording and the thread of the metrics still read the old ones.
    """

    def __init__(self, state: CoreState, now: float, timed: Timed = nullcontext) -> None:
        self.state = state
        self.timed = timed
        self.now = now
        """Unix time by the leader's clock, which never jumps."""
        self.actions: list[Action] = []
        self._ranks = World(())
        self._ranks_are_of: tuple[Mapping[str, store.NodeState], int] | None = None

    @property
    def record(self) -> store.CoordinatorState:
        """The persistent part of the state. Do not change it: see :meth:`edit_record`."""
        return self.state.record

    @property
    def ranks(self) -> World:
        """All ranks of the current generation that are known."""
        nodes, generation = self.state.nodes, self.record.generation
        if self._ranks_are_of is None or self._ranks_are_of[0] is not nodes or self._ranks_are_of[1] != generation:
            present = {name: node for name, node in nodes.items() if node.generation == generation}
            self._ranks = World(parts_of(present, self.state.parts).values())
            self._ranks_are_of = (nodes, generation)
        return self._ranks

    @property
    def observes(self) -> bool:
        """Whether another launcher starts the ranks."""
        return self.state.observes

    @property
    def world_size(self) -> int:
        """Ranks of the run."""
        return self.state.world_size

    @contextmanager
    def edit_record(self) -> Iterator[store.CoordinatorState]:
        """Yield a copy of the record to fill in: at the end of the block it takes the record's place.

        Call nothing in the block that edits the record too: its edits would be lost.
        """
        record = store.CoordinatorState()
        record.CopyFrom(self.record)
        yield record
        self.state = replace(self.state, record=record)

    def enter(self, phase: "store.RunPhase") -> None:
        """Go to another phase of the run."""
        with self.edit_record() as record:
            record.phase = phase
            record.phase_since_unix_s = self.now
        self.state = replace(self.state, sent_unix_s=0.0)

    def send(self, nodes: Iterable[str], make: Callable[[str], store.NodeCommand]) -> None:
        """Send each node the command that ``make`` returns for it, and note when.

        A handler repeats its commands some time after that: agents carry out each command once, and the store may
        lose some.
        """
        for node in nodes:
            command = make(node)
            if not command.generation:
                command.generation = self.record.generation
            self.actions.append(Send(node, command))
        self.state = replace(self.state, sent_unix_s=self.now)

    def send_to(self, node: str, command: store.NodeCommand) -> None:
        """Send a command to one node without touching the time after which the phase's own commands are repeated."""
        self.actions.append(Send(node, command))

    def step_ahead(self) -> int | None:
        """Return a step that no rank will have finished when a command sent now arrives; None before one is timed."""
        step_s = self.state.deadlines.median_step_s
        if step_s is None or not self.ranks:
            return None
        newest = max(rank.progress.step for rank in self.ranks.values())
        return newest + math.ceil(LEAD_S / max(step_s, 1e-3))

    def forget(self, what: str) -> None:
        """Have everything whose key begins with ``what`` be reported again."""
        kept = {key: at for key, at in self.state.reported_once.items() if not key.startswith(what)}
        self.state = replace(self.state, reported_once=kept)

    def once(self, what: str) -> bool:
        """Return whether ``what`` is to be reported now: True the first time in this generation, then False."""
        known = self.state.reported_once
        if what in known:
            return False
        newest = dict(islice(known.items(), max(0, len(known) + 1 - MOST_REPORTED_ONCE), None))
        self.state = replace(self.state, reported_once={**newest, what: self.now})
        return True
