from holdfast_proto.v1 import limits_pb2 as _limits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_STATE_UNSPECIFIED: _ClassVar[CallState]
    CALL_STATE_SCHEDULED: _ClassVar[CallState]
    CALL_STATE_STARTED: _ClassVar[CallState]
    CALL_STATE_COMPLETED: _ClassVar[CallState]
CALL_STATE_UNSPECIFIED: CallState
CALL_STATE_SCHEDULED: CallState
CALL_STATE_STARTED: CallState
CALL_STATE_COMPLETED: CallState

class RecordedGroup(_message.Message):
    __slots__ = ("name", "description", "member_runs", "has_status", "last_enqueued", "last_started", "last_completed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_RUNS_FIELD_NUMBER: _ClassVar[int]
    HAS_STATUS_FIELD_NUMBER: _ClassVar[int]
    LAST_ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    LAST_STARTED_FIELD_NUMBER: _ClassVar[int]
    LAST_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    member_runs: _containers.RepeatedScalarFieldContainer[int]
    has_status: bool
    last_enqueued: int
    last_started: int
    last_completed: int
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., member_runs: _Optional[_Iterable[int]] = ..., has_status: bool = ..., last_enqueued: _Optional[int] = ..., last_started: _Optional[int] = ..., last_completed: _Optional[int] = ...) -> None: ...

class RecordedCall(_message.Message):
    __slots__ = ("order", "group", "p2p", "seq", "p2p_seq", "op", "input_sizes", "output_sizes", "dtypes", "state", "retired", "created_ns", "timeout_ms", "frame")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    P2P_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    P2P_SEQ_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    INPUT_SIZES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SIZES_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    order: int
    group: int
    p2p: bool
    seq: int
    p2p_seq: int
    op: str
    input_sizes: str
    output_sizes: str
    dtypes: str
    state: CallState
    retired: bool
    created_ns: int
    timeout_ms: int
    frame: str
    def __init__(self, order: _Optional[int] = ..., group: _Optional[int] = ..., p2p: bool = ..., seq: _Optional[int] = ..., p2p_seq: _Optional[int] = ..., op: _Optional[str] = ..., input_sizes: _Optional[str] = ..., output_sizes: _Optional[str] = ..., dtypes: _Optional[str] = ..., state: _Optional[_Union[CallState, str]] = ..., retired: bool = ..., created_ns: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., frame: _Optional[str] = ...) -> None: ...

class RecorderDump(_message.Message):
    __slots__ = ("version", "groups", "calls", "has_calls", "is_partial", "has_wrapped", "has_unnamed_status", "bad_entries")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    HAS_CALLS_FIELD_NUMBER: _ClassVar[int]
    IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    HAS_WRAPPED_FIELD_NUMBER: _ClassVar[int]
    HAS_UNNAMED_STATUS_FIELD_NUMBER: _ClassVar[int]
    BAD_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    version: str
    groups: _containers.RepeatedCompositeFieldContainer[RecordedGroup]
    calls: _containers.RepeatedCompositeFieldContainer[RecordedCall]
    has_calls: bool
    is_partial: bool
    has_wrapped: bool
    has_unnamed_status: bool
    bad_entries: int
    def __init__(self, version: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[RecordedGroup, _Mapping]]] = ..., calls: _Optional[_Iterable[_Union[RecordedCall, _Mapping]]] = ..., has_calls: bool = ..., is_partial: bool = ..., has_wrapped: bool = ..., has_unnamed_status: bool = ..., bad_entries: _Optional[int] = ...) -> None: ...
