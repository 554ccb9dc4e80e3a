"""Checks the state of one node. It comes every second from every node, so that this is written for speed."""

from functools import lru_cache

from holdfast_daemon.validation.rules import (
    DIRECTIONS,
    LIVES,
    OWN_TIME_SOURCES,
    PHASES,
    RECORDER_SOURCES,
    RefusedError,
    check_blocked_on,
    check_count,
    check_exit,
    check_gpu_fault,
    check_known,
    check_length,
    check_line,
    check_pending,
    check_phase_times,
    check_seconds,
    check_step,
    check_steps,
    check_text,
    check_unix_s,
)
from holdfast_proto.limits import LARGEST_COUNT, LATEST_UNIX_S, LONGEST_S, MOST_GROUPS, MOST_RANKS, NAME_CHARACTERS
from holdfast_proto.member_runs import flaw_of_runs
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_COORDINATES = 64
_THROTTLES = 16
_NEWEST_HISTORY = 2**31
"""A restart may add one to it, and the field has 32 bits."""
_MOVED = frozenset({"", "cpu", "disk", "network", "processes"})
_SIGNS_OF_LIFE = frozenset({"", "wakes", "writes"})
_SIGNALS, _EXIT_CODES = 127, 255
_RECORDERS = 64


class KnownRanks:
    """Remembers the states of ranks that were good, so that those that stand still are not checked again and again.

    One hang makes all ranks of a run stand still, and all nodes send more often: then time is short, and what each rank
    says is what it has said before, but for its ages. So the bytes without these are compared, which costs little.
    """

    def __init__(self) -> None:
        self._good: dict[tuple[str, int], tuple[int, bytes]] = {}
        """By node and rank: the size of the world, and the state without its ages."""

    def check(self, node: str, rank: store.RankState, world_size: int) -> None:
        """Check the state of a rank."""
        ages = rank.stalled_s, rank.silent_s, rank.still_s, rank.sign_age_s, rank.busy_s
        rank.stalled_s = rank.silent_s = rank.still_s = rank.sign_age_s = rank.busy_s = 0.0
        known = (world_size, rank.SerializePartialToString())
        rank.stalled_s, rank.silent_s, rank.still_s, rank.sign_age_s, rank.busy_s = ages
        place = (node, rank.rank)
        if self._good.get(place) == known and min(ages) >= 0.0 and sum(ages) <= LONGEST_S:  # NaN is in no sum's range
            return
        _check_rank_state(rank, world_size)
        if len(self._good) >= MOST_RANKS:
            self._good.clear()
        self._good[place] = known


def check_node(
    node: store.NodeState, *, name: str, run: str, spec: store.RunSpec | None, known: KnownRanks
) -> frozenset[tuple[int, int]]:
    """Check a node's state; return the ranks that it says are alive there, each with the generation."""
    if node.node != name:
        raise RefusedError(f"it is the state of node {node.node[:80]!r}")
    if node.run != run:
        raise RefusedError(f"it is of run {node.run[:80]!r}")
    check_count(node.generation, "generation")
    check_count(node.fence, "fence")
    check_count(node.failed_generation, "failed_generation")
    check_count(node.checkpoint_generation, "checkpoint_generation")
    check_steps(node.checkpoints, "checkpoints")
    check_count(node.history, "history", _NEWEST_HISTORY)
    check_unix_s(node.reported_unix_s, "reported_unix_s")
    check_seconds(node.leave_in_s, "leave_in_s")
    check_text(node.instance, "instance", NAME_CHARACTERS)
    check_text(node.failure, "failure")
    check_text(node.refused_ranks, "refused_ranks")
    check_count(node.world_size, "world_size", MOST_RANKS)
    world_size = _world_size(node, spec)
    numbers = set()
    alive = set()
    for rank in node.ranks:
        number = rank.rank
        if number in numbers:
            raise RefusedError(f"rank {number} is there twice")
        numbers.add(number)
        if number >= world_size:
            raise RefusedError(f"rank {number} is not in a world of {world_size}")
        try:
            known.check(name, rank, world_size)
        except RefusedError as error:
            raise RefusedError(f"rank {number}: {error}") from None
        if rank.life != store.LIFE_EXITED:
            alive.add((node.generation, number))
    return frozenset(alive)


