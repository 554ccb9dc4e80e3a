"""One turn of the core as a message: what it was shown, as the difference to the turn before."""

import io
import json
from collections.abc import Iterator, Mapping

from google.protobuf import proto

from holdfast_daemon.core.model import Observation
from holdfast_daemon.replay.core_codec import decode_request, encode_request
from holdfast_proto.v1.recording_pb2 import RecordedTurn
from holdfast_proto.v1.store_pb2 import NodeState


def difference(before: Mapping[str, NodeState], now: float, observation: Observation) -> RecordedTurn:
    """Return what a turn saw of nodes that differs from ``before``, and all else that it saw."""
    return RecordedTurn(
        now_unix_s=now,
        changed_nodes={name: node for name, node in observation.nodes.items() if before.get(name) != node},
        gone_nodes=sorted(before.keys() - observation.nodes.keys()),
        events=observation.events,
        requests=[json.dumps(encode_request(request)) for request in observation.requests],
    )


def observation_of(before: Mapping[str, NodeState], turn: RecordedTurn) -> Observation:
    """Invert :func:`difference`. Raises CodecError if the requests are of another version's core."""
    nodes = {name: node for name, node in before.items() if name not in turn.gone_nodes}
    nodes.update(turn.changed_nodes)
    requests = tuple(decode_request(json.loads(request)) for request in turn.requests)
    return Observation(nodes=nodes, events=tuple(turn.events), requests=requests)


def framed(turn: RecordedTurn) -> bytes:
    """Return a turn as it stands in a file: after its length."""
    buffer = io.BytesIO()
    proto.serialize_length_prefixed(turn, buffer)
    return buffer.getvalue()


def unframed(data: bytes) -> Iterator[RecordedTurn]:
    """Yield the turns of a file. Raises DecodeError or ValueError if it is damaged."""
    stream = io.BytesIO(data)
    while (turn := proto.parse_length_prefixed(RecordedTurn, stream)) is not None:
        yield turn
