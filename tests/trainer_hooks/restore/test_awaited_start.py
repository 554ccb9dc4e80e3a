"""Ranks of another launcher, whose agent names the state to start from over the session."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import ConfigurationError, Phase
from holdfast_hooks.hook_errors import OnceLog, UnknownStartError
from holdfast_hooks.restore import awaited_start, consensus
from holdfast_hooks.restore.awaited_start import AwaitedStart
from holdfast_hooks.state.encoding import Image, TensorPart, encode_state
from holdfast_hooks.step_loop import UNRESTORED
from holdfast_proto import black_box
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import Slot
from holdfast_proto.v1.session_pb2 import StartFrom
from tests.trainer_hooks.conftest import DEADLINE_S, AgentServer, run_python

Launch = Callable[..., RankContext]
CONTEXT = RankContext(run="test", generation=2, agent="unix:/dev/null", black_box="/none", observed=True, restores=True)
SEED = StartFrom(generation=5, step=-1)
AT_6 = StartFrom(generation=5, step=6, slot="/slot", checkpoint="/checkpoint")


class Silence(threading.Event):
    """An event that a test waits for without any time. ``then`` is called in the third wait."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._then = then

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == 3:
            self._then()
        return self.is_set()


def awaited(**fields: Any) -> AwaitedStart:
    return AwaitedStart(RankContext(**{**vars(CONTEXT), **fields}), 3, OnceLog())


def test_a_rank_waits_for_the_answer_and_starts_from_what_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    start = awaited()
    before = start.known
    start._arrived = silence = Silence(then=lambda: start.receive(AT_6))
    context = start.wait()
    assert (context.generation, context.restore_slot, context.restore_checkpoint) == (5, "/slot", "/checkpoint")
    assert (before, start.known, start.wait(), len(silence.waits)) == (None, context, context, 3)
    assert capsys.readouterr().err.splitlines() == [
        "holdfast: rank 3 waits for the state to start from: no answer from its agent for 60 s"
    ]


def test_the_last_answer_before_the_start_counts_and_another_one_after_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = awaited()
    start.receive(StartFrom(refusal="the run has ended"))
    start.receive(AT_6)
    start.wait()
    start.receive(AT_6)  # as after a lost connection
    assert not caplog.records
    for _ in range(2):
        start.receive(SEED)
    assert start.wait().restore_slot == "/slot"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("this rank has started already: step -1 of generation 5")


def test_a_rank_without_an_answer_gives_up_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    start = awaited()
    start._arrived = silence = Silence()
    with pytest.raises(UnknownStartError, match=r"rank 3 does not know .* from its agent for 600 s; nothing"):
        start.wait()
    assert (silence.waits, len(capsys.readouterr().err.splitlines())) == ([2.0] + [60] * 10, 9)


def test_a_rank_whose_agent_has_ended_as_planned_does_not_wait_for_it() -> None:
    start = awaited(agent="unix:/no-such-socket")
    start._arrived = silence = Silence()
    with pytest.raises(UnknownStartError, match="the agent of this node has ended, and with it the run"):
        start.wait()
    assert len(silence.waits) == 1


def test_a_rank_waits_longer_while_its_agent_says_that_it_prepares_the_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = awaited()
    start._arrived = silence = Silence(then=lambda: start.receive(StartFrom(preparing=True)))
    with pytest.raises(UnknownStartError):
        start.wait()
    assert len(silence.waits) == 3 + 10
    (_, second, *_) = capsys.readouterr().err.splitlines()
    assert second.endswith("waits for the state to start from: its agent prepares it")


def test_a_refusal_ends_the_rank_and_so_does_a_step_without_a_place() -> None:
    start = awaited()
    start.receive(StartFrom(refusal="the checkpoints are of another world"))
    with pytest.raises(ConfigurationError, match="the checkpoints are of another world"):
        start.wait()
    start.receive(StartFrom(generation=5, step=6))
    with pytest.raises(UnknownStartError, match="is to start after step 6, and its agent names neither"):
        start.wait()
    start.receive(SEED)
    assert start.wait().generation == 5


@pytest.mark.parametrize(
    "fields", [{"restores": False}, {"restores": False, "observed": False, "restore_slot": "/own"}]
)
def test_a_rank_that_has_its_state_or_saves_none_awaits_nothing(fields: dict[str, Any]) -> None:
    start = awaited(**fields)
    start._arrived = silence = Silence()
    assert start.known == start.wait() == RankContext(**{**vars(CONTEXT), **fields})
    start.agree({"model": torch.nn.Linear(1, 1)})
    assert silence.waits == []


@pytest.fixture
def observe(launch: Launch, agent: AgentServer) -> Callable[..., RankContext]:
    """A function that makes this process look like a rank of another launcher whose agent answers."""

    def start(answer: StartFrom | None, **fields: Any) -> RankContext:
        agent.start_from = answer
        return launch(observed=True, restores=True, **fields)

    return start


@pytest.fixture
def at_6(save: Callable[[dict[str, Any]], Path]) -> StartFrom:
    return StartFrom(generation=5, step=6, slot=str(save({"model": torch.nn.Linear(2, 2)})))