def _world_size(node: store.NodeState, spec: store.RunSpec | None) -> int:
    if spec is not None and spec.ranks_per_node:
        return spec.nodes * spec.ranks_per_node
    return node.world_size or MOST_RANKS


def _check_rank_state(rank: store.RankState, world_size: int) -> None:
    # The usual case takes one expression; which value it was that fails is found out afterwards.
    if not (
        rank.life in LIVES
        and 0.0 <= rank.stalled_s <= LONGEST_S
        and 0.0 <= rank.silent_s <= LONGEST_S
        and 0.0 <= rank.busy_s <= LONGEST_S
        and 0.0 <= rank.still_s <= LONGEST_S
        and 0.0 <= rank.sign_age_s <= LONGEST_S
        and 0.0 <= rank.own_wait_s <= LONGEST_S
        and 0.0 <= rank.device_own_s <= LONGEST_S
        and rank.device_steps <= LARGEST_COUNT
        and rank.own_time_source in OWN_TIME_SOURCES
        and len(rank.own_time_reason) <= NAME_CHARACTERS
        and rank.own_time_reason.isprintable()
        and 0.0 <= rank.first_step_ended_unix_s <= LATEST_UNIX_S
        and 0 <= rank.steps_done <= LARGEST_COUNT
        and rank.planned_steps <= LARGEST_COUNT
        and rank.launched_world_size <= MOST_RANKS
        and len(rank.process_state) <= 1
        and len(rank.thread_state) <= 1
        and rank.moved in _MOVED
        and rank.sign_of_life in _SIGNS_OF_LIFE
        and -_SIGNALS <= rank.lost_worker.code <= _EXIT_CODES
        and len(rank.device) <= NAME_CHARACTERS
        and len(rank.coordinates) <= _COORDINATES
    ):
        _name_bad_value(rank)
    if rank.HasField("exit"):
        check_exit(rank.exit, "exit")
    if rank.HasField("gpu"):
        _check_gpu(rank.gpu)
    if rank.snapshots:
        check_steps(rank.snapshots, "snapshots")
    if rank.phase_s:
        check_phase_times(rank.phase_s.keys(), rank.phase_s.values(), "phase_s")
    for axis in rank.coordinates:
        check_text(axis, "coordinates", NAME_CHARACTERS)
    if rank.pending:
        check_length(rank.pending, "pending", MOST_GROUPS)
        for call in rank.pending:
            check_pending(call, world_size, "pending")
    if rank.recorders:
        check_length(rank.recorders, "recorders", _RECORDERS)
        for recorder in rank.recorders:
            check_known(recorder.source, RECORDER_SOURCES, "the source of a recorder")
            check_text(recorder.backend, "the backend of a recorder", NAME_CHARACTERS)
    if rank.HasField("blocked_on"):
        check_blocked_on(rank.blocked_on, "blocked_on")
    _check_progress(rank.progress, world_size)


def _check_gpu(gpu: store.GpuState) -> None:
    check_gpu_fault(gpu.fault, "gpu.fault")
    check_text(gpu.uuid, "gpu.uuid", NAME_CHARACTERS)
    check_count(gpu.utilization_samples, "gpu.utilization_samples")
    if not 0.0 <= gpu.utilization_sum <= gpu.utilization_samples:  # a sample is a share
        raise RefusedError(f"gpu.utilization_sum is {gpu.utilization_sum:g} of {gpu.utilization_samples} samples")
    check_length(gpu.throttles, "gpu.throttles", _THROTTLES)
    for reason in gpu.throttles:
        check_text(reason, "gpu.throttles", NAME_CHARACTERS)


