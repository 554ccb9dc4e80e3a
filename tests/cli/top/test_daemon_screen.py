"""The screen about Holdfast itself: what is wrong there is said in words, not only in colour."""

from holdfast_cli.top.daemon_screen import AGENTS_SHOWN
from holdfast_proto.v1.control_pb2 import DaemonStatus, DetectorUse, HeardAgent
from tests.cli.top.conftest import Watch
from tests.support.statuses import healthy


def well(**changes: object) -> DaemonStatus:
    fields: dict[str, object] = {
        "version": "1.2", "daemon": "local", "uptime_s": 3700.0, "leader_of": ["llama"], "store_up": True,
        "store_operations": 12345, "ticks": 9000, "tick_p50_s": 0.005, "tick_p99_s": 0.01, "now_unix_s": 1000.0,
        "detectors": [DetectorUse(name="hang", seconds=1.5), DetectorUse(name="straggler", seconds=3.5)],
        "agents": [HeardAgent(node=f"n{number}", run="llama", reported_unix_s=999.5) for number in range(2)],
    }  # fmt: skip
    return DaemonStatus(**{**fields, **changes})  # type: ignore[arg-type]


async def test_the_daemon_and_its_agents_are_shown(watch: Watch) -> None:
    async with watch(healthy(), size=(100, 24)) as top:
        top.control.daemon = well()
        await top.press("h")
        await top.shows("local, holdfast 1.2, up for 1 h 1 min")
        for text in ("reachable · 12,345 operations, 0 failed", "99 % take 10 ms or less", "none", "n0, run llama"):
            assert text in top.screen_text
        lines = top.screen_text.splitlines()
        at = [next(index for index, line in enumerate(lines) if name in line) for name in ("straggler", "hang")]
        assert at == sorted(at), "the detector that takes most time comes first"
        await top.press("escape")
        await top.shows("42 steps")


async def test_what_is_wrong_is_said_in_words_and_followed(watch: Watch) -> None:
    async with watch(healthy(), size=(100, 60)) as top:
        top.control.daemon = well()
        await top.press("h")
        await top.shows("reachable")
        broken = well(store_up=False, store_failures=7, ticks_failed=2)
        broken.refused["agent\x1b[2J"] = 3
        broken.detectors.add(name="non_finite", failures=4)
        broken.agents.add(node="gone", run="llama", reported_unix_s=940.0)
        top.control.daemon = broken
        await top.shows("unreachable: training continues · 12,345 operations, 7 failed")
        for said in ("9,000, 2 failed", "3 of agent: see the daemon's log", "0.00 s, 4 failed", "n1, run llama"):
            await top.shows(said)
        await top.shows("gone, run llama: reported 60.0 s ago, silent")
        text = top.screen_text
        assert text.index("gone, run") < text.index("n0, run"), "the longest silent first"


async def test_of_very_many_agents_the_most_silent_are_shown(watch: Watch) -> None:
    agents = [HeardAgent(node=f"n{number:05}", run="llama", reported_unix_s=999.0) for number in range(1250)]
    async with watch(healthy(), size=(80, 200)) as top:
        top.control.daemon = well(agents=agents)
        await top.press("h")
        await top.shows(f"and {1250 - AGENTS_SHOWN} more")


async def test_a_daemon_that_is_gone_says_so(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.stop_daemon()
        await top.shows("not connected")
        await top.press("h")
        await top.shows("the daemon does not say how it is: no daemon answers")
