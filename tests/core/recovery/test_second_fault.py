"""A second rank that fails by itself while the evidence of the first death is gathered."""

import pytest

from tests.support.core_world import World

RAISED = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\nValueError: bad sample'
)
LOST_PEER = RAISED.replace("ValueError: bad sample", "RuntimeError: [pair.cc:553] Connection closed by peer")


def gathering() -> World:
    """Return a run whose rank 1 was killed, and whose nodes have not sent their evidence yet."""
    world = World()
    world.until("starting")
    world.train(5)
    world.obeys = False
    world.end(1, signal=9)
    world.tick()
    assert world.phase == "gathering"
    return world


def test_a_rank_that_fails_by_itself_at_the_same_moment_is_named_too() -> None:
    world = gathering()
    world.end(3, code=1, last_words=RAISED)
    world.tick()
    (incident,) = world.incidents
    assert list(incident.verdict.culprits) == [1, 3]
    assert incident.verdict.message == (
        "rank 1 was killed by SIGKILL (out of memory, or killed by hand) in forward_backward of step 5;"
        " rank 3 raised ValueError: bad sample in forward_backward of step 5"
    )


@pytest.mark.parametrize("how", [{"code": 1, "last_words": LOST_PEER}, {"code": 0}, {"signal": 6}])
def test_a_rank_that_the_first_one_may_have_brought_down_is_not(how: dict[str, object]) -> None:
    world = gathering()
    world.end(3, **how)
    world.tick()
    assert list(world.incidents[0].verdict.culprits) == [1]


def test_a_rank_that_fails_later_is_not() -> None:
    world = gathering()
    world.stand(0.8)
    world.end(3, code=1, last_words=RAISED)
    world.tick()
    assert list(world.incidents[0].verdict.culprits) == [1]
