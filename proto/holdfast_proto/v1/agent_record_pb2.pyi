from holdfast_proto.v1 import store_pb2 as _store_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentRecord(_message.Message):
    __slots__ = ("run", "node", "instance", "generation", "fence", "last_command", "ranks", "warm_parent_pid", "spec", "start", "rendezvous_pid", "rendezvous_start_ticks", "warm_parent_start_ticks", "command_number", "numbers_start", "restored_generation")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMAND_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WARM_PARENT_PID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_PID_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_START_TICKS_FIELD_NUMBER: _ClassVar[int]
    WARM_PARENT_START_TICKS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_START_FIELD_NUMBER: _ClassVar[int]
    RESTORED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    run: str
    node: str
    instance: str
    generation: int
    fence: int
    last_command: str
    ranks: _containers.RepeatedCompositeFieldContainer[RankRecord]
    warm_parent_pid: int
    spec: _store_pb2.RunSpec
    start: _store_pb2.StartGeneration
    rendezvous_pid: int
    rendezvous_start_ticks: int
    warm_parent_start_ticks: int
    command_number: int
    numbers_start: int
    restored_generation: int
    def __init__(self, run: _Optional[str] = ..., node: _Optional[str] = ..., instance: _Optional[str] = ..., generation: _Optional[int] = ..., fence: _Optional[int] = ..., last_command: _Optional[str] = ..., ranks: _Optional[_Iterable[_Union[RankRecord, _Mapping]]] = ..., warm_parent_pid: _Optional[int] = ..., spec: _Optional[_Union[_store_pb2.RunSpec, _Mapping]] = ..., start: _Optional[_Union[_store_pb2.StartGeneration, _Mapping]] = ..., rendezvous_pid: _Optional[int] = ..., rendezvous_start_ticks: _Optional[int] = ..., warm_parent_start_ticks: _Optional[int] = ..., command_number: _Optional[int] = ..., numbers_start: _Optional[int] = ..., restored_generation: _Optional[int] = ...) -> None: ...

class RankRecord(_message.Message):
    __slots__ = ("rank", "pid", "start_ticks", "exit")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    start_ticks: int
    exit: _store_pb2.RankExit
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., exit: _Optional[_Union[_store_pb2.RankExit, _Mapping]] = ...) -> None: ...
