from tests.cli.top.conftest import Watch
from tests.support.statuses import healthy


async def test_a_run_is_shown_from_its_start_and_follows_it(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.shows("42 steps · loss 2.3457 · 12,346 tokens/s")
        assert "llama  running  generation 2" in top.screen_text
        print(top.screen_text)
        status = healthy()
        status.newest_step = 42
        top.control.status = status
        await top.shows("43 steps")
        print(top.screen_text)
