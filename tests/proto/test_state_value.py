"""The value of a node's key: what was written is read again, and anything else is refused with one line."""

import pytest
import zstandard
from google.protobuf.message import DecodeError

from holdfast_proto.limits import PROTOCOL
from holdfast_proto.state_value import LARGEST_STATE_BYTES, read_state, write_state
from holdfast_proto.v1 import store_pb2 as store


def test_a_state_comes_back_with_the_number_of_the_protocol() -> None:
    state = store.NodeState(node="n", ranks=[store.RankState(rank=rank) for rank in range(8)])
    read = read_state(write_state(state))
    assert read == state
    assert read.protocol == PROTOCOL


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"junk", "its 4 bytes are no NodeState of this version"),
        (store.NodeState(node="n").SerializeToString(), "its 3 bytes are no NodeState of this version"),
        (zstandard.compress(b"\xff"), "Error parsing"),
        (zstandard.compress(bytes(LARGEST_STATE_BYTES + 1)), "more than 2 MiB"),
        (
            zstandard.compress(store.NodeState(node="n", protocol=PROTOCOL + 1).SerializeToString()),
            f"the agent of node 'n' speaks protocol {PROTOCOL + 1}, and this daemon {PROTOCOL}: install one version",
        ),
    ],
    ids=["junk", "uncompressed", "compressed junk", "too large", "another protocol"],
)
def test_what_is_no_state_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        read_state(data)


def test_a_value_that_hides_its_size_is_not_unpacked_beyond_the_limit() -> None:
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(LARGEST_STATE_BYTES + 1))
    with pytest.raises(DecodeError):
        read_state(hidden)
