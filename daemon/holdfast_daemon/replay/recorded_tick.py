"""One tick of the core as a message: what the core was shown, as the difference to the one before; states as JSON."""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf import proto

from holdfast_base.text import reason_of
from holdfast_core.detectors import registry
from holdfast_core.detectors.framework import Detector
from holdfast_core.model import CoreState, Observation, Request
from holdfast_core.world import parts_of
from holdfast_daemon.replay.state_codec import Codec, CodecError
from holdfast_proto.v1.recording_pb2 import RecordedTurn
from holdfast_proto.v1.store_pb2 import NodeState

_CODEC = Codec({Detector: {detector.name: detector for detector in registry.ALL}})


def encode_state(state: CoreState) -> Any:
    """Return a state as what json.dumps takes. Raises CodecError if it holds what cannot be carried."""
    return _CODEC.encode(replace(state, parts={}), CoreState)  # the parts are read again from the nodes


def decode_state(data: Any) -> CoreState:
    """Invert :func:`encode_state`. Raises CodecError, also for the state of another version's core."""
    state: CoreState = _CODEC.decode(data, CoreState)
    return replace(state, parts=parts_of(state.nodes, {}))


def encode_request(request: Request) -> Any:
    """Return an operator's request as what json.dumps takes."""
    return _CODEC.encode(request, Request)


def decode_request(data: Any) -> Request:
    """Invert :func:`encode_request`. Raises CodecError."""
    request: Request = _CODEC.decode(data, Request)
    return request


def difference(before: Mapping[str, NodeState], now: float, observation: Observation) -> RecordedTurn:
    """Return an observation as a message, with only those nodes that differ from ``before``."""
    return RecordedTurn(
        now_unix_s=now,
        changed_nodes={
            name: node
            for name, node in observation.nodes.items()
            if (known := before.get(name)) is not node and known != node
        },
        gone_nodes=sorted(before.keys() - observation.nodes.keys()),
        events=observation.events,
        requests=[json.dumps(encode_request(request)) for request in observation.requests],
    )


def observation_of(before: Mapping[str, NodeState], tick: RecordedTurn) -> Observation:
    """Invert :func:`difference`. Raises CodecError if the requests are of another version's core."""
    nodes = {name: node for name, node in before.items() if name not in tick.gone_nodes}
    nodes.update(tick.changed_nodes)
    try:
        requests = tuple(decode_request(json.loads(request)) for request in tick.requests)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"a request in it is no JSON: {reason_of(error)}") from None
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
