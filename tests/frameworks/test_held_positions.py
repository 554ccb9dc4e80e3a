"""Where a loop with Accelerate continues, with hooks that keep the state of each step in this process."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast_hooks
from holdfast_proto.rank_context import VARIABLE, RankContext
from tests.support.keeping_hooks import KeepingHooks
from tests.support.programs import framework

pytestmark = pytest.mark.frameworks
accelerate = framework("accelerate")

SAMPLES, WIDTH = 30, 4


class Counter:
    """An object of the script that it registers with Accelerate."""

    def __init__(self) -> None:
        self.batches = 0

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batches = state["batches"]


class Process:
    """What a process does: it trains until its end, or until it is killed after a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.saved: list[dict[str, Any]] = []
        self.hooks: list[KeepingHooks] = []
        self.model: nn.Module = nn.Identity()

    def train(
        self,
        *,
        killed_after: int | None = None,
        stops_after: int | None = None,
        accumulate: int = 1,
        seedable: bool = True,
        batches_of_epoch: int = 99,
        left_out: dict[int, int] | None = None,
        saves_left_out: bool = False,
        ignored: tuple[tuple[int, int], ...] = (),
    ) -> list[Any]:
        """Train in a process that knows nothing of earlier ones but what was saved; return what it did, in order."""
        from holdfast_hooks.frameworks.accelerate import HoldfastTracker, hold

        def attach(*, state: dict[str, Any], check_data_position: bool) -> KeepingHooks:
            hooks = KeepingHooks(state, self.saved, stops_after, left_out, saves_left_out=saves_left_out)
            self.hooks.append(hooks)
            return self.hooks[-1]

        self.monkeypatch.setattr(holdfast_hooks, "attach", attach)
        accelerate.utils.set_seed(7)
        accelerator = accelerate.Accelerator(
            cpu=True,
            gradient_accumulation_steps=accumulate,
            dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=seedable),
            log_with=HoldfastTracker(),
        )
        accelerator.init_trackers("test")
        model: Any = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)
        rows = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))
        data = torch.utils.data.TensorDataset(torch.arange(SAMPLES), rows)
        loader: Any = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        counter = Counter()
        accelerator.register_for_checkpointing(counter)
        self.model = accelerator.unwrap_model(model)
        if self.saved:  # what a later process happens to have drawn before does not matter
            random.seed(11)
            torch.manual_seed(11)
        did: list[Any] = []
        held = hold(accelerator)
        for epoch in held.epochs(3):
            for number, (numbers, inputs) in enumerate(held.batches(loader)):
                if (epoch, number) in ignored:
                    continue
                if held.step == killed_after:
                    return did
                counter.batches += 1
                did.append((counter.batches, numbers.tolist()))
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                accelerator.log({"train_loss": loss.item(), "lr": 0.5, "other": 1.0})
                if number + 1 == batches_of_epoch:
                    break
            if not held.stopped:
                did.append(f"the end of epoch {epoch}")
        return did


