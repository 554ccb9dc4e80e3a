"""Loops that call restore, begin_step and end_step themselves."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import ConfigurationError, Phase
from holdfast_hooks.snapshots import snapshot_taker
from holdfast_hooks.state.data_position import DRAWN, NO_POSITION
from holdfast_proto import black_box
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import Slot
from holdfast_proto.v1.session_pb2 import RankCommand, StopAt
from tests.trainer_hooks.conftest import AgentServer, pinned_steps

Launch = Callable[..., RankContext]


class Position:
    """A position in the data."""

    def __init__(self) -> None:
        self.batch = 0

    def state_dict(self) -> dict[str, int]:
        return {"batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batch = state["batch"]


@pytest.fixture
def saved(save: Callable[[dict[str, Any]], Path]) -> Path:
    """The slot of a rank that has trained up to step 6."""
    position = Position()
    position.batch = 14
    return save({"position": position})


def test_steps_with_micro_batches_and_two_optimizers_are_counted_once(
    agent: AgentServer, launched: RankContext
) -> None:
    models = [torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with holdfast_hooks.attach() as hooks:
        assert (hooks.next_step, hooks.restore()) == (0, 0)
        for _ in range(3):
            assert hooks.begin_step() == hooks.next_step - 1
            for _ in range(4):
                hooks.enter(Phase.DATA)
                hooks.report(tokens=2)
                for model in models:
                    model(torch.ones(1, 2)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            assert hooks.end_step() is False
    assert agent.wait_for_the_end() == [0, 1, 2]
    assert [step.tokens for step in agent.steps] == [8, 8, 8]
    assert agent.of("report")[-1].steps_until == 0


def test_the_state_is_restored_once_and_the_last_step_is_pinned(
    agent: AgentServer, launch: Launch, make_slots: Any, saved: Path
) -> None:
    agent.slots = make_slots()
    launch(restore_slot=str(saved))
    position = Position()
    with holdfast_hooks.attach(state={"position": position}) as hooks:
        assert (hooks.restore(until=9), position.batch) == (7, 14)
        position.batch = 20
        assert (hooks.restore(), hooks.next_step, position.batch) == (7, 7, 20)
        while hooks.next_step < 9:
            hooks.begin_step()
            position.batch += 1
            hooks.end_step()
    assert pinned_steps(agent.slots) == [8]
    assert agent.of("report")[-1].steps_until == 9


@pytest.mark.parametrize("auto", [False, True])
def test_under_auto_a_script_that_attaches_itself_saves_nothing(
    agent: AgentServer, launch: Launch, make_slots: Any, auto: bool
) -> None:
    agent.slots = make_slots()
    launch(auto=auto, snapshot_every=1, checkpoint_every=1)
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 1)}) as hooks:
        for _ in hooks.steps(until=3):
            pass
    assert agent.wait_for_the_end() == [0, 1, 2]
    with contextlib.ExitStack() as opened:
        written = [opened.enter_context(Slot(path)).header.step >= 0 for path in agent.slots]
    assert any(written) is not auto


def test_a_loop_that_ignores_the_state_it_should_continue_from_is_refused(
    agent: AgentServer, launch: Launch, saved: Path
) -> None:
    launch(restore_slot=str(saved))
    with holdfast_hooks.attach(state={"position": Position()}) as hooks:
        with pytest.raises(ConfigurationError, match=r"call hooks\.restore\(\) before the loop"):
            hooks.begin_step(0)
        hooks.restore()
        with pytest.raises(ConfigurationError, match=r"began step 0: begin the loop at hooks\.next_step, which is 7"):
            hooks.begin_step(0)
        assert hooks.begin_step(7) == 7
        hooks.end_step()
    assert [step.step for step in agent.steps] == [7]


CALLS: dict[str, Callable[[holdfast_hooks.Hooks], object]] = {
    "entered the optimizer": lambda hooks: hooks.enter(Phase.OPTIMIZER),
    "reported the loss of a step": lambda hooks: hooks.report(loss=1.0),
    "ended a step": lambda hooks: hooks.end_step(),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_script_that_trains_without_the_state_and_begins_no_step_is_refused(
    agent: AgentServer, launch: Launch, saved: Path, what: str
) -> None:
    launch(restore_slot=str(saved))
    with holdfast_hooks.attach(state={"position": Position()}) as hooks:
        for phase in (Phase.DATA, Phase.FORWARD_BACKWARD, Phase.EVAL):  # before a state is loaded, these harm nothing
            hooks.enter(phase)
        hooks.report(validation_loss=2.0, learning_rate=0.1, tokens=0)
        with pytest.raises(ConfigurationError, match=rf"the script {what} without it: call hooks\.restore\(\) before"):
            CALLS[what](hooks)
        assert hooks.restore() == 7
        enter = hooks.enter
        for _ in range(2):
            hooks.begin_step()
            enter(Phase.OPTIMIZER)
            hooks.enter(Phase.OPTIMIZER)
            hooks.report(loss=1.0)
            hooks.end_step()
    assert [(step.step, step.loss) for step in agent.steps] == [(7, 1.0), (8, 1.0)]


def test_a_fresh_run_warns_of_calls_that_a_restart_refuses(
    agent: AgentServer, launched: RankContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_taker, "_GRANT_WAIT_S", 0.05)  # this agent has no slots
    with holdfast_hooks.attach(state={"position": Position()}) as hooks:
        hooks.report(learning_rate=0.1)
        assert not caplog.records
        hooks.report(loss=1.0)
        hooks.enter(Phase.OPTIMIZER)
        for _ in hooks.steps(until=2):
            hooks.report(loss=2.0)
            hooks.enter(Phase.OPTIMIZER)
    said = [record.getMessage() for record in caplog.records if "refused after a restart" in record.getMessage()]
    assert [line.split(" before ")[0] for line in said] == [
        "the script reported the loss of a step",
        "the script entered the optimizer",
    ]


def test_hooks_that_are_closed_without_the_state_leave_words_and_those_of_a_process_that_has_it_do_not(
    agent: AgentServer, launch: Launch, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = launch(restore_slot=str(saved))
    words = (
        "holdfast: the run has a state to continue from, and the script closed its hooks without it: call"
        " hooks.restore() before the loop, or start the run with --from-scratch"
    )

    def close(*, restores: bool = False, error: Exception | None = None) -> tuple[str, bool, str]:
        with contextlib.suppress(ValueError), holdfast_hooks.attach(state={"position": Position()}) as hooks:
            if restores:
                hooks.restore()
            if error is not None:
                raise error
        hooks.close()
        contents = black_box.read(Path(context.black_box))
        return contents.last_words, contents.finished, capsys.readouterr().err

    said, finished, printed = close()
    assert (said, finished, printed.splitlines()) == (words, True, [words])
    said, finished, printed = close(error=ValueError("bad sample"))
    assert ("ValueError: bad sample" in said, finished, printed) == (True, False, "")
    assert close(restores=True) == ("", True, "")
    assert close() == ("", True, "")  # a script may attach again after its training


def test_a_command_to_stop_reaches_the_caller_of_end_step(agent: AgentServer, launched: RankContext) -> None:
    with holdfast_hooks.attach() as hooks:
        hooks.begin_step()
        agent.wait_until(lambda: agent.of("report"))
        agent.command(RankCommand(id=1, generation=2, stop_at=StopAt(step=1)))
        agent.wait_until(lambda: agent.of("ack"))
        assert hooks.end_step() is False
        hooks.begin_step()
        assert hooks.end_step() is True
        assert list(hooks.steps(until=10, start=2)) == []


def test_calls_in_a_wrong_order_are_warned_of_once_and_never_raise(
    agent: AgentServer, launched: RankContext, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast_hooks.attach() as hooks:
        for _ in range(2):
            assert hooks.end_step() is False
        hooks.begin_step()
        hooks.begin_step()
        hooks.end_step()
        hooks.begin_step(1)
        hooks.end_step()
    assert agent.wait_for_the_end() == [1, 1]
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast_hooks"]
    assert [line.split(":")[0] for line in lines] == [
        "end_step() was called outside of a step",
        "a step began inside another one, which is not counted",
        "a second loop repeats numbers of steps, so that a restart would leave some out",
    ]


def test_without_an_agent_steps_are_only_counted() -> None:
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(1, 1)}) as hooks:
        assert hooks.restore(until=2) == 0
        assert [(hooks.begin_step(), hooks.end_step()) for _ in range(2)] == [(0, False), (1, False)]
        assert hooks.next_step == 2


@pytest.mark.parametrize(
    ("options", "warned"),
    [({}, True), ({"state": {"position": Position()}}, False), ({"check_data_position": False}, False)],
)
def test_a_state_without_a_position_in_the_data_is_said_once_by_rank_0(
    launched: RankContext,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    warned: bool,
) -> None:
    monkeypatch.setattr("holdfast_hooks.hooks._FLUSH_S", 0.05)  # no agent answers
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for rank in ("0", "3"):
        monkeypatch.setenv("RANK", rank)
        named = holdfast_hooks.by_name(optimizer, model)
        state = {"model": model, "optimizer": optimizer, "named": named, "scheduler": scheduler}
        with holdfast_hooks.attach(**{**options, "state": {**state, **options.get("state", {})}}) as hooks:
            hooks.restore()
            hooks.begin_step()
            hooks.end_step()
    assert [NO_POSITION in record.getMessage() for record in caplog.records].count(True) == warned


@pytest.mark.parametrize(
    ("wraps", "makes_first", "options", "warned"),
    [
        (False, False, {}, True),
        (False, True, {}, False),
        (False, False, {"check_data_position": False}, False),
        (True, False, {}, False),
    ],
    ids=["after-restore", "before-restore", "unchecked", "wrapped"],
)
def test_a_loader_that_draws_between_restore_and_the_first_step_is_said(
    save: Any,
    launch: Launch,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    wraps: bool,
    makes_first: bool,
    options: dict[str, Any],
    warned: bool,
) -> None:
    monkeypatch.setattr("holdfast_hooks.hooks._FLUSH_S", 0.05)  # no agent answers
    loader: Any = torch.utils.data.DataLoader(torch.arange(4))  # type: ignore[arg-type]
    data = holdfast_hooks.ResumableLoader(loader) if wraps else loader
    state = {"data": data if wraps else Position()}
    launch(restore_slot=str(save(state)))
    with holdfast_hooks.attach(state=state, **options) as hooks:
        batches = iter(data) if makes_first else None
        hooks.restore()
        for _ in batches or data:
            hooks.begin_step()
            hooks.end_step()
    assert [DRAWN in record.getMessage() for record in caplog.records].count(True) == warned
