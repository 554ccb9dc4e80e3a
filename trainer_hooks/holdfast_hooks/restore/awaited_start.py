"""Waits for the state that a rank of another launcher starts from, which its agent names over the session.

Such a launcher starts its ranks before anybody has chosen a state. The leader chooses it when all of them have said
Hello, and it takes longer if a checkpoint must be unpacked.
"""

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path

from holdfast_hooks.auto.arming import say
from holdfast_hooks.hook_errors import ConfigurationError, OnceLog, UnknownStartError
from holdfast_hooks.restore.consensus import highest
from holdfast_hooks.state.encoding import Stateful, encode_state
from holdfast_proto.left_out import from_messages
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1.session_pb2 import StartFrom

START_PATIENCE_S = 600
"""Longest wait without a word of the agent. While it prepares the state, which may take long, it says so."""
_SETTLE_S = 2.0
"""Time after which the session is usually open."""
_NOTICE_S = 60
"""Time between two lines of a rank that waits."""


class AwaitedStart:
    """The state that a rank starts from. The reporter thread receives it, the training thread waits for it.

    A rank that an agent starts has the state in its context, and one that saves nothing starts from none. Both await
    nothing.
    """

    def __init__(self, context: RankContext, rank: int, once: OnceLog) -> None:
        self._context = context
        self._rank = rank
        self._once = once
        self._is_awaited = context.restores and context.saves
        self._answer: StartFrom | None = None
        self._used: StartFrom | None = None
        """The answer that the training thread has used."""
        self._words = 0
        """How often the agent has said that it prepares the state."""
        self._arrived = threading.Event()

    def receive(self, answer: StartFrom) -> None:
        """Take the agent's answer, which it repeats in each session. Once one is used, it stays (reporter thread)."""
        if answer.preparing:
            self._words += 1
        elif self._used is None:
            self._answer = answer
            self._arrived.set()
        elif answer != self._used:
            other = f"step {answer.step} of generation {answer.generation}"
            self._once.warn("the agent names another state to start from, and this rank has started already", other)

    def close(self) -> None:
        """Await nothing any more, because the session ends."""
        self._is_awaited = self._is_awaited and self._answer is not None

    @property
    def known(self) -> RankContext | None:
        """The context with the state to start from; None while the agent has to name it. This never waits."""
        if not self._is_awaited:
            return self._context
        answer = self._answer if self._used is None else self._used
        return None if answer is None else self._context_of(answer)

    def wait(self) -> RankContext:
        """Return the context with the state to start from, as soon as it is known (training thread).

        Raises ConfigurationError if the agent refuses, and UnknownStartError if it does not answer or names no place.
        """
        if not self._is_awaited:
            return self._context
        if self._used is None:
            self._used = self._checked(self._await_answer())
        return self._context_of(self._used)

    def agree(self, state: Mapping[str, Stateful]) -> None:
        """Compare the answers of all ranks of the world, before anything is loaded. Each of them must call this.

        Raises UnknownStartError on all of them if they differ. Nothing is compared if there is nothing to load: only
        some ranks of a script may attach, and the others would not answer.
        """
        if self._used is None or self._used.step < 0:
            return
        answers = (self._used.step, self._used.generation)
        live = encode_state({name: stateful.state_dict() for name, stateful in state.items()})
        found = highest([*answers, *(-number for number in answers)], live)
        if found is None:
            return
        newest, last, oldest, first = *found[:2], *(-number for number in found[2:])
        if (newest, last) != (oldest, first):
            raise UnknownStartError(
                f"ranks were given different states to start from, of steps {oldest} to {newest} and"
                f" generations {first} to {last}; nothing was loaded: let the launcher start the ranks again"
            )

    def _context_of(self, answer: StartFrom) -> RankContext:
        return dataclasses.replace(
            self._context,
            generation=answer.generation,
            restore_slot=answer.slot,
            restore_checkpoint=answer.checkpoint,
            left_out=from_messages(answer.left_out),
        )

    def _await_answer(self) -> StartFrom:
        if not self._arrived.wait(_SETTLE_S) and self._agent_has_left():
            raise UnknownStartError(
                f"rank {self._rank} cannot start: the agent of this node has ended, and with it the run; nothing is"
                " lost: the lines of Holdfast above say why, start the job again"
            )
        silent_s, heard = 0, 0
        while not self._arrived.wait(_NOTICE_S):
            silent_s = silent_s + _NOTICE_S if self._words == heard else 0
            heard = self._words
            if silent_s >= START_PATIENCE_S:
                break
            why = f"no answer from its agent for {silent_s} s" if silent_s else "its agent prepares it"
            say(f"rank {self._rank} waits for the state to start from: {why}")
        if self._answer is None:
            raise UnknownStartError(
                f"rank {self._rank} does not know the state to start from: no answer from its agent for"
                f" {START_PATIENCE_S} s; nothing was loaded, and nothing is lost: check the agent, the daemon and"
                " Redis, and let the launcher start the ranks again"
            )
        return self._answer

    def _agent_has_left(self) -> bool:
        """Return whether the agent has ended as planned: only then it removes its socket."""
        place = self._context.agent.removeprefix("unix:")
        return place != self._context.agent and not Path(place).exists()

    def _checked(self, answer: StartFrom) -> StartFrom:
        if answer.refusal:
            raise ConfigurationError(answer.refusal)
        if answer.step >= 0 and not (answer.slot or answer.checkpoint):
            raise UnknownStartError(
                f"rank {self._rank} is to start after step {answer.step}, and its agent names neither slot nor"
                " checkpoint; nothing was loaded: let the launcher start the ranks again"
            )
        return answer
