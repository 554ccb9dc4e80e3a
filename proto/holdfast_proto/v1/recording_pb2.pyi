from holdfast_proto.v1 import store_pb2 as _store_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordedTurn(_message.Message):
    __slots__ = ("now_unix_s", "changed_nodes", "gone_nodes", "events", "requests")
    class ChangedNodesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _store_pb2.NodeState
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_store_pb2.NodeState, _Mapping]] = ...) -> None: ...
    NOW_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    CHANGED_NODES_FIELD_NUMBER: _ClassVar[int]
    GONE_NODES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    now_unix_s: float
    changed_nodes: _containers.MessageMap[str, _store_pb2.NodeState]
    gone_nodes: _containers.RepeatedScalarFieldContainer[str]
    events: _containers.RepeatedCompositeFieldContainer[_store_pb2.Event]
    requests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, now_unix_s: _Optional[float] = ..., changed_nodes: _Optional[_Mapping[str, _store_pb2.NodeState]] = ..., gone_nodes: _Optional[_Iterable[str]] = ..., events: _Optional[_Iterable[_Union[_store_pb2.Event, _Mapping]]] = ..., requests: _Optional[_Iterable[str]] = ...) -> None: ...
