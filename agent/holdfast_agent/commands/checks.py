"""Decides whether a leader's command is refused, before any of it is carried out. Does no I/O."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast_proto.limits import LARGEST_COUNT, LONGEST_PROFILE_S, MOST_PROFILED_STEPS, MOST_RANKS
from holdfast_proto.v1 import store_pb2 as store

MOST_RANKS_OF_NODE = 4096
"""Most ranks of a node whose run does not say how many it has."""

FENCE_AHEAD_MS = 365 * 86_400_000
"""How far a fence may be ahead of this node's clock. A fence is a time of the store's clock, in milliseconds, or little
more. If an agent obeyed one from the far future, it would refuse every later leader."""

HARMLESS = ("gather_evidence", "take_stacks", "take_profile", "finish")
"""Commands that are also carried out on a node whose ranks another launcher has started."""

MOST_ENDED = 4096
"""Most ranks that one command ends."""

_NAME_BYTES = 200


@dataclass(frozen=True)
class Known:
    """The state of a node that a command must fit."""

    fence: int
    """Highest fencing number that the node has obeyed."""
    generation: int
    """Newest generation on the node."""
    observes: bool
    """Whether another launcher has started the node's ranks."""


def refusal(command: store.NodeCommand, spec: store.RunSpec, known: Known, *, now_unix_s: float) -> str:
    """Return why a command is refused; "" if it is not."""
    return next(_refusals(command, spec, known, now_unix_s), "")


def _refusals(command: store.NodeCommand, spec: store.RunSpec, known: Known, now_unix_s: float) -> Iterator[str]:
    kind = command.WhichOneof("kind")
    if command.instance != spec.instance or not command.instance:
        named = f"instance {command.instance[:64]!r}" if command.instance else "no instance"
        yield f"it is for {named} of the run, this one is {spec.instance!r}"
    yield from _flaws(command, spec, now_unix_s)
    if command.fence < known.fence:
        yield f"its leader has fence {command.fence}, a newer one has {known.fence}"
    if kind == "end_ranks":
        yield from _refusals_of_ends(command, spec, known)
    elif known.observes and kind not in HARMLESS:
        yield "another launcher has started its ranks: the agent watches them and never signals them"
    if command.generation < known.generation and kind != "finish":
        yield f"it is about generation {command.generation}, this node is at {known.generation}"


def _refusals_of_ends(command: store.NodeCommand, spec: store.RunSpec, known: Known) -> Iterator[str]:
    if not known.observes:
        yield "this agent has started its ranks itself: they are stopped together"
    elif spec.on_hang != store.HANG_ACTION_ABORT:
        yield "the run was started without --on-hang abort: its ranks are only watched"
    elif command.generation != known.generation:
        yield f"it is about generation {command.generation}, this node is at {known.generation}"
    yield from _flaws_of_ends(command.end_ranks)


def _flaws(command: store.NodeCommand, spec: store.RunSpec, now_unix_s: float) -> Iterator[str]:
    if not command.id or len(command.id) > _NAME_BYTES:
        yield "it has no proper id"
    if command.fence > now_unix_s * 1000 + FENCE_AHEAD_MS:
        yield f"fence {command.fence} is far ahead of this node's clock"
    if command.generation > LARGEST_COUNT:
        yield f"generation {command.generation} is out of range"
    match command.WhichOneof("kind"):
        case None:
            yield "its kind is unknown to this agent: it may come from a newer daemon"
        case "start":
            yield from _flaws_of_start(command, spec)
        case "gather_evidence" | "take_stacks" | "take_profile" as kind:
            yield from _EVIDENCE[kind](getattr(command, kind))
        case "finish":
            yield from _flaws_of_finish(command.finish)
        case "inject_fault":
            fault = command.inject_fault
            if not (math.isfinite(fault.duration_s) and math.isfinite(fault.factor)):  # a clock may jump back
                yield "the fault's duration or factor is out of range"
            yield from _flaws_of_steps(fault.step)
        case "prove_checkpoint":
            yield from _flaws_of_steps(command.prove_checkpoint.step, command.prove_checkpoint.finite_step)
        case "take_checkpoint" | "keep_checkpoint" | "persist_snapshot" | "leave" as kind:
            yield from _flaws_of_steps(getattr(command, kind).step)


