"""The main screen: it follows the run, puts the culprit on top, and obeys its keys."""

import math

import pytest
from textual.widgets import Static

from holdfast_cli.top.ranks.mesh_view import MeshView
from holdfast_cli.top.ranks.rank_list import RankList
from holdfast_core.texts.advice import advice_line, next_line
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RANK_HEALTH_OK, RunSettings
from tests.cli.top.conftest import Watch, Watching
from tests.cli.top.scenes import CULPRIT, hung, wide
from tests.support.control_service import served
from tests.support.coroutines import until
from tests.support.statuses import healthy, killed

RED = "color(1)"


def ranks_of(top: Watching) -> list[int]:
    return top.app.screen.query_one(RankList).shown_ranks


async def test_a_run_is_shown_from_its_start_and_followed(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.shows("42 steps · loss 2.3457 · 12,346 tokens/s")
        assert "llama  running  generation 2" in top.screen_text
        assert "▁" not in top.screen_text, "one value is no curve"
        status = healthy()
        status.newest_step, status.loss = 42, 1.5
        top.control.status = status
        await top.shows("43 steps · loss 1.5000")
        await top.shows("█▁ 1.5 to 2.346")


async def test_a_hang_is_the_loudest_thing_and_its_culprit_is_on_top(watch: Watch) -> None:
    async with watch(wide()) as top:
        await top.shows("32 ranks: 32 running")
        assert ranks_of(top) == list(range(32))
        assert "next:" not in top.screen_text
        top.control.status = hung()
        await top.shows("culprit: no progress for 21.4 s")
        assert ranks_of(top) == [CULPRIT, *(rank for rank in range(32) if rank != CULPRIT)]
        await top.shows("rank 11 on node-001 hangs in step 1204")
        await top.shows("ranks 8, 9, 10 wait for rank 11 in all_reduce 96 of mesh_tp")
        await top.shows("next: Holdfast waits, and restarts the run if the signs of a fault last.")
        top.control.status = wide(step=1205)
        await top.hides("next:")
        assert ranks_of(top) == list(range(32))


async def test_the_ranks_stand_in_the_order_of_their_oddity(watch: Watch) -> None:
    status = killed(5, hung())
    status.ranks[7].process_state = "T"
    for rank in (20, 21):
        status.ranks[rank].stalled_s, status.ranks[rank].health = 0.0, RANK_HEALTH_OK
    status.ranks[20].is_behind = True
    async with watch(status) as top:
        await top.shows("dead: SIGKILL")
        order = ranks_of(top)
        assert order[:4] == [CULPRIT, 5, 7, 20]
        assert order[-1] == 21
        await top.shows("1 exited, 1 culprit, 1 stopped, 1 behind, 27 waiting, 1 running")


async def test_a_filter_and_the_odd_ranks_are_shown_alone(watch: Watch) -> None:
    async with watch(killed(5, wide())) as top:
        await top.press("slash", *"node-001")
        assert ranks_of(top) == list(range(8, 16))
        await top.press("enter")
        assert ranks_of(top) == list(range(8, 16)), "Enter keeps the filter"
        await top.shows("search: node-001")
        await top.press("escape")
        assert len(ranks_of(top)) == 32
        await top.press("slash", "1", "7", "enter")
        assert ranks_of(top) == [17], "a number is a rank"
        await top.press("escape", "o")
        assert ranks_of(top) == [5]
        await top.shows("only odd ranks")
        await top.press("o")
        assert len(ranks_of(top)) == 32


async def test_keys_typed_into_the_filter_do_nothing_else(watch: Watch) -> None:
    async with watch(wide()) as top:
        await top.press("slash", *"ostq")
        assert ranks_of(top) == []
        assert top.app.is_running
        await top.shows("search: ostq")


async def test_the_list_is_sorted_by_each_column_and_reversed(watch: Watch) -> None:
    status = killed(5, wide())
    status.ranks[9].stalled_s, status.ranks[13].memory_bytes = 3.0, 70 << 30
    async with watch(status) as top:
        await top.shows("dead: SIGKILL")
        heads = []
        for _ in range(6):
            await top.press("t")
            heads.append(ranks_of(top)[0])
        assert heads == [0, 0, 9, 13, 0, 5]
        await top.press("t", "r")
        assert ranks_of(top) == list(range(31, -1, -1))


async def test_the_cursor_stays_with_its_rank_when_the_order_changes(watch: Watch) -> None:
    async with watch(wide()) as top:
        await top.press("down", "down", "down")
        table = top.app.screen.query_one(RankList)
        assert table.rank_at(table.cursor) == 3
        top.control.status = hung()
        await top.shows("culprit: no")
        assert (table.cursor, table.rank_at(table.cursor)) == (4, 3)


async def test_the_map_shows_health_phase_and_memory_by_characters(watch: Watch) -> None:
    async with watch(hung(), size=(100, 40)) as top:
        await top.press("m")
        await top.shows("health: ! culprit 1  w waiting 31")
        lines = [line.removeprefix(">").strip() for line in top.screen_text.splitlines()]
        at = lines.index("pp0")
        assert lines[at + 1 : at + 4] == ["wwww wwww www! wwww", "pp1", "wwww wwww wwww wwww"]
        mesh = top.app.screen.query_one(MeshView)
        await top.press(*["right"] * CULPRIT)
        assert mesh.rank_at(mesh.cursor) == CULPRIT
        await top.shows("rank 11: culprit: no progress for 21.4 s")
        await top.press(*["right"] * 5)
        assert mesh.rank_at(mesh.cursor) == 16, "the next line"
        await top.press("m")
        await top.shows("ffff ffff fffd ffff")
        await top.press("m")
        await top.shows("5555 5555 5555 5555")
        await top.press("m")
        await top.shows("culprit: no progress")


async def test_a_daemon_that_goes_away_is_shown_and_comes_back(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.stop_daemon()
        await top.shows("not connected since")
        assert "showing the last known state" in top.screen_text and "the daemon does not answer" in top.screen_text
        assert "42 steps" in top.screen_text
        status = healthy()
        status.newest_step = 99
        top.control.status = status
        async with served(top.control, top.socket):
            await top.shows("100 steps")
            assert "not connected" not in top.screen_text


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (
            RunSettings(mode=store.MODE_OBSERVE, ranks_per_node=8),
            "Holdfast only observes this run, and restarts nothing.",
        ),
        (
            RunSettings(on_hang=store.HANG_ACTION_ABORT),
            "Holdfast waits, and ends a hung rank if the signs of a fault last.",
        ),
    ],
)
async def test_what_comes_next_is_said_in_the_words_of_the_console(
    watch: Watch, settings: RunSettings, part: str
) -> None:
    status = hung()
    status.settings.CopyFrom(settings)
    spec = store.RunSpec(mode=settings.mode, ranks_per_node=settings.ranks_per_node, on_hang=settings.on_hang)
    expected = next_line(status.newest_incident, spec)
    assert expected.startswith(part)
    async with watch(status, size=(200, 40)) as top:
        await top.shows(f"next: {expected}")


