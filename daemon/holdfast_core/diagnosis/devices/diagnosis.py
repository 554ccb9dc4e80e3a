"""Reads the recorders of all ranks, matches their groups, and says who holds up the job: see ``cause_search.py``."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from holdfast_core.diagnosis.devices.call_reading import Numbered, calls_of
from holdfast_core.diagnosis.devices.cause_search import CauseSearch
from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Confidence, Diagnosis, Evidence, Place, Wait
from holdfast_core.diagnosis.devices.contradictions import contradictions
from holdfast_core.diagnosis.devices.counters import causes_by_counters
from holdfast_core.diagnosis.devices.rank_calls import GroupUses, RankCalls
from holdfast_core.diagnosis.devices.shared_calls import shared_calls
from holdfast_core.diagnosis.operations import ends_together
from holdfast_core.diagnosis.wait_for_graph import GroupKey, SharedCall
from holdfast_proto.member_runs import members_of
from holdfast_proto.v1 import recorder_pb2 as recorder

_WORLD = "0"


class _HashedOnce(tuple[str, tuple[int, ...]]):
    """A GroupKey. All members of a world of thousands would be hashed each time that a call is looked up."""

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = super().__hash__()
        return known


def group_keys(dumps: Mapping[int, recorder.RecorderDump], world_size: int) -> dict[int, list[GroupKey]]:
    """Return, for each rank, the keys of its dump's groups, in their order.

    A dump names a group's members only once its communicator exists, and old or shortened dumps leave them out. Then
    the dumps of others help: a group of the same name that has this rank in it. Without any, the members are the ranks
    that show calls in a group of this name; of the world, all ranks.
    """
    known: dict[str, set[tuple[int, ...]]] = {}  # as runs
    seen: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        called = {call.group for call in dump.calls}
        for index, group in enumerate(dump.groups):
            if group.member_runs:
                known.setdefault(group.name, set()).add(tuple(group.member_runs))
            if index in called or group.has_status:
                seen.setdefault(group.name, set()).add(rank)

    by_runs: dict[tuple[str, tuple[int, ...]], GroupKey] = {}
    interned: dict[GroupKey, GroupKey] = {}

    def shared(name: str, members: tuple[int, ...]) -> GroupKey:
        key = _HashedOnce((name, members))
        return interned.setdefault(key, key)

    def named(name: str, runs: tuple[int, ...]) -> GroupKey:
        if (name, runs) not in by_runs:
            by_runs[name, runs] = shared(name, members_of(runs))
        return by_runs[name, runs]

    def key(rank: int, group: recorder.RecordedGroup) -> GroupKey:
        if group.member_runs:
            return named(group.name, tuple(group.member_runs))
        fitting = [runs for runs in known.get(group.name, ()) if rank in members_of(runs)]
        if len(fitting) == 1:
            return named(group.name, fitting[0])
        if not fitting and (group.name == _WORLD or group.description == "default_pg"):
            return shared(group.name, tuple(range(world_size)))
        return shared(group.name, tuple(sorted(seen.get(group.name, {rank}))))

    return {rank: [key(rank, group) for group in dump.groups] for rank, dump in dumps.items()}


def guessed_groups(
    dumps: Mapping[int, recorder.RecorderDump], keys: Mapping[int, list[GroupKey]], world: tuple[int, ...]
) -> frozenset[GroupKey]:
    """Return the groups whose members no dump names. Others than those that are known may belong to them.

    ``world``: all ranks of the job, of which the groups that hold them all are no guess; empty if that is a guess too.
    """
    groups = (group for dump in dumps.values() for group in dump.groups if group.member_runs)
    runs = {(group.name, tuple(group.member_runs)) for group in groups}
    named = {(name, members_of(of_group)) for name, of_group in runs}
    return frozenset(key for of_rank in keys.values() for key in of_rank if key not in named and key[1] != world)


_NCCL = "nccl:"
"""Prefix of the calls of NCCL's own recorder. Of other recorders, a status counts something else than collectives."""


