"""Replays in a world of one rank. tests/trainer/replayed_ranks.py has several."""

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.phases import AT_STEP_START, Phase
from holdfast_hooks.replay.step_replay import SKIPPED, ReplayRecord, StepReplay
from holdfast_hooks.updates.usual_norm import UsualNorm
from holdfast_proto.v1 import session_pb2 as session

MakeSlots = Callable[..., list[Path]]


class Scale:
    """A state of plain numbers, as a loss scaler has."""

    def __init__(self) -> None:
        self.value = 1.0
        self.looked_at: Callable[[], object] = lambda: None

    def state_dict(self) -> dict[str, float]:
        self.looked_at()
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


class Copies:
    """A state whose tensors are copies."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(2)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"tensor": self.tensor.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.tensor.copy_(state["tensor"])


class Training:
    """A model with dropout, batch norm and a state of plain numbers, trained with replays."""

    def __init__(self, bench: Any, slots: list[Path], **more: Any) -> None:
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
        self.model = nn.Sequential(self.first, nn.BatchNorm1d(16), nn.Dropout(0.2), self.last)
        self.model.register_buffer("calls", torch.zeros(()), persistent=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scale = Scale()
        self.norms = UsualNorm()
        self.more = more
        state = {"model": self.model, "optimizer": self.optimizer, "scale": self.scale, **more}
        self.bench = bench(state, slots)
        self.timeline = self.bench.timeline
        self.replay = StepReplay(
            state=state, own={"norms": self.norms}, snapshots=self.bench.snapshots, timeline=self.timeline,
            once=OnceLog(),
        )  # fmt: skip
        self.runs: list[int] = []
        self.also: Callable[[int, int], object] = lambda step, run: None
        """Is called at the end of each run of a step."""

    def train(self, step: int) -> float:
        self.runs[step] += 1
        noise = random.random() * self.scale.value
        loss = self.model(torch.full((4, 8), noise) + torch.arange(4.0)[:, None]).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.get_buffer("calls").add_(1)
        self.scale.value *= 1.5
        self.norms.judge(loss.item())
        self.timeline.values["tokens"] = self.timeline.values.get("tokens", 0) + 4
        self.also(step, self.runs[step])
        return float(loss.detach())

    def run(self, steps: int, every: int) -> list[session.ReplayCheck | None]:
        """Train; return what each step's record says of its replay."""
        torch.manual_seed(1)
        random.seed(1)
        self.losses: list[float] = []
        checks: list[session.ReplayCheck | None] = []
        self.runs = [0] * steps
        for step in range(steps):
            self.timeline.begin(step)
            self.losses.append(self.replay.run(functools.partial(self.train, step), every))
            record = self.timeline.values.get("replay")
            checks.append(record.check if isinstance(record, ReplayRecord) else None)
            assert self.timeline.values["tokens"] == 4
            self.bench.end(step)
        return checks

    def bits(self) -> list[torch.Tensor]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*self.model.state_dict().values(), *self.model.buffers(), *moments]


@pytest.fixture
def training(bench: Any, make_slots: MakeSlots) -> Callable[..., Training]:
    names = iter("abc")
    return lambda **more: Training(bench, make_slots(prefix=next(names)), **more)


def flip(tensor: torch.Tensor) -> None:
    tensor.detach().view(torch.int32).view(-1)[0].bitwise_xor_(1)


def test_a_replay_changes_nothing_and_is_due_in_every_nth_step_after_the_first_two(
    training: Callable[..., Training], caplog: pytest.LogCaptureFixture
) -> None:
    replayed, plain = training(), training()
    checks = replayed.run(9, every=2)
    after = random.random(), torch.rand(())
    plain.run(9, every=100)
    assert after == (random.random(), torch.rand(()))
    assert [step for step, check in enumerate(checks) if check is not None] == [2, 4, 6, 8]
    assert replayed.runs == [1, 1, 2, 1, 2, 1, 2, 1, 2]
    assert replayed.losses == plain.losses
    assert all(torch.equal(one, other) for one, other in zip(replayed.bits(), plain.bits(), strict=True))
    assert replayed.norms.state_dict() == plain.norms.state_dict()
    assert replayed.scale.value == plain.scale.value
    assert not caplog.messages