def _check_progress(progress: common.Progress, world_size: int) -> None:
    if not (-1 <= progress.step <= LARGEST_COUNT and progress.phase in PHASES):
        check_step(progress.step, "progress.step")
        check_known(progress.phase, PHASES, "progress.phase")
    check_length(progress.groups, "progress.groups", MOST_GROUPS)
    check_length(progress.device_groups, "progress.device_groups", MOST_GROUPS)
    for group in (*progress.groups, *progress.device_groups):
        # As above: one expression for the usual case.
        if not (
            len(group.group) <= NAME_CHARACTERS
            and len(group.description) <= NAME_CHARACTERS
            and group.enqueued <= LARGEST_COUNT
            and group.completed <= LARGEST_COUNT
            and group.started <= LARGEST_COUNT
            and group.source in RECORDER_SOURCES
            and not _flaw_of_members(tuple(group.member_runs), world_size)
        ):
            _name_bad_group(group, world_size)
    for channel in progress.channels:
        if not (
            channel.direction in DIRECTIONS
            and channel.peer < world_size
            and channel.enqueued <= LARGEST_COUNT
            and channel.completed <= LARGEST_COUNT
            and len(channel.group) <= NAME_CHARACTERS
        ):
            raise RefusedError(
                f"channel of group {channel.group[:80]!r}: peer {channel.peer}, direction {channel.direction},"
                f" {channel.enqueued} and {channel.completed}"
            )


@lru_cache(MOST_RANKS)
def _flaw_of_members(runs: tuple[int, ...], world_size: int) -> str:
    """Return what is wrong with the members of a group. All its ranks name the same ones in every report."""
    return flaw_of_runs(runs, world_size)


def _name_bad_group(group: common.GroupProgress, world_size: int) -> None:
    check_text(group.group, "group", NAME_CHARACTERS)
    check_text(group.description, f"the description of group {group.group!r}", NAME_CHARACTERS)
    for name in ("enqueued", "completed", "started"):
        check_count(getattr(group, name), f"{name} of group {group.group!r}")
    check_known(group.source, RECORDER_SOURCES, f"source of group {group.group!r}")
    raise RefusedError(f"group {group.group!r} has {flaw_of_runs(group.member_runs, world_size)}")


def _name_bad_value(rank: store.RankState) -> None:
    check_known(rank.life, LIVES, "life")
    for field in ("stalled_s", "silent_s", "busy_s", "still_s", "sign_age_s", "own_wait_s", "device_own_s"):
        check_seconds(getattr(rank, field), field)
    check_unix_s(rank.first_step_ended_unix_s, "first_step_ended_unix_s")
    if not 0 <= rank.steps_done <= LARGEST_COUNT:
        raise RefusedError(f"steps_done is {rank.steps_done}")
    if rank.planned_steps > LARGEST_COUNT:
        raise RefusedError(f"planned_steps is {rank.planned_steps}")
    if rank.device_steps > LARGEST_COUNT:
        raise RefusedError(f"device_steps is {rank.device_steps}")
    check_known(rank.own_time_source, OWN_TIME_SOURCES, "own_time_source")
    check_line(rank.own_time_reason, "own_time_reason", NAME_CHARACTERS)
    if rank.launched_world_size > MOST_RANKS:
        raise RefusedError(f"launched_world_size is {rank.launched_world_size}")
    if not -_SIGNALS <= rank.lost_worker.code <= _EXIT_CODES:
        raise RefusedError(f"lost_worker.code is {rank.lost_worker.code}")
    check_text(rank.process_state, "process_state", 1)
    check_text(rank.thread_state, "thread_state", 1)
    if rank.moved not in _MOVED:
        raise RefusedError(f"moved is {rank.moved[:80]!r}")
    if rank.sign_of_life not in _SIGNS_OF_LIFE:
        raise RefusedError(f"sign_of_life is {rank.sign_of_life[:80]!r}")
    check_text(rank.device, "device", NAME_CHARACTERS)
    check_length(rank.coordinates, "coordinates", _COORDINATES)
