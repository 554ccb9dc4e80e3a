"""The core's state and the requests to it as JSON."""

from typing import Any

from holdfast_core.detectors import registry
from holdfast_core.detectors.framework import Detector
from holdfast_core.model import CoreState, Request
from holdfast_daemon.replay.state_codec import Codec

_CODEC = Codec({Detector: {detector.name: detector for detector in registry.ALL}})


def encode_state(state: CoreState) -> Any:
    """Return a state as what json.dumps takes. Raises CodecError if it holds what cannot be carried."""
    return _CODEC.encode(state, CoreState)


def decode_state(data: Any) -> CoreState:
    """Invert :func:`encode_state`. Raises CodecError, also for the state of another version's core."""
    state: CoreState = _CODEC.decode(data, CoreState)
    return state


def encode_request(request: Request) -> Any:
    """Return an operator's request as what json.dumps takes."""
    return _CODEC.encode(request, Request)


def decode_request(data: Any) -> Request:
    """Invert :func:`encode_request`. Raises CodecError."""
    request: Request = _CODEC.decode(data, Request)
    return request