def test_what_a_replay_itself_does_counts_as_a_checkpoint_and_the_function_finds_its_own_phase(
    training: Callable[..., Training],
) -> None:
    replayed = training()

    def phase() -> Phase:
        return Phase(replayed.timeline.phase)

    of_state: list[Phase] = []
    of_function: list[Phase] = []
    afterwards: list[Phase] = []
    replayed.scale.looked_at = lambda: of_state.append(phase())

    def function(step: int, run: int) -> None:
        of_function.append(phase())
        replayed.timeline.enter(Phase.OPTIMIZER)

    end = replayed.bench.end

    def end_step(step: int) -> None:
        afterwards.append(phase())
        end(step)

    replayed.also, replayed.bench.end = function, end_step
    replayed.run(3, every=2)
    assert replayed.runs == [1, 1, 2]
    assert set(of_state) == {Phase.CHECKPOINT}
    assert (of_function, afterwards) == ([AT_STEP_START] * 4, [Phase.OPTIMIZER] * 3)


@pytest.mark.parametrize(
    ("wrong", "vote"),
    [({1}, session.REPLAY_VOTE_SECOND), ({2}, session.REPLAY_VOTE_FIRST), ({1, 2}, session.REPLAY_VOTE_NEITHER)],
)
def test_of_three_runs_the_two_that_agree_are_right(
    training: Callable[..., Training], wrong: set[int], vote: int
) -> None:
    faulty, plain = training(), training()
    weight = faulty.first.weight

    def spoil(step: int, run: int) -> None:
        if step == 4 and run in wrong:
            weight.detach()[0, 0] += run

    faulty.also = spoil
    checks = faulty.run(6, every=2)
    plain.run(6, every=100)
    assert checks[2] is not None and not checks[2].part
    assert checks[4] is not None
    assert (checks[4].part, checks[4].vote) == ("state after the step: model/0.weight", vote)
    assert checks[4].duration_s > 0
    assert faulty.runs[4] == 3
    assert all(torch.equal(one, other) for one, other in zip(faulty.bits(), plain.bits(), strict=True))


def test_a_training_that_never_computed_the_same_three_times_blames_no_rank_and_ends_the_replays(
    training: Callable[..., Training], caplog: pytest.LogCaptureFixture
) -> None:
    odd = training()
    odd.also = lambda step, run: odd.first.weight.detach()[0, 0].add_(run)
    checks = odd.run(7, every=2)
    assert checks[2] is not None
    assert not checks[2].part
    assert checks[2].refusal == (
        "rank 0 did not compute the same again, first in state after the step: model/0.weight: see docs/own-trainer.md"
    )
    assert checks[3:] == [None] * 4
    assert odd.bench.snapshots.replay_every == 0
    assert caplog.messages == [f"no more steps are replayed: {checks[2].refusal}"]


def test_the_second_time_that_three_runs_differ_ends_the_replays(training: Callable[..., Training]) -> None:
    odd = training()
    odd.also = lambda step, run: odd.first.weight.detach()[0, 0].add_(run if step >= 4 else 0)
    checks = odd.run(9, every=2)
    votes = [(check.vote, bool(check.refusal)) for check in checks if check is not None]
    neither, none = session.REPLAY_VOTE_NEITHER, session.REPLAY_VOTE_UNSPECIFIED
    assert votes == [(none, False), (neither, False), (none, True)]


def test_a_bit_that_flips_between_two_steps_is_reported_and_nothing_is_put_back(
    training: Callable[..., Training],
) -> None:
    flipped = training()
    end = flipped.bench.end

    def end_and_flip(step: int) -> None:
        end(step)
        if step in (1, 5):
            flip(flipped.last.weight)

    flipped.bench.end = end_and_flip
    checks = flipped.run(7, every=2)
    part = "state before the step: model/3.weight"
    assert checks[2] is not None and checks[4] is not None and checks[6] is not None
    # A rank alone is not blamed before its training was seen to repeat.
    assert checks[2].refusal.startswith("model/3.weight is not what it was at the end of the step before: change it in")
    assert not checks[4].refusal
    assert (checks[6].part, checks[6].vote) == (part, session.REPLAY_VOTE_NOT_TAKEN)
    assert flipped.runs == [1, 1, 1, 1, 2, 1, 1]


