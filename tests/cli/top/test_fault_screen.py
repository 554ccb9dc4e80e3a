"""A fault is injected by keys alone, where the run allows it, and after a question."""

import re

import pytest

from holdfast_cli.top.fault_screen import fault_of
from holdfast_hooks.faults import CATALOGUE, Fault
from holdfast_hooks.phases import Phase
from tests.cli.top.conftest import Watch, Watching
from tests.support.statuses import healthy

KINDS = list(CATALOGUE)


async def choose(top: Watching, kind: str) -> None:
    await top.shows("42 steps")
    await top.press("down", "x")
    await top.shows("inject a fault into rank 1: which?")
    await top.press(*["down"] * KINDS.index(kind), "enter")
    await top.shows(f"settings of {kind}")


async def test_a_fault_is_chosen_set_confirmed_and_requested_once(watch: Watch) -> None:
    status = healthy()
    status.settings.injection_allowed = True
    async with watch(status, size=(80, 30)) as top:
        await choose(top, "slow")
        await top.press("enter")
        await top.shows("slow needs a factor above 1, not 0")
        await top.press(*"factor=3 step=50", "enter")
        await top.shows("Inject slow into rank 1 of run llama in step 50?")
        await top.press("y")
        await top.shows("rank 1 has accepted slow")
        [request] = top.control.requests
        assert request.fault == Fault("slow", rank=1, step=50, factor=3.0).to_message()


async def test_no_answer_and_a_no_inject_nothing(watch: Watch) -> None:
    status = healthy()
    status.settings.injection_allowed = True
    async with watch(status) as top:
        await choose(top, "kill")
        await top.press("escape", "escape")
        await top.shows("42 steps")
        await top.press("up", "up")
        await choose(top, "kill")
        await top.press("enter")
        await top.shows("y: yes")
        await top.press("n")
        await top.shows("42 steps")
        assert top.control.requests == []


async def test_a_run_that_allows_no_faults_says_how_to_allow_them(watch: Watch) -> None:
    status = healthy()
    status.settings.injection_allowed = False
    async with watch(status) as top:
        await top.press("x")
        await top.shows("the run allows no faults: start it with --allow-faults")
        assert "which?" not in top.screen_text


def test_settings_become_a_fault() -> None:
    fault = fault_of("deadlock", 3, "duration=30, step=7 phase=forward-backward")
    assert fault == Fault("deadlock", rank=3, step=7, phase=Phase.FORWARD_BACKWARD, duration_s=30.0)
    assert fault_of("kill", 0, "") == Fault("kill")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("now", "now: use duration=, factor=, seed=, step= or phase="),
        ("speed=3", "speed=3: use duration="),
        ("step=-4", "step=-4: use a whole number, 0 or more"),
        ("step=99999999999999999999999", "use a whole number"),
        ("duration=nan", "duration=nan: use a number"),
        ("factor=much", "factor=much: use a number"),
        ("phase=lunch", "phase=lunch: use data, forward_backward,"),
        ("seed=1", "deadlock takes no seed"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(settings: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        fault_of("deadlock", 3, settings)
    assert "\n" not in str(caught.value)
