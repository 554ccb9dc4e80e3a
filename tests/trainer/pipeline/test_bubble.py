from typing import cast

import pytest
from torch.distributed.pipelining import PipelineStage

from holdfast_trainer.pipeline.bubble import BubbleMeter, HostClock


class FakeDevice:
    """A clock that the test advances, and a device that has reached ``reached_s``."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.reached_s = float("inf")

    def mark(self) -> float:
        return self.now_s

    def is_past(self, mark: float) -> bool:
        return mark <= self.reached_s

    def between_s(self, start: float, end: float) -> float:
        assert end <= self.reached_s, "waited for the device"
        return end - start


class FakeStage:
    """Computes for a given time."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def forward_one_chunk(self, seconds: float) -> str:
        self._device.now_s += seconds
        return "output"

    backward_one_chunk = backward_weight_one_chunk = forward_one_chunk


def measured(count: int = 1) -> tuple[FakeDevice, BubbleMeter[float], list[FakeStage]]:
    device = FakeDevice()
    stages = [FakeStage(device) for _ in range(count)]
    return device, BubbleMeter(cast(list[PipelineStage], stages), device), stages


def test_bubble_is_what_the_computations_of_all_stages_of_the_rank_leave() -> None:
    device, meter, (first, second) = measured(2)
    with meter.step():
        device.now_s += 3
        assert first.forward_one_chunk(1) == "output"
        second.forward_one_chunk(1)
        device.now_s += 2
        second.backward_one_chunk(seconds=1)
        first.backward_one_chunk(seconds=1)
        first.backward_weight_one_chunk(2)
        device.now_s += 1
    assert meter.share() == pytest.approx(6 / 12)


def test_no_share_is_known_before_the_first_step() -> None:
    _, meter, (stage,) = measured()
    stage.forward_one_chunk(1)
    assert meter.share() is None


def test_step_is_read_when_the_device_has_finished_it() -> None:
    device, meter, (stage,) = measured()
    device.reached_s = 0
    with meter.step():
        stage.forward_one_chunk(1)
        device.now_s += 1
    assert meter.share() is None
    device.reached_s = 2
    with meter.step():
        stage.forward_one_chunk(1)
    assert meter.share() == pytest.approx(1 / 2)
    device.reached_s = 3
    assert meter.share() == pytest.approx(0)


def test_step_that_was_broken_off_is_not_counted() -> None:
    _, meter, (stage,) = measured()
    with pytest.raises(ConnectionError), meter.step():
        raise ConnectionError
    with meter.step():
        stage.forward_one_chunk(1)
    assert meter.share() == 0


def test_host_clock_goes_forward() -> None:
    clock = HostClock()
    start, end = clock.mark(), clock.mark()
    assert clock.is_past(end)
    assert clock.between_s(start, end) >= 0


def test_stages_without_a_method_that_must_be_timed_still_compute_and_one_line_says_what_is_missing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeStage, "backward_weight_one_chunk")
    device, meter, (first, _) = measured(2)
    for _ in range(2):
        with meter.step():
            device.now_s += 3
            assert first.forward_one_chunk(1) == "output"
        assert meter.share() is None
    [line] = caplog.messages
    assert line.endswith("have no backward_weight_one_chunk: the share of the pipeline bubble is not measured")
