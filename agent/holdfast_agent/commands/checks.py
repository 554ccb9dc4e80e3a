"""Decides whether a leader's command is refused, before any of it is carried out. Does no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.checks.whole_rules import new_checker
from holdfast_proto.limits import FENCE_AHEAD_MS, MOST_RANKS
from holdfast_proto.v1 import store_pb2 as store

MOST_RANKS_OF_NODE = 4096
"""Most ranks of a node whose run does not say how many it has."""

HARMLESS = ("gather_evidence", "take_stacks", "take_profile", "finish", "spike_found")
"""Commands that are also carried out on a node whose ranks another launcher has started. A spike changes something only
in a script that asks to hear of it."""

OF_STATE = (
    "start",
    "take_checkpoint",
    "persist_snapshot",
    "keep_checkpoint",
    "prove_checkpoint",
    "replicate",
    "persist_replicas",
)
"""Commands that are carried out on such a node only if Holdfast saves and restores the state of its ranks."""

REPEATED = "it was given before the newest command that was carried out: it is repeated"

_CHECKER = new_checker(MOST_RANKS)


@dataclass(frozen=True)
class Known:
    """The state of a node that a command must fit."""

    fence: int
    """Highest fencing number that the node has obeyed."""
    number: int
    """Number of the newest command with that fence that was carried out."""
    generation: int
    """Newest generation on the node."""
    observes: bool
    """Whether another launcher has started the node's ranks."""


def refusal(command: store.NodeCommand, spec: store.RunSpec, known: Known, *, number: int, now_unix_s: float) -> str:
    """Return why a command is refused; "" if it is not. ``number``: that of the command, see run_key.py."""
    return next(_refusals(command, spec, known, number, now_unix_s), "")


def _refusals(
    command: store.NodeCommand, spec: store.RunSpec, known: Known, number: int, now_unix_s: float
) -> Iterator[str]:
    kind = command.WhichOneof("kind")
    if command.instance != spec.instance or not command.instance:
        named = f"instance {command.instance[:64]!r}" if command.instance else "no instance"
        yield f"it is for {named} of the run, this one is {spec.instance!r}"
    yield from _flaws(command, spec, now_unix_s)
    if command.fence < known.fence:
        yield f"its leader has fence {command.fence}, a newer one has {known.fence}"
    elif command.fence == known.fence and number <= known.number:
        yield REPEATED
    if kind == "end_ranks":
        yield from _refusals_of_ends(command, spec, known)
    elif known.observes and kind not in HARMLESS and not (spec.restores and kind in OF_STATE):
        yield "another launcher has started its ranks: the agent watches them and never signals them"
    if command.generation < known.generation and kind != "finish":
        yield f"it is about generation {command.generation}, this node is at {known.generation}"


def _refusals_of_ends(command: store.NodeCommand, spec: store.RunSpec, known: Known) -> Iterator[str]:
    if not known.observes:
        yield "this agent has started its ranks itself: they are stopped together"
    elif spec.on_hang not in (store.HANG_ACTION_ABORT, store.HANG_ACTION_RESTART):
        yield "the run was started without --on-hang abort: its ranks are only watched"
    elif command.generation != known.generation:
        yield f"it is about generation {command.generation}, this node is at {known.generation}"


def _flaws(command: store.NodeCommand, spec: store.RunSpec, now_unix_s: float) -> Iterator[str]:
    try:
        _CHECKER.check(command)
    except RefusedError as error:
        yield str(error)
    if command.fence > now_unix_s * 1000 + FENCE_AHEAD_MS:
        yield f"fence {command.fence} is far ahead of this node's clock"
    match command.WhichOneof("kind"):
        case None:
            yield "its kind is unknown to this agent: it may come from a newer daemon"
        case "start":
            yield from _flaws_of_start(command, spec)
        case "persist_replicas":
            yield from _flaws_of_replicas(command.persist_replicas, spec)
        case "gather_evidence" if not (command.gather_evidence.incident or command.gather_evidence.suspicion):
            yield "it names neither incident nor suspicion"


def _flaws_of_start(command: store.NodeCommand, spec: store.RunSpec) -> Iterator[str]:
    start = command.start
    most = spec.ranks_per_node or MOST_RANKS_OF_NODE
    if not command.generation:
        yield "generation 0 cannot be started"
    if spec.restores:
        return  # the node knows its ranks itself
    if not 1 <= start.ranks <= most:
        yield f"{start.ranks} ranks are out of range: this node can have 1 to {most}"
    if start.first_rank + start.ranks > start.world_size:
        yield f"ranks from {start.first_rank} to {start.first_rank + start.ranks - 1} in a world of {start.world_size}"
    yield from _flaws_of_world(start.world_size, spec)


def _flaws_of_replicas(command: store.PersistReplicas, spec: store.RunSpec) -> Iterator[str]:
    yield from _flaws_of_world(command.world_size, spec)
    if command.ranks and max(command.ranks) >= command.world_size:
        yield f"rank {max(command.ranks)} in a world of {command.world_size}"


def _flaws_of_world(world_size: int, spec: store.RunSpec) -> Iterator[str]:
    if spec.nodes and spec.ranks_per_node and world_size > spec.nodes * spec.ranks_per_node:
        yield f"a world of {world_size} ranks is larger than the run"
