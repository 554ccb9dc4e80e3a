"""What a rank finds in its gradients after it has reported a number that is not finite."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.telemetry import bad_gradients, own_gradients
from holdfast_hooks.telemetry.bad_gradients import BadGradients
from holdfast_hooks.telemetry.own_gradients import OwnGradientWatch
from holdfast_proto.v1.session_pb2 import BadGradient

pytestmark = pytest.mark.usefixtures("launched")
Clip = Callable[[Iterable[torch.Tensor]], torch.Tensor]


class Spoil(torch.autograd.Function):
    """A function that does nothing forward, and gives a gradient with one NaN backward."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
        spoilt: torch.Tensor = gradients[0].clone()
        spoilt.view(-1)[0] = math.nan
        return spoilt


class Layer(torch.nn.Module):
    """A layer whose weight gets a bad gradient while ``is_bad``; its input gets a good one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))
        self.is_bad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = Spoil.apply(self.weight) if self.is_bad else self.weight  # type: ignore[no-untyped-call]
        return x @ weight


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Layer(), Layer(), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.third(self.second(self.first(x)))
        return y


def norm_of(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def clipped(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.clip_grad_norm_(list(parameters), 1.0)


def train(
    model: Model, *, bad_in: set[int], norm: Clip = norm_of, skip_bad: bool = True, steps: int = 6, **report: Any
) -> None:
    """Train under an agent. The second layer's gradient is bad in some steps, and those steps may be skipped."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with holdfast_hooks.attach(state={"model": model, "optimizer": optimizer}) as hooks:
        for step in hooks.steps(until=steps + 1):
            if step == steps:  # not the last one, which would wait for a slot for the state
                break
            model.second.is_bad = step in bad_in
            model(torch.ones(2, 4)).sum().backward()
            grad_norm = norm(model.parameters())
            hooks.report(grad_norm=grad_norm, **report)
            if math.isfinite(grad_norm) or not skip_bad:
                optimizer.step()
            optimizer.zero_grad()


def found(agent: Any) -> list[tuple[str, bool]]:
    gradients: list[BadGradient] = [step.bad_gradient for step in agent.steps]
    return [(bad.parameter, bad.own) for bad in gradients]


NOTHING = ("", False)


CLAIMS = {
    "the parameter, with no claim on its origin": ({"bad_in": {2}}, {2: ("model.second.weight", False)}),
    "clipping has made all bad": ({"bad_in": {2}, "norm": clipped}, {}),
    "bad again, the ranks own": ({"bad_in": {2, 4}, "norm": clipped}, {4: ("model.second.weight", True)}),
    "after a step with bad gradients": ({"bad_in": {2}, "norm": clipped, "skip_bad": False}, {}),
    "skipped for an overflow": ({"bad_in": {2, 4}, "overflow": True}, {}),
}


@pytest.mark.parametrize(("options", "claims"), CLAIMS.values(), ids=CLAIMS)
def test_only_what_is_sure_of_a_bad_gradient_is_reported(
    agent: Any, options: dict[str, Any], claims: dict[int, tuple[str, bool]]
) -> None:
    train(Model(), **options)
    assert found(agent) == [claims.get(step, NOTHING) for step in range(6)]


def test_a_run_that_lives_with_bad_gradients_is_not_slowed_down_forever(
    agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bad_gradients, "_WATCHED_STEPS", 1)
    train(Model(), bad_in=set(range(40)), steps=40)
    assert 0 < sum(bad != NOTHING for bad in found(agent)) <= 8 + 2 * 3


def test_a_healthy_run_is_not_looked_at(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: object) -> None:
        raise AssertionError("a healthy run is looked at")

    monkeypatch.setattr(BadGradients, "look", look)
    train(Model(), bad_in=set())
    assert found(agent) == [NOTHING] * 6


@pytest.mark.parametrize("bad_in", [{1}, {4}, {5}])
def test_no_hook_stays_on_the_model(agent: Any, bad_in: set[int]) -> None:
    model = Model()
    train(model, bad_in=bad_in)
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_objects_that_raise_do_not_stop_the_run(agent: Any) -> None:
    class Broken(torch.nn.Module):
        def named_parameters(self, *_: object, **__: object) -> Any:
            raise RuntimeError("on purpose")

    with holdfast_hooks.attach(state={"broken": Broken()}, check_replicas=False) as hooks:
        for step in hooks.steps(until=4):
            if step == 3:
                break
            hooks.report(loss=math.nan)
    assert found(agent) == [NOTHING] * 3


@pytest.mark.parametrize("calls", ["forward", "gradient"])
def test_objects_that_raise_in_the_forward_or_backward_pass_do_not_stop_the_run(
    calls: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise LookupError("on purpose")

    model = torch.nn.Linear(2, 2)
    watch = OwnGradientWatch({"model": model}, OnceLog())
    monkeypatch.setattr(own_gradients, "is_dtensor", lambda _: calls == "forward")
    watch.start()
    monkeypatch.setattr(own_gradients, "local_sum", refuse)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    watch.stop()
    assert [record.message for record in caplog.records] == ["gradients are not looked at: LookupError('on purpose')"]


def looks_of(gradients: BadGradients, *, steps: int, overflow: bool) -> int:
    """Look once in each step; return the number of looks that were taken."""
    looks = 0
    for _ in range(steps):
        looks += gradients.look() is not None
        if overflow:
            gradients.calm()
        gradients.end_step()
    return looks


@pytest.fixture
def with_gradients() -> BadGradients:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    return BadGradients({"model": model}, OnceLog())


def test_a_step_that_was_not_looked_at_gives_no_look_back(with_gradients: BadGradients) -> None:
    for _ in range(20):
        with_gradients.alarm()
        with_gradients.calm()
        with_gradients.end_step()
    assert looks_of(with_gradients, steps=20, overflow=False) == 8


def test_looks_at_steps_that_overflow_are_limited_too(with_gradients: BadGradients) -> None:
    assert looks_of(with_gradients, steps=10, overflow=True) == 10
    assert looks_of(with_gradients, steps=5, overflow=False) == 5
    assert looks_of(with_gradients, steps=200, overflow=True) == 49
