"""Means of the newest seconds, from sums that ranks report since their start."""

from holdfast_core.reading.rank_means import UNKNOWN, WINDOW_S, RecentMeans, Sample, gpu_use_sum, own_time_sum
from holdfast_proto.v1.store_pb2 import GpuState, RankState


def test_a_rank_that_becomes_slow_shows_it_after_the_window_and_not_its_whole_past() -> None:
    means = RecentMeans()
    total, steps, shown = 0.0, 0, []
    for second in range(60):
        total, steps = total + (2.0 if second >= 30 else 1.0), steps + 1
        shown.append(means.means(1, {0: Sample(total, steps)}, float(second))[0])
    assert (shown[29], shown[30 + 2 * int(WINDOW_S) + 2]) == (1.0, 2.0)


def test_a_new_generation_and_a_new_process_begin_anew() -> None:
    means = RecentMeans()
    means.means(1, {0: Sample(100.0, 100)}, 0.0)
    assert means.means(2, {0: Sample(6.0, 2)}, 1.0) == {0: 3.0}
    assert means.means(2, {0: Sample(4.0, 1)}, 2.0) == {0: 4.0}


def test_without_news_it_is_the_mean_of_all_and_unknown_ranks_are_left_out() -> None:
    means = RecentMeans()
    assert means.means(1, {0: Sample(5.0, 10)}, 0.0) == {0: 0.5}
    assert means.means(1, {0: Sample(5.0, 10), 1: UNKNOWN}, 1.0) == {0: 0.5}


def test_own_time_of_a_gpu_counts_only_where_it_can_be_told_from_waiting() -> None:
    assert own_time_sum(RankState(device="cuda:0", busy_s=9.0, steps_done=3)) == UNKNOWN
    assert own_time_sum(RankState(device="cuda:0", device_own_s=6.0, device_steps=3)) == Sample(6.0, 3)
    assert own_time_sum(RankState(device="cpu", busy_s=5.0, own_wait_s=1.0, steps_done=3)) == Sample(6.0, 3)


def test_use_of_a_gpu_is_unknown_without_samples() -> None:
    assert gpu_use_sum(RankState()) == UNKNOWN
    assert gpu_use_sum(RankState(gpu=GpuState(utilization_sum=3.0, utilization_samples=4))) == Sample(3.0, 4)