@pytest.mark.parametrize(
    "settings",
    [{}, {"accumulate": 3}, {"seedable": False}],
    ids=lambda settings: "-".join(settings) or "plain",
)
@pytest.mark.parametrize("killed_after", [1, 3, 5, 8])
def test_a_killed_loop_continues_with_the_next_batch(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], killed_after: int
) -> None:
    whole, parts = Process(monkeypatch), Process(monkeypatch)
    did = whole.train(**settings)
    before = parts.train(killed_after=killed_after, **settings)
    assert parts.saved[-1]["step"] == killed_after - 1
    assert before + parts.train(**settings) == did
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, parts.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("accumulate", "first", "steps"),
    [(1, 0, 2), (1, 2, 3), (1, 5, 3), (1, 6, 12), (1, 20, 4), (3, 1, 1), (3, 1, 2), (3, 2, 4)],
    ids=str,
)
def test_a_loop_that_leaves_data_out_is_one_that_ignores_them(
    monkeypatch: pytest.MonkeyPatch, accumulate: int, first: int, steps: int
) -> None:
    batches = [(epoch, number) for epoch in range(3) for number in range(8)]
    of_steps = [(epoch, number // accumulate) for epoch, number in batches]
    window = list(dict.fromkeys(of_steps))[first : first + steps]
    ignored = tuple(batch for batch, step in zip(batches, of_steps, strict=True) if step in window)
    for seedable in (True, False):
        reference, whole = Process(monkeypatch), Process(monkeypatch)
        expected = reference.train(accumulate=accumulate, seedable=seedable, ignored=ignored)
        settings: dict[str, Any] = {"accumulate": accumulate, "seedable": seedable, "left_out": {first: steps}}
        assert whole.train(**settings) == expected
        assert len(whole.saved) == len(reference.saved)
        for killed_after in sorted({max(first, 1), first + 1} & set(range(len(whole.saved)))):
            for saves_left_out in (False, True):
                parts = Process(monkeypatch)
                before = parts.train(killed_after=killed_after, saves_left_out=saves_left_out, **settings)
                while killed_after == first and isinstance((before or [None])[-1], str):
                    before.pop()  # an epoch that ends after the newest saved step ends again
                assert before + parts.train(saves_left_out=saves_left_out, **settings) == expected
                for name, value in reference.model.state_dict().items():
                    assert torch.equal(value, parts.model.state_dict()[name]), name


def test_a_loop_that_accumulates_by_itself_leaves_out_as_much_as_its_steps_take() -> None:
    from holdfast_hooks.frameworks.held_training import LoopPosition
    from holdfast_hooks.state.sampling import Sampling

    def position() -> LoopPosition:
        return LoopPosition(accelerate.Accelerator(cpu=True), Sampling())

    before, after = position(), position()
    before.end_step(4)
    before.end_step(2)
    after.load_state_dict(before.state_dict())
    after.skip(2)
    batches = iter(range(10))
    after.drop(batches)
    assert (next(batches), after.batches, after.steps, after.left_out) == (8, 8, 2, 0)


def test_a_loop_that_breaks_off_its_epochs_continues_in_the_same_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Process(monkeypatch), Process(monkeypatch)
    did = whole.train(batches_of_epoch=5)
    before = parts.train(killed_after=5, batches_of_epoch=5)
    assert before + parts.train(batches_of_epoch=5) == did


def test_a_planned_stop_ends_both_loops_and_a_later_start_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Process(monkeypatch), Process(monkeypatch)
    did = whole.train()
    before = parts.train(stops_after=9)
    assert len(parts.saved) == 10
    assert before + parts.train() == did


def test_the_tracker_reports_what_holdfast_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    process.train()
    assert len(process.hooks[0].reported) == 24
    line = process.hooks[0].reported[3]
    assert line["step"] == 3
    assert 0 < line["loss"] < 10
    assert line["learning_rate"] == 0.5
    assert line["grad_norm"] is None
    assert {name for logged in process.hooks[0].logged for name in logged} == {"train_loss", "lr", "other"}
    assert "other" not in line


def test_a_loop_without_a_prepared_model_is_refused() -> None:
    from holdfast_hooks.frameworks.accelerate import hold

    with pytest.raises(holdfast_hooks.ConfigurationError, match="prepare a model and an optimizer first"):
        hold(accelerate.Accelerator(cpu=True))


def test_a_name_that_is_taken_is_refused() -> None:
    from holdfast_hooks.frameworks.accelerate import hold

    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = nn.Linear(1, 1)
    accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    with pytest.raises(holdfast_hooks.ConfigurationError, match="the name model is taken"):
        hold(accelerator, {"model": model})


def test_a_loop_whose_models_are_spread_over_ranks_is_watched_and_not_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from holdfast_hooks.frameworks.accelerate import hold

    attached: list[Any] = []

    def attach(*, state: Any, check_data_position: bool) -> KeepingHooks:
        attached.append(state)
        return KeepingHooks({}, [], None)

    monkeypatch.setattr(holdfast_hooks, "attach", attach)
    context = RankContext(run="r", generation=1, agent=f"unix:{tmp_path}/none", black_box=str(tmp_path / "box"))
    monkeypatch.setenv(VARIABLE, context.to_environment()[VARIABLE])
    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = nn.Linear(WIDTH, 1)
    data = torch.utils.data.TensorDataset(torch.randn(8, WIDTH))
    loader: Any = torch.utils.data.DataLoader(data, batch_size=4)
    _, _, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    spread = accelerate.utils.DistributedType.DEEPSPEED
    monkeypatch.setattr(type(accelerator), "distributed_type", property(lambda _: spread))
    monkeypatch.setattr(accelerator, "_optimizers", [object()])  # DeepSpeed's have no hooks for their steps
    held = hold(accelerator)
    assert attached == [None]
    assert "DEEPSPEED spreads the state over the ranks" in caplog.text
    batches = 0
    for _ in held.epochs(2):
        for (_inputs,) in held.batches(loader):
            batches += 1
    assert (batches, held.step) == (4, 4)


def test_the_checkpoints_of_accelerate_itself_are_those_of_a_loop_without_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from holdfast_hooks.frameworks.accelerate import hold

    monkeypatch.setattr(holdfast_hooks, "attach", lambda *, state, **_: KeepingHooks(state, [], None))

    def train(folder: Path, *, holds: bool) -> list[torch.Tensor]:
        accelerate.utils.set_seed(7)
        accelerator = accelerate.Accelerator(cpu=True)
        model: Any = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        data = torch.utils.data.TensorDataset(torch.randn(12, WIDTH))
        loader: Any = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1), loader)
        counter = Counter()
        accelerator.register_for_checkpointing(counter)
        held = hold(accelerator) if holds else None
        seen = []
        for epoch in range(2) if held is None else held.epochs(2):
            for (inputs,) in loader if held is None else held.batches(loader):
                counter.batches += 1
                accelerator.backward(model(inputs).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                seen.append(model[0].weight.detach().clone())
            if epoch == 0:
                accelerator.save_state(str(folder))
        accelerator.load_state(str(folder))
        assert counter.batches == 3
        return [*seen, model[0].weight.detach(), optimizer.state_dict()["state"][0]["exp_avg"], torch.rand(3)]

    plain, held = train(tmp_path / "plain", holds=False), train(tmp_path / "held", holds=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, held, strict=True))
    assert torch.equal(held[6], held[2])  # loaded: as at the end of the first epoch
    names = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("plain", "held")]
    assert names[0] == names[1]


