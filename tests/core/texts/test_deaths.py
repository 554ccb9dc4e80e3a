"""How the ends of ranks are reported."""

import pytest

from holdfast_core.detectors.deaths.death import end_of
from holdfast_core.texts.render import render
from holdfast_proto.v1 import common_pb2
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.store_pb2 import RankExit

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
LOST_PEER = TRACEBACK + "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:8070"
BAD_SAMPLE = TRACEBACK + "ValueError: bad sample"


def line_of(rank: int, *ended: RankExit) -> str:
    ends = [end_of(rank + index, each) for index, each in enumerate(ended)]
    return render(store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK, death=store.DeathDetail(ends=ends)))


@pytest.mark.parametrize(
    ("rank_exit", "line"),
    [
        (
            RankExit(signal=9, step=41, phase=common_pb2.PHASE_FORWARD_BACKWARD),
            "rank 5 was killed by SIGKILL (out of memory, or killed by hand) in forward_backward of step 41",
        ),
        (
            RankExit(signal=9, step=41, phase=common_pb2.PHASE_FORWARD_BACKWARD, out_of_memory=True),
            "rank 5 was killed by SIGKILL (out of memory, says the kernel) in forward_backward of step 41",
        ),
        (
            RankExit(signal=11, step=0, phase=common_pb2.PHASE_OPTIMIZER),
            "rank 5 was killed by SIGSEGV in optimizer of step 0",
        ),
        (
            RankExit(signal=6, step=3, last_words="what(): op.preamble.length <= op.nbytes. 132 vs 128. Received data"),
            "rank 5 was killed by SIGABRT (a peer sent 132 bytes where it expected 128: either has a wrong size)"
            " in step 3",
        ),
        (RankExit(signal=77, step=3), "rank 5 was killed by signal 77 in step 3"),
        (
            RankExit(code=1, last_words=BAD_SAMPLE, step=7, phase=common_pb2.PHASE_DATA),
            "rank 5 raised ValueError: bad sample in data of step 7",
        ),
        (
            RankExit(code=1, last_words=LOST_PEER, step=7, phase=common_pb2.PHASE_OPTIMIZER),
            "rank 5 lost a peer (RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:8070)"
            " in optimizer of step 7",
        ),
        (
            RankExit(code=3, step=-1, phase=common_pb2.PHASE_INIT),
            "rank 5 exited with code 3 in init, before the first step",
        ),
        (RankExit(code=0, step=9, phase=common_pb2.PHASE_IDLE), "rank 5 left early with code 0 in idle of step 9"),
        (RankExit(step=-1), "rank 5 ended and left no exit status before the first step"),
        (
            RankExit(code=78, last_words="snapshot_every must be at least 1", step=-1, phase=common_pb2.PHASE_INIT),
            "rank 5 says that its configuration is wrong: snapshot_every must be at least 1"
            " in init, before the first step",
        ),
    ],
)
def test_exit_is_reported_in_one_line(rank_exit: RankExit, line: str) -> None:
    assert line_of(5, rank_exit) == line


def test_long_message_is_cut() -> None:
    line = line_of(1, RankExit(code=1, last_words=TRACEBACK + "ValueError: " + "x" * 5000, step=2))
    assert len(line) < 300
    assert line.endswith("… in step 2")


def test_two_faults_are_both_described() -> None:
    killed = RankExit(signal=9, step=41, phase=common_pb2.PHASE_OPTIMIZER)
    assert line_of(2, killed, RankExit(code=1, last_words=BAD_SAMPLE, step=40, phase=common_pb2.PHASE_DATA)) == (
        "rank 2 was killed by SIGKILL (out of memory, or killed by hand) in optimizer of step 41;"
        " rank 3 raised ValueError: bad sample in data of step 40"
    )


def test_ranks_that_ended_alike_share_a_sentence() -> None:
    raised = RankExit(code=1, last_words=BAD_SAMPLE, step=7, phase=common_pb2.PHASE_DATA)
    assert line_of(1, raised, raised) == "ranks 1, 2 raised ValueError: bad sample in data of step 7"


def test_stopped_rank_is_named_next_to_a_dead_one() -> None:
    end = end_of(1, RankExit(signal=9, step=4, phase=common_pb2.PHASE_DATA))
    stopped = store.HeldRank(
        rank=3,
        state=store.HELD_STATE_PRESENT,
        activity=common_pb2.ACTIVITY_STOPPED,
        step=4,
        phase=common_pb2.PHASE_INIT,
    )
    verdict = store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK, death=store.DeathDetail(ends=[end], stopped=[stopped]))
    assert render(verdict).endswith("in data of step 4; rank 3 is stopped in init of step 4, too")


def test_last_line_that_is_no_exception_is_not_called_one() -> None:
    assert line_of(5, RankExit(code=3, last_words="loading the data set", step=2)) == (
        "rank 5 exited with code 3 (its last line: loading the data set) in step 2"
    )


def test_message_below_the_name_of_an_exception_is_part_of_the_line() -> None:
    words = TRACEBACK + "RuntimeError: \n  shapes do not fit"
    assert (
        line_of(5, RankExit(code=1, last_words=words, step=2))
        == "rank 5 raised RuntimeError: shapes do not fit in step 2"
    )


def test_a_rank_that_left_early_has_not_raised_what_it_printed_before() -> None:
    ended = RankExit(code=0, finished=True, step=3, phase=common_pb2.PHASE_DATA, last_words=BAD_SAMPLE)
    assert line_of(2, ended) == "rank 2 left early with code 0 in data of step 3"


def test_ends_that_are_not_shown_are_counted_by_rank() -> None:
    shown = [RankExit(code=code, step=code, phase=common_pb2.PHASE_DATA) for code in range(1, 5)]
    others = [RankExit(signal=11, step=9), RankExit(signal=11, step=9), RankExit(signal=7, step=9)]
    assert line_of(0, *shown, *others).endswith("; 3 more ranks ended in other ways")
