"""What the simulated ranks of benchmarks/agent.py report. No processes run here."""

from itertools import pairwise

from benchmarks.agent import BUSY, report_of, with_eight_groups
from benchmarks.control_plane_ranks.training_nodes import TrainingNodes
from holdfast_agent.processes.rank import STALLED_AFTER_S
from holdfast_agent.reports.message_checks import clean_report
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from tests.simulation.programs import Layout

LAYOUT = Layout(data=4, tensor=2, pipeline=2, experts=2, microbatches=8)


def reported(nodes: TrainingNodes, trained_s: float, finished_step: int | None) -> session.Report:
    rank = store.RankState()
    rank.CopyFrom(nodes.state_at(BUSY, trained_s, trained_s).ranks[3])
    return report_of(with_eight_groups(rank), finished_step).report


def test_an_agent_refuses_nothing_of_a_report() -> None:
    refused: list[str] = []
    report = reported(TrainingNodes(LAYOUT, 2.0, seed=1), 2.5, 50)
    clean_report(report, LAYOUT.world_size, refused.append, now_unix_s=1.0)
    assert refused == []
    assert len({group.group for group in report.progress.groups}) == 8
    assert [step.step for step in report.steps] == [50]


def test_the_ranks_never_seem_to_stand_still() -> None:
    nodes = TrainingNodes(LAYOUT, 2.0, seed=1)
    reports = [reported(nodes, number * STALLED_AFTER_S, None) for number in range(20)]
    assert all(before.progress != after.progress for before, after in pairwise(reports))
