"""What the ranks were seen to do, tick by tick: the only evidence on time that no finished step covers.

A tick looks at one rank of each of a few nodes, so that its cost does not grow with the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast_core.deadlines import Deadlines
from holdfast_proto import vocabulary
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

HOLDS_ALL_UP = (
    (vocabulary.CHECKPOINT_STALL, common.PHASE_CHECKPOINT),
    (vocabulary.EVALUATION, common.PHASE_EVAL),
    (vocabulary.DATA_WAIT, common.PHASE_DATA),
)
"""Causes of loss that win over training and idling, and their phases. Of two such causes, the first one wins."""


MOST_NODES_SEEN = 32
"""Nodes that a tick looks at: the first, where most scripts evaluate and save, and others at even distances."""

MOST_UNSEEN_S = 5.0
"""Longest time between two looks in which the ranks are taken to have done what the first look showed."""

MOST_STRETCHES = 256
"""Stretches that are kept. Beyond that, the two oldest become one."""

_USE_OF = {
    **{phase: use for use, phase in HOLDS_ALL_UP},
    common.PHASE_FORWARD_BACKWARD: vocabulary.PRODUCTIVE,
    common.PHASE_OPTIMIZER: vocabulary.PRODUCTIVE,
    common.PHASE_IDLE: vocabulary.IDLE,
}
"""Phase -> use. What is not in it shows nothing: the rank has not reported, or sets up."""

_PRIORITY = (*(use for use, _ in HOLDS_ALL_UP), vocabulary.PRODUCTIVE, vocabulary.IDLE)
"""Uses in the order in which they win if ranks do different things: that of :func:`step_split.split_step`."""


@dataclass(frozen=True)
class SeenStretch:
    """A time in which the ranks were seen to do one thing. ``productive`` means that they were in a training phase."""

    use: str
    since_unix_s: float
    until_unix_s: float


def seen_use(nodes: Mapping[str, store.NodeState], members: Sequence[str], generation: int) -> str | None:
    """Return what the ranks of a generation do now; None if nothing shows it.

    Args:
        nodes: newest states by name.
        members: nodes of the run in rank order.
    """
    every = max(1, -(-len(members) // MOST_NODES_SEEN))
    here = (nodes.get(name) for name in members[::every])
    first = [node.ranks[0] for node in here if node is not None and node.generation == generation and node.ranks]
    seen = {vocabulary.IDLE if rank.life == store.LIFE_EXITED else _USE_OF.get(rank.progress.phase) for rank in first}
    return next((use for use in _PRIORITY if use in seen), None)


def extended(watched: tuple[SeenStretch, ...], use: str | None, now: float) -> tuple[SeenStretch, ...]:
    """Return the stretches with what a look at ``now`` shows; None shows nothing."""
    if use is None:
        return watched
    watched = lasting(watched, now)
    if watched and watched[-1].until_unix_s == now and watched[-1].use == use:
        return watched
    if len(watched) >= MOST_STRETCHES:
        one, other = watched[:2]
        longer = max(one, other, key=lambda stretch: stretch.until_unix_s - stretch.since_unix_s)
        watched = (SeenStretch(longer.use, one.since_unix_s, other.until_unix_s), *watched[2:])
    return (*watched, SeenStretch(use, now, now))


def lasting(watched: tuple[SeenStretch, ...], now: float) -> tuple[SeenStretch, ...]:
    """Return the stretches with the newest one up to ``now``, unless the last look was too long ago."""
    if not watched or not 0.0 < now - watched[-1].until_unix_s <= MOST_UNSEEN_S:
        return watched
    return (*watched[:-1], replace(watched[-1], until_unix_s=now))


def filled(watched: Sequence[SeenStretch], now: float) -> tuple[SeenStretch, ...]:
    """Return the stretches without gaps: each lasts until the next one begins, and the newest until ``now``."""
    ends = [*(stretch.since_unix_s for stretch in watched[1:]), now] if watched else []
    pairs = zip(watched, ends, strict=True)
    return tuple(replace(stretch, until_unix_s=max(stretch.until_unix_s, end)) for stretch, end in pairs)


def after(watched: tuple[SeenStretch, ...], unix_s: float) -> tuple[SeenStretch, ...]:
    """Return the stretches that end after ``unix_s``."""
    return tuple(stretch for stretch in watched if stretch.until_unix_s > unix_s)


def seen_between(watched: Iterable[SeenStretch], since_unix_s: float, until_unix_s: float) -> dict[str, float]:
    """Return use -> seconds that were seen between two times. They may sum to less than the time between."""
    seen: dict[str, float] = {}
    for stretch in watched:
        lasted_s = min(until_unix_s, stretch.until_unix_s) - max(since_unix_s, stretch.since_unix_s)
        if lasted_s > 0.0:
            seen[stretch.use] = seen.get(stretch.use, 0.0) + lasted_s
    return seen


_STEPS_DONE = 1000
"""Number of steps after which the deadline is that of any later step."""


def split_step(duration_s: float, phase_s: Mapping[int, float]) -> dict[str, float]:
    """Split a step's duration into uses. The seconds returned sum to ``duration_s``.

    Each phase has the seconds of the rank that was in it longest. So two phases may be of two ranks at the same time,
    and their sum may be more than the step. A rank that saves, evaluates or waits for data holds all others up: they
    wait for it in their next collective, and that wait counts to their training. A rank that idles while another one
    trains does not hold the run up.

    Args:
        duration_s: duration on the slowest rank.
        phase_s: Phase number -> seconds on the rank that was in it longest. What no phase covers counts as training.
    """
    spent: dict[str, float] = {}
    left_s = duration_s
    for use, phase in HOLDS_ALL_UP:
        spent[use] = min(left_s, phase_s.get(phase, 0.0))
        left_s -= spent[use]
    named = {common.PHASE_IDLE, *(phase for _, phase in HOLDS_ALL_UP)}
    training_s = sum(seconds for phase, seconds in phase_s.items() if phase not in named)
    spent[vocabulary.IDLE] = max(0.0, min(left_s - training_s, phase_s.get(common.PHASE_IDLE, 0.0)))
    spent[vocabulary.PRODUCTIVE] = left_s - spent[vocabulary.IDLE]
    return spent


def stalled_s(training_s: float, deadlines: Deadlines) -> float:
    """Return how much of a training time was a standstill: what exceeds the usual step, if it exceeds the deadline.

    It is 0 while no usual step is known.
    """
    usual_s = deadlines.median_step_s
    if usual_s is None or training_s <= deadlines.deadline_s(common.PHASE_FORWARD_BACKWARD, _STEPS_DONE):
        return 0.0
    return max(0.0, training_s - usual_s)
