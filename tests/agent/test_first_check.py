"""An agent checks its node before ranks can start."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast_agent.movement.process_table import read_table
from holdfast_proto import keys
from holdfast_proto.state_value import read_state
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import PATIENCE_S, until
from tests.support.nodes import NODE, RUN
from tests.support.run_keys import opened, sealed_spec, write_key
from tests.support.store_server import StoreServer


@contextmanager
def agent(folder: Path, server: StoreServer) -> Iterator["subprocess.Popen[str]"]:
    """Run an agent of a run that checks its nodes."""
    for name in ("shm", "run"):
        (folder / name).mkdir()
    write_key(folder / "run", RUN)
    spec = store.RunSpec(run=RUN, nodes=1, ranks_per_node=1, instance="i", checkpoints_kept=2, checks_nodes=True)
    spec.command.append("true")
    spec.checkpoint_directory = f"{folder}/checkpoints"
    with server.client() as client:
        client.set(keys.spec(RUN), sealed_spec(spec))
    options = f"--run {RUN} --node {NODE} --redis {server.url} --directory {folder}/run"
    places = f"--runtime-directory {folder}/sockets --shm-directory {folder}/shm"
    command = [sys.executable, "-m", "holdfast_cli", "agent", *options.split(), *places.split()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def state(server: StoreServer) -> store.NodeState | None:
    with server.client() as client:
        data = client.get(keys.node(RUN, NODE))
    return read_state(opened(keys.node(RUN, NODE), data, run=RUN)) if data else None


def checking(agent_pid: int) -> list[int]:
    """Return the programs that check the node."""
    processes = read_table().values()
    return [each.pid for each in processes if each.parent == agent_pid and each.name == "holdfast-check"]


async def test_a_node_is_ready_after_its_check_and_is_seen_before(folder: Path, store_server: StoreServer) -> None:
    with agent(folder, store_server) as process:
        early = await until(lambda: state(store_server), "the agent serves")
        assert not early.ready
        await until(lambda: (state(store_server) or early).ready, "the node is ready")
        found = state(store_server)
        assert found is not None and found.HasField("check")
        figures = {figure.kind for figure in found.check.figures}
        assert store.CHECK_KIND_CLOCK in figures
        assert store.CHECK_KIND_DISK in figures or found.check.unmeasured  # another program may use this machine
        process.send_signal(signal.SIGTERM)
        assert "unexpected" not in process.communicate(timeout=PATIENCE_S)[1]


async def test_a_signal_ends_the_agent_although_the_check_hangs(folder: Path, store_server: StoreServer) -> None:
    with agent(folder, store_server) as process:
        [program] = await until(lambda: checking(process.pid), "the check begins")
        with suppress(ProcessLookupError):
            os.kill(program, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        logged = process.communicate(timeout=PATIENCE_S)[1]
        assert "ending: terminated" in logged
        assert "not complete" not in logged
        assert not checking(process.pid)
