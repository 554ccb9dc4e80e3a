"""What other threads find may arrive while a screen opens, and while it closes. Neither ends the app."""

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widgets import Static

from holdfast_cli.top import poller
from holdfast_cli.top.background import Done, LiveScreen, Seen
from holdfast_cli.top.checkpoint_screen import CheckpointScreen
from holdfast_cli.top.daemon_screen import DaemonScreen
from holdfast_cli.top.incidents.evidence_screens import EvidenceScreen, EvidenceTextScreen
from holdfast_cli.top.incidents.incident_list import IncidentsScreen
from holdfast_cli.top.incidents.story_screen import StoryScreen
from holdfast_cli.top.poller import Lost
from holdfast_cli.top.ranks.rank_screen import RankScreen
from holdfast_cli.top.run_looks import LookSource, RunLook
from tests.cli.top.conftest import Watch
from tests.cli.top.scenes import hung
from tests.support.coroutines import until

SCREENS: dict[str, Callable[[RunLook, LookSource], LiveScreen]] = {
    "rank": lambda look, source: RankScreen(11, look, source),
    "incidents": lambda look, source: IncidentsScreen(look),
    "story": lambda look, source: StoryScreen(look.status.newest_incident, look),
    "evidence": lambda look, source: EvidenceScreen("i-1", Path("none")),
    "evidence text": lambda look, source: EvidenceTextScreen(Path("none"), "none"),
    "checkpoints": lambda look, source: CheckpointScreen(look),
    "daemon": DaemonScreen,
}


@pytest.mark.parametrize("open_screen", SCREENS.values(), ids=SCREENS)
async def test_a_look_and_a_result_may_arrive_while_a_screen_opens_and_while_it_closes(
    watch: Watch, open_screen: Callable[[RunLook, LookSource], LiveScreen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "LOOK_EVERY_S", 3600.0)  # what arrives is what the test sends
    first = hung()
    async with watch(first) as top:
        await top.shows("culprit: no")
        look, source = top.app._look, top.app._source
        assert look is not None and source is not None
        screen = open_screen(look, source)
        panes: list[int] = []

        def arrive() -> None:
            top.app.on_seen(Seen(Lost(1.0, "no answer")))
            top.app.on_seen(Seen(look))
            screen.post_message(Done(lambda: panes.append(len(screen.query(Static)))))

        top.app.push_screen(screen)
        assert not screen.is_mounted
        arrive()
        await until(lambda: panes, "the result is shown once the screen is open")
        all_panes = len(screen.query(Static))
        monkeypatch.setattr(Static, "on_unmount", lambda _: arrive(), raising=False)
    assert set(panes) == {all_panes}, "nothing is shown on a screen that lacks a pane"
