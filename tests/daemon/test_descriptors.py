"""A daemon that runs out of descriptors continues to lead."""

import contextlib
import os
import socket
from pathlib import Path

from tests.support.coroutines import until
from tests.support.daemons import DaemonProcess, daemon_process
from tests.support.fake_agent import FakeAgent
from tests.support.shells import publish_spec, stored_incidents
from tests.support.store_server import StoreServer

LIMIT = 96


def free_descriptors(it: DaemonProcess) -> int:
    return LIMIT - len(os.listdir(f"/proc/{it.process.pid}/fd"))  # noqa: PTH208


async def test_clients_that_take_every_descriptor_end_no_run(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    limited = ("prlimit", f"--nofile={LIMIT}:{LIMIT}")
    with daemon_process(folder, store_server, wrapper=limited) as it, contextlib.ExitStack() as clients:
        async with FakeAgent(store_server.url) as agent:
            await until(lambda: agent.state.ranks, "the ranks have started")
            agent.finish_step()
            for _ in range(2 * LIMIT):
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.connect(str(it.control))
            for _ in range(2 * LIMIT):
                client = clients.enter_context(socket.socket())
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.connect(("127.0.0.1", it.metrics_port))
            await until(lambda: free_descriptors(it) <= 1, "there is no descriptor left")
            for generation in (2, 3):
                agent.end(0, signal=9)
                await until(lambda generation=generation: agent.state.generation == generation, "a restart")  # type: ignore[misc]
                agent.finish_step()
            assert free_descriptors(it) <= 1
            await until(lambda: len(stored_incidents(store_server)) == 2, "both incidents are kept")
            assert it.process.poll() is None
