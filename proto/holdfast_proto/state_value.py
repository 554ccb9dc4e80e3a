"""What a node's key holds: its state, compressed.

The ranks of a node say much the same, so that their states take half the room of uncompressed ones.
"""

import zstandard
from google.protobuf.message import DecodeError

from holdfast_proto.limits import PROTOCOL
from holdfast_proto.v1 import store_pb2 as store

LARGEST_STATE_BYTES = 2**21
"""Of an uncompressed state. One of 16 ranks takes 10 kB, and 1 MiB if all of them have just left their last words."""

_compressor = zstandard.ZstdCompressor(level=1)
_decompressor = zstandard.ZstdDecompressor()


def write_state(state: store.NodeState) -> bytes:
    """Return the value of a node's key. The state gets the number of this protocol."""
    state.protocol = PROTOCOL
    return _compressor.compress(state.SerializeToString())


def read_state(data: bytes) -> store.NodeState:
    """Invert :func:`write_state`. Raises DecodeError if it is no state, or one of another version of Holdfast."""
    try:
        if zstandard.frame_content_size(data) > LARGEST_STATE_BYTES:  # the limit below is ignored then
            raise DecodeError(f"it would take more than {LARGEST_STATE_BYTES >> 20} MiB")
        state = store.NodeState.FromString(_decompressor.decompress(data, max_output_size=LARGEST_STATE_BYTES))
    except zstandard.ZstdError:
        raise DecodeError(f"its {len(data)} bytes are no NodeState of this version") from None
    if state.protocol != PROTOCOL:
        reason = f"the agent of node {state.node[:80]!r} speaks protocol {state.protocol}, and this daemon {PROTOCOL}"
        raise DecodeError(f"{reason}: install one version of Holdfast on all nodes")
    return state
