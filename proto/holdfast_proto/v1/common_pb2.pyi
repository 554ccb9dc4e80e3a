from holdfast_proto.v1 import limits_pb2 as _limits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_INIT: _ClassVar[Phase]
    PHASE_DATA: _ClassVar[Phase]
    PHASE_FORWARD_BACKWARD: _ClassVar[Phase]
    PHASE_OPTIMIZER: _ClassVar[Phase]
    PHASE_CHECKPOINT: _ClassVar[Phase]
    PHASE_EVAL: _ClassVar[Phase]
    PHASE_IDLE: _ClassVar[Phase]

class Activity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTIVITY_UNSPECIFIED: _ClassVar[Activity]
    ACTIVITY_STOPPED: _ClassVar[Activity]
    ACTIVITY_DATA: _ClassVar[Activity]
    ACTIVITY_USER_CODE: _ClassVar[Activity]
    ACTIVITY_GIL_HELD: _ClassVar[Activity]
    ACTIVITY_LOCK: _ClassVar[Activity]
    ACTIVITY_SYSTEM_CALL: _ClassVar[Activity]
    ACTIVITY_COLLECTIVE: _ClassVar[Activity]
    ACTIVITY_FILE_LOCK: _ClassVar[Activity]
    ACTIVITY_PIPE: _ClassVar[Activity]
    ACTIVITY_SOCKET: _ClassVar[Activity]
    ACTIVITY_PROCESS: _ClassVar[Activity]
    ACTIVITY_COMPILER: _ClassVar[Activity]
    ACTIVITY_DISK: _ClassVar[Activity]
    ACTIVITY_SLEEP: _ClassVar[Activity]

