"""The check before the optimizer step: all ranks agree whether to take the update, and on what has happened.

One collective carries both. Each rank gives the norm of its gradient and the newest step of each kind of bad loss that
the coordinator has told it of. The largest number wins everywhere. So a word that has reached a single rank calls the
script's function on all ranks, in the same step.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.identity import Identity, world_of_torch
from holdfast_hooks.restore.consensus import largest
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_hooks.updates.usual_norm import MOST_SKIPS, TIMES_USUAL, NormVerdict, UsualNorm
from holdfast_proto.v1.session_pb2 import SpikeFound

if TYPE_CHECKING:
    import torch

SKIPPED_NAME = "updates_skipped_for_size"
"""Name of the logged number."""
_GRADIENT = "gradient"
_TIERS = ("spike", "divergence", "non_finite")
"""What the coordinator finds in a loss, in the order in which all ranks call the script's function."""
_LARGEST_STEP = 2**53
"""Largest whole number up to which a float64 holds each one: steps travel as such."""
_log = logging.getLogger("holdfast_hooks")


@dataclass(frozen=True)
class Spike:
    """Something bad that all ranks hear of in the same step."""

    kind: str
    """``gradient``: this step's update is skipped. ``spike``, ``divergence`` or ``non_finite``: a loss was bad."""
    step: int
    """Number of the step that showed it. For a loss it is an earlier one than the present step."""


OnSpike = Callable[[Spike], None]


class UpdateCheck:
    """Decides in each step whether the optimizer steps. The training thread calls it, but for :meth:`receive`.

    Args:
        on_spike: the script's function. What it raises passes through, on all ranks alike.
    """

    def __init__(self, on_spike: OnSpike | None, once: OnceLog) -> None:
        self.norms = UsualNorm()
        self._on_spike = on_spike
        self._once = once
        self._is_used = False
        self._heard = [-1] * len(_TIERS)
        """Newest step that the coordinator has named to this rank, by tier."""
        self._called = [-1] * len(_TIERS)
        """Newest step that all ranks have heard of, by tier."""

    def receive(self, found: SpikeFound) -> str:
        """Keep what the coordinator has found for the next check; return why it is refused, or "" (reporter thread).

        If the next check is late, a newer step of the same tier takes the place of an older one.
        """
        if found.tier not in _TIERS or not 0 <= found.step <= _LARGEST_STEP:
            return f"unknown tier {found.tier[:20]!r}, or a step out of range"
        tier = _TIERS.index(found.tier)
        self._heard[tier] = max(self._heard[tier], found.step)
        if self._on_spike is not None and not self._is_used:
            advice = "only there can all ranks call it in the same step: call it before each optimizer step"
            self._once.warn("on_spike is not called, because the script has not called hooks.should_update()", advice)
        return ""

    def should_update(
        self,
        grad_norm: "float | torch.Tensor",
        timeline: Timeline,
        log: Callable[[Mapping[str, object]], None],
    ) -> bool:
        """Agree with all ranks on this step's update: see :meth:`Hooks.should_update`. ``log``: shows numbers."""
        if not self._is_used:
            self._warn_of_no_group()
        self._is_used = True
        norm = _number(grad_norm)
        # A NaN does not survive the largest of several numbers: as infinity it does.
        own = [norm if math.isfinite(norm) else math.inf, *map(float, self._heard)]
        agreed, *heard = _agree(own, grad_norm)
        usual = self.norms.usual
        verdict = self.norms.judge(agreed)
        if verdict is NormVerdict.NOT_FINITE:
            timeline.values["overflow"] = 1.0
        elif verdict is not NormVerdict.USUAL:
            log({SKIPPED_NAME: self.norms.skipped_total})
            self._say(verdict, timeline.step, agreed, usual)
        self._call_back(heard, timeline.step, verdict)
        return verdict.updates

    def _call_back(self, heard: Sequence[float], step: int, verdict: NormVerdict) -> None:
        found = []
        for tier, name in enumerate(_TIERS):
            newest = int(heard[tier])
            if newest > self._called[tier]:
                self._called[tier] = newest
                found.append(Spike(name, newest))
        if not verdict.updates:
            found.append(Spike(_GRADIENT, step))
        if self._on_spike is not None:
            for spike in found:
                self._on_spike(spike)

    def _say(self, verdict: NormVerdict, step: int, norm: float, usual: float | None) -> None:
        world = world_of_torch()
        if world is not None and world[0] > 0:
            return  # all ranks would say the same
        times = f"the gradient norm of step {step} is {norm:.4g}, more than {TIMES_USUAL:g} x the usual {usual:.4g}"
        if verdict is NormVerdict.NEW_LEVEL:
            _log.warning("%s; %d updates before it were skipped, so it is taken as the new level", times, MOST_SKIPS)
        else:
            advice = f"later ones are counted in {SKIPPED_NAME}"
            self._once.warn("an update is skipped, because its gradient is too large", f"{times}; {advice}")

    def _warn_of_no_group(self) -> None:
        if world_of_torch() is None and Identity.from_environment().world_size > 1:
            advice = "each rank decides alone; call init_process_group() before the loop if they train one model"
            self._once.warn("hooks.should_update() cannot ask the other ranks without a process group", advice)


def _number(grad_norm: "float | torch.Tensor") -> float:
    """Return a norm as a float. This waits for the GPU that computes it."""
    # FSDP's clip_grad_norm_ returns a DTensor, of which each rank has a part.
    whole = grad_norm.full_tensor() if hasattr(grad_norm, "full_tensor") else grad_norm
    return float(whole)


def _agree(own: list[float], grad_norm: "float | torch.Tensor") -> list[float]:
    """Return the largest of each number over all ranks. ``grad_norm`` may show the GPU to ask on."""
    world = world_of_torch()
    if world is None or world[1] == 1:
        return own
    device = getattr(grad_norm, "device", None)
    return largest(own, [device] if device is not None and device.type != "cpu" else [])
