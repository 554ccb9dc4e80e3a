from holdfast_proto.v1 import common_pb2 as _common_pb2
from holdfast_proto.v1 import limits_pb2 as _limits_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fault(_message.Message):
    __slots__ = ("kind", "rank", "step", "phase", "duration_s", "factor", "seed")
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    rank: int
    step: int
    phase: _common_pb2.Phase
    duration_s: float
    factor: float
    seed: int
    def __init__(self, kind: _Optional[str] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[_common_pb2.Phase, str]] = ..., duration_s: _Optional[float] = ..., factor: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...