class Reading(NamedTuple):
    """What was read of a dump, and what the reading depends on besides."""

    dump: recorder.RecorderDump
    asked: tuple[list[GroupKey], GroupUses]
    calls: RankCalls


class RecorderDumps(dict[int, recorder.RecorderDump]):
    """The dumps of a suspicion by rank. The core makes a new one when dumps come, and changes none.

    A hang is judged ten times a second, and reading the calls of 1,000 ranks takes seconds in which nobody leads the
    run. So this remembers the newest diagnosis of it, and the calls of each rank for the next one.
    """

    def __init__(self, dumps: Mapping[int, recorder.RecorderDump], before: Mapping[int, recorder.RecorderDump]) -> None:
        """``before``: the dumps that these replace; those that have stayed are not read again."""
        super().__init__(dumps)
        self.readings: dict[int, Reading] = before.readings if isinstance(before, RecorderDumps) else {}
        self._judged: tuple[object, Diagnosis] | None = None

    def diagnosis(self, places: Mapping[int, Place], dead: Collection[int], world_size: int) -> Diagnosis:
        """Return what :func:`diagnose` does for these dumps. ``places``: of all ranks."""
        asked = dict(places), frozenset(dead), world_size
        if self._judged is None or self._judged[0] != asked:
            evidence = {rank: Evidence(self.get(rank), place, rank in dead) for rank, place in places.items()}
            self._judged = asked, diagnose(evidence, world_size, readings=self.readings)
        return self._judged[1]


def diagnose(
    evidence: Mapping[int, Evidence],
    world_size: int,
    *,
    is_world_known: bool = True,
    readings: dict[int, Reading] | None = None,
) -> Diagnosis:
    """Return who holds up the job. ``evidence``: by global rank; ranks that are not in it are unread.

    ``readings``: calls that were read before, to use and to fill in.
    ``is_world_known``: false if there may be more ranks than ``world_size``. Then no call counts as made by all, unless
    a dump names the members of its group.
    """
    dumps = {rank: known.dump for rank, known in evidence.items() if known.dump is not None}
    keys = group_keys(dumps, world_size)
    ranks = read_ranks(dumps, keys, readings)
    guessed = guessed_groups(dumps, keys, tuple(range(world_size)) if is_world_known else ())
    dead = {rank for rank, known in evidence.items() if known.is_dead}
    unread = tuple(rank for rank in range(world_size) if rank not in ranks and rank not in dead)
    odd = tuple(contradictions(ranks, dead))
    for one in odd:
        del ranks[one.rank]
    unused = (*unread, *(one.rank for one in odd))
    found = shared_calls(ranks, dead)
    moving = [rank for rank, known in evidence.items() if _has_moved(known)]
    places = {rank: known.place for rank, known in evidence.items()}
    has_calls = any(dump.has_calls for dump in dumps.values())
    if moving and not dead:
        causes: tuple[Cause, ...] = (Cause(CauseKind.MOVING, (), None, Confidence.MEDIUM, tuple(moving)),)
    else:
        causes = tuple(_distinct(CauseSearch(ranks, found, dead, unused, places, guessed=guessed).causes()))
    if not (has_calls or dead or moving or any(cause.ranks for cause in causes)):
        causes = tuple(causes_by_counters(dumps, keys)) or causes
        found += [cause.call for cause in causes if cause.call is not None]
    if odd:
        causes = tuple(replace(cause, confidence=Confidence.LOW) for cause in causes)
    return Diagnosis(causes, tuple(_waits(found)), ranks, unread, odd, has_calls=has_calls)


