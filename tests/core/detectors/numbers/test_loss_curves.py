"""The loss watch on real loss curves, healthy ones and others."""

import csv
from functools import cache
from pathlib import Path

import pytest

from holdfast_core.detectors.numbers.loss_watch import SPIKE_OF, LossReading, LossWatch

CURVES = Path(__file__).parents[3] / "data" / "loss_curves"
HEALTHY = ("gpt2_124m_llmc_clean.csv", "gpt2_1p5b_rank0_blips.csv")


@cache
def curve(name: str) -> tuple[float, ...]:
    with (CURVES / name).open() as file:
        return tuple(float(row["loss"]) for row in csv.DictReader(file))


@cache
def incident(run: str, first: int, last: int) -> tuple[float, ...]:
    with (CURVES / "bigscience_incident_excerpts.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == run]
    return tuple(float(row["loss"]) for row in rows if first <= int(row["step"]) <= last)


def watch_all(losses: list[float] | tuple[float, ...]) -> list[LossReading]:
    watch, readings = LossWatch(), []
    for step, loss in enumerate(losses):
        watch, reading = watch.observe(step, loss)
        readings.append(reading)
    return readings


def spikes_at(losses: list[float] | tuple[float, ...]) -> list[int]:
    return [step for step, reading in enumerate(watch_all(losses)) if reading.spike]


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_run_has_blips_and_no_spike(name: str) -> None:
    readings = watch_all(curve(name))
    assert not any(reading.spike for reading in readings)
    assert any(reading.blip for reading in readings)


# The second curve is the loss of one rank's microbatches. Rises of less than half are within its noise.
@pytest.mark.parametrize(
    ("name", "rise_ratio"),
    [(HEALTHY[0], 0.2), (HEALTHY[0], 1.0), (HEALTHY[0], 3.0), (HEALTHY[1], 0.5), (HEALTHY[1], 1.0), (HEALTHY[1], 3.0)],
)
@pytest.mark.parametrize("start", [400, 3000, 9000, 18000])
@pytest.mark.parametrize("shape", ["level", "decay", "climb"])
def test_sustained_rise_is_found_within_five_steps(name: str, start: int, shape: str, rise_ratio: float) -> None:
    losses = list(curve(name)[start - 200 : start + 100])
    for i in range(40):
        strength = {"level": 1.0, "decay": 0.97**i, "climb": 1.0 + 0.05 * i}[shape]
        losses[200 + i] *= 1.0 + rise_ratio * strength
    found = spikes_at(losses)
    assert len(found) == 1
    assert 200 <= found[0] < 200 + SPIKE_OF


@pytest.mark.parametrize("name", HEALTHY)
def test_one_step_jumps_of_any_size_are_no_spike(name: str) -> None:
    losses = list(curve(name)[1000:4000])
    for step in range(300, 3000, 97):
        losses[step] *= 1.5 + step / 300
    assert spikes_at(losses) == []


@pytest.mark.parametrize(
    ("run", "first", "last", "onset"),
    [
        ("tr11-176B", 31214, 31222, 31216),
        ("tr1-13B", 29020, 29090, 29050),
        ("tr8-104B", 6900, 6940, 6920),
        ("tr8-104B", 8738, 8743, 8740),
        ("tr8b-104B", 17060, 17068, 17062),
    ],
)
def test_incident_reported_by_its_run_is_found(run: str, first: int, last: int, onset: int) -> None:
    """The excerpts begin shortly before the incident, so healthy noise at their level is put before them."""
    losses = incident(run, first, last)
    before = curve(HEALTHY[0])[15000:15200]
    scale = losses[0] / (sum(before) / len(before))
    found = spikes_at([*(loss * scale for loss in before), *losses])
    interval = 10 if run == "tr1-13B" or first == 6900 else 1
    assert len(found) == 1
    # The point before the onset that was told is high in some of them.
    assert 1 <= found[0] - 200 - (onset - first) // interval < SPIKE_OF
