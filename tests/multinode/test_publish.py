"""``holdfast publish``: a daemon outlives runs, and a name is free again as soon as its run has ended."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast_cli.local_run.store import publish_run
from holdfast_cli.main import app
from holdfast_proto import keys
from holdfast_proto.run_key import RunKeyFile
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import until
from tests.support.fake_agent import NODE, RUN, FakeAgent
from tests.support.run_keys import KnownKey
from tests.support.shells import daemon, publish_spec, train
from tests.support.store_server import StoreServer


async def test_a_run_published_under_the_name_of_an_ended_one_begins_anew(
    store_server: StoreServer, tmp_path: Path
) -> None:
    publish_spec(store_server)
    again = store.RunSpec(run=RUN, nodes=1, ranks_per_node=2, command=["x"], instance="next")
    async with daemon(tmp_path, store_server) as it:
        with store_server.client() as client:
            async with FakeAgent(store_server.url) as agent:
                await train(it, agent)
                it.shell.requests.stop()
                await until(lambda: agent.outcome and not client.exists(keys.node(RUN, NODE)), "the agent has left")
            publish_run(client, again, KnownKey(RUN), lambda: None)
        await it.until_phase(store.RUN_PHASE_WAITING)
        assert it.shell.state is not None
        assert it.shell.state.spec.instance == "next"
        assert (it.record.generation, it.record.outcome, it.record.newest_step) == (0, "", -1)


def test_no_command_of_an_earlier_run_is_left_for_the_nodes_of_a_new_one(store_server: StoreServer) -> None:
    spec = store.RunSpec(run=RUN, nodes=1, ranks_per_node=2, command=["x"], instance="next")
    finish = store.NodeCommand(id="a", fence=1, instance="last", finish=store.FinishRun()).SerializeToString()
    with store_server.client() as client:
        client.sadd(keys.nodes(RUN), NODE)
        for node in (NODE, "spare-that-the-set-has-forgotten"):
            client.xadd(keys.commands(RUN, node), {"command": finish})
        client.set(keys.rendezvous(RUN, 1), "10.0.0.7:29500")
        client.set(keys.commands("another", NODE), "kept")
        client.set(keys.fence(RUN), 77)
        publish_run(client, spec, KnownKey(RUN), lambda: None)
        left = {key.decode() for key in client.keys("*")}
    assert left == {keys.spec(RUN), keys.RUNS, keys.fence(RUN), keys.commands("another", NODE)}


def test_what_agents_need_to_know_of_the_places_of_checkpoints_is_published(
    store_server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    what = ["--run", "big", "--nodes", "2", "--ranks-per-node", "1", "--checkpoints", "memory://first"]
    where = ["--checkpoints-secondary", "second", "--checkpoints-secondary-keep", "5"]
    limit = ["--checkpoint-upload-mb-per-s", "2.5"]
    redis = ["--redis", store_server.url]
    published = CliRunner().invoke(app, ["publish", *redis, *what, *where, *limit, "--", "python", "train.py"])
    assert published.exit_code == 0, published.output
    with store_server.client() as client:
        key = RunKeyFile(tmp_path / "holdfast-runs" / "big.key", "big").read()
        spec = store.RunSpec.FromString(key.seal.open(keys.spec("big"), client.get(keys.spec("big"))).content)
    assert spec.checkpoint_directory == "memory://first"
    assert spec.checkpoints_secondary == str(tmp_path / "second")
    assert (spec.checkpoints_secondary_kept, spec.checkpoint_upload_bytes_per_s) == (5, 2.5e6)


def test_a_redis_that_does_not_answer_is_one_line_that_names_the_setting(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    what = ["--run", "big", "--nodes", "2", "--ranks-per-node", "1", "--checkpoints", str(tmp_path)]
    result = CliRunner().invoke(app, ["publish", "--redis", url, *what, "--", "python", "train.py"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"holdfast: the run cannot be published at --redis {url}: ")
    assert result.stderr.count("\n") == 1
