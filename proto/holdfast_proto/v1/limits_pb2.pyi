from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_ANYTHING: _ClassVar[Kind]
    KIND_FINITE: _ClassVar[Kind]
    KIND_ANY_RANK: _ClassVar[Kind]
    KIND_REPORTS: _ClassVar[Kind]
    KIND_PID: _ClassVar[Kind]
    KIND_PHASE: _ClassVar[Kind]
    KIND_TIME_USE: _ClassVar[Kind]
    KIND_NAME: _ClassVar[Kind]
    KIND_LONG_NAME: _ClassVar[Kind]
    KIND_SHORT_LINE: _ClassVar[Kind]
    KIND_LINE: _ClassVar[Kind]
    KIND_NODE_NAME: _ClassVar[Kind]
    KIND_LOGGED_NAME: _ClassVar[Kind]
    KIND_FAULT_NAME: _ClassVar[Kind]
    KIND_QUANTITY: _ClassVar[Kind]
    KIND_ID: _ClassVar[Kind]
    KIND_STREAM_ID: _ClassVar[Kind]
    KIND_FILE: _ClassVar[Kind]
    KIND_BACKEND: _ClassVar[Kind]
    KIND_MODULE: _ClassVar[Kind]
    KIND_SOCKET: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
KIND_ANYTHING: Kind
KIND_FINITE: Kind
KIND_ANY_RANK: Kind
KIND_REPORTS: Kind
KIND_PID: Kind
KIND_PHASE: Kind
KIND_TIME_USE: Kind
KIND_NAME: Kind
KIND_LONG_NAME: Kind
KIND_SHORT_LINE: Kind
KIND_LINE: Kind
KIND_NODE_NAME: Kind
KIND_LOGGED_NAME: Kind
KIND_FAULT_NAME: Kind
KIND_QUANTITY: Kind
KIND_ID: Kind
KIND_STREAM_ID: Kind
KIND_FILE: Kind
KIND_BACKEND: Kind
KIND_MODULE: Kind
KIND_SOCKET: Kind
LIMITS_FIELD_NUMBER: _ClassVar[int]
limits: _descriptor.FieldDescriptor
LENIENT_FIELD_NUMBER: _ClassVar[int]
lenient: _descriptor.FieldDescriptor

class Limits(_message.Message):
    __slots__ = ("kind", "keys", "least", "most", "length", "required", "essential", "words")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    ESSENTIAL_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    kind: Kind
    keys: Kind
    least: float
    most: float
    length: int
    required: bool
    essential: bool
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[_Union[Kind, str]] = ..., keys: _Optional[_Union[Kind, str]] = ..., least: _Optional[float] = ..., most: _Optional[float] = ..., length: _Optional[int] = ..., required: bool = ..., essential: bool = ..., words: _Optional[_Iterable[str]] = ...) -> None: ...
