"""The rank in the name of a file: that in the whole job, and no other one."""

import pytest

from holdfast_cli.analysis.dump_folder import NoRankError, rank_in


@pytest.mark.parametrize(
    "name",
    [
        "comm_lib_trace_rank_5",
        "rank-00005.flight_recorder_nccl.json",
        "rank5_host7.json",
        "job42_node0_local_rank_1_rank_5",
        "rank_5_local_rank_1",
        "rank5-localrank1-node-rank-0",
        "dp_rank_0_tp_rank_1_rank_5.json",
        "group_rank_2_role_rank_3_rank_5",
        "global_rank_5_local_rank_1",
        "http_rank_5",
        "node-1-rank-5",
        "host1.rank5.20260101",
        "rank_5_of_rank_5",
        "trace_5",
        "5.json.gz",
    ],
)
def test_it_is_the_rank_in_the_whole_job(name: str) -> None:
    assert rank_in(name) == 5


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("job42_node0_local_rank_1", "its name has a local rank alone, which is no rank in the whole job"),
        ("node_rank_1_local_rank_5_7", "its name has a node rank alone, which is no rank in the whole job"),
        ("TP-Rank-3.json", "its name has a tp rank alone, which is no rank in the whole job"),
        ("rank_1_rank_5", "its name has several ranks: 1, 5"),
        ("dump.json", "its name has no rank in it, as in rank-3.json"),
        ("rank.json", "its name has no rank in it, as in rank-3.json"),
        ("rank_\u00b2", "its name has no rank in it, as in rank-3.json"),
    ],
)
def test_a_name_that_does_not_say_it_is_refused(name: str, reason: str) -> None:
    with pytest.raises(NoRankError) as raised:
        rank_in(name)
    assert str(raised.value) == reason
