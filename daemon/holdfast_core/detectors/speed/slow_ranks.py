"""Which ranks were slower than their peers over some steps.

Three measures of a rank's own time per step, x: its training thread's busy time, its wait for data, and its sleep while
no call with other ranks is pending. Of a rank on a GPU there is one: the time that the GPU worked for it alone. Peers
are ranks of the same pipeline stage, and of the same kind of device; p is the median x of the stage. A rank
is slow if x exceeds what it is compared with by more than 10 % of the step, so that it matters, and

* among four or more ranks of a stage: x > 1.3 p, and (x - p) / max(1.4826 x MAD, 5 % of p) > 4; or
* x has grown, from what it usually is, by a factor g > 1.3 G and (g - G) / max(1.4826 x MAD, 5 % of G) > 4, where G is
  the median g of all ranks, 1 at least. It is the lower of two medians, also in the MAD: this finds one of two ranks,
  a stage of one rank, and half of the run's machines.

A machine that is loaded as a whole slows all ranks alike and makes none of them slow. A rank's busy time outside
of training, and in a data phase that is longer than its peers', is left out of its own x but not of its peers'.

Sleep is estimated from samples, one every 0.2 s. Of n samples that are expected to find a rank asleep, sqrt(n) more or
fewer do, so that x must also exceed what it is compared with by four times that, and by four samples.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import median, median_low

from holdfast_core.detectors.numbers.sorted_window import spread
from holdfast_core.detectors.speed.own_time import OwnTime
from holdfast_proto.limits import REPORT_INTERVAL_S
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_RATIO_LIMIT = 1.3
_Z_LIMIT = 4.0
_LEAST_SIGMA_RATIO = 0.05
_LEAST_SHARE = 0.1
"""Of the step that a rank must cost the others."""
_USUAL_FLOOR_SHARE = 0.05
"""Of the step: what took less grows by large factors and means nothing."""

_LEAST_PEERS = 3
"""Besides the rank itself, for a spread that means something."""


@dataclass(frozen=True)
class Slow:
    """By how much a rank is slow, and in what."""

    own_s: float
    """Of its own time per step."""
    usual_s: float
    """What it is compared with."""
    by_peers: bool
    """Compared with its peers' time; else with its own earlier time."""
    phase: int
    """In which its own time grew most."""
    kind: "store.OwnTimeKind"
    """What it does in its own time."""

    @property
    def excess_s(self) -> float:
        """What it costs the others per step."""
        return self.own_s - self.usual_s


def slow_ranks(
    times: Mapping[int, OwnTime],
    stages: Mapping[int, int],
    usual: Mapping[int, OwnTime],
    *,
    step_s: float,
    steps: int,
) -> dict[int, Slow]:
    """Return the slow ranks.

    Args:
        times: of all ranks, over some steps.
        stages: pipeline stage of each rank.
        usual: of ranks whose earlier times are known.
        step_s: duration of a step.
        steps: number of steps over which ``times`` were taken.
    """
    by_stage: dict[tuple[int, bool], dict[int, OwnTime]] = {}
    for number, own in times.items():
        by_stage.setdefault((stages[number], own.is_of_device), {})[number] = own
    slow: dict[int, Slow] = {}
    for is_of_device in (False, True):
        of_kind = {number: own for number, own in times.items() if own.is_of_device == is_of_device}
        usual_of_kind = {number: own for number, own in usual.items() if own.is_of_device == is_of_device}
        slow |= dict(_beyond_their_past(of_kind, usual_of_kind, step_s, steps))
    for of_stage in by_stage.values():
        if len(of_stage) > _LEAST_PEERS:
            slow |= dict(_beyond_their_peers(of_stage, step_s, steps))
    return slow


@dataclass(frozen=True)
class _Measure:
    """One way to measure a rank's own time."""

    kind: "store.OwnTimeKind"
    of: Callable[[OwnTime], float]
    """Time as peers are compared with."""
    own_s: Callable[[OwnTime], float]
    """Time of a rank that is judged: the part that is certainly its own."""

    def noise_s(self, expected_s: float, steps: int) -> float:
        """Return the standard deviation of the time per step over some steps that comes from sampling alone."""
        if self.kind != store.OWN_TIME_KIND_ASLEEP:
            return 0.0
        return REPORT_INTERVAL_S * sqrt(max(1.0, expected_s * steps / REPORT_INTERVAL_S)) / steps