async def test_of_an_older_daemon_only_the_advice_is_known(watch: Watch) -> None:
    status = hung()
    status.ClearField("settings")
    async with watch(status, size=(200, 40)) as top:
        await top.shows(f"next: {advice_line(status.newest_incident.verdict)}")


async def test_the_time_left_stands_next_to_the_progress(watch: Watch) -> None:
    status = wide()
    status.planned_steps, status.time_left_s = 5000, 12_000.0
    async with watch(status) as top:
        await top.shows("1204 of 5000 steps · about 3 h 20 min left · loss 2.2253 ·")


@pytest.mark.parametrize("phase", [store.RUN_PHASE_RUNNING, store.RUN_PHASE_FINISHED])
async def test_a_loss_that_is_not_finite_is_bad_in_words_and_in_colour(watch: Watch, phase: "store.RunPhase") -> None:
    status = wide()
    status.phase, status.loss, status.nonfinite_since = phase, math.nan, 1190
    async with watch(status) as top:
        await top.shows("loss not finite since step 1190")
        assert "nan" not in top.screen_text
        for text in ("running" if phase == store.RUN_PHASE_RUNNING else "finished", "loss not finite since step 1190"):
            styles = styles_of(top, text)
            assert styles and all(RED in style for style in styles), styles


def styles_of(top: Watching, text: str) -> list[str]:
    """Return the styles of a text in the header."""
    strips = top.app.screen._compositor.render_strips(top.app.size)[:2]
    return [str(segment.style) for strip in strips for segment in strip if segment.text == text]


