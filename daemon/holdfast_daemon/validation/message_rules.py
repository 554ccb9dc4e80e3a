"""Checks the messages of a run: events, its spec, its leader's record and its incidents.

What the training script reports passes as it is: a loss or a norm that is not finite is a finding, not a bad message.
What agents and hooks measure themselves must be finite.
"""

from functools import lru_cache

from holdfast_core.texts.render import is_complete
from holdfast_proto.checks.message_checker import MessageChecker
from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.checks.whole_rules import new_checker
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.v1 import store_pb2 as store


def _check_verdict(verdict: store.Verdict) -> None:
    if not is_complete(verdict):
        raise RefusedError(f"{verdict.WhichOneof('detail') or 'device_call'} lacks what it is about")


@lru_cache(maxsize=64)
def checker_of(world_size: int) -> MessageChecker:
    """Return the checker of messages of runs of ``world_size`` ranks."""
    return new_checker(world_size, Verdict=_check_verdict)


OF_ANY_RUN = checker_of(MOST_RANKS)
"""Checker of messages whose run may have any size."""


def check_event(event: store.Event, spec: store.RunSpec | None) -> None:
    """Check an event of an agent. ``spec``: of the run, if it is known."""
    checker_of(spec.nodes * spec.ranks_per_node or MOST_RANKS if spec is not None else MOST_RANKS).check(event)


def check_spec(spec: store.RunSpec, run: str) -> None:
    """Check what a run is."""
    _check_run(spec.run, run)
    OF_ANY_RUN.check(spec)


def check_record(record: store.CoordinatorState, run: str) -> None:
    """Check what the last leader knew."""
    _check_run(record.run, run)
    OF_ANY_RUN.check(record)


def check_incident(incident: store.Incident, run: str, key: str) -> None:
    """Check an incident that the store keeps under ``key``."""
    if incident.id != key:
        raise RefusedError(f"it is incident {incident.id[:80]!r}")
    _check_run(incident.run or run, run)
    OF_ANY_RUN.check(incident)


def _check_run(found: str, run: str) -> None:
    if found != run:
        raise RefusedError(f"it is of run {found[:80]!r}")
