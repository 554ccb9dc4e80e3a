"""A run that ends without the state that it was to continue from has failed, and says so."""

import pytest

from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World

WORDS = "holdfast: the run has a state to continue from, and the script closed its hooks without it: call …"


def resumed(**options: object) -> World:
    world = World(ranks_per_node=2, checkpoints=[19, 39], **options)  # type: ignore[arg-type]
    world.until("starting")
    assert world.state.record.resumed_step == 39
    return world


def test_ranks_that_never_attached_have_not_used_the_checkpoint() -> None:
    world = resumed()
    world.end(0, code=0, never_attached=True)
    world.stand(1.0)
    assert world.phase == "starting"
    world.end(1, code=0, never_attached=True)
    world.until("failed")
    outcome = world.state.record.outcome
    assert outcome.startswith("no rank attached: the checkpoint of step 39 was not used, and nothing was saved: call")
    assert [(one.verdict.kind, one.verdict.message) for one in world.incidents] == [
        (store.VERDICT_KIND_BAD_CONFIGURATION, outcome)
    ]
    assert world.sent("persist_snapshot") == []
    assert [command.finish.succeeded for command in world.sent("finish")] == [False]


@pytest.mark.parametrize("mode", [store.MODE_ACT, store.MODE_OBSERVE])
def test_ranks_that_closed_their_hooks_without_it_are_named(mode: "store.Mode") -> None:
    world = resumed(mode=mode)
    world.end(0, code=0, never_attached=True)
    world.end(1, code=0, finished=True, last_words=WORDS)
    world.until("failed")
    assert world.state.record.outcome.startswith("no rank restored the checkpoint of step 39, and none began a step")
    assert [list(one.verdict.culprits) for one in world.incidents] == [[1]]


def test_a_run_in_which_one_rank_used_the_state_has_finished() -> None:
    world = resumed()
    world.end(0, code=0, finished=True)
    world.end(1, code=0, finished=True, last_words=WORDS)
    world.until("finished")
    assert world.incidents == []


def test_a_run_without_a_state_needs_no_rank_that_attaches() -> None:
    world = World(ranks_per_node=1)
    world.until("starting")
    world.end(0, code=0, never_attached=True)
    world.until("finished")
    assert world.incidents == []
