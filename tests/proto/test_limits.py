"""Limits that code needs, and that stand next to fields in the .proto files, are the same in both."""

import pytest
from google.protobuf.message import Message

from holdfast_proto import limits
from holdfast_proto.checks.message_checker import limits_of
from holdfast_proto.v1 import fault_pb2 as fault
from holdfast_proto.v1 import limits_pb2
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import MOST_BUDGET


@pytest.mark.parametrize(
    ("message", "field", "limit"),
    [
        (session.Report, "logged", limits_pb2.Limits(length=limits.MOST_LOGGED_NAMES)),
        (store.NumbersLogged, "numbers", limits_pb2.Limits(length=limits.MOST_LOGGED_NAMES)),
        (session.WitnessWords, "words", limits_pb2.Limits(length=limits.MOST_WITNESS_WORDS)),
        (store.LossRule, "budget", limits_pb2.Limits(most=MOST_BUDGET)),
        (fault.Fault, "duration_s", limits_pb2.Limits(least=-limits.LONGEST_S)),
    ],
)
def test_a_limit_is_the_same_for_code_and_messages(
    message: type[Message], field: str, limit: limits_pb2.Limits
) -> None:
    assert limits_of(message.DESCRIPTOR.fields_by_name[field]) == limit  # type: ignore[arg-type]
