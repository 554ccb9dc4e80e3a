"""The watch for samples trained on twice."""

from collections.abc import Iterable

from holdfast_daemon.core.duplicates import WINDOW_STEPS, Duplicate, DuplicateWatch
from holdfast_proto.v1 import store_pb2 as store


def use(dp: int, samples: str, rank: int | None = None) -> store.SamplesUsed:
    return store.SamplesUsed(dp=dp, rank=dp if rank is None else rank, fingerprint=samples.ljust(8).encode())


def own_samples(step: int) -> list[store.SamplesUsed]:
    return [use(dp, f"{step} {dp}") for dp in (0, 1)]


def watch_all(steps: Iterable[int], watch: DuplicateWatch | None = None) -> tuple[DuplicateWatch, list[Duplicate]]:
    """Feed steps whose ranks have samples of their own; return what was found."""
    watch = watch or DuplicateWatch()
    found = []
    for step in steps:
        watch, duplicate = watch.observe(step, own_samples(step))
        if duplicate is not None:
            found.append(duplicate)
    return watch, found


def test_ranks_with_samples_of_their_own_in_every_step_are_no_duplicate() -> None:
    assert watch_all(range(2 * WINDOW_STEPS))[1] == []


def test_two_data_parallel_indices_with_the_same_samples_are_named() -> None:
    _, found = DuplicateWatch().observe(4, [use(0, "a"), use(1, "b"), use(2, "a", rank=5), use(3, "d")])
    assert found == Duplicate(step=4, earlier_step=4, indices=(0, 2), ranks=(0, 5))


def test_ranks_of_one_data_parallel_index_share_their_samples_by_design() -> None:
    _, found = DuplicateWatch().observe(4, [use(0, "a", rank=0), use(0, "a", rank=8), use(1, "b", rank=4)])
    assert found is None


def test_samples_of_an_earlier_step_are_found_with_that_step_and_whoever_has_them_now() -> None:
    watch, _ = watch_all(range(10))
    _, found = watch.observe(10, [use(0, "new"), use(1, "3 0", rank=7)])
    assert found == Duplicate(step=10, earlier_step=3, indices=(1,), ranks=(7,))


def test_of_several_earlier_steps_the_newest_is_told() -> None:
    watch, _ = watch_all(range(10))
    _, found = watch.observe(10, [use(0, "3 0"), use(1, "8 1")])
    assert found is not None
    assert (found.earlier_step, found.indices) == (8, (1,))


def test_samples_are_remembered_for_the_window_and_no_longer() -> None:
    watch, _ = watch_all(range(WINDOW_STEPS))
    for first_known in (0, 1):
        _, found = watch.observe(WINDOW_STEPS, [use(0, f"{first_known} 0")])
        assert found is not None
        watch, _ = watch.observe(WINDOW_STEPS + first_known, own_samples(WINDOW_STEPS + first_known))
        assert watch.observe(WINDOW_STEPS + first_known + 1, [use(0, f"{first_known} 0")])[1] is None


def test_steps_that_a_restart_undoes_are_done_again_without_a_word() -> None:
    watch, _ = watch_all(range(10))
    assert watch_all(range(6, 20), watch.back_to(5))[1] == []


def test_a_restart_that_lost_the_data_position_is_found_in_its_first_step() -> None:
    watch, _ = watch_all(range(10))
    _, found = watch.back_to(5).observe(6, own_samples(0))
    assert found == Duplicate(step=6, earlier_step=0, indices=(0, 1), ranks=(0, 1))


def test_steps_without_fingerprints_are_passed_over() -> None:
    watch, _ = watch_all(range(3))
    assert watch.observe(3, []) == (watch, None)
