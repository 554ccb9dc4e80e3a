"""The call in which ranks were aborted because they got more than they expected.

Gloo names neither the call nor the sender when it aborts a receiver. Those that were in the call with it have lost a
peer a moment later, and name the call that this ended. Who is wrong follows from who was aborted:

* all but one: that one has sent more than all others expected; of a group of two, either may be wrong;
* several, and others were not: who brings another size than all others sends too much to one neighbour, or gets too
  much from one, so that it is among those that were aborted;
* one of many: it made another call than all others, which name the same one, or brought less than they.

The others may have completed that call and wait for the aborted rank in a later one. If a single rank was aborted, this
shows if the later call is too small: one of the others was the sender, and their recorders name their inputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast_core.detectors.deaths import death
from holdfast_core.detectors.deaths.peer_loss import bytes_expected_and_got
from holdfast_core.detectors.view import View
from holdfast_core.diagnosis.operations import input_bytes
from holdfast_proto.member_runs import members_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

NAMES_PATIENCE_S = 1.0
"""Until ranks that lost a peer which was aborted for a size have said in which calls they were."""


@dataclass(frozen=True)
class AbortedCall:
    """A call that brought some more than they expected."""

    call: common.PendingCall
    """As the first of ``others`` names it."""
    aborted: tuple[int, ...]
    """The likeliest culprit first."""
    others: tuple[int, ...]
    """All other members, ascending: they have named the call."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks that may have called with another size than the others."""
        if len(self.others) > 1:
            return self.aborted
        return self.others if len(self.aborted) > 1 else tuple(sorted((*self.others, *self.aborted)))


def names_are_in(view: View) -> bool:
    """Whether ranks have been aborted for a size, and the others have said in which calls they were with them."""
    if not _victims(view):
        return False
    return len(view.world.ended) == view.world_size or view.now - view.first_exit_unix_s >= NAMES_PATIENCE_S


def aborted_call(view: View) -> AbortedCall | None:
    """Return the call in which ranks were aborted for a size; None if the others do not report that they were in it."""
    victims = _victims(view)
    found = [one for number in sorted(view.ranks.keys() - victims.keys()) for one in _calls_of(view, number, victims)]
    # Who waits for a victim further on in its program has come to another moment of it.
    found.sort(key=lambda one: _moment(view.ranks[one.others[0]]) != _moment(view.ranks[one.aborted[0]]))
    return found[0] if found else None


def _victims(view: View) -> dict[int, store.RankExit]:
    exits = {number: rank.exit for number, rank in view.world.ended.items()}
    return {number: ended for number, ended in exits.items() if death.was_aborted_for_a_size(ended)}


def _calls_of(view: View, number: int, victims: dict[int, store.RankExit]) -> Iterator[AbortedCall]:
    """Yield the calls that a rank names and in which all members were that were not aborted."""
    groups = {group.group: group.member_runs for group in view.ranks[number].progress.groups}
    for call in view.ranks[number].pending:
        members = members_of(groups.get(call.group, ()))
        aborted = sorted(victims.keys() & set(members), key=lambda victim: (not _is_odd(victim, victims), victim))
        others = tuple(member for member in members if member not in victims)
        named = [one for other in others if (one := _named(view, other, call)) is not None]
        if not aborted or not others or len(named) < len(others):
            continue
        if len(aborted) > 1 or not _is_too_small(named, victims[aborted[0]]):
            yield AbortedCall(call, tuple(aborted), others)


def _is_too_small(named: Sequence[common.PendingCall], victim: store.RankExit) -> bool:
    """Whether a call cannot have brought a rank as much as it got.

    A member may pass on what it got of others, so that all inputs together are the most that it can send. What the
    aborted rank brought does not count: nobody has a reason to send a rank its own part back.
    """
    sizes, inputs = bytes_expected_and_got(victim.last_words), [input_bytes(one.sizes, one.dtypes) for one in named]
    return sizes is not None and 0 not in inputs and sum(inputs) < sizes[1]


def _named(view: View, number: int, call: common.PendingCall) -> common.PendingCall | None:
    """Return a call as a rank names it; None: it does not."""
    named = view.ranks[number].pending if number in view.ranks else ()
    return next((one for one in named if (one.group, one.seq) == (call.group, call.seq)), None)


def _is_odd(victim: int, victims: dict[int, store.RankExit]) -> bool:
    """Whether a rank was aborted by what another one expected to get: its own size was the wrong one."""
    sizes = {number: bytes_expected_and_got(ended.last_words) for number, ended in victims.items()}
    own = sizes.pop(victim)
    return own is not None and any(other is not None and other[0] == own[1] for other in sizes.values())


def _moment(rank: store.RankState) -> tuple[int, int]:
    at = rank.exit if rank.HasField("exit") else rank.progress
    return at.step, at.phase
