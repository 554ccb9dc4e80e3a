"""A control service whose answers a test chooses, served by the daemon's own server."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from holdfast_daemon.control.control_server import serve
from holdfast_proto.v1 import control_pb2, control_pb2_grpc
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import Incident


class ChosenControl(control_pb2_grpc.ControlServicer):
    """Answers with ``status`` and ``incidents``; refuses requests if ``refusal`` is set."""

    def __init__(self, status: RunStatus) -> None:
        self.status = status
        self.incidents: list[Incident] = []
        self.refusal = ""
        self.requests: list[Any] = []
        """Requests for a checkpoint or a stop that have arrived, refused ones too."""

    async def GetStatus(self, request: Any, context: Any) -> RunStatus:  # noqa: N802
        return self.status

    async def ListIncidents(self, request: Any, context: Any) -> Any:  # noqa: N802
        newest = [self.status.newest_incident] if self.status.HasField("newest_incident") else []
        return control_pb2.ListIncidentsResponse(incidents=self.incidents or newest)

    async def TakeCheckpoint(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        return control_pb2.TakeCheckpointResponse(step=self.status.newest_step + 2)

    async def StopRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        return control_pb2.StopRunResponse()

    async def _take(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        if self.refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal)


@contextlib.asynccontextmanager
async def served(control: ChosenControl, socket: Path) -> AsyncIterator[None]:
    """Serve on a socket until the block ends."""
    server = await serve(control, socket)  # type: ignore[arg-type]
    try:
        yield
    finally:
        await server.stop(0)
        socket.unlink(missing_ok=True)