def read_ranks(
    dumps: Mapping[int, recorder.RecorderDump],
    keys: Mapping[int, list[GroupKey]],
    readings: dict[int, Reading] | None = None,
) -> dict[int, RankCalls]:
    """Return what each dump shows by itself. ``keys``: see ``group_keys``; ``readings``: see :func:`diagnose`."""
    # A job makes the same few kinds of calls: only these are kept, not hundreds of thousands of calls.
    made = {(keys[rank][group], p2p, op) for rank, dump in dumps.items() for group, p2p, op in _kinds_of_calls(dump)}
    uses = GroupUses(
        with_p2p=frozenset(group for group, p2p, _ in made if p2p),
        with_collectives=frozenset(group for group, p2p, op in made if not p2p and op.startswith(_NCCL)),
        with_early_ends=frozenset(group for group, p2p, op in made if not (p2p or ends_together(op))),
        only_pending=_hold_only_pending(dumps.values()),
        has_blocking_wait=any(map(_has_no_status, dumps.values())),
    )
    known = {} if readings is None else readings
    shared: dict[Numbered, Numbered] = {}
    for rank, dump in dumps.items():
        asked = keys[rank], uses.of(keys[rank])
        if rank not in known or known[rank].dump is not dump or known[rank].asked != asked:
            known[rank] = Reading(dump, asked, calls_of(rank, dump, *asked, shared))
    return {rank: known[rank].calls for rank in sorted(dumps)}


def _kinds_of_calls(dump: recorder.RecorderDump) -> set[tuple[int, bool, str]]:
    """Return the different calls of a dump: index of the group, whether it is point to point, and operation."""
    return {(call.group, call.p2p, call.op) for call in dump.calls}


def _hold_only_pending(dumps: Collection[recorder.RecorderDump]) -> bool:
    """Return whether no dump holds a call that is over, although calls came before those that they hold.

    Rings that are full of pending calls look like that, too. But the rings of a job have one size.
    """
    is_one_over = any(call.retired or call.state == recorder.CALL_STATE_COMPLETED for d in dumps for call in d.calls)
    sizes = {len(dump.calls) for dump in dumps if dump.has_wrapped or not dump.has_calls}
    return not is_one_over and (len(sizes) > 1 or any(dump.is_partial for dump in dumps))


def _has_no_status(dump: recorder.RecorderDump) -> bool:
    """Return whether several calls were made, and the status shows none of them."""
    statuses = [group.last_enqueued for group in dump.groups if group.has_status]
    return len(dump.calls) > 1 and bool(statuses) and max(statuses) < 0


def _distinct(causes: Iterable[Cause]) -> Iterator[Cause]:
    """Yield causes that say different things: one for all that is unknown, and one for each pair that exchanges data.

    Both sides of a transfer have a pending call, and there may be several transfers on the way.
    """
    seen = set()
    unknown: list[Cause] = []
    for cause in causes:
        if cause.kind == CauseKind.UNKNOWN:
            unknown.append(cause)
            continue
        shared = cause.call
        call = shared and (shared.group, shared.seq, shared.parties if not shared.seq else (), shared.sides)
        if (cause.kind, cause.ranks, call) not in seen:
            seen.add((cause.kind, cause.ranks, call))
            yield cause
    if unknown:
        suspects = {rank for cause in unknown for rank in cause.suspects}
        yield replace(unknown[0], suspects=tuple(sorted(suspects)))


def _has_moved(known: Evidence) -> bool:
    if known.dump is None or known.earlier is None:
        return False
    return _progress(known.dump) != _progress(known.earlier)


def _progress(dump: recorder.RecorderDump) -> tuple[object, ...]:
    """Return what changes when a rank makes a call, or when one of its calls advances."""
    done = sum(1 for call in dump.calls if call.retired or call.state == recorder.CALL_STATE_COMPLETED)
    status = [(group.last_enqueued, group.last_completed) for group in dump.groups if group.has_status]
    return max((call.order for call in dump.calls), default=-1), done, len(dump.calls), status


def _waits(found: list[SharedCall]) -> Iterator[Wait]:
    # A rank may have several equal transfers pending: the first one says it all.
    seen = set()
    for shared in found:
        alike = (shared.group, shared.seq, shared.op, shared.waiters, shared.missing, shared.unclear, shared.behind)
        if alike in seen:
            continue
        seen.add(alike)
        for rank in shared.waiters:
            for awaited in shared.missing:
                yield Wait(rank, awaited, shared, is_certain=True)
            for awaited in (*shared.unclear, *shared.behind):
                if awaited != rank:
                    yield Wait(rank, awaited, shared, is_certain=False)
