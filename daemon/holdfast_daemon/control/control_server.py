"""The operators' service."""

import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import grpc

from holdfast_base.sockets import claimed
from holdfast_core.model import LiveAnswered, ProfileRequest, StacksRequest
from holdfast_core.naming import incident_number
from holdfast_core.nodes.node_views import node_views
from holdfast_daemon.clock import Clock
from holdfast_daemon.console.pages.holdfast_page import holdfast_page
from holdfast_daemon.console.watched import WatchedDaemon
from holdfast_daemon.control.rank_pages import check_page
from holdfast_daemon.control.status import daemon_status, status_of, unknown_status
from holdfast_daemon.leadership.run_shell import RunShell
from holdfast_daemon.validation.message_rules import OF_ANY_RUN
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import control_pb2_grpc

log = logging.getLogger(__name__)

_Request = TypeVar("_Request")
Answer = TypeVar("Answer")
Rpc = Callable[["ControlService", _Request, "grpc.aio.ServicerContext"], Awaitable[Answer]]

IDLE_S = 300
"""Seconds after which a connection without a request is closed."""
HANDSHAKE_S = 10
"""Seconds after which a connection is closed on which no client has said anything."""


def _guarded(rpc: "Rpc[_Request, Answer]") -> "Rpc[_Request, Answer]":
    """Answer INTERNAL if serving a request raises: that is an error of the daemon, and the operator gets one line."""

    @functools.wraps(rpc)
    async def answer(self: "ControlService", request: _Request, context: "grpc.aio.ServicerContext") -> Answer:
        try:
            return await rpc(self, request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            name = rpc.__name__
            log.error("%s failed: %r", name, error, exc_info=None if name in _FAILED else error)
            _FAILED.add(name)
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            await context.abort(grpc.StatusCode.INTERNAL, f"{name} failed in the daemon ({what}): see the daemon's log")
            raise

    return answer


_FAILED: set[str] = set()
"""Names of requests whose failure has been logged with its traceback."""


class ControlService(control_pb2_grpc.ControlServicer):
    """Answers questions from the state of the shells, and passes requests on to their cores.

    ``watched``: the daemon itself. Without it, no client can ask for it.
    """

    def __init__(self, shells: Mapping[str, RunShell], clock: Clock, watched: WatchedDaemon | None = None) -> None:
        self._shells = shells
        self._clock = clock
        self._watched = watched

    async def _shell(self, run: str, context: "grpc.aio.ServicerContext") -> RunShell:
        """Return the shell of a run, or of the only one if ``run`` is empty."""
        if not run and len(self._shells) == 1:
            return next(iter(self._shells.values()))
        if run not in self._shells:
            known = ", ".join(sorted(self._shells)) or "none"
            what = f"no run {run!r}" if run else "name a run"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{what}: this daemon knows {known}: use --run")
        return self._shells[run]

    async def _leading(self, run: str, context: "grpc.aio.ServicerContext") -> RunShell:
        shell = await self._shell(run, context)
        if not (shell.leads and shell.store_up):
            reason = "another daemon leads it" if shell.store_up else "the store is unreachable"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"run {shell.run_name}: {reason}: try again")
        return shell

    @_guarded
    async def GetStatus(  # noqa: N802
        self, request: control.GetStatusRequest, context: "grpc.aio.ServicerContext"
    ) -> control.RunStatus:
        """Return the newest known status, also while the store is unreachable."""
        shell = await self._shell(request.run, context)
        if shell.state is None:
            return unknown_status(shell.run_name, store_up=shell.store_up)
        await _checked(context, check_page, request)
        status = status_of(shell.state, self._clock.now(), store_up=shell.store_up, request=request)
        status.leader = shell.leads
        return status

    @_guarded
    async def ListIncidents(  # noqa: N802
        self, request: control.ListIncidentsRequest, context: "grpc.aio.ServicerContext"
    ) -> control.ListIncidentsResponse:
        """Return all incidents, or a page of them, oldest first."""
        shell = await self._shell(request.run, context)
        incidents = shell.state.incidents if shell.state else {}
        end = max(0, len(incidents) - request.skip_incidents)
        begin = max(0, end - request.most_incidents) if request.most_incidents else 0
        page = [incidents[name] for name in sorted(incidents, key=incident_number)[begin:end]]
        return control.ListIncidentsResponse(incidents=page, count=len(incidents))

    @_guarded
    async def AcknowledgeIncident(  # noqa: N802
        self, request: control.AcknowledgeIncidentRequest, context: "grpc.aio.ServicerContext"
    ) -> control.AcknowledgeIncidentResponse:
        """Note that an operator knows of an incident."""
        shell = await self._leading(request.run, context)
        if shell.state is None or request.incident not in shell.state.incidents:
            what = f"run {shell.run_name} has no incident {request.incident[:80]!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{what}: `holdfast incidents` lists them")
        refusal = await shell.requests.acknowledge(request.incident)
        if refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        return control.AcknowledgeIncidentResponse()

    @_guarded
    async def ListNodes(  # noqa: N802
        self, request: control.ListNodesRequest, context: "grpc.aio.ServicerContext"
    ) -> control.ListNodesResponse:
        """Return the nodes of a run as they are known, also while the store is unreachable."""
        shell = await self._shell(request.run, context)
        return control.ListNodesResponse(nodes=node_views(shell.state) if shell.state is not None else ())

    @_guarded
    async def ReleaseNode(  # noqa: N802
        self, request: control.ReleaseNodeRequest, context: "grpc.aio.ServicerContext"
    ) -> control.ReleaseNodeResponse:
        """End the quarantine of a node, and forget what is known against it."""
        shell = await self._leading(request.run, context)
        known = shell.state.record.node_histories if shell.state is not None else ()
        if not any(history.node == request.node for history in known):
            what = f"run {shell.run_name} knows nothing against a node {request.node[:80]!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{what}: `holdfast nodes` lists them")
        refusal = await shell.requests.release(request.node)
        if refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        return control.ReleaseNodeResponse()

    @_guarded
    async def TakeCheckpoint(  # noqa: N802
        self, request: control.TakeCheckpointRequest, context: "grpc.aio.ServicerContext"
    ) -> control.TakeCheckpointResponse:
        """Request a checkpoint; answer at which step it will be."""
        shell = await self._leading(request.run, context)
        answer = await shell.requests.checkpoint()
        if answer.step < 0:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, answer.reason)
        return control.TakeCheckpointResponse(step=answer.step)

    @_guarded
    async def StopRun(  # noqa: N802
        self, request: control.StopRunRequest, context: "grpc.aio.ServicerContext"
    ) -> control.StopRunResponse:
        """End a run, immediately or after a last checkpoint."""
        shell = await self._leading(request.run, context)
        await _checked(context, OF_ANY_RUN.check, request)
        refusal = await shell.requests.stop(request.grace_s)
        if refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        return control.StopRunResponse()

    @_guarded
    async def LauncherEnded(  # noqa: N802
        self, request: control.LauncherEndedRequest, context: "grpc.aio.ServicerContext"
    ) -> control.LauncherEndedResponse:
        """Pass on that the launcher of an observed run has ended."""
        shell = await self._leading(request.run, context)
        refusal = await shell.requests.launcher_ended(request.code)
        if refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        return control.LauncherEndedResponse()

    @_guarded
    async def InjectFault(  # noqa: N802
        self, request: control.InjectFaultRequest, context: "grpc.aio.ServicerContext"
    ) -> control.InjectFaultResponse:
        """Request a fault and wait for the answer of its rank, which knows whether it can be injected."""
        shell = await self._leading(request.run, context)
        await _checked(context, OF_ANY_RUN.check, request)
        answer = await shell.requests.fault(request.fault)
        if answer.refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, answer.refusal)
        return control.InjectFaultResponse(waits_for=answer.waits_for)

    @_guarded
    async def TakeStacks(  # noqa: N802
        self, request: control.TakeStacksRequest, context: "grpc.aio.ServicerContext"
    ) -> control.TakeStacksResponse:
        """Request the stacks of ranks; answer with those that came in time."""
        shell = await self._leading(request.run, context)
        await _checked(context, OF_ANY_RUN.check, request)
        wanted = StacksRequest(_new_id(), tuple(dict.fromkeys(request.ranks)), request.native)
        answer = await self._live(shell, wanted, context)
        return control.TakeStacksResponse(
            nodes=[control.NodeStacks(node=event.node, taken=event.stacks_taken) for event in answer.events]
        )

    @_guarded
    async def TakeProfile(  # noqa: N802
        self, request: control.TakeProfileRequest, context: "grpc.aio.ServicerContext"
    ) -> control.TakeProfileResponse:
        """Request a profile; answer once its files are written."""
        shell = await self._leading(request.run, context)
        await _checked(context, OF_ANY_RUN.check, request)
        wanted = ProfileRequest(_new_id(), request.rank, request.steps, request.patience_s)
        [event] = (await self._live(shell, wanted, context)).events
        if not event.profile_taken.files:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, event.profile_taken.problem)
        return control.TakeProfileResponse(node=event.node, taken=event.profile_taken)

    @_guarded
    async def GetDaemon(  # noqa: N802
        self,
        request: control.GetDaemonRequest,  # noqa: ARG002 - gRPC passes it
        context: "grpc.aio.ServicerContext",
    ) -> control.DaemonStatus:
        """Return how the daemon itself is, and which agents it hears of."""
        if self._watched is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this daemon does not say how it is itself")
        assert self._watched is not None
        return daemon_status(holdfast_page(self._watched, 0), self._clock.now())

    @staticmethod
    async def _live(
        shell: RunShell, wanted: StacksRequest | ProfileRequest, context: "grpc.aio.ServicerContext"
    ) -> LiveAnswered:
        answer = await shell.requests.live(wanted)
        if answer.refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, answer.refusal)
        return answer


def _new_id() -> str:
    """Return an id that names a folder of files: by its time, so that people find the newest."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"


async def _checked(context: "grpc.aio.ServicerContext", check: Callable[[_Request], object], request: _Request) -> None:
    try:
        check(request)
    except ValueError as error:  # RefusedError, or a page that cannot be
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def serve(service: ControlService, path: Path) -> grpc.aio.Server:
    """Serve operators on a unix socket, mode 0600. Raises OSError if the socket cannot be had."""
    limits = {"grpc.max_connection_idle_ms": IDLE_S * 1000, "grpc.server_handshake_timeout_ms": HANDSHAKE_S * 1000}
    server = grpc.aio.server(options=[*limits.items()])
    control_pb2_grpc.add_ControlServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    with claimed(path, "--control") as target:
        server.add_insecure_port(target)
        await server.start()
    return server
