"""Values that the rules of messages refuse, and the spec of the run that the messages belong to."""

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

from holdfast_proto.v1 import store_pb2 as store

MessageT = TypeVar("MessageT", bound=Message)
RUN = "r"
HUGE = 2**63 - 1
UNKNOWN = 99
SPEC = store.RunSpec(run=RUN, nodes=2, ranks_per_node=2, mode=store.MODE_ACT, instance="i")


def set_field(path: str, value: object) -> Callable[[object], None]:
    """Return a function that sets a field of a message. ``a.0.b`` is field b of the first item of a."""
    *parents, name = path.split(".")

    def change(message: object) -> None:
        for parent in parents:
            message = message[int(parent)] if parent.isdecimal() else getattr(message, parent)  # type: ignore[index]
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        elif isinstance(value, dict):
            for key, item in value.items():
                getattr(message, name)[key] = item
        else:
            setattr(message, name, value)

    return change


def changed(good: MessageT, path: str, value: object) -> MessageT:
    """Return a copy of a message with another value of one field."""
    bad = type(good)()
    bad.CopyFrom(good)
    set_field(path, value)(bad)
    return bad
