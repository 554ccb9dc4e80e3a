"""One tick of the core as a message: what the core was shown, as the difference to the tick before."""

import io
import json
from collections.abc import Iterator, Mapping

from google.protobuf import proto

from holdfast_core.model import Observation
from holdfast_daemon.replay.core_codec import decode_request, encode_request
from holdfast_proto.v1.recording_pb2 import RecordedTurn
from holdfast_proto.v1.store_pb2 import NodeState


def difference(before: Mapping[str, NodeState], now: float, observation: Observation) -> RecordedTurn:
    """Return an observation as a message, with only those nodes that differ from ``before``."""
    return RecordedTurn(
        now_unix_s=now,
        changed_nodes={name: node for name, node in observation.nodes.items() if before.get(name) != node},
        gone_nodes=sorted(before.keys() - observation.nodes.keys()),
        events=observation.events,
        requests=[json.dumps(encode_request(request)) for request in observation.requests],
    )


def observation_of(before: Mapping[str, NodeState], tick: RecordedTurn) -> Observation:
    """Invert :func:`difference`. Raises CodecError if the requests are of another version's core."""
    nodes = {name: node for name, node in before.items() if name not in tick.gone_nodes}
    nodes.update(tick.changed_nodes)
    requests = tuple(decode_request(json.loads(request)) for request in tick.requests)
    return Observation(nodes=nodes, events=tuple(tick.events), requests=requests)


def framed(tick: RecordedTurn) -> bytes:
    """Return a tick as it is written in a file: after its length."""
    buffer = io.BytesIO()
    proto.serialize_length_prefixed(tick, buffer)
    return buffer.getvalue()


def unframed(data: bytes) -> Iterator[RecordedTurn]:
    """Yield the ticks of a file. Raises DecodeError or ValueError if it is damaged."""
    stream = io.BytesIO(data)
    while (tick := proto.parse_length_prefixed(RecordedTurn, stream)) is not None:
        yield tick
