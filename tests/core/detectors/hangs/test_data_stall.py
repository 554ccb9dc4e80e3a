"""A rank that gets no data."""

from holdfast_core.detectors.hangs.root_ranks import DataStall, HungCollective
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import Ranks, hung_in_one_group


def test_a_root_that_waits_for_data_is_a_data_stall_and_no_hang() -> None:
    ranks = hung_in_one_group().set(1, phase=common.PHASE_DATA)
    verdict = ranks.found(DataStall())
    assert (verdict.kind, list(verdict.culprits)) == (store.VERDICT_KIND_DATA_STALL, [1])
    assert verdict.message.startswith("rank 1 waits for data in data of step 50; ranks 0, 2, 3 wait for it")
    assert ranks.verdict(HungCollective()) is None


def test_a_stack_within_the_data_loader_shows_it_in_any_phase() -> None:
    ranks = hung_in_one_group().stack(1, common.ACTIVITY_DATA, "__next__ (loader.py:9)")
    assert ranks.verdict(DataStall()) is not None


def test_a_rank_that_waits_in_a_collective_of_its_data_phase_does_not_wait_for_data() -> None:
    ranks = hung_in_one_group().set(1, phase=common.PHASE_DATA).stack(1, common.ACTIVITY_COLLECTIVE)
    assert ranks.verdict(DataStall()) is None
    assert ranks.verdict(HungCollective()) is not None


def test_all_ranks_without_data_are_named() -> None:
    assert Ranks().set(*range(4), phase=common.PHASE_DATA).culprits(DataStall()) == [0, 1, 2, 3]


def test_data_that_others_wait_for_too_briefly_is_no_stall() -> None:
    ranks = hung_in_one_group().set(1, phase=common.PHASE_DATA).set(1, stalled_s=1.0)
    assert ranks.verdict(DataStall()) is None