def _measures(typical: OwnTime) -> tuple[_Measure, ...]:
    # A rank whose own time is high by several measures is reported by the last one.
    return (
        _Measure(store.OWN_TIME_KIND_ASLEEP, _asleep_s, _asleep_s),
        _Measure(store.OWN_TIME_KIND_BUSY, _busy_s, _training_s(typical)),
        _Measure(store.OWN_TIME_KIND_DATA, _data_s, _data_s),
        _Measure(store.OWN_TIME_KIND_DEVICE, _device_s, _device_s),
    )


def _beyond_their_peers(times: Mapping[int, OwnTime], step_s: float, steps: int) -> Iterator[tuple[int, Slow]]:
    typical = _typical(times)
    for measure in _measures(typical):
        peers = spread((measure.of(own) for own in times.values()), least_sigma_ratio=_LEAST_SIGMA_RATIO)
        sigma = max(peers.sigma, measure.noise_s(peers.middle, steps))
        for number, own in times.items():
            seconds = measure.own_s(own)
            if not _matters(seconds, peers.middle, step_s) or seconds - peers.middle <= _Z_LIMIT * sigma:
                continue
            phase = _phase(measure, own, typical, seconds)
            yield number, Slow(seconds, peers.middle, by_peers=True, phase=phase, kind=measure.kind)


def _beyond_their_past(
    times: Mapping[int, OwnTime], usual: Mapping[int, OwnTime], step_s: float, steps: int
) -> Iterator[tuple[int, Slow]]:
    known = {number: own for number, own in times.items() if number in usual}
    if len(known) < 2:
        return
    typical, floor_s = _typical(known), _USUAL_FLOOR_SHARE * step_s
    for measure in _measures(typical):
        before_s = {number: max(measure.of(usual[number]), floor_s) for number in known}
        growths = (max(measure.of(own), floor_s) / before_s[number] for number, own in known.items())
        peers = spread(growths, least_sigma_ratio=_LEAST_SIGMA_RATIO, median_of=median_low)
        growth = max(1.0, peers.middle)
        for number, own in known.items():
            seconds, compared_s = measure.own_s(own), before_s[number] * growth
            sigma_s = max(peers.sigma * before_s[number], measure.noise_s(compared_s, steps))
            if seconds - compared_s > _Z_LIMIT * sigma_s and _matters(seconds, compared_s, step_s):
                phase = _phase(measure, own, usual[number], seconds)
                yield number, Slow(seconds, measure.of(usual[number]), by_peers=False, phase=phase, kind=measure.kind)


def _matters(seconds: float, compared_s: float, step_s: float) -> bool:
    return seconds > _RATIO_LIMIT * compared_s and seconds - compared_s > _LEAST_SHARE * step_s


def _typical(times: Mapping[int, OwnTime]) -> OwnTime:
    return OwnTime(
        busy_s=median(own.busy_s for own in times.values()),
        data_s=median_low(own.data_s for own in times.values()),
        optimizer_s=median(own.optimizer_s for own in times.values()),
        occasional_s=median(own.occasional_s for own in times.values()),
        asleep_s=median(own.asleep_s for own in times.values()),
        device_s=median(own.device_s for own in times.values()),
    )


def _busy_s(own: OwnTime) -> float:
    return own.busy_s


def _data_s(own: OwnTime) -> float:
    return own.data_s


def _asleep_s(own: OwnTime) -> float:
    return own.asleep_s


def _device_s(own: OwnTime) -> float:
    return own.device_s


def _training_s(typical: OwnTime) -> Callable[[OwnTime], float]:
    """Return the least that a rank was busy with training. A rank that writes or loads is busy with that."""
    return lambda own: own.busy_s - own.occasional_s - max(0.0, own.data_s - typical.data_s)


def _phase(measure: _Measure, own: OwnTime, compared: OwnTime, seconds: float) -> int:
    if measure.kind == store.OWN_TIME_KIND_DATA:
        return common.PHASE_DATA
    if measure.kind == store.OWN_TIME_KIND_DEVICE:
        return common.PHASE_UNSPECIFIED  # forward, backward and optimizer together
    # A rank that is slow in backward makes its peers wait in the same phase, and its clock shows nothing.
    in_optimizer = own.optimizer_s - compared.optimizer_s > (seconds - measure.of(compared)) / 2
    return common.PHASE_OPTIMIZER if in_optimizer else common.PHASE_FORWARD_BACKWARD
