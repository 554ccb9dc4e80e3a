"""Ranks at the root of a hang, and runs in which nobody moves."""

from holdfast_daemon.core.naming import listed, ranks_named
from holdfast_daemon.core.texts import places
from holdfast_daemon.core.texts.activities import after_worker, does, does_at
from holdfast_daemon.core.texts.gpus import after
from holdfast_proto.v1 import store_pb2 as store

_RANKS_DESCRIBED = 3


def hang(verdict: store.Verdict) -> str:
    """Return what the ranks at the root do, the likeliest first, and who waits for it in which call."""
    first, *others = verdict.hang.ranks
    parts = [rank_line(first) + _waits(first, in_start=verdict.hang.in_start)]
    parts += [rank_line(rank, too=True) for rank in others[: _RANKS_DESCRIBED - 1]]
    rest = [rank.rank for rank in others[_RANKS_DESCRIBED - 1 :]]
    if rest:
        parts.append(
            f"{ranks_named(rest)} {'stands still on its own' if len(rest) == 1 else 'stand still on their own'}, too"
        )
    return "; ".join(parts)


def standstill(verdict: store.Verdict) -> str:
    """Return where most ranks stand still."""
    detail = verdict.standstill
    if detail.HasField("only"):
        return rank_line(detail.only)
    where = places.moment(detail.step, detail.phase)
    if detail.all_stopped:
        return f"all ranks are stopped, most of them {where}"
    who = "all ranks" if detail.most == detail.ranks else f"{detail.most} of {detail.ranks} ranks"
    return f"{who} make no progress {where}, and none is known to wait for another{_example(detail.example)}"


def _example(rank: store.HeldRank) -> str:
    """Return what one of the ranks does, if anything is known of it."""
    frame = f", at {rank.frame}" if rank.frame else ""
    is_known = rank.activity or rank.blocked_on.activity
    return f": rank {rank.rank} {does(rank.activity, rank.blocked_on)}{frame}" if is_known or frame else ""


def rank_line(rank: store.HeldRank, *, too: bool = False) -> str:
    """Return what one rank does, and where. ``too``: another rank was described before it."""
    also = ", too" if too else ""
    if rank.state == store.HELD_STATE_ENDED:
        return f"rank {rank.rank} ended while others still wait for it{also}"
    if rank.state == store.HELD_STATE_LEFT:
        return f"rank {rank.rank} has left training while others still wait for it{also}"
    frame = f", at {rank.frame}" if rank.frame else ""
    where = f"{places.moment(rank.step, rank.phase)}{frame}{also}"
    reason = after(rank.gpu_fault) or after_worker(rank.lost_worker)
    return f"rank {rank.rank} {does_at(rank.activity, rank.blocked_on, where)}{reason}"


def _waits(rank: store.HeldRank, *, in_start: bool) -> str:
    if not rank.HasField("missed"):
        return "; others wait in the start of torch.distributed" if in_start else ""
    waiters = rank.waiters
    who = f"rank {waiters[0]} waits" if len(waiters) == 1 else f"ranks {listed(waiters)} wait"
    elsewhere = f", {rank.elsewhere} elsewhere" if rank.elsewhere else ""
    return f"; {who} for it in {places.named(rank.missed)}{elsewhere}"
