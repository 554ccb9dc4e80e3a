"""A run as one of its nodes sees it in Redis: the verdicts on the whole run, and the ranks of this node.

It needs no daemon on this node. What it reads is small, because every node of a run reads it several times a second.
"""

import time
from typing import Any, TypeVar

import redis
from google.protobuf.message import DecodeError, Message

from holdfast_core.naming import incident_number
from holdfast_daemon.control.listed_ranks import rank_view
from holdfast_proto import keys
from holdfast_proto.run_key import ForgedError, Numbers, Seal
from holdfast_proto.state_value import read_state
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import CoordinatorState, EndAnnounced, Event, Incident, LauncherEnd, NodeState

_Message = TypeVar("_Message", bound=Message)


class StoreView:
    """Reads one start of a run. Every method raises redis.RedisError if Redis is unreachable."""

    def __init__(self, client: "redis.Redis", run: str, node: str, seal: Seal) -> None:
        """Read what is sealed with ``seal``: see RunKey.seal_of."""
        self._client: Any = client  # redis-py types its answers for the asynchronous client too
        self._run = run
        self._node = node
        self._seal = seal
        self._numbers: Numbers | None = None

    def status(self) -> RunStatus | None:
        """Return the run, or None before a daemon leads it. Its ranks are those of this node.

        A message that cannot be read is left out.
        """
        pipeline = self._client.pipeline(transaction=False)
        pipeline.get(keys.state(self._run))
        pipeline.hkeys(keys.incidents(self._run))
        pipeline.get(keys.node(self._run, self._node))
        record_data, names, node_data = pipeline.execute()
        if record_data is None:
            return None
        node = self._state(self._node, node_data)
        record = self._parsed(CoordinatorState(newest_step=-1), keys.state(self._run), record_data)
        status = RunStatus(
            run=self._run,
            phase=record.phase,
            generation=record.generation,
            newest_step=record.newest_step,
            newest_checkpoint=max(node.checkpoints, default=-1),
            newest_snapshot=-1,
            restarts=record.restarts_total,
            outcome=record.outcome,
            incidents=len(names),
            now_unix_s=time.time(),
            store_up=True,
            ranks=[rank_view(rank, self._node, rank.exit if rank.HasField("exit") else None) for rank in node.ranks],
            refused_ranks=filter(None, [node.refused_ranks]),
        )
        if record.loss_counts.HasField("nonfinite_since"):
            status.nonfinite_since = record.loss_counts.nonfinite_since
        if names:
            name = max(names, key=_number)
            newest = self._client.hget(keys.incidents(self._run), name)
            status.newest_incident.CopyFrom(self._incident(name, newest))
        return status

    def silent_nodes(self, observing: list[str]) -> list[str]:
        """Return those of the nodes that observe the run on which no rank has said hello."""
        states = self._client.mget([keys.node(self._run, name) for name in observing])
        heard = {name for name, data in zip(observing, states, strict=True) if self._state(name, data).generation}
        return [name for name in observing if name not in heard]

    def incidents(self) -> list[Incident]:
        """Return all incidents of the run, oldest first. One that cannot be read is left out."""
        found = self._client.hgetall(keys.incidents(self._run))
        read = (self._incident(name, found[name]) for name in sorted(found, key=_number))
        return [incident for incident in read if incident.id]

    def announce_end(self, within_s: float) -> None:
        """Tell the daemon that the ranks are about to end, so that it is no incident."""
        self._tell(Event(end_announced=EndAnnounced(within_s=within_s)))

    def tell_launcher_end(self, code: int) -> None:
        """Tell the daemon that the launcher of this node has ended. ``code``: its exit code as in a shell."""
        self._tell(Event(launcher_end=LauncherEnd(code=code)))

    def _tell(self, event: Event) -> None:
        event.node, event.unix_s = self._node, time.time()
        if self._numbers is None:
            seconds, microseconds = self._client.time()
            self._numbers = Numbers(seconds * 10**9 + microseconds * 1000)
        place = keys.events(self._run)
        sealed = self._seal.close(place, event.SerializeToString(), self._numbers.next())
        self._client.xadd(place, {"event": sealed})  # it is one of few: agents keep the stream short

    def _incident(self, name: bytes, data: bytes | None) -> Incident:
        return self._parsed(Incident(), keys.incident(self._run, name.decode(errors="replace")), data)

    def _state(self, node: str, data: bytes | None) -> NodeState:
        """Return the state of a node, or an empty one if there is none that is good."""
        try:
            return read_state(self._seal.open(keys.node(self._run, node), data).content) if data else NodeState()
        except (DecodeError, ForgedError):
            return NodeState()

    def _parsed(self, message: _Message, place: str, data: bytes | None) -> _Message:
        """Return ``message`` with the fields of ``data``, or as it is if there are none that are good."""
        try:
            message.MergeFromString(self._seal.open(place, data).content if data else b"")
        except (DecodeError, ForgedError):
            message.Clear()
        return message


def _number(name: bytes) -> int:
    return incident_number(name.decode(errors="replace"))
