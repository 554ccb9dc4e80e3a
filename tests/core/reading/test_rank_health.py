"""How a rank is: one judgement for the console, `status`, `top` and the metrics."""

import pytest

from holdfast_core.reading.rank_health import HEALTH, OK, WAITING, is_behind
from holdfast_proto.v1 import control_pb2 as control


@pytest.mark.parametrize(
    ("step_s", "lag", "expected"),
    [(0.05, 2, False), (0.05, 39, False), (0.05, 40, True), (5.0, 1, False), (5.0, 2, True), (None, 2, False)],
)
def test_a_rank_is_behind_by_two_steps_and_by_two_seconds_of_them(
    step_s: float | None, lag: int, expected: bool
) -> None:
    assert is_behind(OK, 100 - lag, 100, step_s) is expected
    assert not is_behind(WAITING, 100 - lag, 100, step_s)


def test_messages_spell_healths_as_pages_do() -> None:
    names = [name.removeprefix("RANK_HEALTH_").lower() for name in control.RankHealth.DESCRIPTOR.values_by_name]
    assert names == ["unspecified", *HEALTH]
