from holdfast_proto.v1 import limits_pb2 as _limits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MeetingRecord(_message.Message):
    __slots__ = ("node", "process", "address", "waiting", "round", "written_unix_s", "nodes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    node: str
    process: str
    address: str
    waiting: bool
    round: int
    written_unix_s: float
    nodes: int
    def __init__(self, node: _Optional[str] = ..., process: _Optional[str] = ..., address: _Optional[str] = ..., waiting: bool = ..., round: _Optional[int] = ..., written_unix_s: _Optional[float] = ..., nodes: _Optional[int] = ...) -> None: ...

class MeetingWorld(_message.Message):
    __slots__ = ("round", "members", "store_port", "closed_by")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_BY_FIELD_NUMBER: _ClassVar[int]
    round: int
    members: _containers.RepeatedCompositeFieldContainer[MeetingMember]
    store_port: int
    closed_by: str
    def __init__(self, round: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MeetingMember, _Mapping]]] = ..., store_port: _Optional[int] = ..., closed_by: _Optional[str] = ...) -> None: ...

class MeetingMember(_message.Message):
    __slots__ = ("node", "process", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: str
    process: str
    address: str
    def __init__(self, node: _Optional[str] = ..., process: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...
