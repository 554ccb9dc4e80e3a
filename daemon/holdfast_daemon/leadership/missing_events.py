"""Events that the leader never reads: the stream is bounded, and a server may lose its newest data.

A rank that ends and a checkpoint that is there are also in the states of the nodes, which come again by themselves.
What is lost are lines of incidents, files of evidence that nobody names, and summaries of steps.
"""

import dataclasses
import logging
from collections.abc import Sequence

from holdfast_base.stream_reader import StreamBatch
from holdfast_core.model import CoreState
from holdfast_daemon.leadership.outbox import StoreCounters
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

STEPS_APART = 2
"""Steps that two nodes of one run may be apart in their summaries."""


def see_gap(state: CoreState, batch: StreamBatch, events: Sequence[store.Event], counters: StoreCounters) -> CoreState:
    """Report and count a gap before ``events``; return the state that judges nothing by what is missing."""
    if not batch.missed and not batch.has_lost:
        return state
    run = state.spec.run
    if batch.has_lost:
        log.warning(
            "run %s: the store has lost its newest events, or all of them: the leader reads those that follow", run
        )
    if batch.missed:
        counters.events_missed += max(batch.missed, 1)
        log.warning(
            "run %s: %s events were removed from the store before the leader read them: the numbers of some steps are"
            " missing",
            run,
            batch.missed if batch.missed > 0 else "some",
        )
    return after_gap(state, events)


def after_gap(state: CoreState, events: Sequence[store.Event]) -> CoreState:
    """Return the state in which no step counts whose summaries may be among events that were never read.

    With the summaries of some nodes alone, a step would show a part of its loss and tokens.
    """
    steps = [event.step_summary.step for event in events if event.HasField("step_summary")]
    # Without a summary that shows where the nodes are, they are at most a little after the newest one.
    first = min(steps, default=max(state.counted_steps.values(), default=None))
    if first is None:
        return dataclasses.replace(state, pending_steps={})
    newest = first + STEPS_APART
    sent = {name: max(newest, state.counted_steps.get(name, -1)) for name in state.record.nodes}
    return dataclasses.replace(state, pending_steps={}, counted_steps={**state.counted_steps, **sent})
