"""Names the calls that have been pending for half a second, from a full dump of the Flight Recorder."""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast_proto.black_box import BlackBoxWriter, NamedCall
from holdfast_proto.v1.common_pb2 import PendingCall

LONG_S = 0.5
"""Time without progress after which a group's pending calls are named."""
_CALLS_PER_GROUP = 8
_DUMP_SHARE = 20
"""A dump may take one twentieth of the time since the one before: a dump of a full recorder takes 0.1 s."""

Seqs = tuple[int, int]
"""Newest enqueued and newest completed seq."""


class PendingCalls:
    """Names the calls that a rank has enqueued and not completed, group by group. Reporter thread only.

    One dump names the calls of every group that is stuck. The names hold until the group makes progress.
    """

    def __init__(self, black_box: BlackBoxWriter | None) -> None:
        self._black_box = black_box
        self._since: dict[str, tuple[Seqs, float]] = {}
        self._named: dict[str, list[NamedCall]] = {}
        self._next_dump_s = 0.0

    @property
    def calls(self) -> list[PendingCall]:
        """Pending calls with a name, without the rank."""
        named = [call for calls in self._named.values() for call in calls]
        return [
            PendingCall(group=call.group, seq=call.seq, op=call.op, sizes=call.sizes, dtypes=call.dtypes)
            for call in named
        ]

    def observe(self, seqs: Mapping[str, Seqs], now_s: float) -> bool:
        """Note a poll of all groups; return whether a full dump should name pending calls."""
        pending = {key: pair for key, pair in seqs.items() if pair[0] > pair[1]}
        known = self._since
        self._since = {
            key: known[key] if key in known and known[key][0] == pair else (pair, now_s)
            for key, pair in pending.items()
        }
        moved = [key for key in self._named if self._since.get(key) != known.get(key)]
        for key in moved:
            del self._named[key]
        if moved:
            self._keep()
        stuck = [key for key, (_, since_s) in self._since.items() if now_s - since_s >= LONG_S]
        return now_s >= self._next_dump_s and any(key not in self._named for key in stuck)

    def name(self, entries: Mapping[str, list[dict[str, Any]]], *, began_s: float, ended_s: float) -> None:
        """Name pending calls from the collectives of a full dump, by group and oldest first, and its times."""
        self._next_dump_s = ended_s + _DUMP_SHARE * (ended_s - began_s)
        for key, ((_, completed), since_s) in self._since.items():
            if began_s - since_s >= LONG_S:
                self._named[key] = _pending(entries.get(key, ()), completed)
        self._keep()

    def name_last(self, entries: Mapping[str, list[dict[str, Any]]]) -> None:
        """Name all pending calls and the newest call of all, which may be the one whose failure ends this rank."""
        self._named = {key: _pending(entries.get(key, ()), pair[1]) for key, (pair, _) in self._since.items()}
        newest = max(entries, key=lambda key: entries[key][-1]["record_id"], default=None)
        if newest is not None and not self._named.get(newest):
            self._named[newest] = [_named(entries[newest][-1])]
        self._keep()

    def _keep(self) -> None:
        if self._black_box is not None:
            self._black_box.pending([call for calls in self._named.values() for call in calls])


def _pending(entries: Iterable[dict[str, Any]], completed: int) -> list[NamedCall]:
    calls = [entry for entry in entries if not entry["retired"] and entry["collective_seq_id"] > completed]
    return [_named(entry) for entry in calls[:_CALLS_PER_GROUP]]


def _named(entry: dict[str, Any]) -> NamedCall:
    return NamedCall(
        group=entry["process_group"][0],
        seq=entry["collective_seq_id"],
        op=entry["profiling_name"],
        sizes=str(entry["input_sizes"]),
        dtypes=str(entry["input_dtypes"]),
    )
