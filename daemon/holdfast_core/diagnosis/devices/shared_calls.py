"""Pending calls in which ranks meet: who has not made the call, who made another one, who cannot come to it yet."""

from collections.abc import Callable, Collection, Iterator, Mapping

from holdfast_core.diagnosis.devices.contradictions import held_alone
from holdfast_core.diagnosis.devices.rank_calls import Call, RankCalls, Transfer, Way
from holdfast_core.diagnosis.wait_for_graph import GroupKey, SharedCall

_OPPOSITE = {Way.SEND: Way.RECV, Way.RECV: Way.SEND}
_CALLS_FOLLOWED = 64
"""Most pending transfers of a rank that are looked at, the oldest first."""


def shared_calls(ranks: Mapping[int, RankCalls], dead: Collection[int]) -> list[SharedCall]:
    """Return all calls that are pending on some rank, collectives first."""
    found: dict[tuple[GroupKey, int], list[int]] = {}
    for rank, calls in ranks.items():
        if rank in dead:
            continue
        heads: dict[GroupKey, Call] = {}
        for call in calls.pending:
            if not call.is_p2p:
                heads.setdefault(call.group, call)
        for call in heads.values():
            found.setdefault((call.group, call.seq), []).append(rank)
    collectives = [_collective(ranks, dead, group, seq, waiters) for (group, seq), waiters in found.items()]
    return [*collectives, *_transfers(ranks, dead)]


def _collective(
    ranks: Mapping[int, RankCalls], dead: Collection[int], group: GroupKey, seq: int, waiters: list[int]
) -> SharedCall:
    missing, unclear = [], []
    calls: dict[int, Call] = {}
    for member in group[1]:
        known = ranks.get(member)
        call = known.at.get((group, seq)) if known is not None else None
        if call is not None:
            calls[member] = call
        arrived = known.arrived.get(group) if known is not None else None
        if member in dead and (call is None or not call.done):
            missing.append(member)
        elif arrived is None:
            unclear.append(member)
        elif arrived < seq:
            missing.append(member)
    op = next((call.op for member, call in calls.items() if member in waiters), "")
    pending = {member: call for member, call in calls.items() if not call.done}
    behind, inside, unstarted = _held(ranks, group, seq, pending, [*missing, *unclear])
    return SharedCall(
        group,
        seq,
        op,
        tuple(waiters),
        tuple(rank for rank in waiters if _is_front(ranks[rank], group, seq)),
        tuple(missing),
        tuple(unclear),
        _sides(calls),
        behind,
        inside,
        unstarted,
        is_held_alone=len(waiters) == 1 and (group, seq) == held_alone(waiters[0], ranks, dead),
    )