def arrived(hooks: holdfast_hooks.Hooks) -> None:
    assert hooks._sidecar is not None
    assert hooks._sidecar.start_state._arrived.wait(DEADLINE_S)


def test_training_continues_and_its_snapshots_are_of_the_generation_of_the_run(
    agent: AgentServer, observe: Any, at_6: StartFrom, make_slots: Any
) -> None:
    agent.slots = make_slots()
    observe(at_6, snapshot_every=1)
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        hooks.enter(Phase.EVAL)
        assert list(hooks.steps(until=9)) == [7, 8]
    assert [hello.generation for hello in agent.of("hello")] == [2]
    assert agent.wait_for_the_end() == [7, 8]
    found = []
    for path in agent.slots:
        with Slot(path) as slot:
            found.append((slot.header.step, slot.header.generation))
    assert (8, 5) in found


def test_the_wait_counts_as_the_start_of_the_rank(agent: AgentServer, observe: Any) -> None:
    observe(None)
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        assert hooks._sidecar is not None
        start, phases = hooks._sidecar.start_state, []

        def answer() -> None:
            phases.append(hooks._timeline.phase)
            start.receive(SEED)

        start._arrived = Silence(then=answer)
        hooks.enter(Phase.FORWARD_BACKWARD)
        hooks.report(loss=1.0)
    assert phases == [Phase.INIT]


def test_ranks_that_got_different_answers_load_nothing_and_train_nothing(
    agent: AgentServer, observe: Any, at_6: StartFrom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited_start, "highest", lambda numbers, live: [9, *numbers[1:]])
    observe(at_6)
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    with holdfast_hooks.attach(state={"model": model}) as hooks:
        with pytest.raises(UnknownStartError, match=r"of steps 6 to 9 .* generations 5 to 5; nothing was loaded"):
            hooks.restore()
        with pytest.raises(ConfigurationError, match="the script began a step without it"):
            hooks.begin_step()
    assert torch.equal(model.weight, before)


CALLS: dict[str, Callable[[holdfast_hooks.Hooks], object]] = {
    "began a step": lambda hooks: hooks.begin_step(0),
    "entered the optimizer": lambda hooks: hooks.enter(Phase.OPTIMIZER),
    "reported the loss of a step": lambda hooks: hooks.report(loss=1.0),
    "ended a step": lambda hooks: hooks.end_step(),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_script_that_trains_before_it_restores_waits_for_the_answer(
    agent: AgentServer, observe: Any, at_6: StartFrom, what: str
) -> None:
    observe(at_6)
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        with pytest.raises(ConfigurationError, match=rf"the script {what} without it: call hooks\.restore\(\) before"):
            CALLS[what](hooks)
        assert hooks.restore() == 7
    agent.start_from = SEED
    with holdfast_hooks.attach() as hooks:
        CALLS[what](hooks)
        assert hooks.restore() == (what == "began a step")


def test_a_rank_that_closes_its_hooks_waits_for_nothing(
    agent: AgentServer, observe: Any, at_6: StartFrom, capsys: pytest.CaptureFixture[str]
) -> None:
    context = observe(None)

    def close(*, waits: bool = True, restores: bool = False) -> str:
        with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
            if waits:
                arrived(hooks)
            if restores:
                hooks.restore()
        return black_box.read(Path(context.black_box)).last_words

    assert close(waits=False) == ""
    agent.start_from = at_6
    assert (close(), capsys.readouterr().err.splitlines()) == (UNRESTORED, [UNRESTORED])
    assert close(restores=True) == ""
    assert close() == ""  # a script may attach again after its training


def test_hooks_that_are_closed_already_wait_for_nothing(agent: AgentServer, observe: Any) -> None:
    observe(None)
    hooks = holdfast_hooks.attach()
    hooks.close()
    assert (hooks.begin_step(), hooks.end_step()) == (0, False)


def test_a_rank_whose_agent_refuses_ends_with_its_line(agent: AgentServer, observe: Any) -> None:
    observe(StartFrom(refusal="no checkpoint fits: use another run name"))
    ended = run_python("""
        import holdfast_hooks
        hooks = holdfast_hooks.attach()
        try:
            hooks.restore()
        except holdfast_hooks.ConfigurationError:
            hooks.begin_step()  # still refused
    """)
    assert ended.returncode == ExitCode.CONFIGURATION
    assert ended.stderr.splitlines()[-1] == "holdfast: no checkpoint fits: use another run name"


@pytest.mark.parametrize(
    ("backends", "shown", "hidden"),
    [
        ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
        ("cpu:mpi,cuda:mpi", "meta", "cpu"),
        ("cuda:nccl", "meta", "cuda:1"),
    ],
)
def test_ranks_compare_on_a_kind_of_device_that_all_of_them_choose(
    monkeypatch: pytest.MonkeyPatch, backends: str, shown: str, hidden: str
) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: backends)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for state in ({}, {"position": torch.zeros(1)}):
        assert str(consensus._device_of(consensus._gpus(encode_state(state)), None)) == hidden
    weight = torch.zeros(1, device="meta")
    image = Image({}, (TensorPart("model/weight", weight, weight, (1,), (0,)),), ())
    assert str(consensus._device_of(consensus._gpus(image), None)) == shown
