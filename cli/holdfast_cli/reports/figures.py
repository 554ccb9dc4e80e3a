"""The numbers by which runs are judged and compared."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_cli.reports.run_facts import RunFacts
from holdfast_daemon.history.thinning import BUCKET_STEPS
from holdfast_proto.vocabulary import PRODUCTIVE

SMOOTHED_STEPS = 20
"""Steps whose mean stands for the loss at a step: the loss of one step is noise."""


@dataclass(frozen=True)
class Figure:
    """A number of a run. ``more_is``: "better", "worse", or "" if neither."""

    name: str
    """Name in checks and in JSON; its unit is in it."""
    text: str
    """Name for people, with the unit."""
    more_is: str = ""


FIGURES = (
    Figure("loss", "loss at the last step that both have", "worse"),
    Figure("final_loss", f"final loss, mean of {SMOOTHED_STEPS} steps", "worse"),
    Figure("best_loss", "lowest loss of a step", "worse"),
    Figure("validation_loss", "newest validation loss", "worse"),
    Figure("step_s", "median step time (s)", "worse"),
    Figure("step_p95_s", "step time, 95th percentile (s)", "worse"),
    Figure("tokens_per_s", "median tokens/s", "better"),
    Figure("goodput", "goodput (ratio)", "better"),
    Figure("steps", "steps"),
    Figure("wall_s", "wall time (s)"),
    Figure("restarts", "restarts", "worse"),
    Figure("incidents", "incidents", "worse"),
    Figure("lost_steps", "steps that restarts repeated", "worse"),
    Figure("checkpoints", "checkpoints"),
    Figure("checkpoint_s", "mean time to write a checkpoint (s)", "worse"),
    Figure("checkpoint_bytes", "mean size of a checkpoint (bytes)", "worse"),
)
NAMES = tuple(figure.name for figure in FIGURES)


def figures_of(facts: RunFacts, *, common_step: int | None = None) -> dict[str, float]:
    """Return the figures that are known of a run, by name. None of them is NaN or infinite.

    ``common_step``: step at which ``loss`` is taken; None: the last one, so that it is ``final_loss``.
    """
    found = _figures(facts, common_step)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def spoiled_figures(facts: RunFacts, *, common_step: int | None = None) -> frozenset[str]:
    """Return the names of the figures that the run has, and that are NaN or infinite."""
    return frozenset(name for name, value in _figures(facts, common_step).items() if not math.isfinite(value))


def _figures(facts: RunFacts, common_step: int | None) -> dict[str, float]:
    found: dict[str, float | None] = {}
    last = last_step(facts)
    if last is not None:
        found["steps"] = last + 1
        found["final_loss"] = _loss_at(facts, last)
        found["loss"] = _loss_at(facts, last if common_step is None else common_step)
        found["best_loss"] = _lowest_loss(facts)
        found["step_s"], found["step_p95_s"] = facts.quantiles("step_s", (0.5, 0.95))
        (found["tokens_per_s"],) = facts.quantiles("tokens_per_s", (0.5,))
    found["validation_loss"] = facts.status.get("validation_loss")
    found["wall_s"] = wall_s(facts)
    found["goodput"] = goodput(facts)
    if facts.status:
        found["restarts"] = facts.status.get("restarts", 0)
    found["incidents"] = len(facts.incidents)
    found["lost_steps"] = sum(incident.lost_steps for incident in facts.incidents)
    count = len(facts.checkpoints)
    if facts.history is not None:
        found["checkpoints"] = count
    if count:
        found["checkpoint_s"] = sum(row.duration_s for row in facts.checkpoints) / count
        found["checkpoint_bytes"] = sum(row.stored_bytes for row in facts.checkpoints) / count
    return {name: float(value) for name, value in found.items() if value is not None}


def time_use(facts: RunFacts) -> Mapping[str, float]:
    """Return seconds by use, productive time first, then the largest losses; empty if there is no account."""
    uses: Any = facts.status.get("time_use_s") or {}
    known = {str(use): float(spent_s) for use, spent_s in uses.items() if isinstance(spent_s, int | float)}
    return dict(sorted(known.items(), key=lambda pair: (pair[0] != PRODUCTIVE, -pair[1])))


def wall_s(facts: RunFacts) -> float | None:
    """Return the wall time of the run in seconds: by the account, else from its start to its newest status."""
    accounted = facts.status.get("wall_s")
    if accounted:
        return float(accounted)
    if facts.status_unix_s > facts.created_unix_s > 0.0:
        return facts.status_unix_s - facts.created_unix_s
    return None


def goodput(facts: RunFacts) -> float | None:
    """Return the share of wall time that moved the run forward; None: there is no account."""
    uses, wall = time_use(facts), wall_s(facts)
    return uses[PRODUCTIVE] / wall if wall and PRODUCTIVE in uses else None


def last_step(facts: RunFacts) -> int | None:
    """Return the newest step in the history that no restart has undone; None: there is none."""
    steps = facts.curve("step_s").step or facts.curve("loss").step
    return steps[-1] if steps else None


def _loss_at(facts: RunFacts, step: int) -> float | None:
    """Return the mean loss of the steps up to ``step``: NaN if one of them is not finite, None if none has a loss."""
    for steps in (SMOOTHED_STEPS, 2 * BUCKET_STEPS):  # old steps are only there as buckets
        found = facts.curve("loss", since_step=max(step - steps + 1, 0), until_step=step)
        if found.step:
            return math.nan if found.nonfinite else found.mean[0]
    return None


def _lowest_loss(facts: RunFacts) -> float | None:
    low = facts.curve("loss").low
    return low[0] if low else None
