"""The newest status of a run as a history keeps it: plain fields, with the slowest ranks in place of all ranks."""

from typing import Any

from holdfast_core.model import CoreState
from holdfast_core.reading.rank_means import own_time_sum
from holdfast_daemon.control.status import status_of
from holdfast_proto.message_json import to_json

SLOWEST_RANKS = 8
"""Number of ranks that a history names: those that need most time of their own for a step."""


def spec_fields(state: CoreState) -> dict[str, Any]:
    """Return the settings of the run, and the number of its ranks."""
    return {**to_json(state.spec), "world_size": state.world_size}


def status_fields(state: CoreState, now: float) -> dict[str, Any]:
    """Return the fields of the run's RunStatus without its ranks, and ``slowest_ranks`` and ``nodes``.

    ``now``: Unix time.
    """
    status = status_of(state, now, store_up=True)
    status.ClearField("ranks")  # before they are turned into JSON, because there may be thousands
    status.ClearField("newest_incident")
    status.ClearField("urgent_incident")
    fields = to_json(status)
    del fields["ranks"]
    return {**fields, "slowest_ranks": _slowest(state), "nodes": list(state.record.nodes)}


def _slowest(state: CoreState) -> list[dict[str, Any]]:
    found = []
    for name, node in state.nodes.items():
        for rank in node.ranks:
            own = own_time_sum(rank)
            if own.parts and node.generation == state.record.generation:
                found.append(
                    {"rank": rank.rank, "node": name, "own_step_s": own.total / own.parts, "steps": rank.steps_done}
                )
    return sorted(found, key=lambda one: -float(str(one["own_step_s"])))[:SLOWEST_RANKS]
