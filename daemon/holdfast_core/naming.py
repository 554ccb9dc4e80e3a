"""How ranks, enums, sizes and the time that is left are spelled, for people and in metrics."""

from collections.abc import Iterable, Sequence

from holdfast_proto.message_json import enum_name
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import Activity, Phase

STANDS_STILL = "stands still"
"""State of a run whose ranks exist and do no step, for people."""

STOPPED_BY_OPERATOR = "stopped by an operator"
"""The outcome of a run that was to end early. The command knows such a run by it."""

_NAMES_SHOWN = 8
_GIB = 2.0**30


def kind_name(kind: "store.VerdictKind | int") -> str:
    """Return the kind of a verdict: ``hung_collective``."""
    return enum_name(store.VerdictKind, kind)


def incident_number(incident: str) -> int:
    """Return the number that an incident's id begins with, to order ids by: as texts, 10000 comes before 9999.

    Ids without a number come last.
    """
    number = incident.partition("-")[0]
    return int(number) if number.isascii() and number.isdecimal() else 2**63


def phase_name(phase: "Phase") -> str:
    """Return the phase of a rank: ``forward_backward``."""
    return enum_name(Phase, phase)


def run_phase_name(phase: "store.RunPhase") -> str:
    """Return the phase of a run: ``running``."""
    return enum_name(store.RunPhase, phase)


def run_phase_text(phase: "store.RunPhase", outcome: str, *, stands_still: bool) -> str:
    """Return the phase of a run for people. ``stands_still``: the incident that stopped its ranks is not over.

    Such a run runs for scripts. One that an operator has stopped has failed for scripts.
    """
    if stands_still and phase == store.RUN_PHASE_RUNNING:
        return STANDS_STILL
    is_stopped = phase == store.RUN_PHASE_FAILED and outcome == STOPPED_BY_OPERATOR
    return "stopped" if is_stopped else run_phase_name(phase).replace("_", " ")


def activity_name(activity: "Activity") -> str:
    """Return what a rank without progress does: ``user_code``."""
    return enum_name(Activity, activity)


def listed(names: Iterable[int | str], number: int = 0) -> str:
    """Return ranks or nodes as a list: the first few, and how many more.

    ``number``: how many there are, if that is more than ``names``.
    """
    every = list(names)
    shown = every[:_NAMES_SHOWN]
    more = max(number, len(every)) - len(shown)
    text = ", ".join(map(str, shown))
    return f"{text} and {more} more" if more else text


def ranks_named(ranks: Sequence[int], number: int = 0) -> str:
    """Return ``rank 3``, or ``ranks 3, 5``; of many ranks the first few. ``number``: as of :func:`listed`."""
    return f"rank {ranks[0]}" if max(number, len(ranks)) == 1 else f"ranks {listed(ranks, number)}"


def gib(nbytes: float) -> str:
    """Return a number of bytes as ``1.5 GiB``."""
    return f"{nbytes / _GIB:.3g} GiB"


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
