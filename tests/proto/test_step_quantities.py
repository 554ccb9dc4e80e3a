from holdfast_proto import vocabulary
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store


def test_means_are_all_fields_of_a_summary_that_hold_one() -> None:
    fields = store.StepSummary.DESCRIPTOR.fields
    means = [field.name for field in fields if field.message_type and field.message_type.name == "Mean"]
    assert sorted(means) == sorted(vocabulary.MEAN_FIELDS)


def test_every_quantity_is_a_field_of_a_ranks_record() -> None:
    assert {*vocabulary.MEAN_FIELDS, *vocabulary.WATCHED_FIELDS} <= {*session.StepRecord.DESCRIPTOR.fields_by_name}
