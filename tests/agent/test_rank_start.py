from pathlib import Path

import pytest

from holdfast_agent.checkpoints.restorer import StartingPoint
from holdfast_agent.rank_start import fork_request
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1 import store_pb2 as store
from tests.support.nodes import agent_options

OPTIONS = agent_options(Path("/run"), Path("/tmp/hf"))
SPEC = store.RunSpec(run="run", command=["python", "train.py"], snapshot_every=5, checkpoint_every=50)
START = store.StartGeneration(first_rank=4, ranks=4, world_size=8)


def test_rank_gets_its_place_in_the_world_and_its_share_of_the_state() -> None:
    point = StartingPoint({5: Path("/dev/shm/5.slot")}, Path("/checkpoints/step-00000010"))
    fork = fork_request(OPTIONS, SPEC, START, generation=3, local_rank=1, rendezvous="[::1]:4000", point=point)
    assert (fork.generation, fork.rank, list(fork.command)) == (3, 5, ["python", "train.py"])
    assert fork.log_path == "/run/logs/generation-0003/rank-00005.log"
    expected = {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "[::1]",
        "MASTER_PORT": "4000",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "3",
    }
    assert {name: fork.environment[name] for name in expected} == expected
    context = RankContext.from_environment(dict(fork.environment))
    assert context is not None
    assert (context.restore_slot, context.restore_checkpoint) == ("/dev/shm/5.slot", "/checkpoints/step-00000010")


@pytest.mark.parametrize(("mode", "min_replicas"), [(store.MODE_ACT, 3), (store.MODE_OBSERVE, 0)])
def test_rank_learns_how_few_replicas_may_train_if_the_leader_acts(mode: "store.Mode", min_replicas: int) -> None:
    spec = store.RunSpec(run="run", mode=mode, nodes=4, ranks_per_node=4, min_replicas=3)
    fork = fork_request(OPTIONS, spec, START, generation=1, local_rank=0, rendezvous="a:1", point=StartingPoint())
    context = RankContext.from_environment(dict(fork.environment))
    assert context is not None
    assert (context.min_replicas, context.full_world_size) == (min_replicas, 16)


def test_rank_of_a_run_from_the_seed_restores_nothing() -> None:
    fork = fork_request(OPTIONS, SPEC, START, generation=1, local_rank=0, rendezvous="a:1", point=StartingPoint())
    context = RankContext.from_environment(dict(fork.environment))
    assert context is not None
    assert (context.restore_slot, context.restore_checkpoint) == ("", "")