def test_a_buffer_that_each_run_replaces_is_put_back(training: Callable[..., Training]) -> None:
    def replace(of: Training, step: int) -> None:
        calls = of.model.get_buffer("calls")
        of.model.calls = calls + 1
        of.first.weight.detach()[0, 0] += calls.item() / 1000

    replayed, plain = training(), training()
    replayed.also = lambda step, run: replace(replayed, step)
    plain.also = lambda step, run: replace(plain, step)
    checks = replayed.run(7, every=2)
    plain.run(7, every=100)
    assert [step for step, check in enumerate(checks) if check is not None and not check.refusal] == [2, 4, 6]
    assert all(torch.equal(one, other) for one, other in zip(replayed.bits(), plain.bits(), strict=True))


def test_a_second_call_in_a_step_is_no_second_replay(training: Callable[..., Training]) -> None:
    twice = training()
    train = twice.train
    twice.train = lambda step: (train(step), twice.replay.run(lambda: 0, 2))[0]  # type: ignore[method-assign]
    assert twice.run(5, every=2)[4] is not None
    assert twice.runs == [1, 1, 2, 1, 2]


def replace_weight(training: Training) -> None:
    training.first.weight.data = training.first.weight.data.clone()


@pytest.mark.parametrize(
    ("also", "reason"),
    [
        (lambda training, _: replace_weight(training), "has changed model/0.weight, which was replaced"),
        (
            lambda training, _: training.optimizer.param_groups[0].update(
                lr=training.optimizer.param_groups[0]["lr"] / 2
            ),
            "changes numbers in optimizer that are no tensors: call what counts, such as a scheduler's step(), after",
        ),
        (
            lambda training, step: training.first.register_buffer(f"late{step}", torch.zeros(2), persistent=False),
            "has made or removed buffers of a module",
        ),
        (lambda training, _: training.more["copies"].tensor.add_(1), "has changed copies/tensor, which is a copy in"),
        (
            lambda training, step: training.model.register_buffer(f"late{step}", torch.zeros(2)),
            "has made or removed tensors of the state",
        ),
        (
            lambda training, _: training.model(torch.ones(4, 8)).sum().backward(),
            "gradients are left from before",
        ),
    ],
    ids=["replaced", "counted", "buffer", "copies", "new", "gradients"],
)
def test_a_step_that_cannot_be_put_back_runs_once_and_the_log_says_once_why(
    training: Callable[..., Training],
    caplog: pytest.LogCaptureFixture,
    also: Callable[[Training, int], object],
    reason: str,
) -> None:
    unsuitable = training(copies=Copies())
    plain = training(copies=Copies())
    unsuitable.also = lambda step, run: also(unsuitable, step) if step >= 3 else None
    plain.also = lambda step, run: also(plain, step) if step >= 3 else None
    checks = unsuitable.run(7, every=2)
    plain.run(7, every=100)
    assert unsuitable.runs == [1, 1, 2, 1, 1, 1, 1]
    refusals = [check.refusal if check is not None else None for check in checks[4:]]
    assert all(refusals[place] and reason in str(refusals[place]) for place in (0, 2))
    assert unsuitable.losses == plain.losses
    [line] = caplog.messages
    assert line.startswith(SKIPPED) and reason in line


def test_without_a_snapshot_of_the_step_before_the_step_runs_once(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    training = Training(bench, [])
    refusal = "there is no snapshot of step 1 in memory, or not yet"
    assert training.run(3, every=2) == [None, None, session.ReplayCheck(refusal=refusal)]
    assert caplog.messages == [f"{SKIPPED}: {refusal}"]


def test_an_error_of_the_function_passes_through_in_each_run(training: Callable[..., Training]) -> None:
    for wrong in (1, 2):
        failing = training()

        def fail(step: int, run: int, wrong: int = wrong) -> None:
            if (step, run) == (2, wrong):
                raise FloatingPointError

        failing.also = fail
        with pytest.raises(FloatingPointError):
            failing.run(3, every=2)
