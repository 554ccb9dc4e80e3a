"""What people read of a hang that was aborted, word for word."""

from holdfast_core.texts import hangs
from holdfast_proto.v1 import store_pb2 as store

ABORT = store.HangAbort(
    ranks=[store.EndedRank(rank=1, pid=40, node="a"), store.EndedRank(rank=5, pid=44, node="b")], after_s=3.14
)


def edited(**changes: object) -> store.HangAbort:
    made = store.HangAbort(**changes)  # type: ignore[arg-type]
    made.MergeFrom(ABORT)
    return made


def test_which_ranks_are_ended() -> None:
    said = "ends rank 1 (process 40 on a), rank 5 (process 44 on b), so that the launcher ends or restarts the run"
    assert hangs.ended(ABORT) == said
    why = "no rank that can be ended is known to be the cause, and the end of any rank does that"
    assert hangs.ended(edited(without_culprit=True)) == f"{said}: {why}"


def test_what_the_launcher_did() -> None:
    restarted = edited(reaction=store.LAUNCHER_REACTION_RESTARTED, generation=2)
    assert hangs.reaction(restarted) == "the launcher started generation 2 after 3.1 s"
    ended = edited(reaction=store.LAUNCHER_REACTION_ENDED, code=137)
    assert hangs.reaction(ended) == "the launcher ended with exit code 137 after 3.1 s"


def test_that_the_launcher_did_nothing() -> None:
    assert hangs.no_reaction(ABORT, [], 60.2) == (
        "nothing happened for 60 s: ranks 1, 5 did end, and the launcher neither ends nor restarts the run: "
        "end it yourself"
    )
    assert hangs.no_reaction(ABORT, [5], 60.2) == (
        "nothing happened for 60 s: rank 5 did not end at SIGKILL: look at the agent's log and at the node"
    )
