"""A loop that is left by break, return or sys.exit keeps what it has done."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import Hooks, Phase
from holdfast_hooks.snapshots import snapshot_taker
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.rank_context import RankContext
from tests.trainer_hooks.conftest import AgentServer, pinned_steps, wait_for_slots

Launch = Callable[..., RankContext]
LEFT_IN = 4


class Trainee:
    """A script with a model whose training can be left at any place."""

    def __init__(self, agent: AgentServer, launch: Launch, make_slots: Callable[..., list[Path]]) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.agent, self.slots = agent, make_slots()
        agent.slots = self.slots
        self.launch = launch

    def attach(self, **context: int) -> Hooks:
        self.launch(**context)
        return holdfast_hooks.attach(state={"model": self.model, "optimizer": self.optimizer})

    def train(self) -> None:
        self.model(torch.ones(1, 4)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def until_left(self, hooks: Hooks, leave: Callable[[], bool], *, before_training: bool = False) -> None:
        for step in hooks.steps(until=1000):
            if step:
                wait_for_slots(hooks)
            if before_training and step == LEFT_IN:
                return
            self.train()
            hooks.report(loss=1.0)
            if step == LEFT_IN and leave():
                break

    def pinned(self) -> list[int]:
        """Steps of the snapshots from which checkpoints are written."""
        return pinned_steps(self.slots)

    def ended(self) -> tuple[list[int], list[int]]:
        """Wait for the end, and return the steps that were reported, and those of the pinned snapshots."""
        return self.agent.wait_for_the_end(), self.pinned()


@pytest.fixture
def trainee(agent: AgentServer, launch: Launch, make_slots: Callable[..., list[Path]]) -> Trainee:
    return Trainee(agent, launch, make_slots)


@pytest.mark.parametrize("leave", [lambda: True, lambda: sys.exit(0)], ids=["break", "exit code 0"])
def test_a_loop_that_is_left_ends_its_step_with_a_checkpoint(
    trainee: Trainee, agent: AgentServer, leave: Callable[[], bool]
) -> None:
    with contextlib.suppress(SystemExit), trainee.attach() as hooks:
        trainee.until_left(hooks, leave)
    assert trainee.ended() == ([0, 1, 2, 3, LEFT_IN], [LEFT_IN])
    assert agent.of("report")[-1].steps_until == 1000


@pytest.mark.parametrize("until", [None, 1000])
def test_so_does_one_that_is_left_between_two_steps_or_names_no_end(
    trainee: Trainee, agent: AgentServer, until: int | None
) -> None:
    with trainee.attach(snapshot_every=LEFT_IN) as hooks:
        hooks.restore(until=until)
        for step in range(LEFT_IN + 1):
            hooks.begin_step()
            if step:
                wait_for_slots(hooks)
            trainee.train()
            hooks.end_step()
    assert trainee.ended() == ([0, 1, 2, 3, LEFT_IN], [LEFT_IN])


def test_a_state_that_has_changed_since_its_last_step_is_that_of_no_step(trainee: Trainee, agent: AgentServer) -> None:
    with trainee.attach(snapshot_every=LEFT_IN) as hooks:
        hooks.restore()
        for _ in range(LEFT_IN + 1):
            hooks.begin_step()
            trainee.train()
            hooks.end_step()
        trainee.model.load_state_dict(trainee.model.state_dict())
        trainee.train()
    assert LEFT_IN not in trainee.ended()[1]


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("bad sample")])
def test_after_an_error_nothing_is_saved(trainee: Trainee, agent: AgentServer, error: BaseException) -> None:
    def leave() -> bool:
        raise error

    with pytest.raises(type(error)), trainee.attach() as hooks:
        trainee.until_left(hooks, leave)
    hooks.close()
    assert [step.step for step in agent.steps if step.step >= LEFT_IN] == []
    assert trainee.pinned() == []


def test_a_step_without_a_change_does_not_count_and_nothing_is_taken_for_the_one_before(
    trainee: Trainee, agent: AgentServer
) -> None:
    with trainee.attach() as hooks:
        trainee.until_left(hooks, lambda: False, before_training=True)
    assert trainee.ended() == ([0, 1, 2, 3], [])


@pytest.mark.parametrize("place", ["begin", "end"])
def test_an_exit_between_two_steps_keeps_the_one_before_and_counts_it_once(
    trainee: Trainee, agent: AgentServer, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with pytest.raises(SystemExit), trainee.attach() as hooks:
        assert hooks._sidecar is not None
        owner, name = (Timeline, "begin") if place == "begin" else (type(hooks._sidecar), "end_step")
        original = getattr(owner, name)

        def exits_in_time(self: object, step: int, *arguments: object, **options: object) -> object:
            result = original(self, step, *arguments, **options)
            if step == (LEFT_IN + 1 if place == "begin" else LEFT_IN):
                sys.exit(0)  # as the handler of a signal may do
            return result

        monkeypatch.setattr(owner, name, exits_in_time)
        trainee.until_left(hooks, lambda: False)
    assert trainee.ended() == ([0, 1, 2, 3, LEFT_IN], [LEFT_IN])


@pytest.mark.parametrize("before_training", [False, True])
def test_a_loop_left_in_the_middle_of_a_step_is_not_said_to_have_ended_it(
    trainee: Trainee, agent: AgentServer, before_training: bool
) -> None:
    with trainee.attach() as hooks:
        trainee.until_left(hooks, lambda: True, before_training=before_training)
    agent.wait_for_the_end()
    assert (agent.of("report")[-1].progress.phase == Phase.IDLE) == (not before_training)


def test_a_second_loop_that_repeats_steps_is_warned_about(
    trainee: Trainee, agent: AgentServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_taker, "_PIN_WAIT_S", 0.05)  # this agent writes no slot and gives none back
    with trainee.attach() as hooks:
        for start, until in ((0, 2), (2, 4)):
            for _ in hooks.steps(until=until, start=start):
                trainee.train()
        assert "second loop" not in caplog.text
        assert list(hooks.steps(until=5)) == [0, 1, 2, 3, 4]
    assert "a second loop repeats numbers of steps" in caplog.text
    assert "such as steps(until=5, start=4)" in caplog.text


def test_hooks_that_are_open_twice_are_warned_about(
    trainee: Trainee, agent: AgentServer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with trainee.attach():
            pass
    assert "second time" not in caplog.text
    with trainee.attach(), holdfast_hooks.attach():
        assert "attach() was called a second time in this rank: close the hooks" in caplog.text


def test_parameters_that_changed_after_the_loop_are_not_saved_as_a_step(trainee: Trainee, agent: AgentServer) -> None:
    with trainee.attach() as hooks:
        trainee.until_left(hooks, lambda: True)
        trainee.model.load_state_dict(torch.nn.Linear(4, 1).state_dict())
    assert trainee.ended()[1] == []


def test_a_loop_that_ends_is_saved_once(trainee: Trainee, agent: AgentServer) -> None:
    with trainee.attach() as hooks:
        for step in hooks.steps(until=3):
            if step:
                wait_for_slots(hooks)
            trainee.train()
    assert trainee.ended() == ([0, 1, 2], [2])
    assert agent.of("report")[-1].steps_until == 3


def test_a_captured_optimizer_that_hides_its_changes_is_not_trusted(
    trainee: Trainee, agent: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainee, "train", lambda: None)  # nothing ever raises a version counter
    with trainee.attach() as hooks:
        trainee.until_left(hooks, lambda: True)
    assert trainee.ended()[1] == []


def test_objects_that_raise_do_not_stop_the_run(launch: Launch, agent: AgentServer) -> None:
    class Broken(torch.nn.Linear):
        def named_parameters(self, *_: object, **__: object) -> Any:
            raise RuntimeError("on purpose")

    launch()
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    state: dict[str, Any] = {"model": Broken(1, 1), "optimizer": optimizer}
    with holdfast_hooks.attach(state=state, check_replicas=False) as hooks:
        for _ in hooks.steps(until=2):
            break
    agent.wait_for_the_end()


def test_a_failure_while_the_last_step_is_saved_does_not_reach_the_script(
    trainee: Trainee, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise RuntimeError("on purpose")

    with trainee.attach() as hooks:
        trainee.until_left(hooks, lambda: True)
        monkeypatch.setattr(hooks._sidecar, "end_step", fail)
    assert trainee.pinned() == []