def _flaws_of_start(command: store.NodeCommand, spec: store.RunSpec) -> Iterator[str]:
    start = command.start
    most = spec.ranks_per_node or MOST_RANKS_OF_NODE
    if not command.generation:
        yield "generation 0 cannot be started"
    if not 1 <= start.ranks <= most:
        yield f"{start.ranks} ranks are out of range: this node can have 1 to {most}"
    if start.first_rank + start.ranks > start.world_size:
        yield f"ranks from {start.first_rank} to {start.first_rank + start.ranks - 1} in a world of {start.world_size}"
    if spec.nodes and spec.ranks_per_node and start.world_size > spec.nodes * spec.ranks_per_node:
        yield f"a world of {start.world_size} ranks is larger than the run"
    if start.source not in store.Source.values() or start.source == store.SOURCE_UNSPECIFIED:
        yield f"source {start.source} of the state is unknown"
    if start.source != store.SOURCE_SEED:
        yield from _flaws_of_steps(start.step)


def _flaws_of_finish(finish: store.FinishRun) -> Iterator[str]:
    if not (math.isfinite(finish.patience_s) and finish.patience_s >= 0):
        yield f"patience of {finish.patience_s} s is out of range"
    if not math.isfinite(finish.bad_loss.since_unix_s):
        yield "the time of its bad loss is out of range"
    yield from _flaws_of_steps(finish.bad_loss.from_step)


def _flaws_of_ends(command: store.EndRanks) -> Iterator[str]:
    if not 1 <= len(command.ranks) <= MOST_ENDED:
        yield f"{len(command.ranks)} ranks to end are out of range"
    for asked in command.ranks:
        if not asked.pid or not asked.start_ticks:
            yield f"it names no process of rank {asked.rank}"
        if not (math.isfinite(asked.stalled_s) and asked.stalled_s >= 0.0):
            yield f"the stall of rank {asked.rank} is out of range"


def _flaws_of_evidence(command: store.GatherEvidence) -> Iterator[str]:
    if not (command.incident or command.suspicion):
        yield "it names neither incident nor suspicion"
    if len(command.ras_pids) > MOST_RANKS:
        yield f"{len(command.ras_pids)} processes are out of range"
    yield from _flaws_of_names(command.incident, command.suspicion)


def _flaws_of_stacks(command: "store.TakeStacks | store.TakeProfile") -> Iterator[str]:
    if not command.request:
        yield "it names no request"
    yield from _flaws_of_names(command.request)


def _flaws_of_profile(command: store.TakeProfile) -> Iterator[str]:
    yield from _flaws_of_stacks(command)
    if not 1 <= command.steps <= MOST_PROFILED_STEPS:
        yield f"{command.steps} steps are out of range: a profile has 1 to {MOST_PROFILED_STEPS}"
    if not 0.0 < command.patience_s <= LONGEST_PROFILE_S:
        yield f"patience of {command.patience_s} s is out of range"


def _flaws_of_names(*names: str) -> Iterator[str]:
    for name in names:
        # The name becomes a part of a path. One with a slash could have the agent write anywhere.
        if "/" in name or "\0" in name or name in (".", "..") or len(name.encode()) > _NAME_BYTES:
            yield f"{name[:40]!r} cannot be the name of a folder"


_EVIDENCE: dict[str, Callable[[Any], Iterator[str]]] = {
    "gather_evidence": _flaws_of_evidence,
    "take_stacks": _flaws_of_stacks,
    "take_profile": _flaws_of_profile,
}


def _flaws_of_steps(*steps: int) -> Iterator[str]:
    for step in steps:
        if not -1 <= step <= LARGEST_COUNT:
            yield f"step {step} is out of range"
