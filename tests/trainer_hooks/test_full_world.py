"""What a script says and asks so that its run may train with fewer replicas."""

from collections.abc import Callable
from typing import Any

import pytest

import holdfast_hooks
from holdfast_hooks import ConfigurationError, full_world_size
from holdfast_hooks.full_world import check_replica_ranks
from holdfast_proto.rank_context import RankContext
from tests.trainer_hooks.conftest import AgentServer

Launch = Callable[..., RankContext]


def check(replica_ranks: int | None, *, world_size: int = 8, **changes: Any) -> None:
    fields = {"min_replicas": 2, "full_world_size": 8, **changes}
    context = RankContext(run="run", generation=1, agent="unix:/none", black_box="/none", **fields)
    check_replica_ranks(replica_ranks, context, world_size)


@pytest.mark.parametrize(
    ("replica_ranks", "changes", "message"),
    [
        (None, {}, r"--min-replicas 2 needs .* pass attach\(replica_ranks=...\)"),
        (0, {}, "replica_ranks is 0: give attach"),
        (-1, {"min_replicas": 0}, "replica_ranks is -1: give attach"),
        (3, {}, "a world of 8 ranks is not a whole number of replicas of 3 ranks: fix replica_ranks"),
        (4, {"min_replicas": 1, "world_size": 6}, "a world of 6 ranks is not a whole number of replicas of 4"),
        (4, {}, "leaves none out: 8 ranks are 2 replicas of 4 ranks: set it below 2, or start the run without"),
        (8, {"min_replicas": 1}, "leaves none out: 8 ranks are 1 replicas"),
        (16, {"min_replicas": 1}, "a world of 8 ranks is not a whole number"),
    ],
)
def test_a_script_that_cannot_train_with_fewer_replicas_is_refused(
    replica_ranks: int | None, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check(replica_ranks, **changes)


@pytest.mark.parametrize(
    ("replica_ranks", "changes"),
    [
        (1, {}),
        (2, {"world_size": 6}),
        (4, {"min_replicas": 1}),
        (None, {"min_replicas": 0}),
        (3, {"min_replicas": 0}),
        (None, {"auto": True}),
    ],
)
def test_others_are_not(replica_ranks: int | None, changes: dict[str, Any]) -> None:
    check(replica_ranks, **changes)


def test_each_rank_is_refused_before_it_trains(launch: Launch) -> None:
    launch(min_replicas=2, full_world_size=8)
    with pytest.raises(ConfigurationError, match="--min-replicas 2"):
        holdfast_hooks.attach()


def test_the_agent_learns_the_size_of_a_replica(agent: AgentServer, launch: Launch) -> None:
    launch(min_replicas=2, full_world_size=16)
    with holdfast_hooks.attach(replica_ranks=4):
        (hello,) = agent.wait_until(lambda: agent.of("hello"))
    assert hello.replica_ranks == 4


def test_the_full_world_is_that_without_a_missing_node(launch: Launch) -> None:
    assert full_world_size(6) == 6
    launch(full_world_size=12)
    assert full_world_size(6) == 12
    launch(full_world_size=0)
    assert full_world_size(6) == 6
