"""A program that cannot run is distinguished from a death that another start may overcome."""

import pytest

from holdfast_core.detectors.deaths.dead_rank import DeadRank
from holdfast_core.detectors.deaths.failed_start import PATIENCE_S
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import NOW, Ranks

TRACEBACK = 'Traceback (most recent call last):\n  File "/home/train.py", line 1, in <module>\n    import nosuch\n'
NO_MODULE = "ModuleNotFoundError: No module named 'nosuch'"
NO_SCRIPT = "python: can't open file '/home/train.py': [Errno 2] No such file or directory"


def start(*, is_first: bool = True) -> Ranks:
    ranks = Ranks()
    ranks.is_first_start = is_first
    return ranks


def end(
    ranks: Ranks, number: int, words: str = TRACEBACK + NO_MODULE, *, code: int = 1, attached: bool = False
) -> None:
    ranks.end(number, at=NOW - 0.1, code=code, last_words=words, never_attached=not attached)


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(DeadRank())


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (TRACEBACK + NO_MODULE, 1, NO_MODULE),
        ("  File \"train.py\", line 1\n    x = (\n        ^\nSyntaxError: '(' was never closed\n", 1, "SyntaxError: "),
        (NO_SCRIPT, 2, NO_SCRIPT),
        ("bash: line 1: nosuch: command not found", 127, "bash: line 1: nosuch: command not found"),
    ],
)
def test_one_error_of_the_program_on_every_rank_ends_the_run(words: str, code: int, line: str) -> None:
    ranks = start()
    for number in range(4):
        end(ranks, number, words, code=code)
    found = ranks.found(DeadRank())
    assert found.kind == store.VERDICT_KIND_BAD_CONFIGURATION
    assert found.message.startswith(
        f"all 4 ranks ended before holdfast_hooks.attach(), so the run is not started again: {line}"
    )


def test_the_others_get_time_to_fail_too_and_then_it_is_a_death() -> None:
    ranks = start()
    end(ranks, 2)
    assert verdict(ranks) is None
    ranks.first_exit_unix_s = NOW - PATIENCE_S
    found = ranks.found(DeadRank())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_DEAD_RANK, [2])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: '/data/tokens'", 1),
        (TRACEBACK + "ValueError: bad sample", 1),
        (TRACEBACK + NO_MODULE + "\ncontinuing without nosuch", 1),
        (TRACEBACK + NO_MODULE, 3),
        ("", 127),
    ],
)
def test_what_may_be_different_next_time_is_a_death(words: str, code: int) -> None:
    ranks = start()
    for number in range(4):
        end(ranks, number, words, code=code)
    assert ranks.found(DeadRank()).kind == store.VERDICT_KIND_DEAD_RANK


@pytest.mark.parametrize("difference", ["attached", "another error", "trained before"])
def test_without_the_same_end_of_all_ranks_of_a_first_start_it_is_a_death(difference: str) -> None:
    ranks = start(is_first=difference != "trained before")
    for number in range(3):
        end(ranks, number)
    other = "ImportError: libfoo.so" if difference == "another error" else NO_MODULE
    end(ranks, 3, TRACEBACK + other, attached=difference == "attached")
    assert ranks.found(DeadRank()).kind == store.VERDICT_KIND_DEAD_RANK


def test_a_launcher_within_a_rank_ends_the_run_with_the_command_to_use() -> None:
    ranks = start()
    ranks[0].launched_world_size = 2
    found = ranks.found(DeadRank())
    assert found.kind == store.VERDICT_KIND_BAD_CONFIGURATION
    assert found.message.startswith("rank 0 belongs to a world of 2 ranks, but Holdfast started 4 ranks: its command")
    assert "`holdfast observe -- COMMAND`" in found.message
    ranks.is_first_start = False
    assert verdict(ranks) is None
