from types import SimpleNamespace
from typing import Any

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.progress.point_to_point import PointToPointRecord
from holdfast_proto.v1.common_pb2 import DIRECTION_SEND


class Group:
    """A group that counts how often its sequence number is asked for."""

    group_name = "0"

    def __init__(self) -> None:
        self.asked = 0

    def _get_sequence_number_for_group(self) -> int:
        self.asked += 1
        return 0


def test_calls_on_a_gpu_are_passed_on_and_only_the_first_with_a_peer_is_noted_while_it_lasts() -> None:
    record, group, seen = PointToPointRecord(None, OnceLog()), Group(), list[list[object]]()

    def send(group: Any, tensors: Any, peer: int) -> str:
        seen.append(list(record.opening))
        return "work"

    call = record._wrap(send, DIRECTION_SEND)
    on_gpu = [SimpleNamespace(is_cpu=False)]
    assert [call(group, on_gpu, peer) for peer in (1, 1, 2)] == ["work"] * 3
    assert seen == [[("0", 1, DIRECTION_SEND)], [], [("0", 2, DIRECTION_SEND)]]
    assert (record.opening, group.asked) == ([], 0)
    assert record.advance() == []  # no channel: NCCL's recorder has these calls
