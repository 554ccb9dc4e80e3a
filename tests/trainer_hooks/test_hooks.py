import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import ConfigurationError, Phase
from holdfast_hooks.phases import AT_STEP_START, BEFORE_FIRST_STEP
from holdfast_hooks.session.rank_commands import StepCommands
from holdfast_hooks.telemetry.report_builder import Backlog
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto import black_box
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.rank_context import VARIABLE, RankContext
from holdfast_proto.v1 import common_pb2
from tests.trainer_hooks.conftest import run_python

Launch = Callable[..., RankContext]


def test_phases_have_the_numbers_of_the_contract() -> None:
    assert {f"PHASE_{phase.name}": phase.value for phase in Phase} == {
        name: number for name, number in common_pb2.Phase.items() if number
    }


def test_the_time_of_a_step_is_counted_to_its_phases_whichever_there_are() -> None:
    moments: list[tuple[int, int]] = []
    timeline = Timeline(lambda step, phase, unix_ns: moments.append((step, phase)))
    for phase in Phase:
        timeline.begin(int(phase))
        timeline.enter(phase)
        time.sleep(0.001)
        _, _, duration_ns, phase_ns, _ = timeline.end()
        assert phase_ns[phase] >= 1e6
        assert sum(phase_ns) == duration_ns
        assert moments[-2:] == [(phase, AT_STEP_START), (phase, phase)]
    assert moments[0] == (-1, BEFORE_FIRST_STEP)


def test_time_outside_of_steps_is_counted_to_its_phases() -> None:
    timeline = Timeline(lambda step, phase, unix_ns: None)
    time.sleep(0.001)
    timeline.begin(0)
    timeline.enter(Phase.CHECKPOINT)
    _, _, duration_ns, phase_ns, _ = timeline.end()
    timeline.enter(Phase.EVAL)
    time.sleep(0.001)
    timeline.enter(Phase.IDLE)
    time.sleep(0.001)
    timeline.close()
    outside_s = timeline.outside_s()
    assert {Phase.INIT, Phase.EVAL, Phase.IDLE} == {phase for phase, spent_s in outside_s.items() if spent_s >= 0.001}
    assert sum(phase_ns) == duration_ns


def test_the_time_of_a_step_that_is_never_finished_is_not_lost() -> None:
    timeline = Timeline(lambda step, phase, unix_ns: None)
    timeline.begin(0)
    timeline.enter(Phase.EVAL)  # after a loop that was left by `break`
    time.sleep(0.001)
    timeline.close()
    assert timeline.outside_s()[Phase.EVAL] >= 0.001
    timeline.begin(0)
    timeline.enter(Phase.OPTIMIZER)
    time.sleep(0.001)
    timeline.begin(0)
    assert timeline.outside_s()[Phase.OPTIMIZER] >= 0.001


def test_without_an_agent_everything_works_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    threads = threading.active_count()
    hook = sys.excepthook
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(1, 1)}) as hooks:
        for _ in hooks.steps(until=3, start=1):
            hooks.enter(Phase.EVAL)
            hooks.report(loss=torch.tensor(1.0), tokens=3)
        assert list(hooks.steps(until=5, start=3)) == [3, 4]
        assert threading.active_count() == threads
        assert sys.excepthook is hook
    assert sys.excepthook is hook


def test_training_continues_after_the_restored_step(agent: Any, launch: Launch, save: Any) -> None:
    model = torch.nn.Linear(2, 2)
    launch(restore_slot=str(save({"model": model})))
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        steps = hooks.steps(until=10)
        assert next(steps) == 7
        assert torch.equal(hooks._state["model"].state_dict()["weight"], model.weight)
    with holdfast_hooks.attach(state={"model": model}) as hooks:
        assert list(hooks.steps(until=7)) == []


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (3, "state is of type int: give a dict of objects by name"),
        ({"model": object()}, "state 'model': object has no state_dict"),
        ({"_random": torch.nn.Linear(1, 1)}, "state '_random': the name is taken"),
    ],
)
def test_unsuitable_state_is_refused_when_attaching(launch: Launch, state: Any, message: str) -> None:
    launch()
    with pytest.raises(ConfigurationError, match=message):
        holdfast_hooks.attach(state=state)


@pytest.mark.parametrize("under_agent", [True, False])
def test_what_is_no_phase_is_ignored_with_one_line_and_never_raises(
    under_agent: bool, agent: Any, launch: Launch, caplog: pytest.LogCaptureFixture
) -> None:
    if under_agent:
        launch()
    wrong: list[Any] = ["EVAL", 99, None, Phase.EVAL]
    with holdfast_hooks.attach() as hooks:
        for _ in hooks.steps(until=3):
            for phase in wrong:
                hooks.enter(phase)
    (line,) = [record.getMessage() for record in caplog.records if "no phase" in record.getMessage()]
    assert line.startswith("enter('EVAL') was ignored")
    if under_agent:
        assert [step.step for step in agent.steps] == [0, 1, 2]


def test_state_that_cannot_be_saved_is_refused_before_the_first_step(launch: Launch) -> None:
    class Loader:
        def state_dict(self) -> dict[str, Any]:
            return {"position": object()}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    launch()
    with (
        pytest.raises(ConfigurationError, match="data/position: a value of type object"),
        holdfast_hooks.attach(state={"data": Loader()}) as hooks,
    ):
        next(hooks.steps(until=1))


