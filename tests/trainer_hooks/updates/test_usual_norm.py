import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_hooks import ConfigurationError
from holdfast_hooks.restore.slot_restore import restore
from holdfast_hooks.state import random_states
from holdfast_hooks.updates.usual_norm import KEY, NormVerdict, UsualNorm
from tests.trainer_hooks.conftest import SnapshotBench

USUAL, NEW_LEVEL = NormVerdict.USUAL, NormVerdict.NEW_LEVEL
TOO_LARGE, NOT_FINITE = NormVerdict.TOO_LARGE, NormVerdict.NOT_FINITE


def judged(norms: UsualNorm, given: list[float]) -> list[NormVerdict]:
    return [norms.judge(norm) for norm in given]


def used_to(norm: float, count: int = 16) -> UsualNorm:
    norms = UsualNorm()
    assert judged(norms, [norm] * count) == [USUAL] * count
    return norms


def test_nothing_is_too_large_before_sixteen_norms_and_then_more_than_ten_times_the_median_is() -> None:
    norms = UsualNorm()
    assert judged(norms, [1.0] * 15 + [1e9]) == [USUAL] * 16
    assert judged(norms, [10.0, 10.1]) == [USUAL, TOO_LARGE]
    assert norms.skipped_total == 1


def test_only_the_newest_64_norms_whose_updates_were_taken_are_usual() -> None:
    norms = used_to(1.0, 32)
    judged(norms, [11.0, math.inf])
    assert norms.usual == 1.0
    judged(norms, [5.0] * 32)
    assert norms.usual == 3.0  # the median of both halves: neither skipped norm is among them
    judged(norms, [5.0])
    assert norms.usual == 5.0


def test_after_eight_skips_for_the_size_alone_the_norms_begin_anew() -> None:
    norms = used_to(1.0)
    # A norm that is not finite is always skipped, and neither counts nor interrupts.
    assert judged(norms, [20.0] * 5 + [math.inf] + [20.0] * 3 + [math.inf, 20.0]) == [
        *[TOO_LARGE] * 5, NOT_FINITE, *[TOO_LARGE] * 3, NOT_FINITE, NEW_LEVEL,
    ]  # fmt: skip
    assert judged(norms, [1.0, 1e6] + [20.0] * 13) == [USUAL] * 15
    assert judged(norms, [201.0, 20.0]) == [TOO_LARGE, USUAL]
    assert norms.skipped_total == 9


def test_a_large_norm_between_usual_ones_does_not_add_up() -> None:
    norms = used_to(1.0)
    assert judged(norms, [20.0, 1.0] * 20) == [TOO_LARGE, USUAL] * 20


def test_gradients_of_zero_make_no_norm_too_large() -> None:
    assert used_to(0.0).judge(0.5) is USUAL


def noisy(count: int) -> list[float]:
    chance = random.Random(5)
    return [chance.choice((1.0, 1.0, 1.0, 30.0, math.inf)) * chance.lognormvariate(0.0, 1.0) for _ in range(count)]


@pytest.mark.parametrize("killed_after", [1, 15, 16, 40, 99])
def test_a_run_that_is_killed_and_restored_decides_as_an_undisturbed_one(
    folder: Path, make_slots: Callable[..., list[Path]], killed_after: int
) -> None:
    given = noisy(200)
    undisturbed = judged(UsualNorm(), given)
    assert set(undisturbed) >= {USUAL, TOO_LARGE, NOT_FINITE}

    first = UsualNorm()
    judged(first, given[:killed_after])
    bench = SnapshotBench({}, make_slots(), own={KEY: first})
    taken = bench.end(killed_after, commanded=True)
    assert taken is not None
    restored = UsualNorm()
    judged(restored, [7.0] * 3)  # what a restart has judged before it restores is forgotten
    restore(bench.paths[taken.slot], {}, rank=0, own={KEY: restored})
    assert judged(restored, given[killed_after:]) == undisturbed[killed_after:]
    assert restored.state_dict() == json.loads(json.dumps(restored.state_dict()))


def test_a_snapshot_without_norms_starts_with_none(make_slots: Callable[..., list[Path]]) -> None:
    bench = SnapshotBench({}, make_slots(), own={KEY: UsualNorm()})
    taken = bench.end(3, commanded=True)
    assert taken is not None
    assert KEY not in str(bench.snapshots.capture().tree)
    norms = used_to(1.0)
    restore(bench.paths[taken.slot], {}, rank=0, own={KEY: norms})
    assert norms.state_dict() is None


@pytest.mark.parametrize(
    "damaged",
    [
        7,
        {"norms": [1.0]},
        {"norms": 5, "skips": 0, "skipped_total": 0},
        {"norms": [math.nan], "skips": 0, "skipped_total": 0},
        {"norms": ["1"], "skips": 0, "skipped_total": 0},
        {"norms": [1.0], "skips": -1, "skipped_total": 0},
        {"norms": [1.0], "skips": 0, "skipped_total": 0.5},
    ],
)
def test_damaged_norms_are_refused(
    make_slots: Callable[..., list[Path]], damaged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = random_states.capture() | {KEY: damaged}
    monkeypatch.setattr(random_states, "capture", lambda _gpu: written)
    bench = SnapshotBench({}, make_slots())
    taken = bench.end(3, commanded=True)
    assert taken is not None
    with pytest.raises(ConfigurationError, match="norms of the updates are damaged"):
        restore(bench.paths[taken.slot], {}, rank=0, own={KEY: UsualNorm()})
