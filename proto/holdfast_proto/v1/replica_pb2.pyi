from holdfast_proto.v1 import limits_pb2 as _limits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaRequest(_message.Message):
    __slots__ = ("put", "get")
    PUT_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    put: ReplicaFile
    get: WantedReplica
    def __init__(self, put: _Optional[_Union[ReplicaFile, _Mapping]] = ..., get: _Optional[_Union[WantedReplica, _Mapping]] = ...) -> None: ...

class ReplicaFile(_message.Message):
    __slots__ = ("step", "rank", "index", "shard_bytes")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    step: int
    rank: int
    index: bytes
    shard_bytes: int
    def __init__(self, step: _Optional[int] = ..., rank: _Optional[int] = ..., index: _Optional[bytes] = ..., shard_bytes: _Optional[int] = ...) -> None: ...

class WantedReplica(_message.Message):
    __slots__ = ("step", "rank", "generation")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    step: int
    rank: int
    generation: int
    def __init__(self, step: _Optional[int] = ..., rank: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ReplicaAnswer(_message.Message):
    __slots__ = ("problem", "missing_base", "files", "held")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MISSING_BASE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    problem: str
    missing_base: int
    files: _containers.RepeatedCompositeFieldContainer[ReplicaFile]
    held: bool
    def __init__(self, problem: _Optional[str] = ..., missing_base: _Optional[int] = ..., files: _Optional[_Iterable[_Union[ReplicaFile, _Mapping]]] = ..., held: bool = ...) -> None: ...
