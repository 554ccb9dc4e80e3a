"""Windows that stay sorted."""

import random
from statistics import median, median_high

from holdfast_core.detectors.numbers.sorted_window import SortedWindow


def test_window_holds_the_newest_values_in_order_and_knows_their_scatter() -> None:
    rng, window, size = random.Random(3), SortedWindow(), 32
    values: list[float] = []
    for _ in range(200):
        values.append(rng.choice([rng.gauss(0.0, 1.0), 0.0, 5.0]))
        window = window.with_value(values[-1], size)
        kept = values[-size:]
        assert (window.newest, window.ordered, window.median()) == (tuple(kept), tuple(sorted(kept)), median(kept))
        middle = median_high(kept)
        assert window.quantile(0.5) == middle
        assert abs(window.sigma() - 1.4826 * median_high(abs(value - middle) for value in kept)) < 1e-9