def test_context_that_makes_no_sense_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"run": "x", "unknown": 1}')
    with pytest.raises(ConfigurationError, match=VARIABLE):
        holdfast_hooks.attach()


def test_odd_numbers_are_left_out_with_one_line_and_never_raise(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __float__(self) -> float:
            raise KeyError("no number")

    with holdfast_hooks.attach() as hooks:
        for _ in hooks.steps(until=2):
            hooks.report(loss=torch.ones(2), grad_norm="big", tokens=-1)  # type: ignore[arg-type]
            hooks.report(learning_rate=1, mfu="most", samples=b"short")  # type: ignore[arg-type]
            hooks.report(validation_loss=10**400, update_norm=Odd())  # type: ignore[arg-type]
            assert hooks._timeline.values == {"learning_rate": 1.0}
    assert [record.message for record in caplog.records] == [
        "loss is not reported: a tensor of shape (2,) is not one number",
        "grad_norm is not reported: could not convert string to float: 'big'",
        "tokens is not reported: give a whole number as an int",
        "mfu is not reported: could not convert string to float: 'most'",
        "samples is not reported: give a fingerprint of 8 or 16 bytes",
        "validation_loss is not reported: int too large to convert to float",
        "update_norm is not reported: 'no number'",
    ]


def under_no_agent(folder: Path, **fields: Any) -> dict[str, str]:
    """Return the environment of a rank whose agent is gone."""
    agent, box = f"unix:{folder}/none", str(folder / "box")
    return RankContext(run="test", generation=0, agent=agent, black_box=box, **fields).to_environment()


def test_configuration_error_is_one_line_and_exit_code_78(folder: Path) -> None:
    code = """
        import holdfast_hooks
        with holdfast_hooks.attach() as hooks:
            for step in hooks.steps(until=3):
                raise holdfast_hooks.ConfigurationError("model.width must be even: set --model.width")
    """
    ended = run_python(code, **under_no_agent(folder))
    assert ended.returncode == ExitCode.CONFIGURATION
    assert ended.stderr.splitlines()[-1] == "holdfast: model.width must be even: set --model.width"
    assert "Traceback" not in ended.stderr
    assert black_box.read(folder / "box").last_words == "holdfast: model.width must be even: set --model.width"


def test_uncaught_exceptions_are_kept_and_still_shown(folder: Path) -> None:
    code = """
        import sys, threading, holdfast_hooks
        hooks = holdfast_hooks.attach()
        thread = threading.Thread(target=lambda: 1 / 0, name="loader")
        thread.start()
        thread.join()
        print(hooks._black_box._buffer[520:600].split(bytes(1))[0].decode(), file=sys.stderr)
        raise KeyError("the end")
    """
    ended = run_python(code, **under_no_agent(folder))
    assert ended.returncode == 1
    for words in ("in thread loader:", "ZeroDivisionError", "KeyError: 'the end'"):
        assert words in ended.stderr
    assert "KeyError: 'the end'" in black_box.read(folder / "box").last_words


def test_hooks_import_neither_torch_nor_the_parts_that_other_components_need(folder: Path, make_slots: Any) -> None:
    slots = make_slots(2, nbytes=1 << 16)
    code = f"""
        import sys
        for name in ("torch", "numpy", "redis", "prometheus_client", "xxhash", "zstandard", "psutil"):
            sys.modules[name] = None  # importing it raises
        import holdfast_hooks
        from holdfast_hooks.snapshots.slot_requests import GrantedSlots
        from holdfast_proto.v1.session_pb2 import SlotGrant

        class Loader:
            position = 0
            def state_dict(self):
                return {{"position": self.position}}
            def load_state_dict(self, state):
                self.position = state["position"]

        with holdfast_hooks.attach(state={{"loader": Loader()}}) as hooks:
            hooks._sidecar._slot_requests.receive(SlotGrant(paths={[str(slot) for slot in slots]}))
            for step in hooks.steps(until=3):
                hooks.enter(holdfast_hooks.Phase.DATA)
                hooks.report(loss=1.0, tokens=2)
    """
    ended = run_python(code, **under_no_agent(folder, snapshot_every=1))
    assert ended.returncode == 0, ended.stderr
    contents = black_box.read(folder / "box")
    assert (contents.step, contents.phase) == (2, Phase.IDLE)
    assert "no more snapshots" not in ended.stderr


def test_full_backlog_drops_the_oldest_and_counts() -> None:
    backlog: Backlog[int] = Backlog(2)
    for item in range(5):
        backlog.append(item)
    assert (backlog.pop(), backlog.pop(), backlog.pop(), backlog.dropped_total) == (3, 4, None, 3)


def test_a_command_for_a_step_is_taken_once_and_refused_after_its_step() -> None:
    timeline = Timeline(lambda step, phase, unix_ns: None)
    commands = StepCommands(timeline)
    assert commands.place(3)
    timeline.boundary = 3
    assert (commands.take(2), commands.take(3), commands.take(3)) == (False, True, False)
    assert not commands.place(3)
    assert commands.place(4)
    assert not commands.take(3)
