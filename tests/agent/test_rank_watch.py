"""What an agent makes of the black box of a rank: there, not there yet, or of another version."""

import os
from pathlib import Path

import pytest

from holdfast_agent.blocking import stall_watch
from holdfast_agent.rank_watch import RankWatch
from holdfast_proto.black_box import SIZE, BlackBoxWriter
from tests.support.nodes import RecordedNode, begin, make_node

OF_ANOTHER_VERSION = b"HFBBOX\x00\x02" + bytes(SIZE - 8)


@pytest.fixture
def node(tmp_path: Path) -> RecordedNode:
    node = make_node(tmp_path)
    begin(node, 1, {0: os.getpid()})
    node.options.black_box(1, 0).parent.mkdir(parents=True)
    return node


def step_in_box(node: RecordedNode) -> int | None:
    box = RankWatch(node, node.saver, node.link.emit).black_box_of(node.ranks[0])
    return None if box is None else box.step


def look(node: RecordedNode) -> stall_watch.RankLook:
    return stall_watch._look_at(node.ranks[0], node.options.black_box(1, 0), {})


def test_the_box_of_a_rank_is_read(node: RecordedNode) -> None:
    BlackBoxWriter(node.options.black_box(1, 0), run="run", generation=1, rank=0, world_size=1).moment(7, 3, 99)
    assert step_in_box(node) == 7
    seen = look(node)
    assert seen.moment is not None and (seen.moment.step, seen.flaw) == (7, "")


@pytest.mark.parametrize("size", [0, 64, SIZE])
def test_a_box_that_its_rank_has_not_filled_is_no_flaw(node: RecordedNode, size: int) -> None:
    node.options.black_box(1, 0).write_bytes(bytes(size))
    assert step_in_box(node) is None
    assert (look(node).moment, look(node).flaw) == (None, "")
    assert not node.errors.refused["files"]


def test_a_box_of_another_version_is_refused_and_says_so(node: RecordedNode, caplog: pytest.LogCaptureFixture) -> None:
    node.options.black_box(1, 0).write_bytes(OF_ANOTHER_VERSION)
    assert step_in_box(node) is None
    assert node.errors.refused["files"] == 1
    assert "not a black box of this version" in caplog.text
    assert "not a black box of this version" in look(node).flaw
