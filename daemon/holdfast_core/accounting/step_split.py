"""What the seconds of a finished step were used for."""

from collections.abc import Mapping

from holdfast_core.deadlines import Deadlines
from holdfast_proto import time_use
from holdfast_proto.v1 import common_pb2 as common

HOLDS_ALL_UP = (
    (time_use.CHECKPOINT_STALL, common.PHASE_CHECKPOINT),
    (time_use.EVALUATION, common.PHASE_EVAL),
    (time_use.DATA_WAIT, common.PHASE_DATA),
)
"""Causes of loss that win over training and idling, and their phases. Of two such causes, the first one wins."""

_STEPS_DONE = 1000
"""So many steps that the deadline is that of any later step."""


def split_step(duration_s: float, phase_s: Mapping[int, float]) -> dict[str, float]:
    """Split a step's duration into uses. The seconds returned sum to ``duration_s``.

    Each phase has the seconds of the rank that was in it longest. So two phases may be of two ranks at the same time,
    and their sum may be more than the step. A rank that saves, evaluates or waits for data holds all others up: they
    wait for it in their next collective, and that wait counts to their training. A rank that idles while another one
    trains does not hold the run up.

    Args:
        duration_s: duration on the slowest rank.
        phase_s: Phase number -> seconds on the rank that was in it longest. What no phase covers counts as training.
    """
    spent: dict[str, float] = {}
    left_s = duration_s
    for use, phase in HOLDS_ALL_UP:
        spent[use] = min(left_s, phase_s.get(phase, 0.0))
        left_s -= spent[use]
    named = {common.PHASE_IDLE, *(phase for _, phase in HOLDS_ALL_UP)}
    training_s = sum(seconds for phase, seconds in phase_s.items() if phase not in named)
    spent[time_use.IDLE] = max(0.0, min(left_s - training_s, phase_s.get(common.PHASE_IDLE, 0.0)))
    spent[time_use.PRODUCTIVE] = left_s - spent[time_use.IDLE]
    return spent


def stalled_s(training_s: float, deadlines: Deadlines) -> float:
    """Return how much of a training time was a standstill: what exceeds the usual step, if it exceeds the deadline.

    It is 0 while no usual step is known.
    """
    usual_s = deadlines.median_step_s
    if usual_s is None or training_s <= deadlines.deadline_s(common.PHASE_FORWARD_BACKWARD, _STEPS_DONE):
        return 0.0
    return max(0.0, training_s - usual_s)
