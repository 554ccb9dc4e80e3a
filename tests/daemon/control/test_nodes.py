"""The nodes of a run, as operators list and release them."""

import asyncio
from pathlib import Path

import grpc

from holdfast_core import coordinator
from holdfast_proto.v1 import control_pb2 as pb
from holdfast_proto.v1 import store_pb2 as store
from tests.cli.conftest import holdfast
from tests.daemon.control.test_server import idle_shell, leading_shell, operated, refused, service
from tests.daemon.running_daemons import operating
from tests.support.fake_agent import NODE, SPEC
from tests.support.store_server import StoreServer

BAD = store.NodeHistory(node=NODE, quarantine="no space left", since_unix_s=1e9)


async def test_a_standby_lists_nodes_and_releases_none(folder: Path) -> None:
    shell = idle_shell(folder)
    shell.store_up, shell.state = True, coordinator.begin(SPEC)
    shell.state.record.node_histories.append(BAD)
    async with operating(folder, service(shell)) as stub:
        [node] = (await stub.ListNodes(pb.ListNodesRequest())).nodes
        assert (node.role, node.history) == (pb.NODE_ROLE_ABSENT, BAD)
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "run run: another daemon leads it: try again"):
            await stub.ReleaseNode(pb.ReleaseNodeRequest(node=NODE))


async def test_a_node_that_nothing_is_known_against_is_not_released(folder: Path) -> None:
    async with operating(folder, service(leading_shell(folder))) as stub:
        line = "run run knows nothing against a node 'z': `holdfast nodes` lists them"
        with refused(grpc.StatusCode.NOT_FOUND, line):
            await stub.ReleaseNode(pb.ReleaseNodeRequest(node="z"))


async def test_the_command_lists_nodes_and_ends_a_quarantine(store_server: StoreServer, folder: Path) -> None:
    async with operated(folder, store_server) as (it, stub, _agent):
        it.record.node_histories.append(BAD)
        where = ("--control", str(folder / "control.sock"))
        listed = await asyncio.to_thread(holdfast, "nodes", *where, columns=200)
        assert f"{NODE}" in listed.output and "no space left" in listed.output
        released = await asyncio.to_thread(holdfast, "nodes", *where, "--release", NODE)
        line = f"node {NODE} may train again: what was known against it counts no more\n"
        assert (released.exit_code, released.output) == (0, line)
        [node] = (await stub.ListNodes(pb.ListNodesRequest())).nodes
        assert (node.history.quarantine, node.history.released_unix_s > 0.0) == ("", True)
