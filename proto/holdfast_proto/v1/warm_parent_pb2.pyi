from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ParentRequest(_message.Message):
    __slots__ = ("fork", "preload", "host_store", "leave")
    FORK_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    HOST_STORE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    fork: Fork
    preload: Preload
    host_store: HostStore
    leave: Leave
    def __init__(self, fork: _Optional[_Union[Fork, _Mapping]] = ..., preload: _Optional[_Union[Preload, _Mapping]] = ..., host_store: _Optional[_Union[HostStore, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class ParentReply(_message.Message):
    __slots__ = ("ready", "forked", "exited", "store_ready")
    READY_FIELD_NUMBER: _ClassVar[int]
    FORKED_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    STORE_READY_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    forked: Forked
    exited: Exited
    store_ready: StoreReady
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., forked: _Optional[_Union[Forked, _Mapping]] = ..., exited: _Optional[_Union[Exited, _Mapping]] = ..., store_ready: _Optional[_Union[StoreReady, _Mapping]] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("generation", "rank", "command", "environment", "log_path")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    LOG_PATH_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    command: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    log_path: str
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., log_path: _Optional[str] = ...) -> None: ...

class Preload(_message.Message):
    __slots__ = ("modules",)
    MODULES_FIELD_NUMBER: _ClassVar[int]
    modules: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, modules: _Optional[_Iterable[str]] = ...) -> None: ...

class HostStore(_message.Message):
    __slots__ = ("generation", "address")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    address: str
    def __init__(self, generation: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ready(_message.Message):
    __slots__ = ("pid", "children", "import_s")
    PID_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    IMPORT_S_FIELD_NUMBER: _ClassVar[int]
    pid: int
    children: _containers.RepeatedCompositeFieldContainer[Forked]
    import_s: float
    def __init__(self, pid: _Optional[int] = ..., children: _Optional[_Iterable[_Union[Forked, _Mapping]]] = ..., import_s: _Optional[float] = ...) -> None: ...

class Forked(_message.Message):
    __slots__ = ("generation", "rank", "pid")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    pid: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class Exited(_message.Message):
    __slots__ = ("generation", "rank", "pid", "wait_status")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    WAIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    pid: int
    wait_status: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., wait_status: _Optional[int] = ...) -> None: ...

class StoreReady(_message.Message):
    __slots__ = ("generation", "port", "pid")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    generation: int
    port: int
    pid: int
    def __init__(self, generation: _Optional[int] = ..., port: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...
