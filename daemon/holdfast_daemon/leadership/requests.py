"""Operators' requests on their way to the core, and its answers on their way back."""

import asyncio
from collections.abc import Collection, Iterable
from typing import TypeAlias

from holdfast_core.model import (
    AcknowledgeRequest,
    CheckpointAnswered,
    CheckpointRequest,
    FaultAnswered,
    FaultRequest,
    LauncherEnded,
    LiveAnswered,
    ProfileRequest,
    ReleaseRequest,
    Request,
    StacksRequest,
    StopRequest,
)
from holdfast_proto.v1.fault_pb2 import Fault

_TakenIn: TypeAlias = StopRequest | LauncherEnded | AcknowledgeRequest | ReleaseRequest
"""Requests that need no more than to be taken in."""

_FAILED = "the daemon failed on this request: its log says why"


class Requests:
    """The requests to one run that have no answer yet. It does no I/O: operators wait for futures."""

    def __init__(self) -> None:
        self._new: list[Request] = []
        """Requests that the core has not seen."""
        self._checkpoints: list[asyncio.Future[CheckpointAnswered]] = []
        self._faults: list[tuple[Fault, asyncio.Future[FaultAnswered]]] = []
        self._live: dict[str, asyncio.Future[LiveAnswered]] = {}
        """Request id -> answer to a request for stacks or a profile."""
        self._taken_in: list[tuple[_TakenIn, asyncio.Future[str]]] = []

    async def checkpoint(self) -> CheckpointAnswered:
        """Ask for a checkpoint; return the step at which it will be, or why there is none."""
        answer: asyncio.Future[CheckpointAnswered] = asyncio.get_running_loop().create_future()
        self._checkpoints.append(answer)
        self._new.append(CheckpointRequest())
        return await answer

    def stop(self, grace_s: float = 0.0) -> "asyncio.Future[str]":
        """Ask that the run end: within ``grace_s``, after a last checkpoint, or immediately.

        The future holds "" once the core has taken the request in, or why it has not.
        """
        return self._tell(StopRequest(grace_s))

    def launcher_ended(self, code: int) -> "asyncio.Future[str]":
        """Report the end of an observed run's launcher. The future holds what that of :meth:`stop` does."""
        return self._tell(LauncherEnded(code))

    def acknowledge(self, incident: str) -> "asyncio.Future[str]":
        """Say that an operator knows of an incident. The future holds what that of :meth:`stop` does."""
        return self._tell(AcknowledgeRequest(incident))

    def release(self, node: str) -> "asyncio.Future[str]":
        """Say that a node may train again. The future holds what that of :meth:`stop` does."""
        return self._tell(ReleaseRequest(node))

    def _tell(self, request: _TakenIn) -> "asyncio.Future[str]":
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._taken_in.append((request, answer))
        self._new.append(request)
        return answer

    async def fault(self, fault: Fault) -> FaultAnswered:
        """Ask that a fault be injected; return the answer once the rank has accepted it or it is refused."""
        answer: asyncio.Future[FaultAnswered] = asyncio.get_running_loop().create_future()
        waiter = (fault, answer)
        self._faults.append(waiter)
        self._new.append(FaultRequest(fault))
        try:
            return await answer
        finally:
            self._faults.remove(waiter)

    async def live(self, request: StacksRequest | ProfileRequest) -> LiveAnswered:
        """Ask for stacks or for a profile; return the answer once the nodes have sent theirs, or why there is none."""
        answer: asyncio.Future[LiveAnswered] = asyncio.get_running_loop().create_future()
        self._live[request.id] = answer
        self._new.append(request)
        try:
            return await answer
        finally:
            del self._live[request.id]

    def take(self) -> tuple[Request, ...]:
        """Return the requests that the core has not seen; from now on it has."""
        requests, self._new = tuple(self._new), []
        return requests

    def settle(self, shown: Iterable[Request], failed: Collection[Request]) -> None:
        """Answer those of the requests shown to the core in a tick that the core itself does not answer.

        These are those that need no more than to be taken in, and the ones that the core failed on.
        """
        for request in shown:
            reason = _FAILED if any(one is request for one in failed) else ""
            match request:
                case StopRequest() | LauncherEnded() | AcknowledgeRequest() | ReleaseRequest():
                    self._answer_taken_in(request, reason)
                case CheckpointRequest() if reason:
                    self.answer(CheckpointAnswered(-1, reason))
                case FaultRequest(fault=fault) if reason:
                    self.answer(FaultAnswered(fault, reason))
                case StacksRequest() | ProfileRequest() if reason:
                    self.answer(LiveAnswered(request.id, reason))

    def answer(self, answer: CheckpointAnswered | FaultAnswered | LiveAnswered) -> None:
        """Hand an answer of the core to the operators who wait for it."""
        match answer:
            case CheckpointAnswered():
                # One checkpoint serves all who have asked for one.
                for waiter in self._checkpoints:
                    if not waiter.done():
                        waiter.set_result(answer)
                self._checkpoints.clear()
            case FaultAnswered(fault=fault):
                # Two operators may have asked for equal faults: the one that has waited longest gets the first answer.
                waiting = (waiter for asked, waiter in self._faults if asked == fault and not waiter.done())
                first = next(waiting, None)
                if first is not None:
                    first.set_result(answer)
            case LiveAnswered():
                live = self._live.get(answer.id)  # none: the operator has gone
                if live is not None and not live.done():
                    live.set_result(answer)

    def refuse_all(self, reason: str) -> None:
        """Answer every request that has no answer yet with a refusal."""
        self._new.clear()
        self.answer(CheckpointAnswered(-1, reason))
        for fault, _ in list(self._faults):
            self.answer(FaultAnswered(fault, reason))
        for name in self._live:
            self.answer(LiveAnswered(name, reason))
        for request, _ in list(self._taken_in):
            self._answer_taken_in(request, reason)

    def _answer_taken_in(self, request: _TakenIn, reason: str) -> None:
        for waiter in [one for one in self._taken_in if one[0] is request]:
            self._taken_in.remove(waiter)
            if not waiter[1].done():
                waiter[1].set_result(reason)
