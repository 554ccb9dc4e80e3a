"""What operators do in the console. Requests go the way of those of the control socket, on the daemon's own loop."""

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from holdfast_core.live_requests import STACKS_PATIENCE_S
from holdfast_core.model import FaultAnswered, LiveAnswered, StacksRequest
from holdfast_daemon.console.pages.checkpoint_pages import release_checkpoint
from holdfast_daemon.console.pages.incident_pages import find_incident
from holdfast_daemon.console.pages.run_frame import refusals
from holdfast_daemon.console.ranks.taken_stacks import TakenStacks
from holdfast_daemon.console.serving.request_guard import RefusedRequestError
from holdfast_daemon.console.watched import WatchedRun
from holdfast_daemon.validation.message_rules import OF_ANY_RUN
from holdfast_proto.checks.value_rules import SECONDS, RefusedError
from holdfast_proto.message_json import enum_names
from holdfast_proto.v1.common_pb2 import Phase
from holdfast_proto.v1.fault_pb2 import Fault

ANSWER_S = 15.0
"""Longest time until the core, or a rank, answers."""
_STACKS_ANSWER_S = STACKS_PATIENCE_S + 5.0
"""The same for stacks: the core itself gives up first."""

_Answer = TypeVar("_Answer")
Fields = Mapping[str, Any]
_PHASES = enum_names(Phase)


class Actions:
    """Carries the actions out. ``loop``: the daemon's. ``stacks`` keeps those that operators request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stacks: TakenStacks) -> None:
        self._loop = loop
        self._stacks = stacks

    async def carry_out(self, action: str, run: WatchedRun, fields: Fields) -> str:
        """Return what was done, in one line. Raises RefusedRequestError."""
        handlers: Mapping[str, Callable[[WatchedRun, Fields], Awaitable[str]]] = {
            "checkpoint": self._checkpoint,
            "stop": self._stop,
            "release": self._release,
            "inject": self._inject,
            "stacks": self._take_stack,
            "acknowledge": self._acknowledge,
        }
        if action not in handlers:
            raise RefusedRequestError(404, f"there is no action {action[:40]!r}: use {', '.join(handlers)}")
        if reason := refusals(run)[action]:
            raise RefusedRequestError(409, reason)
        return await handlers[action](run, fields)

    async def _checkpoint(self, run: WatchedRun, fields: Fields) -> str:
        _check_names(fields, ())
        answer = await self._on_loop(run.requests.checkpoint)
        if answer.step < 0:
            raise RefusedRequestError(409, answer.reason)
        return f"a checkpoint of step {answer.step} is on its way"

    async def _stop(self, run: WatchedRun, fields: Fields) -> str:
        _check_names(fields, ("grace_s",))
        grace_s = _number(fields, "grace_s", 0.0)
        _valid(SECONDS, grace_s, "grace_s")

        async def stop() -> str:
            return await run.requests.stop(grace_s)

        if refusal := await self._on_loop(stop):
            raise RefusedRequestError(409, refusal)
        return "the run stops after a last checkpoint" if grace_s else "the run stops now"

    async def _release(self, run: WatchedRun, fields: Fields) -> str:
        _check_names(fields, ("step",))
        if run.state is None:
            raise RefusedRequestError(503, "nothing is known of the run yet")
        return await asyncio.to_thread(release_checkpoint, run.state, _whole(fields, "step"))

    async def _inject(self, run: WatchedRun, fields: Fields) -> str:
        _check_names(fields, ("kind", "rank", "step", "phase", "duration_s", "factor", "seed"))
        phase = fields.get("phase") or ""
        if phase and phase not in _PHASES:
            raise RefusedRequestError(400, f"phase is {str(phase)[:40]!r}: use {', '.join(_PHASES)}")
        fault = Fault(
            kind=str(fields.get("kind", ""))[:80],
            rank=_whole(fields, "rank", most=2**31),
            step=_whole(fields, "step", -1, least=-1),
            phase=_PHASES.get(phase, 0),  # type: ignore[arg-type]
            duration_s=_number(fields, "duration_s", 0.0),
            factor=_number(fields, "factor", 0.0),
            seed=_whole(fields, "seed", 0),
        )
        _valid(OF_ANY_RUN.check_part, fault, "fault")

        async def inject() -> FaultAnswered:
            return await run.requests.fault(fault)

        answer = await self._on_loop(inject)
        if answer.refusal:
            raise RefusedRequestError(409, answer.refusal)
        then = f": it waits for {answer.waits_for}" if answer.waits_for else ""
        return f"rank {fault.rank} has accepted {fault.kind}{then}"

    async def _take_stack(self, run: WatchedRun, fields: Fields) -> str:
        _check_names(fields, ("rank",))
        number = _whole(fields, "rank", most=2**31)
        wanted = StacksRequest(f"console-{uuid.uuid4().hex[:12]}", (number,))
        generation = run.state.record.generation if run.state is not None else 0

        async def ask() -> LiveAnswered:
            return await run.requests.live(wanted)

        answer = await self._on_loop(ask, _STACKS_ANSWER_S)
        if answer.refusal:
            raise RefusedRequestError(409, answer.refusal)
        problem = f"no node has rank {number}"
        for event in answer.events:
            problem = self._stacks.keep(run.run_name, generation, number, event.stacks_taken)
        if problem:
            raise RefusedRequestError(409, f"there is no stack of rank {number}: {problem}")
        return f"the stack of rank {number} is taken"

    async def _acknowledge(self, run: WatchedRun, fields: Fields) -> str:
        _check_names(fields, ("incident",))
        incident = find_incident(run.state, str(fields.get("incident", "")))

        async def acknowledge() -> str:
            return await run.requests.acknowledge(incident.id)

        if refusal := await self._on_loop(acknowledge):
            raise RefusedRequestError(409, refusal)
        return f"incident {incident.id} is acknowledged"

    async def _on_loop(self, ask: Callable[[], Coroutine[Any, Any, _Answer]], patience_s: float = ANSWER_S) -> _Answer:
        """Ask on the daemon's loop, where the run is led, and wait for the answer on ours."""
        try:
            asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        except RuntimeError:  # the loop is closed
            raise RefusedRequestError(503, "the daemon ends") from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), patience_s)
        except TimeoutError:
            asked.cancel()
            raise RefusedRequestError(
                503, f"there is no answer after {patience_s:g} s: see whether it was done"
            ) from None


def _check_names(fields: Fields, known: tuple[str, ...]) -> None:
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise RefusedRequestError(400, f"there is no field {unknown[0][:40]!r}: use {', '.join(known) or 'none'}")


def _number(fields: Fields, name: str, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RefusedRequestError(400, f"{name} is {str(value)[:40]!r}: use a number")
    return float(value)


def _whole(fields: Fields, name: str, default: int | None = None, *, least: int = 0, most: int = 2**52) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        shown = "missing" if value is None else f"{str(value)[:40]!r}"
        raise RefusedRequestError(400, f"{name} is {shown}: use a whole number, {least} or more")
    return value


def _valid(check: Callable[..., None], *value: object) -> None:
    try:
        check(*value)
    except RefusedError as error:
        raise RefusedRequestError(400, str(error)) from None
