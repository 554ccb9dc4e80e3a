"""Two daemons with one host name. The lease distinguishes the processes."""

from pathlib import Path
from typing import Any

import grpc

from holdfast_daemon.daemon_options import DaemonOptions
from holdfast_proto.v1 import control_pb2 as control
from tests.support.coroutines import until
from tests.support.daemons import daemon_process
from tests.support.fake_agent import FakeAgent
from tests.support.shells import publish_spec, stored_record
from tests.support.store_server import StoreServer


def test_two_processes_of_one_name_have_two_identities(folder: Path) -> None:
    def daemon() -> DaemonOptions:
        return DaemonOptions(
            name="h",
            store_url="",
            directory=folder,
            control=folder / "c",
            metrics_address="127.0.0.1",
            metrics_port=0,
            lease_s=1.0,
        )

    one, other = daemon(), daemon()
    assert one.name == other.name
    assert one.identity != other.identity
    assert one.identity.startswith("h-")
    assert len(one.identity) == len("h-") + 16


def leads(stub: Any) -> bool:
    try:
        return bool(stub.GetStatus(control.GetStatusRequest(run="run")).leader)
    except grpc.RpcError:  # it has not seen the run yet
        return False


async def test_of_two_daemons_of_one_name_one_leads_and_the_other_takes_over(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    with daemon_process(folder, store_server, label="a") as one, daemon_process(folder, store_server, label="b") as two:
        async with FakeAgent(store_server.url) as agent:
            await until(lambda: agent.state.ranks, "the ranks have started")
            stubs = {it: it.stub() for it in (one, two)}
            for _ in range(20):
                assert [leads(stub) for stub in stubs.values()].count(True) <= 1
                agent.finish_step()
                done = agent.state.ranks[0].progress.step - 1
                await until(lambda done=done: (it := stored_record(store_server)) and it.newest_step >= done, "a step")  # type: ignore[misc]
            leader = await until(lambda: next((it for it, stub in stubs.items() if leads(stub)), None), "one leads")
            (standby,) = [it for it in stubs if it is not leader]
            leader.kill()
            await until(lambda: leads(stubs[standby]), "the standby leads")
            agent.end(0, signal=9)
            await until(lambda: agent.state.generation == 2, "the next generation has started")