def test_of_several_trainings_in_a_process_the_first_one_is_connected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context = RankContext(run="r", generation=1, agent="unix:/none", black_box="/none")
    monkeypatch.setenv(VARIABLE, context.to_environment()[VARIABLE])
    first, second = Process(monkeypatch), Process(monkeypatch)
    did = first.train()
    assert len(first.hooks) == 1
    assert second.train() == did
    assert not second.hooks
    assert [record.getMessage() for record in caplog.records if "runs without Holdfast" in record.getMessage()] == [
        "hold(accelerator): this process has held a training before: this one runs without Holdfast"
    ]


class UnevenBatches(torch.utils.data.Sampler[list[int]]):
    """Batches of different sizes, without the attribute that Accelerate multiplies."""

    batch_size = None

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1], [2], [3, 4, 5])

    def __len__(self) -> int:
        return 3


def test_batches_of_different_sizes_are_those_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast_hooks.frameworks.accelerate import hold

    monkeypatch.delenv(VARIABLE, raising=False)
    accelerator = accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(even_batches=False)
    )
    model: Any = nn.Linear(1, 1)
    loader: Any = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(6)), batch_sampler=UnevenBatches()
    )
    model, _optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    with pytest.raises(TypeError):
        _ = loader.total_batch_size  # the reason for this test
    held = hold(accelerator)
    assert [batch.tolist() for _ in held.epochs(1) for (batch,) in held.batches(loader)] == [[0, 1], [2], [3, 4, 5]]


def test_what_is_registered_after_hold_is_refused_before_a_batch_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast_hooks.frameworks.accelerate import hold

    monkeypatch.setattr(holdfast_hooks, "attach", lambda *, state, **_: KeepingHooks(state, [], None))
    context = RankContext(run="late", generation=1, agent="unix:/none", black_box="/none")
    monkeypatch.setenv(VARIABLE, context.to_environment()[VARIABLE])
    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = nn.Linear(1, 1)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    named = Counter()
    held = hold(accelerator, {"named": named})
    accelerator.register_for_checkpointing(named)
    assert list(held.batches([])) == []
    accelerator.register_for_checkpointing(Counter())
    with pytest.raises(holdfast_hooks.ConfigurationError, match=r"type Counter was .* registered after hold\(\)"):
        list(held.batches([]))
