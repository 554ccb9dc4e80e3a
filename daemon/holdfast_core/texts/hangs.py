"""Hangs: ranks at the root, who waits for whom, calls that all have entered, ranks that were ended for it."""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast_core.diagnosis.operations import has_root
from holdfast_core.naming import listed, ranks_named
from holdfast_core.texts import places
from holdfast_core.texts.activities import after_worker, does, does_at
from holdfast_core.texts.places import after
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


@dataclass(frozen=True)
class AwaitedCall:
    """A call in which others wait for one rank."""

    awaited: int
    group: str
    seq: int
    op: str
    waiters: tuple[int, ...]
    """Ranks that wait there, ascending: the first few of many."""
    number: int
    """Number of all ranks that wait there."""

    @property
    def line(self) -> str:
        """The wait in one line for people."""
        verb = "waits" if self.number == 1 else "wait"
        call = f"{self.op or 'call'} {self.seq} of {self.group}"
        return f"{ranks_named(self.waiters, self.number)} {verb} for rank {self.awaited} in {call}"


def awaited_calls(edges: Iterable[store.WaitEdge], first: Iterable[int] = ()) -> list[AwaitedCall]:
    """Return the calls of some waits: those in which ranks of ``first`` are awaited before others, else in their order.

    Waits of one call are one entry also where evidence has named the call of some of its ranks only.
    """
    calls: dict[tuple[int, str, int], list[store.WaitEdge]] = {}
    for edge in edges:
        calls.setdefault((edge.awaited, edge.group, edge.seq), []).append(edge)
    found = [_awaited_call(*call, alike) for call, alike in calls.items()]
    preferred = {rank: place for place, rank in enumerate(first)}
    return sorted(found, key=lambda call: preferred.get(call.awaited, len(preferred)))


def _awaited_call(awaited: int, group: str, seq: int, edges: list[store.WaitEdge]) -> AwaitedCall:
    waiters = tuple(sorted({edge.waiter for edge in edges}))
    number = max(len(waiters), *(edge.waiters for edge in edges))
    return AwaitedCall(awaited, group, seq, edges[0].op, waiters, number)


def ended(abort: store.HangAbort) -> str:
    """Return which processes are ended, and for what."""
    who = ", ".join(f"rank {rank.rank} (process {rank.pid} on {rank.node})" for rank in abort.ranks)
    line = f"ends {who}, so that the launcher ends or restarts the run"
    if abort.without_culprit:
        return f"{line}: no rank that can be ended is known to be the cause, and the end of any rank does that"
    return line


def reaction(abort: store.HangAbort) -> str:
    """Return what the launcher did after the ranks were ended."""
    if abort.reaction == store.LAUNCHER_REACTION_RESTARTED and not abort.generation:
        return f"the launcher started ranks again after {abort.after_s:.1f} s, and none of them has attached yet"
    if abort.reaction == store.LAUNCHER_REACTION_RESTARTED:
        return f"the launcher started generation {abort.generation} after {abort.after_s:.1f} s"
    return f"{launcher_end(abort.code)} after {abort.after_s:.1f} s"


def launcher_end(code: int) -> str:
    """Return how a launcher ended. ``code``: as in a shell."""
    return f"the launcher ended with exit code {code}"


def no_reaction(abort: store.HangAbort, alive: list[int], waited_s: float) -> str:
    """Return that the launcher does nothing. ``alive``: ranks that were to end and have not."""
    if alive:
        line = f"nothing happened for {waited_s:.0f} s: "
        return f"{line}{_ranks(alive)} did not end at SIGKILL: look at the agent's log and at the node"
    return idle_launcher(f"{_ranks([rank.rank for rank in abort.ranks])} did end, and the launcher", waited_s)


def idle_launcher(who: str, waited_s: float) -> str:
    """Return that a launcher does nothing about ranks that have ended. ``who``: it, as the subject of the sentence."""
    return f"nothing happened for {waited_s:.0f} s: {who} neither ends nor restarts the run: end it yourself"


def _ranks(numbers: list[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"


def transport(verdict: store.Verdict) -> str:
    """Return which call or making of a group does not come about, and between which nodes."""
    detail = verdict.transport
    nodes = f"{'node' if len(detail.nodes) == 1 else 'nodes'} {listed(detail.nodes)}"
    match detail.form:
        case store.TRANSPORT_FORM_NO_CONNECTION:
            return f"{nodes} cannot connect to node {detail.meeting_node}, where all ranks are to meet: {detail.said}"
        case store.TRANSPORT_FORM_NO_MEETING:
            unseen = detail.unseen_ranks
            doubt = f" (if none of the {unseen} ranks whose stacks were not taken is elsewhere)" if unseen else ""
            return f"{nodes} do not reach each other: ranks of each wait in init for others, and do not meet{doubt}"
    group = places.group(detail.call)
    cause = "transport or device, not a rank"
    if detail.form == store.TRANSPORT_FORM_MESSAGE:
        cause = "transport or device, or the two name different tags"  # no recorder has the tags
        sent = f"rank {detail.sender} has sent message {detail.call.seq} of {group}"
        what = f"{sent}, and it does not come to rank {detail.receiver}"
    else:
        what = f"all ranks of {group} have entered call {detail.call.seq}, and it does not complete"
        if has_root(detail.call.op):
            cause = "transport or device, or they name different roots"  # no recorder has the roots
    return f"{what}{_between(detail.nodes)}: {cause}"


def _between(nodes: Iterable[str]) -> str:
    names = list(nodes)
    return f" between nodes {listed(names)}" if len(names) > 1 else ""
