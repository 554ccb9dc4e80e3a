"""A field that no rule names is checked by its type and its name. Rules name fields that exist."""

import math

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from holdfast_daemon.validation.message_rules import OF_ANY_RUN, check_event
from holdfast_proto.checks.value_rules import Range, RefusedError
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.validation.bad_values import HUGE, SPEC, changed
from tests.daemon.validation.test_event_rules import good_event

ROOTS = (
    store.Event,
    store.RunSpec,
    store.CoordinatorState,
    store.Incident,
    store.NodeState,
    session.RankMessage,
    control.InjectFaultRequest,
)


def checked_messages() -> dict[str, Descriptor]:
    """Return all types of messages that are in those that the store holds, by name."""
    found: dict[str, Descriptor] = {}
    left = [root.DESCRIPTOR for root in ROOTS]
    while left:
        one = left.pop()
        if one.name not in found and not one.GetOptions().map_entry:
            found[one.name] = one  # type: ignore[assignment]
            left += [field.message_type for field in one.fields if field.message_type is not None]
    return found


def test_each_rule_of_a_whole_message_is_of_one_that_is_checked() -> None:
    assert OF_ANY_RUN.wholes.keys() <= checked_messages().keys()


def test_a_value_that_is_not_set_is_in_the_range_of_its_number() -> None:
    for message in checked_messages().values():
        for name, rule in OF_ANY_RUN.plan_of(message).rules.items():
            assert not isinstance(rule, Range) or rule.least <= 0 <= rule.most, (message.name, name)


HELD = store.HeldRank(rank=1, blocked_on=common.BlockedOn(pid=1))
UNNAMED = [
    (store.RunSpec(run="r", nodes=1, instance="i"), "notify.min_interval_s", math.nan, "notify.min_interval_s is nan"),
    (store.CoordinatorState(phase=store.RUN_PHASE_WAITING), "history.since_unix_s", -1.0, "history.since_unix_s is"),
    (store.CoordinatorState(phase=store.RUN_PHASE_WAITING), "history.parent_step", -2, "history.parent_step is -2"),
    (store.CoordinatorState(phase=store.RUN_PHASE_WAITING), "reads_incident", "../x", "reads_incident is"),
    (store.RankState(), "life", 99, "life is 99: 0 to 3 is expected"),
    (store.CheckpointCommitted(step=1), "stored_bytes", HUGE, "stored_bytes is"),
    (store.HangDetail(ranks=[HELD]), "ranks.0.rank", 2**20, "ranks.rank is 1048576"),
    (store.HangDetail(ranks=[HELD]), "ranks.0.waiters", [0, 2**20], "ranks.waiters is 1048576"),
    (store.HangDetail(ranks=[HELD]), "ranks.0.blocked_on.pid", 2**23, "ranks.blocked_on.pid is"),
    (store.DataShareDetail(), "share_ratio", math.inf, "share_ratio is inf"),
]


@pytest.mark.parametrize(("good", "path", "value", "text"), UNNAMED, ids=lambda value: repr(value)[:40])
def test_a_field_that_no_rule_names_is_checked_by_its_type_and_name(
    good: Message, path: str, value: object, text: str
) -> None:
    OF_ANY_RUN.check(good)
    with pytest.raises(RefusedError, match=f"^{text}"):
        OF_ANY_RUN.check(changed(good, path, value))


def test_a_list_of_ranks_is_bounded_by_the_world_and_no_value_in_it_is_overlooked() -> None:
    event = good_event("step_summary")
    for ranks in ([0, 4, 1], [4], [0, 1, 2, 3, 2**32 - 1]):
        event.step_summary.replicas[0].ranks[:] = ranks
        with pytest.raises(RefusedError, match=r"^step_summary\.replicas\.ranks is"):
            check_event(event, SPEC)


def test_a_fault_that_is_answered_for_is_named() -> None:
    with pytest.raises(RefusedError, match="fault is missing"):
        check_event(store.Event(node="a", fault_refused=store.FaultRefused(reason="x")), SPEC)
