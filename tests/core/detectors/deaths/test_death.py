"""Which of several exits explains the others."""

import signal

import pytest

from holdfast_core.detectors.deaths.death import end_of, first_cause, is_configuration_error, speaks_for_itself
from holdfast_proto.v1.store_pb2 import GpuFault, RankExit

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
LOST_PEER = TRACEBACK + "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:8070"
FROM_TORCH = 'Traceback (most recent call last):\n  File "/lib/torch/nn/functional.py", line 9, in linear\nKeyError: 3'
BAD_SAMPLE = TRACEBACK + "ValueError: bad sample"


def killed(number: int, at: float = 100.0, words: str = "") -> RankExit:
    return RankExit(signal=number, exited_unix_s=at, last_words=words)


def raised(words: str, at: float = 100.0, order: int = 0) -> RankExit:
    return RankExit(code=1, last_words=words, exited_unix_s=at, order=order)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE])
def test_rank_killed_by_a_signal_comes_before_those_that_failed_earlier(number: int) -> None:
    exits = {0: raised(LOST_PEER, 99.9), 1: raised(FROM_TORCH, 99.8), 5: killed(number, 100.0)}
    assert first_cause(exits) == (5,)


def test_rank_that_raised_in_its_own_code_is_named_next_to_a_killed_one() -> None:
    exits = {0: raised(LOST_PEER, 99.9), 1: raised(BAD_SAMPLE, 99.8), 5: killed(9, 100.0)}
    assert first_cause(exits) == (5, 1)


def test_rank_that_raised_comes_before_those_that_lost_it() -> None:
    exits = {rank: raised(LOST_PEER, 100.0) for rank in range(4)} | {2: raised(BAD_SAMPLE, 100.4)}
    assert first_cause(exits) == (2,)


def test_rank_aborted_for_a_lost_peer_is_a_victim() -> None:
    assert first_cause({0: killed(signal.SIGABRT, 100.0, LOST_PEER), 1: raised(BAD_SAMPLE, 100.2)}) == (1,)


def test_abort_without_words_is_weighed_against_exceptions_by_time() -> None:
    assert first_cause({0: killed(signal.SIGABRT, 103.0), 1: raised(BAD_SAMPLE, 100.0)}) == (1, 0)
    assert first_cause({0: killed(signal.SIGABRT, 100.0), 1: raised(BAD_SAMPLE, 103.0)}) == (0, 1)


def test_aborted_rank_comes_before_those_that_lost_it() -> None:
    assert first_cause({0: raised(LOST_PEER, 99.0), 1: killed(signal.SIGABRT, 100.0)}) == (1,)


@pytest.mark.safety
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    "failed", [killed(signal.SIGABRT, 100.0), raised(BAD_SAMPLE, 100.0)], ids=["aborted", "raised"]
)
def test_a_rank_that_its_launcher_ended_after_another_had_failed_is_no_culprit(number: int, failed: RankExit) -> None:
    """An agent that did not start the ranks may see the second end first."""
    assert first_cause({0: killed(number, 99.8), 1: killed(number, 100.3), 3: failed}) == (3,)


def test_a_rank_that_was_terminated_before_the_others_failed_is_the_first_cause() -> None:
    assert first_cause({0: killed(signal.SIGTERM, 95.0), 3: killed(signal.SIGABRT, 100.0)}) == (0, 3)
    assert first_cause({0: killed(signal.SIGTERM, 100.0), 3: raised(LOST_PEER, 100.0)}) == (0,)


def test_rank_that_left_early_comes_before_those_that_lost_it() -> None:
    assert first_cause({0: raised(LOST_PEER, 99.0), 3: RankExit(code=0, exited_unix_s=100.0)}) == (3,)


def test_exit_that_no_parent_could_reap_comes_before_those_that_lost_the_rank() -> None:
    assert first_cause({0: raised(LOST_PEER, 99.0), 3: RankExit(exited_unix_s=100.0)}) == (3,)


def test_all_killed_ranks_are_culprits_the_earliest_first() -> None:
    assert first_cause({1: killed(9, 100.2), 4: killed(9, 100.1), 6: raised(LOST_PEER, 100.0)}) == (4, 1)


def test_equal_times_are_distinguished_by_the_order_of_the_agent() -> None:
    exits = {0: raised(BAD_SAMPLE, order=2), 1: raised(BAD_SAMPLE, order=1), 2: raised(BAD_SAMPLE, order=2)}
    assert first_cause(exits) == (1, 0, 2)


def test_ranks_that_all_lost_a_peer_are_all_returned() -> None:
    assert first_cause({0: raised(LOST_PEER, 100.1), 1: raised(LOST_PEER, 100.0)}) == (1, 0)


def test_no_exits_no_cause() -> None:
    assert first_cause({}) == ()


def test_rank_with_a_wrong_configuration_explains_all_other_exits() -> None:
    exits = {0: killed(9, 99.0), 1: RankExit(code=78, exited_unix_s=100.0), 2: raised(LOST_PEER)}
    assert first_cause(exits) == (1,)


def test_code_78_alone_is_a_configuration_error() -> None:
    assert is_configuration_error(RankExit(code=78))
    assert not is_configuration_error(RankExit(code=1))
    assert not is_configuration_error(RankExit(signal=9))
    assert not is_configuration_error(RankExit())


def with_fault(words: str, at: float, fault: GpuFault | None = None) -> RankExit:
    return RankExit(code=1, last_words=words, exited_unix_s=at, gpu_fault=fault)


def test_a_rank_whose_gpu_broke_is_the_cause_whatever_it_says_itself() -> None:
    broken = GpuFault(gpu=3, xid=79, meaning="the GPU has fallen off the bus", fatal=True)
    exits = {0: with_fault(LOST_PEER, 1.0), 1: with_fault(LOST_PEER, 2.0, broken), 2: with_fault(LOST_PEER, 0.5)}
    assert first_cause(exits) == (1,)
    assert speaks_for_itself(exits[1])
    assert end_of(1, exits[1]).gpu_fault == broken


def test_an_error_of_a_program_on_its_gpu_makes_that_rank_the_cause() -> None:
    page_fault = GpuFault(gpu=3, xid=31, meaning="the program used an address that is not mapped")
    assert first_cause({0: with_fault(LOST_PEER, 1.0), 1: with_fault(LOST_PEER, 2.0, page_fault)}) == (1,)
