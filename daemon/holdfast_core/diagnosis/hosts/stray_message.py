"""A message that went to one rank while another one waits for it.

A send that nobody receives and a receive that nobody sends are each nothing special: schedules post ahead. Together,
with one rank in both and the run at a standstill, they show that a peer was named wrongly.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_Pair = tuple[str, int, int]
"""Group, sender, receiver."""


@dataclass(frozen=True)
class StrayMessage:
    """A message that was sent and is not received, and one that is awaited and was not sent."""

    group: str
    sender: int
    receiver: int
    """Rank that the message was sent to; it posts no receive for it."""
    sent: int
    """Number of the message in its channel."""
    waiter: int
    awaited: int
    """Rank from which ``waiter`` expects a message."""
    expected: int
    """Number of that message in its channel."""


def stray_message(ranks: Mapping[int, store.RankState], deadlock: Collection[int]) -> StrayMessage | None:
    """Return the first such pair among ranks that wait for each other; None: there is none.

    Either the sender is the same, and the message went to another rank than the one that waits; or the receiver is the
    same, and it waits for another rank than the one that has sent.
    """
    sent, posted = _newest(ranks, common.DIRECTION_SEND), _newest(ranks, common.DIRECTION_RECV)
    unsent = [pair for pair in sorted(posted) if posted[pair] > sent.get(pair, 0)]
    unreceived = [pair for pair in sorted(sent) if sent[pair] > posted.get(pair, 0)]
    return next(_strays(sent, posted, unsent, unreceived, deadlock), None)


def _strays(
    sent: Mapping[_Pair, int],
    posted: Mapping[_Pair, int],
    unsent: list[_Pair],
    unreceived: list[_Pair],
    deadlock: Collection[int],
) -> Iterator[StrayMessage]:
    for group, awaited, waiter in unsent:
        for other, sender, receiver in unreceived:
            is_misdirected = sender == awaited and sender in deadlock
            is_misread = receiver == waiter
            if group == other and waiter in deadlock and (is_misdirected or is_misread):
                yield StrayMessage(
                    group=group,
                    sender=sender,
                    receiver=receiver,
                    sent=posted.get((group, sender, receiver), 0) + 1,
                    waiter=waiter,
                    awaited=awaited,
                    expected=sent.get((group, awaited, waiter), 0) + 1,
                )


def _newest(ranks: Mapping[int, store.RankState], direction: "common.Direction") -> dict[_Pair, int]:
    is_send = direction == common.DIRECTION_SEND
    return {
        (one.group, number, one.peer) if is_send else (one.group, one.peer, number): one.enqueued
        for number, rank in ranks.items()
        for one in rank.progress.channels
        if one.direction == direction
    }