async def test_curves_show_loss_throughput_and_gradient_norm(watch: Watch) -> None:
    async with watch(wide()) as top:
        await top.shows("1204 steps")
        status = wide(step=1205)
        status.grad_norm = 0.8
        top.control.status = status
        await top.shows("0.412 to 0.8")
        for name in ("loss ", "tokens/s ", "grad norm "):
            assert any(line.startswith(name) and "█" in line for line in top.screen_text.splitlines()), name


async def test_the_map_shows_step_time_and_gpu_only_where_they_are_known(watch: Watch) -> None:
    status = wide()
    for rank in status.ranks:
        rank.own_time_s, rank.own_steps = 100.0, 100
        rank.gpu_use_sum, rank.gpu_use_samples = 84.0, 100
    status.ranks[CULPRIT].own_time_s, status.ranks[3].gpu_use_sum = 155.0, 12.0
    async with watch(status, size=(100, 40)) as top:
        await top.press(*"mmmm")
        await top.shows("step time: tenths above the median of 1 s")
        await top.shows("0000 0000 0005 0000")
        await top.press(*["right"] * CULPRIT)
        await top.shows("rank 11: running, own time of a step 1.55 s")
        await top.press("m")
        await top.shows("GPU: 0 to 9 is the tenth of the time in which a kernel runs on it")
        await top.shows("8881 8888 8888 8888")
        await top.press("m")
        await top.shows("odd first")


async def test_a_run_that_has_failed_says_why(watch: Watch) -> None:
    status = healthy()
    status.phase, status.outcome = store.RUN_PHASE_FAILED, "rank 3 fails at step 45 each time"
    async with watch(status) as top:
        await top.shows("run failed: rank 3 fails at step 45 each time")


@pytest.mark.parametrize("size", [(80, 24), (40, 24)])
async def test_a_small_terminal_shows_verdict_and_culprit(watch: Watch, size: tuple[int, int]) -> None:
    async with watch(hung(), size=size) as top:
        await top.shows("rank 11 on node-001 hangs")
        await top.shows("11  ")
        row = next(line for line in top.screen_text.splitlines() if line.startswith(">"))
        assert row.split()[1] == "11"
        assert "culprit: no progress" in row
        await until(lambda: "next:" in top.screen_text, "what comes next is on the screen too")
        assert max(map(len, top.screen_text.splitlines())) <= size[0]


async def test_without_colours_the_texts_say_all(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with watch(hung()) as top:
        await top.shows("culprit: no progress")
        no_colour = top.app._filters[-1]
        assert type(no_colour).__name__ == "NoColor"
        strips = top.app.screen._compositor.render_strips(top.app.size)
        filtered = [strip.apply_filter(no_colour, top.app.screen.background_colors[1]) for strip in strips]
        styles = [segment.style for strip in filtered for segment in strip if segment.style]
        colours = [colour for style in styles for colour in (style.color, style.bgcolor) if colour is not None]
        assert {colour.name for colour in colours} <= {"default"}


async def test_q_quits(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.shows("42 steps")
        assert isinstance(top.app.screen.query_one("#header"), Static)
        await top.press("q")
        await until(lambda: not top.app.is_running, "it has quit")


async def test_goodput_is_shown_with_what_cost_most_once_it_is_known(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.shows("42 steps")
        assert "goodput" not in top.screen_text
        status = healthy()
        status.wall_s = 200.0
        for use, lost_s in {"productive": 180.0, "start_up": 14.0, "restart": 6.0}.items():
            status.time_use_s[use] = lost_s
        top.control.status = status
        await top.shows("goodput 90.0% · start up 7.0% · restart 3.0%")
