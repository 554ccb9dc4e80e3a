"""What one rank does with its own norms, and with what the coordinator tells it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import Hooks, Spike
from holdfast_hooks.updates.update_check import SKIPPED_NAME
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1.session_pb2 import RankCommand, SpikeFound


@contextmanager
def trained(norms: list[Any], **options: Any) -> Iterator[tuple[Hooks, list[bool]]]:
    """Train one step for each norm, and yield the hooks and the answers."""
    with holdfast_hooks.attach(**options) as hooks:
        yield hooks, [hooks.should_update(norms[step]) for step in hooks.steps(until=len(norms))]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a world of one."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def watched(agent: Any, launched: RankContext, alone: None) -> Any:
    """The agent of this process, which is a world of one."""
    return agent


def tell(agent: Any, number: int, tier: str, step: int) -> tuple[bool, str]:
    """Send a word of the coordinator, and return the answer."""
    agent.wait_until(lambda: agent.of("hello"))
    agent.command(RankCommand(id=number, generation=2, spike_found=SpikeFound(tier=tier, step=step)))
    ack = agent.wait_until(lambda: next((ack for ack in agent.of("ack") if ack.id == number), None))
    return ack.accepted, ack.detail


@pytest.mark.usefixtures("alone")
def test_without_an_agent_updates_are_skipped_too_and_the_script_hears_of_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spikes: list[Spike] = []
    with trained([1.0] * 16 + [11.0, math.nan, 12.0, 1.0], on_spike=spikes.append) as (_, answers):
        assert answers == [True] * 16 + [False, False, False, True]
    assert spikes == [Spike("gradient", step) for step in (16, 17, 18)]
    (line,) = caplog.messages
    assert line == (
        "an update is skipped, because its gradient is too large: the gradient norm of step 16 is 11, more than 10 x"
        f" the usual 1; later ones are counted in {SKIPPED_NAME}"
    )


@pytest.mark.usefixtures("alone")
def test_the_new_level_after_eight_skips_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with trained([1.0] * 16 + [50.0] * 20) as (_, answers):
        assert answers == [True] * 16 + [False] * 8 + [True] * 12
    (_, line) = caplog.messages
    assert "step 24 is 50, more than 10 x the usual 1; 8 updates before it were skipped" in line


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("value", [torch.tensor(math.nan), torch.tensor([[math.inf]]), -math.inf, torch.nan])
def test_every_norm_that_is_not_finite_is_skipped_whatever_its_form(value: Any) -> None:
    with trained([value, torch.tensor(2.0), 3]) as (_, answers):
        assert answers == [False, True, True]


@pytest.mark.usefixtures("alone")
def test_what_the_scripts_function_raises_ends_the_script() -> None:
    def refuse(spike: Spike) -> None:
        raise ZeroDivisionError(spike.kind)

    with pytest.raises(ZeroDivisionError, match="gradient"), trained([math.nan], on_spike=refuse):
        pass


def test_without_a_process_group_a_rank_of_several_decides_alone_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with trained([1.0, math.nan]) as (_, answers):
        assert answers == [True, False]
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "hooks.should_update() cannot ask the other ranks without a process group"
    ]


def test_a_skipped_update_is_reported_as_overflow_or_counted(watched: Any) -> None:
    with trained([1.0] * 16 + [11.0, math.nan, 12.0]):
        watched.wait_until(lambda: len(watched.steps) == 19)
    assert [record.step for record in watched.steps if record.overflow] == [17]
    logged = [(one.name, one.value, one.step) for report in watched.of("report") for one in report.logged]
    assert logged[-1] == (SKIPPED_NAME, 2.0, 18)


def test_each_word_of_the_coordinator_is_delivered_once_in_the_next_check(
    watched: Any, caplog: pytest.LogCaptureFixture
) -> None:
    words = {2: [("spike", 1)], 3: [("spike", 1), ("non_finite", 2), ("divergence", 0)], 5: [("spike", 4)]}
    heard: list[tuple[int, str, int]] = []
    with holdfast_hooks.attach(on_spike=lambda one: heard.append((hooks.next_step - 1, one.kind, one.step))) as hooks:
        for step in hooks.steps(until=7):
            for number, word in enumerate(words.get(step, [])):
                assert tell(watched, 10 * step + number, *word) == (True, "")
            assert hooks.should_update(1.0)
    assert heard == [(2, "spike", 1), (3, "divergence", 0), (3, "non_finite", 2), (5, "spike", 4)]
    assert not caplog.messages


@pytest.mark.parametrize(("tier", "step"), [("blip", 1), ("spike", -1), ("spike", 2**60)])
def test_a_word_that_is_unknown_or_of_no_step_is_refused(watched: Any, tier: str, step: int) -> None:
    with holdfast_hooks.attach():
        accepted, detail = tell(watched, 1, tier, step)
    assert not accepted and tier in detail


def test_a_script_that_never_asks_hears_once_that_its_function_is_not_called(
    watched: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast_hooks.attach(on_spike=lambda _: pytest.fail("it is called")) as hooks:
        for step in hooks.steps(until=2):
            tell(watched, step + 1, "spike", step)
    (line,) = caplog.messages
    assert "has not called hooks.should_update()" in line
