"""Where a loop with Accelerate continues, with hooks that keep the state of each step in this process."""

import random
from typing import Any

import pytest
import torch
from torch import nn

import holdfast_hooks
from tests.support.keeping_hooks import KeepingHooks

pytestmark = pytest.mark.frameworks
accelerate = pytest.importorskip("accelerate", reason="needs accelerate: run `make test-frameworks`")

SAMPLES, WIDTH = 30, 4


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
    ) -> list[Any]:
        """Train in a process that knows nothing of earlier ones but what was saved; return what it did, in order."""
        from holdfast_hooks.frameworks.accelerate import HoldfastTracker, hold

        def attach(*, state: dict[str, Any], check_data_position: bool) -> KeepingHooks:
            self.hooks.append(KeepingHooks(state, self.saved, stops_after))
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
        self.model = accelerator.unwrap_model(model)
        if self.saved:  # what a later process happens to have drawn before does not matter
            random.seed(11)
            torch.manual_seed(11)
        did: list[Any] = []
        held = hold(accelerator)
        for epoch in held.epochs(3):
            for number, (numbers, inputs) in enumerate(held.batches(loader)):
                if held.step == killed_after:
                    return did
                did.append(numbers.tolist())
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
