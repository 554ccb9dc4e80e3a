"""Compares what the detectors report with the labels of the curves."""

from collections.abc import Iterable, Sequence

from benchmarks.loss_curves.curves import Curve, Window
from benchmarks.loss_curves.trial import LOSS_ALARMS, Trial

RISES = ((0.1, "below 10 %"), (0.3, "10 to 30 %"), (1.0, "30 to 100 %"), (float("inf"), "over 100 %"))
NEAR_ROWS, FAR_ROWS = 5, 50
_BASE_ROWS = 16
_PER = 100_000


def score(trials: Sequence[Trial]) -> dict[str, object]:
    """Return all figures as one JSON object."""
    rows = sum(len(trial.curve.rows) for trial in trials)
    return {
        "runs": len(trials),
        "points": rows,
        "false_per_100k": _false_by_class(trials, LOSS_ALARMS),
        "false_gradient_per_100k": _false_by_class(
            [trial for trial in trials if _has_norms(trial.curve)], ("gradient_explosion",)
        ),
        "false_rise_notes": sum(len(false_alarms(trial, ("loss_rise",))) for trial in trials),
        "false_divergences": sum(len(false_alarms(trial, ("loss_divergence",))) for trial in trials),
        "missing_loss_false": sum(len(trial.of(("missing_loss",))) for trial in trials),
        "planned_alarms": sum(len(_planned(trial)) for trial in trials),
        "not_finite": sum(trial.unusual_numbers for trial in trials),
        **_incidents(trials),
    }


def false_alarms(trial: Trial, kinds: Iterable[str]) -> list[int]:
    """Return the rows of alarms that belong to no window."""
    alarms = trial.of(kinds)
    return [alarm.row for alarm in alarms if not any(window.covers(alarm.row) for window in trial.curve.windows)]


def found_after(trial: Trial, window: Window, kinds: Iterable[str]) -> int | None:
    """Return how many rows after the onset an incident was reported; None: not at all."""
    rows = [alarm.row for alarm in trial.of(kinds) if window.covers(alarm.row)]
    return max(0, min(rows) - window.first) if rows else None


def rise_of(curve: Curve, window: Window) -> float:
    """Return by which share the loss rose over its level before: 0.5 for a rise of half."""
    before = sorted(row.loss for row in curve.rows[max(0, window.first - _BASE_ROWS) : window.first] if row.loss)
    during = [row.loss for row in curve.rows[window.first : window.last + 1] if row.loss]
    return max(during) / before[len(before) // 2] - 1.0 if before and during else float("inf")


def _has_norms(curve: Curve) -> bool:
    return any(row.grad_norm is not None for row in curve.rows)


def _planned(trial: Trial) -> list[int]:
    windows = [window for window in trial.curve.windows if window.kind == "planned"]
    return [alarm.row for alarm in trial.of(LOSS_ALARMS) if any(window.covers(alarm.row) for window in windows)]


def _false_by_class(trials: Iterable[Trial], kinds: tuple[str, ...]) -> dict[str, dict[str, float]]:
    classes: dict[str, list[int]] = {}
    for trial in trials:
        sums = classes.setdefault(trial.curve.family, [0, 0])
        sums[0] += len(false_alarms(trial, kinds))
        sums[1] += trial.curve.healthy_rows()
    return {
        name: {"false": false, "points": points, "per_100k": round(_PER * false / max(1, points), 2)}
        for name, (false, points) in sorted(classes.items())
    }


def _incidents(trials: Iterable[Trial]) -> dict[str, object]:
    by_rise = {name: [0, 0] for _, name in RISES}
    total, near, far, noted, inside, kept, explosions, with_norms = 0, 0, 0, 0, 0, 0, 0, 0
    for trial in trials:
        for window in (window for window in trial.curve.windows if window.is_incident):
            total += 1
            after = found_after(trial, window, LOSS_ALARMS)
            is_found = after is not None and after <= FAR_ROWS
            near += after is not None and after <= NEAR_ROWS
            far += is_found
            noted += not is_found and found_after(trial, window, ("loss_rise", "gradient_explosion")) is not None
            rise = rise_of(trial.curve, window)
            row = by_rise[next(name for limit, name in RISES if rise < limit or limit == RISES[-1][0])]
            row[0] += is_found
            row[1] += 1
            proven = [it.proven_step for it in trial.of(LOSS_ALARMS) if window.covers(it.row)]
            if proven and proven[0] is not None:
                # The newest checkpoint from before the step is kept. Here, every row has one.
                kept += 1
                inside += proven[0] - 1 >= window.first
            if _has_norms(trial.curve):
                with_norms += 1
                explosions += found_after(trial, window, ("gradient_explosion",)) is not None
    return {
        "incidents": total,
        f"found_within_{NEAR_ROWS}": near,
        f"found_within_{FAR_ROWS}": far,
        "only_noted": noted,
        "by_rise": {name: f"{found} of {count}" for name, (found, count) in by_rise.items()},
        "checkpoint_inside": f"{inside} of {kept}",
        "explosions": f"{explosions} of {with_norms}",
    }
