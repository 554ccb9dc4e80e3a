"""How much time the steps need that are left, in seconds and in words."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_UNITS_SHOWN = 2


def time_left_s(planned_steps: int, newest_step: int, usual_step_s: float | None, *, is_training: bool) -> float | None:
    """Return the seconds for the steps that are left, at the usual time of a step; None if they are unknown.

    ``planned_steps``: number after the last step of the ranks' loops; 0: no rank has said it. ``newest_step``: newest
    completed one; -1: none. The time leaves out restarts and pauses. While a run does not train, it is unknown.
    """
    if planned_steps <= 0:
        return None
    left = max(0, planned_steps - 1 - newest_step)
    if left == 0:
        return 0.0
    return float(round(left * usual_step_s)) if usual_step_s and is_training else None


def time_left_text(left_s: float) -> str:
    """Return ``about 3 h 20 min left``: the two largest units."""
    whole_s = max(0, round(left_s))
    parts = []
    for unit_s, unit in _UNITS:
        count, whole_s = divmod(whole_s, unit_s)
        parts.append((count, unit))
    first = next((at for at, (count, _) in enumerate(parts) if count), len(parts) - 1)
    shown = [part for part in parts[first : first + _UNITS_SHOWN] if part[0]] or parts[-1:]
    return f"about {' '.join(f'{count} {unit}' for count, unit in shown)} left"
