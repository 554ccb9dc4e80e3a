"""The judge of benchmarks/detection.py knows the right verdict for a fault. No processes run here."""

from benchmarks.harmed_runs.fault_cases import Case
from benchmarks.harmed_runs.truth import judge
from holdfast_proto.v1 import store_pb2 as store


def lost_message(rank: int) -> Case:
    return Case(layout="pp4", fault="lost-message", rank=rank, phase=None, seed=1)


def transport(detail: store.TransportDetail) -> store.Verdict:
    return store.Verdict(kind=store.VERDICT_KIND_TRANSPORT, transport=detail)


def test_a_lost_message_is_one_of_the_rank_that_sent_it_or_waits_for_it() -> None:
    verdict = transport(store.TransportDetail(form=store.TRANSPORT_FORM_MESSAGE, sender=1, receiver=2))
    assert [judge(lost_message(rank), verdict, {}).rank for rank in range(4)] == [False, True, True, False]


def test_a_verdict_on_the_transport_that_names_no_sender_does_not_name_rank_0() -> None:
    verdict = transport(store.TransportDetail(form=store.TRANSPORT_FORM_CALL))
    judgement = judge(lost_message(0), verdict, {})
    assert (judgement.kind, judgement.rank) == (True, False)
