"""Which ranks are behind: reports of short steps differ by some steps on a healthy run, too."""

import pytest

from holdfast_cli.top.ranks.oddity import Oddity, judge_ranks
from holdfast_cli.top.ranks.rank_speeds import RankSpeeds
from tests.support.statuses import healthy


@pytest.mark.parametrize(
    ("step_s", "lag", "is_behind"),
    [(0.05, 2, False), (0.05, 39, False), (0.05, 40, True), (5.0, 1, False), (5.0, 2, True), (None, 2, True)],
)
def test_a_rank_is_behind_by_two_steps_and_by_two_seconds_of_them(
    step_s: float | None, lag: int, is_behind: bool
) -> None:
    status = healthy()
    for rank in status.ranks:
        rank.step = 100
    status.ranks[1].step = 100 - lag
    times = {} if step_s is None else dict.fromkeys(range(len(status.ranks)), step_s)
    judged = judge_ranks(status, speeds=RankSpeeds(own_step_s=times))
    found = [rank.number for rank in judged.ranks if rank.oddity is Oddity.BEHIND]
    assert found == ([status.ranks[1].rank] if is_behind else [])