def _sides(calls: Mapping[int, Call]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the different calls among those of one number, and who made them; nothing if they are all alike."""
    sides: dict[str, list[int]] = {}
    for member, call in calls.items():
        if call.signature:
            sides.setdefault(call.signature, []).append(member)
    ordered = sorted(sides.items(), key=lambda side: (-len(side[1]), side[1]))
    return tuple((signature, tuple(members)) for signature, members in ordered) if len(ordered) > 1 else ()


def earlier_mismatch(ranks: Mapping[int, RankCalls], shared: SharedCall) -> SharedCall | None:
    """Return the first call before another one in which its members made different ones, None if there is none.

    NCCL may complete such calls all the same. From there on, the members no longer mean the same call by one number.
    """
    return _first_mismatch(ranks, shared, lambda seq: seq < shared.seq)


def later_mismatch(ranks: Mapping[int, RankCalls], shared: SharedCall) -> SharedCall | None:
    """Return the first call after another one in which its members made different ones, None if there is none.

    A sound program never makes such calls. Where the ring has lost what differs in that one, they show it.
    """
    return _first_mismatch(ranks, shared, lambda seq: seq > shared.seq)


def _first_mismatch(
    ranks: Mapping[int, RankCalls], shared: SharedCall, is_wanted: Callable[[int], bool]
) -> SharedCall | None:
    if not shared.seq:
        return None
    members = [rank for rank in shared.group[1] if rank in ranks]
    made: dict[int, dict[int, Call]] = {}
    for rank in members:
        for (group, seq), call in ranks[rank].at.items():
            if group == shared.group and is_wanted(seq):
                made.setdefault(seq, {})[rank] = call
    for seq in sorted(made):
        if sides := _sides(made[seq]):
            op = next(iter(made[seq].values())).op
            return SharedCall(shared.group, seq, op, shared.waiters, shared.fronts, sides=sides)
    return None


def _held(
    ranks: Mapping[int, RankCalls], group: GroupKey, seq: int, pending: Mapping[int, Call], absent: Collection[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the members that are behind, inside and unstarted: see :class:`SharedCall`."""
    started = [member for member, call in pending.items() if call.started]
    behind, inside, unstarted = [], [], []
    for member in group[1]:
        call, known = pending.get(member), ranks.get(member)
        if known is None or known.front is None or member in absent:
            continue
        if call is None:
            # Made and done, or no longer in the ring: then an older call may be in its way.
            first = known.first_pending_of(group)
            is_past = (group, seq) in known.at or (first is not None and first.seq > seq)
            if not is_past and not _is_front(known, group, seq):
                behind.append(member)
        elif call.started:
            continue
        elif known.front is not call or not known.front_is_certain:
            behind.append(member)
        elif call.inside:
            inside.append(member)
        elif call.started is False and started:
            unstarted.append(member)
    return tuple(behind), tuple(inside), tuple(unstarted)


def _is_front(calls: RankCalls, group: GroupKey, seq: int) -> bool:
    front = calls.front
    return front is not None and calls.front_is_certain and (front.group, front.seq) == (group, seq)


def _transfers(ranks: Mapping[int, RankCalls], dead: Collection[int]) -> Iterator[SharedCall]:
    for rank, calls in ranks.items():
        if rank in dead:
            continue
        for call in [call for call in calls.pending if call.is_p2p][:_CALLS_FOLLOWED]:
            missing, unclear, behind = _partners(ranks, dead, rank, call)
            if call is not calls.front or not calls.front_is_certain:
                behind.add(rank)
            yield SharedCall(
                call.group,
                0,
                call.op,
                (rank,),
                (rank,) if call is calls.front and calls.front_is_certain else (),
                tuple(sorted(missing)),
                tuple(sorted(unclear)),
                _sides_of_message(ranks, rank, call),
                behind=tuple(sorted(behind)),
                inside=(rank,) if call.inside and call is calls.front else (),
                is_counted=calls.counts_exact
                and all(ranks[transfer.peer].counts_exact for transfer in call.transfers if transfer.peer in ranks),
                peers=tuple(sorted({transfer.peer for transfer in call.transfers})),
            )


def _sides_of_message(ranks: Mapping[int, RankCalls], rank: int, call: Call) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return both sides of the first message of a call whose sizes in bytes differ, the smaller rank first."""
    for transfer in call.transfers:
        peer = ranks.get(transfer.peer)
        if peer is None or not (ranks[rank].counts_exact and peer.counts_exact):
            continue  # nothing shows which of the peer's messages it is
        for other in peer.pending:
            for part in other.transfers if other.group == call.group else ():
                is_its_part = (part.peer, part.way, part.number) == (rank, _OPPOSITE[transfer.way], transfer.number)
                if is_its_part and 0 < part.size_bytes != transfer.size_bytes > 0:
                    own, others = _message(rank, transfer), _message(transfer.peer, part)
                    return (own, others) if rank < transfer.peer else (others, own)
    return ()


def _message(rank: int, transfer: Transfer) -> tuple[str, tuple[int, ...]]:
    return f"a {transfer.way} of {transfer.size_bytes:,} bytes", (rank,)


def _partners(
    ranks: Mapping[int, RankCalls], dead: Collection[int], rank: int, call: Call
) -> tuple[set[int], set[int], set[int]]:
    """Return the peers of a pending call that certainly have not made their part, perhaps have not, and are behind."""
    missing: set[int] = set()
    unclear: set[int] = set()
    behind: set[int] = set()
    doubtful: set[int] = set()
    for transfer in call.transfers:
        peer = ranks.get(transfer.peer)
        if transfer.peer in dead:
            missing.add(transfer.peer)
        elif peer is None:
            unclear.add(transfer.peer)
        elif ranks[rank].counts_exact and peer.counts_exact:
            made = peer.transfers.get((call.group, _OPPOSITE[transfer.way], rank), 0)
            if made < transfer.number:
                missing.add(transfer.peer)
            elif _is_behind(peer, call.group, transfer, rank, exact=True):
                behind.add(transfer.peer)
        elif not any(_answers(call.group, transfer, rank, other) for other in peer.pending):
            # Its side is done, or it has not been made. One pending send means that the receive is missing; but in a
            # batch, any other transfer may be the one that is pending.
            doubtful.add(transfer.peer)
        elif _is_behind(peer, call.group, transfer, rank, exact=False):
            behind.add(transfer.peer)
    peers = {transfer.peer for transfer in call.transfers}
    hidden = any(ranks[peer].is_partial for peer in doubtful)
    if not hidden and (len(peers) == 1 or (len(doubtful) == 1 and not missing and not unclear)):
        missing |= doubtful
    else:
        unclear |= doubtful
    return missing, unclear, behind


def _answers(group: GroupKey, transfer: Transfer, rank: int, other: Call) -> bool:
    return other.group == group and any(
        part.peer == rank and part.way == _OPPOSITE[transfer.way] for part in other.transfers
    )


def _is_behind(peer: RankCalls, group: GroupKey, transfer: Transfer, rank: int, *, exact: bool) -> bool:
    """Return whether the peer has its part of a transfer pending after another call."""
    for other in peer.pending:
        if other.group != group:
            continue
        for part in other.transfers:
            is_its_part = part.peer == rank and part.way == _OPPOSITE[transfer.way]
            if is_its_part and (not exact or part.number == transfer.number):
                return other is not peer.front or not peer.front_is_certain
    return False
