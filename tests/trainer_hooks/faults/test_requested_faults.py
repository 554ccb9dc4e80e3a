"""Whether a fault can still strike and be seen, from what a loop has done so far."""

import pytest
import torch

from holdfast_hooks import Phase
from holdfast_hooks.faults import Fault
from holdfast_hooks.faults.requested_faults import Prospects


def after(steps: int, *phases: Phase, until: int = 1000) -> Prospects:
    """Return what is known after some steps that have entered some phases."""
    prospects = Prospects(tuple)
    for _ in range(steps):
        prospects.step_ended([1 if phase in phases else 0 for phase in range(max(Phase) + 1)], until)
    return prospects


ALL_STEPS = (Phase.DATA, Phase.FORWARD_BACKWARD, Phase.OPTIMIZER)


@pytest.mark.parametrize("phase", [None, *ALL_STEPS])
def test_a_phase_that_was_entered_before_will_come_again(phase: Phase | None) -> None:
    assert after(3, *ALL_STEPS).waits_for(Fault("kill", step=-1, phase=phase)) == ""


@pytest.mark.parametrize("steps", [0, 3])
def test_every_step_begins_with_forward_backward(steps: int) -> None:
    assert after(steps).waits_for(Fault("kill", phase=Phase.FORWARD_BACKWARD)) == ""


@pytest.mark.parametrize("phase", [Phase.EVAL, Phase.CHECKPOINT])
def test_a_phase_that_may_come_now_and_then_is_said_to_be_waited_for(phase: Phase) -> None:
    expected = f"the phase {phase.name.lower()}, which the training loop did not enter in its last 3 steps"
    assert after(3, *ALL_STEPS).waits_for(Fault("kill", phase=phase)) == expected


def test_idling_comes_after_the_last_step() -> None:
    assert after(3, *ALL_STEPS).waits_for(Fault("kill", phase=Phase.IDLE)).endswith("after its last step")


def test_before_the_first_step_ends_nothing_shows_which_phases_come() -> None:
    assert "no step has ended yet" in after(0).waits_for(Fault("data-stall", phase=Phase.DATA))


@pytest.mark.parametrize("phase", [Phase.DATA, Phase.OPTIMIZER])
def test_a_loop_that_skips_a_phase_of_every_step_never_comes_to_it(phase: Phase) -> None:
    with pytest.raises(ValueError, match=f"strikes in the phase {phase.name.lower()}.*in its last step: name another"):
        after(1, Phase.FORWARD_BACKWARD).waits_for(Fault("data-stall", phase=phase))


def test_a_step_behind_the_end_of_the_loop_is_said_to_be_waited_for() -> None:
    awaited = after(3, until=100).waits_for(Fault("kill", step=100))
    assert awaited == "step 100, and the present loop over steps() ends with step 99"
    assert after(3, until=100).waits_for(Fault("kill", step=99)) == ""


def test_a_flipped_bit_that_nobody_could_see_is_refused() -> None:
    with pytest.raises(ValueError, match="Holdfast cannot see bit-flip here"):
        after(3).waits_for(Fault("bit-flip"))
    with pytest.raises(ValueError, match="known after the first step: try again"):
        Prospects(lambda: None).waits_for(Fault("bit-flip"))
    assert Prospects(lambda: [torch.ones(1)]).waits_for(Fault("bit-flip")) == ""
