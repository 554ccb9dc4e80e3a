"""Takes stacks and profiles of live ranks for operators, each request once."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from holdfast_agent.blocking.proc_texts import clean
from holdfast_agent.commands.fault_commands import ACK_PATIENCE_S
from holdfast_agent.evidence.live_stacks import LiveStacks
from holdfast_agent.node import Node
from holdfast_proto.limits import LARGEST_COUNT
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

_WRITING_S = 600.0
"""Time to write the files of a profile. Nobody may wait for them any more, and they are there all the same."""

_LINE = 2000
"""Most characters of a reason."""

_KEPT = 16
"""Newest requests that are remembered: the leader repeats a command until it sees the answer."""


class LiveEvidence:
    """Serves the requests for the ranks of one node. An answer that was lost is sent again when its command comes."""

    def __init__(self, node: Node, emit: Callable[[store.Event], None]) -> None:
        self._node = node
        self._emit = emit
        self._stacks = LiveStacks(node)
        self._answers: dict[str, store.Event | None] = {}
        """Request -> its answer; None: it is being served. Oldest first."""

    async def take_stacks(self, command: store.NodeCommand) -> None:
        """Take the stacks of ranks, and emit StacksTaken."""
        request = command.take_stacks.request
        if self._is_known(request):
            return
        taken = await self._stacks.take(command.take_stacks)
        self._answer(request, store.Event(generation=command.generation, stacks_taken=taken))

    async def take_profile(self, command: store.NodeCommand) -> None:
        """Have a rank profile its next steps, and emit ProfileTaken once it has, or cannot.

        A rank that has no session, or does not answer, may only be busy: the leader's next command tries again.
        """
        wanted = command.take_profile
        if self._is_known(wanted.request):
            return
        taken = await self._profile(wanted)
        if taken is None:
            self._answers.pop(wanted.request, None)
        else:
            self._answer(wanted.request, store.Event(generation=command.generation, profile_taken=taken))

    async def _profile(self, wanted: store.TakeProfile) -> store.ProfileTaken | None:
        """Return the end of a profile; None if the rank could not be asked, or was not heard of in time."""
        rank = self._node.ranks.get(wanted.rank)
        if rank is None or not rank.is_alive:
            return _refused(wanted, f"rank {wanted.rank} is not alive on this node")
        folder = self._node.options.profile_directory(wanted.request)
        try:
            await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            return _refused(wanted, f"{folder}: {error.strerror}: the profile needs this folder")
        message = session.ProfileSteps(
            request=wanted.request, steps=wanted.steps, directory=str(folder), patience_s=wanted.patience_s
        )
        # Waited for before it is asked for: a rank that has the profile already repeats it immediately.
        end = asyncio.ensure_future(rank.channel.profile_end(wanted.request, wanted.patience_s + _WRITING_S))
        try:
            ack = rank.command(session.RankCommand(profile_steps=message))
            await asyncio.wait([ack], timeout=ACK_PATIENCE_S)
            if not ack.done() or ack.cancelled():
                return None
            if not ack.result().accepted:
                return _refused(wanted, f"rank {wanted.rank}: {ack.result().detail}", folder)
            done = await end
        finally:
            end.cancel()
        return _taken(wanted, done, folder) if done is not None else None

    def _is_known(self, request: str) -> bool:
        """Return whether a request is served already; if it is answered, answer it again."""
        if request not in self._answers:
            self._answers[request] = None
            while len(self._answers) > _KEPT:
                del self._answers[next(iter(self._answers))]
            return False
        answer = self._answers[request]
        if answer is not None:
            self._emit_copy(answer)
        return True

    def _answer(self, request: str, event: store.Event) -> None:
        self._answers[request] = event
        self._emit_copy(event)

    def _emit_copy(self, event: store.Event) -> None:
        # The link writes node and time into what it is given, and keeps it until it is sent.
        copy = store.Event()
        copy.CopyFrom(event)
        self._emit(copy)


def _taken(wanted: store.TakeProfile, done: session.ProfileDone, folder: Path) -> store.ProfileTaken:
    """Return what a rank has reported, with the paths of the files that are there."""
    # A name with a slash could name any file of this machine.
    files = [str(folder / name) for name in done.files if "/" not in name and (folder / name).is_file()]
    problem = clean(done.problem, _LINE) or ("" if files else "the rank has written no file")
    if not files:
        return _refused(wanted, f"rank {wanted.rank}: {problem}", folder)
    return store.ProfileTaken(
        request=wanted.request,
        rank=wanted.rank,
        files=files,
        first_step=min(max(-1, done.first_step), LARGEST_COUNT),
        last_step=min(max(-1, done.last_step), LARGEST_COUNT),
    )


def _refused(wanted: store.TakeProfile, problem: str, folder: Path | None = None) -> store.ProfileTaken:
    """Return the answer that there is no profile. ``folder``: is removed if it is empty."""
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return store.ProfileTaken(request=wanted.request, rank=wanted.rank, problem=problem, first_step=-1, last_step=-1)
