"""Daemons whose run trains, with what operators use to reach them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from holdfast_daemon.control import control_server as control
from holdfast_proto.v1 import control_pb2_grpc
from holdfast_proto.v1 import store_pb2 as store
from tests.support.fake_agent import FakeAgent
from tests.support.memory_store import MemoryStore
from tests.support.shells import Daemon, Store, daemon, train


@contextlib.asynccontextmanager
async def running(
    folder: Path, server: Store, steps: int = 1, **options: Any
) -> AsyncIterator[tuple[Daemon, FakeAgent]]:
    """Yield a daemon and an agent, when some steps of the run are done and the daemon knows that it runs."""
    place = server if isinstance(server, MemoryStore) else server.url
    async with daemon(folder, server, **options) as it, FakeAgent(place) as agent:
        await train(it, agent, steps)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        yield it, agent


@contextlib.asynccontextmanager
async def operating(folder: Path, service: Any) -> AsyncIterator[Any]:
    """Yield an operator's stub of a service."""
    socket = folder / "control.sock"
    server = await control.serve(service, socket)
    try:
        # Else the connection to an earlier server of this socket may still be there, broken, and be taken again.
        alone = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=alone) as channel:
            yield control_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
    finally:
        await server.stop(grace=None)
