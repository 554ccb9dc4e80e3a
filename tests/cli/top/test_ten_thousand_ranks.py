"""Ten thousand ranks: a look and its drawing cost little, and only the lines on the screen are drawn."""

from collections.abc import Iterator

import pytest

from holdfast_cli.top.ranks.oddity import JudgedRanks
from holdfast_cli.top.ranks.rank_list import RankList
from holdfast_proto.v1.common_pb2 import RECORDER_SOURCE_BACKEND
from tests.cli.top.conftest import Watch
from tests.cli.top.scenes import wide
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


async def test_an_update_draws_only_what_is_seen(watch: Watch, described: list[int]) -> None:
    status = wide(10, 125, 8)
    for rank in status.ranks:
        rank.recorders.add(source=RECORDER_SOURCE_BACKEND, backend="nccl", full_dumps=True)
        rank.own_time_reason = "no event has come from the GPU of this rank since it started"
    async with watch(status, size=(120, 40)) as top:
        await top.shows("10000 ranks: 10000 running")
        described.clear()
        top.control.status = killed(7777, status)
        await top.shows("dead: SIGKILL")
        assert top.app.screen.query_one(RankList).shown_ranks[0] == 7777
        assert len(set(described)) < 100
        await top.press("end")
        await top.shows("9999  node-1249")
        await top.press("m")
        await top.shows("health: x exited 1  . running 9999")
        assert len(set(described)) < 200