class Party(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTY_UNSPECIFIED: _ClassVar[Party]
    PARTY_ITSELF: _ClassVar[Party]
    PARTY_CHILD: _ClassVar[Party]
    PARTY_RANK: _ClassVar[Party]
    PARTY_STORE: _ClassVar[Party]
    PARTY_FOREIGN: _ClassVar[Party]

class RecorderSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECORDER_SOURCE_UNSPECIFIED: _ClassVar[RecorderSource]
    RECORDER_SOURCE_GENERIC: _ClassVar[RecorderSource]
    RECORDER_SOURCE_NCCL: _ClassVar[RecorderSource]
    RECORDER_SOURCE_BACKEND: _ClassVar[RecorderSource]
    RECORDER_SOURCE_NONE: _ClassVar[RecorderSource]

class OwnTimeSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OWN_TIME_SOURCE_UNSPECIFIED: _ClassVar[OwnTimeSource]
    OWN_TIME_SOURCE_HOST: _ClassVar[OwnTimeSource]
    OWN_TIME_SOURCE_EVENTS: _ClassVar[OwnTimeSource]
    OWN_TIME_SOURCE_NONE: _ClassVar[OwnTimeSource]

class Direction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECTION_UNSPECIFIED: _ClassVar[Direction]
    DIRECTION_SEND: _ClassVar[Direction]
    DIRECTION_RECV: _ClassVar[Direction]
PHASE_UNSPECIFIED: Phase
PHASE_INIT: Phase
PHASE_DATA: Phase
PHASE_FORWARD_BACKWARD: Phase
PHASE_OPTIMIZER: Phase
PHASE_CHECKPOINT: Phase
PHASE_EVAL: Phase
PHASE_IDLE: Phase
ACTIVITY_UNSPECIFIED: Activity
ACTIVITY_STOPPED: Activity
ACTIVITY_DATA: Activity
ACTIVITY_USER_CODE: Activity
ACTIVITY_GIL_HELD: Activity
ACTIVITY_LOCK: Activity
ACTIVITY_SYSTEM_CALL: Activity
ACTIVITY_COLLECTIVE: Activity
ACTIVITY_FILE_LOCK: Activity
ACTIVITY_PIPE: Activity
ACTIVITY_SOCKET: Activity
ACTIVITY_PROCESS: Activity
ACTIVITY_COMPILER: Activity
ACTIVITY_DISK: Activity
ACTIVITY_SLEEP: Activity
PARTY_UNSPECIFIED: Party
PARTY_ITSELF: Party
PARTY_CHILD: Party
PARTY_RANK: Party
PARTY_STORE: Party
PARTY_FOREIGN: Party
RECORDER_SOURCE_UNSPECIFIED: RecorderSource
RECORDER_SOURCE_GENERIC: RecorderSource
RECORDER_SOURCE_NCCL: RecorderSource
RECORDER_SOURCE_BACKEND: RecorderSource
RECORDER_SOURCE_NONE: RecorderSource
OWN_TIME_SOURCE_UNSPECIFIED: OwnTimeSource
OWN_TIME_SOURCE_HOST: OwnTimeSource
OWN_TIME_SOURCE_EVENTS: OwnTimeSource
OWN_TIME_SOURCE_NONE: OwnTimeSource
DIRECTION_UNSPECIFIED: Direction
DIRECTION_SEND: Direction
DIRECTION_RECV: Direction

class BlockedOn(_message.Message):
    __slots__ = ("activity", "call", "path", "party", "pid", "command", "peer", "rank", "thread", "next")
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    activity: Activity
    call: str
    path: str
    party: Party
    pid: int
    command: str
    peer: str
    rank: int
    thread: str
    next: BlockedOn
    def __init__(self, activity: _Optional[_Union[Activity, str]] = ..., call: _Optional[str] = ..., path: _Optional[str] = ..., party: _Optional[_Union[Party, str]] = ..., pid: _Optional[int] = ..., command: _Optional[str] = ..., peer: _Optional[str] = ..., rank: _Optional[int] = ..., thread: _Optional[str] = ..., next: _Optional[_Union[BlockedOn, _Mapping]] = ...) -> None: ...

class GroupProgress(_message.Message):
    __slots__ = ("group", "member_runs", "enqueued", "completed", "description", "source", "started")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_RUNS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_runs: _containers.RepeatedScalarFieldContainer[int]
    enqueued: int
    completed: int
    description: str
    source: RecorderSource
    started: int
    def __init__(self, group: _Optional[str] = ..., member_runs: _Optional[_Iterable[int]] = ..., enqueued: _Optional[int] = ..., completed: _Optional[int] = ..., description: _Optional[str] = ..., source: _Optional[_Union[RecorderSource, str]] = ..., started: _Optional[int] = ...) -> None: ...

class Recorder(_message.Message):
    __slots__ = ("source", "backend", "full_dumps")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    FULL_DUMPS_FIELD_NUMBER: _ClassVar[int]
    source: RecorderSource
    backend: str
    full_dumps: bool
    def __init__(self, source: _Optional[_Union[RecorderSource, str]] = ..., backend: _Optional[str] = ..., full_dumps: bool = ...) -> None: ...

class ChannelProgress(_message.Message):
    __slots__ = ("group", "peer", "direction", "enqueued", "completed")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    group: str
    peer: int
    direction: Direction
    enqueued: int
    completed: int
    def __init__(self, group: _Optional[str] = ..., peer: _Optional[int] = ..., direction: _Optional[_Union[Direction, str]] = ..., enqueued: _Optional[int] = ..., completed: _Optional[int] = ...) -> None: ...

class PendingCall(_message.Message):
    __slots__ = ("rank", "group", "seq", "op", "sizes", "dtypes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    group: str
    seq: int
    op: str
    sizes: str
    dtypes: str
    def __init__(self, rank: _Optional[int] = ..., group: _Optional[str] = ..., seq: _Optional[int] = ..., op: _Optional[str] = ..., sizes: _Optional[str] = ..., dtypes: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "phase", "groups", "channels", "device_groups")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    step: int
    phase: Phase
    groups: _containers.RepeatedCompositeFieldContainer[GroupProgress]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelProgress]
    device_groups: _containers.RepeatedCompositeFieldContainer[GroupProgress]
    def __init__(self, step: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., groups: _Optional[_Iterable[_Union[GroupProgress, _Mapping]]] = ..., channels: _Optional[_Iterable[_Union[ChannelProgress, _Mapping]]] = ..., device_groups: _Optional[_Iterable[_Union[GroupProgress, _Mapping]]] = ...) -> None: ...

class LoggedNumber(_message.Message):
    __slots__ = ("name", "value", "step", "rank")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    step: int
    rank: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...
