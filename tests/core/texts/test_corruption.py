"""How ranks that hold other values than their replicas, or compute others in a replay, are reported."""

import pytest

from holdfast_core.texts.render import render
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.session_pb2 import (
    REPLAY_VOTE_FIRST,
    REPLAY_VOTE_NEITHER,
    REPLAY_VOTE_NOT_TAKEN,
    REPLAY_VOTE_SECOND,
    REPLAY_VOTE_UNCLEAR,
)

UP = "model/up.weight@0[0:4096]"
SCATTER = "reduce_scatter 12 of ranks 0-3"


@pytest.mark.parametrize(
    ("culprits", "detail", "line"),
    [
        (
            [6],
            store.CorruptionDetail(part=UP, has_majority=True),
            f"rank 6 holds other values than the replicas' majority of {UP} at the end of step 7",
        ),
        (
            [6, 2],
            store.CorruptionDetail(part=UP, more_parts=3, has_majority=True),
            f"ranks 6, 2 hold other values than the replicas' majority of {UP} and 3 more at the end of step 7",
        ),
        (
            [0, 1],
            store.CorruptionDetail(part=UP),
            f"ranks 0, 1 hold different values of {UP} at the end of step 7: without a majority, it is not known"
            " which are wrong",
        ),
        (
            [6],
            store.CorruptionDetail(has_majority=True, equal_step=5),
            "rank 6 holds other values than the replicas' majority of a sample of the parameters at the end of step 7;"
            " at the end of step 5 all held the same",
        ),
        (
            [0, 1],
            store.CorruptionDetail(part=UP, equal_step=5),
            f"ranks 0, 1 hold different values of {UP} at the end of step 7, and the same at the end of step 5: the"
            " memory of either is corrupted, or the training loop no longer keeps them equal",
        ),
        (
            [3],
            store.CorruptionDetail(part=SCATTER, has_majority=True, vote=REPLAY_VOTE_SECOND),
            f"rank 3 computed step 7 twice with different bits ({SCATTER}): a third run agrees with the second, and"
            " training continues with it",
        ),
        (
            [3],
            store.CorruptionDetail(part=SCATTER, vote=REPLAY_VOTE_NEITHER),
            f"rank 3 computed step 7 twice with different bits ({SCATTER}), and a third run agrees with neither: the"
            " state may be wrong since this step",
        ),
        (
            [3, 6],
            store.CorruptionDetail(part=SCATTER, has_majority=True, vote=REPLAY_VOTE_FIRST),
            f"ranks 3, 6 computed step 7 twice with different bits (rank 3: {SCATTER}): a third run agrees with one of"
            " them on each rank, and training continues with it",
        ),
        (
            [3, 6],
            store.CorruptionDetail(part=SCATTER, vote=REPLAY_VOTE_FIRST),
            f"ranks 3, 6 computed step 7 twice with different bits (rank 3: {SCATTER}), and a third run does not decide"
            " for all of them: the state may be wrong since this step",
        ),
        (
            [3, 6],
            store.CorruptionDetail(part=SCATTER, vote=REPLAY_VOTE_UNCLEAR),
            f"ranks 3, 6 computed step 7 twice with different bits (rank 3: {SCATTER}): one of them made the"
            " difference, and the others received it",
        ),
        (
            [3],
            store.CorruptionDetail(part=SCATTER, vote=REPLAY_VOTE_NOT_TAKEN),
            f"rank 3 had another state before step 7 than in the snapshot of it ({SCATTER}): the memory of one of the"
            " two is corrupted, or the script changes the state",
        ),
    ],
)
def test_the_line_of_a_corruption(culprits: list[int], detail: store.CorruptionDetail, line: str) -> None:
    kind = store.VERDICT_KIND_SILENT_CORRUPTION
    assert render(store.Verdict(kind=kind, culprits=culprits, step=7, corruption=detail)) == line
