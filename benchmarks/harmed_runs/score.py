"""The score of hundreds of verdicts."""

import math
from collections.abc import Callable, Iterable, Sequence

from benchmarks.harmed_runs.fault_cases import DEATHS, NOTED, STUCK, Case
from benchmarks.harmed_runs.harmed_run import Outcome
from benchmarks.harmed_runs.healthy_controls import ControlOutcome
from holdfast_proto.v1 import store_pb2 as store

WANTED_RANK_RATIO, WANTED_KIND_RATIO, WANTED_ACTIVITY_RATIO = 0.99, 0.97, 0.95
WANTED_BEYOND_DEADLINE_S = 0.5
WANTED_DEATH_S = 0.2


def score(outcomes: Sequence[Outcome], controls: Sequence[ControlOutcome]) -> dict[str, object]:
    """Return the numbers of ``--json``: ratios from 0 to 1, and seconds. None: there was nothing to measure."""
    hangs = [one for one in outcomes if _is_hang(one.case) and one.latency_s is not None]
    deaths = [one for one in outcomes if _is_death(one) and one.latency_s is not None]
    latencies_s = [one.latency_s for one in [*hangs, *deaths] if one.latency_s is not None]
    return {
        "cases": len(outcomes),
        "rank_top1": _ratio(one.judgement.rank for one in outcomes),
        "kind": _ratio(one.judgement.kind for one in outcomes),
        "group_op": _ratio(one.judgement.call for one in outcomes),
        "p50_s": _quantile(latencies_s, 0.5),
        "p95_s": _quantile(latencies_s, 0.95),
        "max_s": _quantile(latencies_s, 1.0),
        "death_p95_s": _quantile([one.latency_s for one in deaths if one.latency_s is not None], 0.95),
        "healthy_controls": len(controls),
        "false_verdicts": sum(bool(control.said) for control in controls),
        "by_fault": {fault: _of_fault(outcomes, fault) for fault in sorted({one.case.fault for one in outcomes})},
        "hang_beyond_deadline_p95_s": _quantile(
            [one.latency_s - one.deadline_s for one in hangs if one.latency_s is not None], 0.95
        ),
        "activity": _ratio(one.judgement.activity for one in outcomes),
        "unexpected_incidents": sum(len(one.others) for one in outcomes),
        "seconds_per_case": round(sum(one.took_s for one in outcomes) / len(outcomes), 2) if outcomes else None,
    }


def shortfalls(result: dict[str, object]) -> list[str]:
    """Return a line for each number that misses its goal."""
    limits: dict[str, Callable[[float], bool]] = {
        "rank_top1": lambda ratio: ratio >= WANTED_RANK_RATIO,
        "kind": lambda ratio: ratio >= WANTED_KIND_RATIO,
        "activity": lambda ratio: ratio >= WANTED_ACTIVITY_RATIO,
        "hang_beyond_deadline_p95_s": lambda seconds: seconds <= WANTED_BEYOND_DEADLINE_S,
        "death_p95_s": lambda seconds: seconds <= WANTED_DEATH_S,
        "false_verdicts": lambda count: count == 0,
    }
    values = {key: result[key] for key in limits}
    return [
        f"{key} is {value}"
        for key, value in values.items()
        if isinstance(value, int | float) and not limits[key](value)
    ]


def is_right(outcome: Outcome) -> bool:
    """Return whether kind, rank, call and activity are right, where the case has them."""
    judged = outcome.judgement
    return judged.kind and False not in (judged.rank, judged.call, judged.activity)


def _is_hang(case: Case) -> bool:
    return case.fault in (*STUCK, "data-stall", "lost-message")


def _is_death(outcome: Outcome) -> bool:
    is_dead = outcome.verdict is not None and outcome.verdict.kind == store.VERDICT_KIND_DEAD_RANK
    return outcome.case.fault in DEATHS and is_dead


def _of_fault(outcomes: Sequence[Outcome], fault: str) -> dict[str, object]:
    of_fault = [one for one in outcomes if one.case.fault == fault]
    latencies_s = [one.latency_s for one in of_fault if one.latency_s is not None and fault not in NOTED]
    return {
        "cases": len(of_fault),
        "right": sum(map(is_right, of_fault)),
        "p50_s": _quantile(latencies_s, 0.5),
        "max_s": _quantile(latencies_s, 1.0),
    }


def _ratio(judged: Iterable[bool | None]) -> float | None:
    known = [one for one in judged if one is not None]
    return round(sum(known) / len(known), 4) if known else None


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at most ``1 - share`` of all exceed."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(share * len(values)) - 1)], 3)
