"""Data that a Lightning fit leaves out, with hooks that keep the state of each step in this process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_proto.rank_context import RankContext
from tests.support.keeping_hooks import KeepingHooks
from tests.support.programs import framework

pytestmark = pytest.mark.frameworks
lightning: Any = framework("lightning")

SAMPLES, EPOCHS = 30, 3


class KilledError(Exception):
    """Stands in for the end of a rank."""


class FitHooks(KeepingHooks):
    """Hooks that count steps, and that restore once: a fit names its last step by a second call."""

    next_step = 0

    def restore(self, *, until: int | None = None) -> int:
        if until is None:
            self.next_step = super().restore()
        return self.next_step

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        self.next_step = step + 1


class Model(lightning.LightningModule):  # type: ignore[misc] # the package may be missing
    """A model whose learning rate is halved after each epoch."""

    def __init__(self, killed_after: int | None) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        self.killed_after = killed_after
        self.rate = 0.0
        self.used: list[list[int]] = []
        self.validated_at: list[int] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        if self.global_step == self.killed_after:
            raise KilledError
        numbers, rows = batch
        self.used.append(numbers.tolist())
        loss: torch.Tensor = self.layer(rows).square().mean()
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated_at.append(self.global_step)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


Fit = Callable[..., Model]


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Fit:
    """Return a function that fits in a process that knows nothing of earlier ones but what was saved."""

    def run(
        saved: list[dict[str, Any]], *, killed_after: int | None = None, accumulate: int = 1, **of_hooks: Any
    ) -> Model:
        from holdfast_hooks.frameworks import lightning as integration

        context = RankContext(run="r", generation=1, agent="unix:/none", black_box="/none")
        for name, value in context.to_environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(integration, "_is_used", False)
        monkeypatch.setattr(holdfast_hooks, "attach", lambda *, state, **_: FitHooks(state, saved, None, **of_hooks))
        lightning.seed_everything(3)
        rows = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
        data = torch.utils.data.TensorDataset(torch.arange(SAMPLES), rows)
        model = Model(killed_after)
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=1,
            accumulate_grad_batches=accumulate,
            num_sanity_val_steps=0,
            callbacks=[integration.LightningHoldfast()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        if saved:  # what a later process happens to have drawn before does not matter
            torch.manual_seed(11)
        try:
            trainer.fit(model, loader, torch.utils.data.DataLoader(data, batch_size=SAMPLES))
        except KilledError:
            return model
        model.rate = trainer.optimizers[0].param_groups[0]["lr"]
        return model

    return run


@pytest.mark.parametrize(
    ("accumulate", "first", "steps"),
    [(1, 0, 2), (1, 2, 3), (1, 5, 3), (1, 6, 12), (1, 20, 4), (3, 1, 1), (3, 1, 2), (3, 3, 4)],
    ids=str,
)
def test_a_fit_that_leaves_data_out_continues_behind_them_and_ends_its_epochs_as_ever(
    fit: Fit, accumulate: int, first: int, steps: int
) -> None:
    batches = [number for epoch in range(EPOCHS) for number in range(8)]
    of_steps = [(place // 8, number // accumulate) for place, number in enumerate(batches)]
    window = list(dict.fromkeys(of_steps))[first : first + steps]
    everything = fit([], accumulate=accumulate)
    settings: dict[str, Any] = {"accumulate": accumulate, "left_out": {first: steps}}
    saved: list[dict[str, Any]] = []
    whole = fit(saved, **settings)
    kept = [place for place, step in enumerate(of_steps) if step not in window]
    first_epoch = [place for place in kept if place < 8]
    # The order of a later epoch follows from what the steps before have drawn.
    assert whole.used[: len(first_epoch)] == [everything.used[place] for place in first_epoch]
    assert len(whole.used) == len(kept)
    assert len(saved) == len(set(of_steps)) - steps
    assert whole.rate == everything.rate == 0.1 / 2**EPOCHS
    assert len(whole.validated_at) == len(everything.validated_at) == EPOCHS
    for killed_after in sorted({max(first, 1), first + 1} & set(range(len(saved)))):
        for saves_left_out in (False, True):
            parts: list[dict[str, Any]] = []
            before = fit(parts, killed_after=killed_after, saves_left_out=saves_left_out, **settings)
            after = fit(parts, saves_left_out=saves_left_out, **settings)
            assert before.used + after.used == whole.used, killed_after
            assert after.rate == whole.rate
            for name, value in whole.state_dict().items():
                assert torch.equal(value, after.state_dict()[name]), name


def test_a_fit_with_manual_optimization_has_no_method_to_leave_data_out() -> None:
    from types import SimpleNamespace

    from holdfast_hooks.frameworks.lightning_data import EpochData
    from holdfast_hooks.frameworks.lightning_state import TrainerProgress

    def progress(*, automatic: bool) -> TrainerProgress:
        module = SimpleNamespace(automatic_optimization=automatic)
        return TrainerProgress(SimpleNamespace(lightning_module=module), EpochData())

    assert hasattr(progress(automatic=True), "skip")
    assert not hasattr(progress(automatic=False), "skip")
