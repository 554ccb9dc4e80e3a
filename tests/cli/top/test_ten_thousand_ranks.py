"""Ten thousand ranks: a look brings the ranks around the screen, and only the lines on the screen are drawn."""

from collections.abc import Iterator

import pytest

from holdfast_cli.top.ranks.oddity import JudgedRanks
from holdfast_cli.top.ranks.rank_list import RankList
from holdfast_cli.top.run_looks import WHOLE_RUN
from holdfast_proto.v1.common_pb2 import RECORDER_SOURCE_BACKEND
from holdfast_proto.v1.control_pb2 import RANK_SORT_RANK, GetStatusRequest, RunStatus
from tests.cli.top.conftest import Watch
from tests.cli.top.scenes import wide
from tests.support.coroutines import until
from tests.support.statuses import killed

RANKS = 10_000


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ranks whose state was put in words."""
    seen: list[int] = []
    describe = JudgedRanks.state_text

    def noted(self: JudgedRanks, rank: object) -> str:
        seen.append(rank.number)  # type: ignore[attr-defined]
        return describe(self, rank)  # type: ignore[arg-type]

    monkeypatch.setattr(JudgedRanks, "state_text", noted)
    yield seen


@pytest.fixture
def status() -> RunStatus:
    """A healthy run, whose ranks have a little more to say than others."""
    status = wide(10, 125, 8)
    for rank in status.ranks:
        rank.recorders.add(source=RECORDER_SOURCE_BACKEND, backend="nccl", full_dumps=True)
        rank.own_time_reason = "no event has come from the GPU of this rank since it started"
    return status


async def test_looks_bring_a_page_and_only_what_is_seen_is_drawn(
    watch: Watch, described: list[int], status: RunStatus
) -> None:
    async with watch(status, size=(120, 40)) as top:
        await top.shows("10000 ranks: 10000 running")
        described.clear()
        top.control.status = killed(7777, status)
        await top.shows("dead: SIGKILL")
        ranks = top.app.screen.query_one(RankList)
        assert (ranks.shown_ranks[0], ranks.line_count) == (7777, RANKS)
        assert len(set(described)) < 100
        await top.press("end")
        await top.shows("9999  node-1249")
        assert ranks.rank_at(0) is None, "the first page is not on this machine any more"
        await top.press("home")
        await top.shows("7777  node-972")
        assert max(page.most_ranks for page in top.control.pages[1:]) <= WHOLE_RUN
        await top.press("m")
        await top.shows("health: x exited 1  . running 9999")
        await top.shows("of 4096 ranks: / searches others")
        assert len(set(described)) < 300


async def test_a_search_brings_ranks_that_no_page_had_and_an_open_rank_is_followed(
    watch: Watch, status: RunStatus
) -> None:
    async with watch(status, size=(120, 40)) as top:
        await top.press("slash", *"5000-5002", "enter")
        await top.shows("search: 5000-5002, 3 ranks")
        ranks = top.app.screen.query_one(RankList)
        await until(lambda: ranks.shown_ranks == [5000, 5001, 5002], "the page has come")
        await top.press("down", "enter")
        await top.shows("rank 5001")
        top.app._source.page = GetStatusRequest(most_ranks=1, sort=RANK_SORT_RANK)  # type: ignore[union-attr]
        later = RunStatus()
        later.CopyFrom(status)
        later.ranks[5001].step = 777_777
        top.control.status = later
        await top.shows("777777")
        await top.press("escape")
        await until(lambda: top.app._source.watched_rank is None, "nobody looks at it")  # type: ignore[union-attr]
