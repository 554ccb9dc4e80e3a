"""The Trainer's place in its training, with hooks that keep the state of each step in this process."""

import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import holdfast_hooks
from holdfast_proto.rank_context import RankContext
from tests.support.keeping_hooks import KeepingHooks
from tests.support.programs import framework

pytestmark = pytest.mark.frameworks
transformers: Any = framework("transformers")

SAMPLES, WIDTH = 30, 4


class KilledError(Exception):
    """Stands in for the end of a rank."""


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples, by default all of them in the order of their numbers."""

    def __init__(self, order: list[int] | None = None) -> None:
        self.order = list(range(SAMPLES)) if order is None else order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> dict[str, Any]:
        index = self.order[place]  # a sampler iterates over all samples
        ids = torch.full((1 + index % 3,), index)
        return {"input_ids": ids, "labels": torch.tensor(float(index))}


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.stack([row["input_ids"][0] for row in rows]),
        "labels": torch.stack([row["labels"] for row in rows]),
    }


class Model(torch.nn.Module):
    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(SAMPLES, WIDTH)
        self.drop = torch.nn.Dropout(dropout)
        self.out = torch.nn.Linear(WIDTH, 1)
        self.used: list[list[int]] = []

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.used.append(input_ids.tolist())
        return {"loss": (self.out(self.drop(self.table(input_ids)))[:, 0] - labels / SAMPLES).square().mean()}


class Process:
    """What a process does: it trains until its end, or until it is killed after a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch, self.folder = monkeypatch, folder
        self.saved: list[dict[str, Any]] = []
        self.hooks: list[KeepingHooks] = []

    def train(
        self,
        *,
        killed_after: int | None = None,
        stops_after: int | None = None,
        resume: str | None = None,
        callbacks: tuple[Any, ...] = (),
        seedable: bool = True,
        draws_before: bool = True,
        left_out: dict[int, int] | None = None,
        saves_left_out: bool = False,
        dropout: float = 0.2,
        order: list[int] | None = None,
        **changes: Any,
    ) -> tuple[Any, list[list[int]]]:
        """Train in a process that knows nothing of earlier ones but what was saved; return trainer and samples used."""
        from holdfast_hooks.frameworks import huggingface

        class Kill(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if killed_after is not None and state.global_step == killed_after:
                    raise KilledError

        slot = "/a/slot" if self.saved else ""
        context = RankContext(run="r", generation=1, agent="unix:/none", black_box="/none", restore_slot=slot)
        for name, value in context.to_environment().items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.setattr(huggingface, "_has_trained", False)

        def attach(*, state: dict[str, Any], check_data_position: bool) -> KeepingHooks:
            hooks = KeepingHooks(state, self.saved, stops_after, left_out, saves_left_out=saves_left_out)
            self.hooks.append(hooks)
            return self.hooks[-1]

        self.monkeypatch.setattr(holdfast_hooks, "attach", attach)
        settings: dict[str, Any] = {
            "output_dir": str(self.folder),
            "per_device_train_batch_size": 4,
            "num_train_epochs": 3,
            "logging_steps": 3,
            "learning_rate": 0.05,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            "accelerator_config": {"use_seedable_sampler": seedable},
            **changes,
        }
        arguments = transformers.TrainingArguments(**settings)
        transformers.set_seed(7)
        model = Model(dropout)
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=Rows(order),
            eval_dataset=Rows(),
            data_collator=collate,
            callbacks=[huggingface.HoldfastCallback(), Kill(), *callbacks],
        )
        # What a later process happens to have drawn before does not matter.
        if self.saved and draws_before:
            random.seed(11)
            numpy.random.seed(11)
            torch.manual_seed(11)
        try:
            trainer.train(resume_from_checkpoint=resume)
        except KilledError:
            return trainer, model.used
        return trainer, model.used


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Process]:
    return lambda name: Process(monkeypatch, tmp_path / name)


def without_times(trainer: Any) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if not name.endswith(("runtime", "per_second"))}
        for line in trainer.state.log_history
    ]


def expect_alike(first: Any, second: Any) -> None:
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert without_times(second) == without_times(first)
    assert second.state.best_metric == first.state.best_metric
    assert second.state.total_flos == first.state.total_flos


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"seedable": False},
        {"train_sampling_strategy": "group_by_length"},
        {"logging_strategy": "epoch", "eval_strategy": "epoch"},
        {"max_steps": 13, "num_train_epochs": 1},
        {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 2},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
@pytest.mark.parametrize("killed_after", [1, 5, 8])
def test_a_killed_training_continues_with_the_next_batch(
    process: Callable[[str], Process], settings: dict[str, Any], killed_after: int
) -> None:
    whole, used = process("whole").train(**settings)
    parts = process("parts")
    _, before = parts.train(killed_after=killed_after, **settings)
    assert parts.saved[-1]["step"] == killed_after - 1
    ended, after = parts.train(**settings)
    assert before + after == used
    expect_alike(whole, ended)


def test_without_an_agent_the_callback_is_inert(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from holdfast_hooks.frameworks import huggingface
    from holdfast_proto.rank_context import VARIABLE

    def attach(**_: Any) -> None:
        raise AssertionError("it attached")

    monkeypatch.setattr(huggingface, "_has_trained", False)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(holdfast_hooks, "attach", attach)
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no"
    )
    ran = [
        transformers.Trainer(Model(), arguments, train_dataset=Rows(), data_collator=collate, callbacks=callbacks)
        for callbacks in ([], [huggingface.HoldfastCallback()])
    ]
    for trainer in ran:
        transformers.set_seed(1)
        for parameter in trainer.model.parameters():
            torch.nn.init.constant_(parameter, 0.1)
        trainer.train()
    expect_alike(*ran)


def test_a_planned_stop_ends_the_loop_after_its_step_and_a_later_start_continues(
    process: Callable[[str], Process],
) -> None:
    whole, used = process("whole").train()
    parts = process("parts")
    stopped, before = parts.train(stops_after=9)
    assert stopped.state.global_step == 10
    assert before == used[:10]
    ended, after = parts.train()
    assert after == used[10:]
    expect_alike(whole, ended)


def test_a_training_that_has_reached_its_end_is_not_trained_further(process: Callable[[str], Process]) -> None:
    settings: dict[str, Any] = {"max_steps": 5}
    parts = process("parts")
    whole, _ = parts.train(**settings)
    again, used = parts.train(**settings)
    assert used == []
    assert again.state.global_step == 5
    expect_alike(whole, again)
    longer, used = parts.train(max_steps=8)
    assert longer.state.global_step == 8
    assert len(used) == 3


def test_early_stopping_counts_on_and_its_end_is_final(process: Callable[[str], Process]) -> None:
    settings: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "learning_rate": 50.0,
    }

    def patience() -> tuple[Any, ...]:
        return (transformers.EarlyStoppingCallback(early_stopping_patience=3),)

    whole, used = process("whole").train(callbacks=patience(), **settings)
    assert whole.state.global_step < whole.state.max_steps
    parts = process("parts")
    parts.train(killed_after=5, callbacks=patience(), **settings)
    ended, after = parts.train(callbacks=patience(), **settings)
    assert after == used[5:]
    expect_alike(whole, ended)
    _, more = parts.train(callbacks=patience(), **settings)
    assert more == []


@pytest.mark.parametrize(("own", "continues_at"), [(6, 8), (9, 9)])
def test_of_two_states_the_newer_one_wins(process: Callable[[str], Process], own: int, continues_at: int) -> None:
    whole, used = process("whole").train(save_strategy="steps", save_steps=3)
    parts = process("parts")
    parts.train(killed_after=8)
    folder = str(whole.args.output_dir) + f"/checkpoint-{own}"
    # The Trainer's own way back needs the seed that the process began with.
    ended, after = parts.train(resume=folder, draws_before=False)
    assert after == used[continues_at:]
    assert ended.state.global_step == whole.state.global_step
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, ended.model.state_dict()[name])


WINDOWS = {
    "first of all": (0, 2),
    "in an epoch": (2, 3),
    "up to an end": (4, 4),
    "up to a shorter end": (4, 3),
    "over two ends": (5, 12),
}
"""Data left out: how many steps are trained before, and of how many steps they are. An epoch has 7 or 8 steps."""


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seedable", [True, False], ids=["seedable", "drawn"])
def test_a_training_that_leaves_data_out_is_one_on_the_other_data(
    process: Callable[[str], Process], window: str, *, seedable: bool
) -> None:
    first, steps = WINDOWS[window]
    settings: dict[str, Any] = {
        "seedable": seedable,
        "dropout": 0.0,
        "lr_scheduler_type": "constant",
        "dataloader_drop_last": True,
        "num_train_epochs": 4,
    }
    _, used = process("all").train(**settings)
    others = used[:first] + used[first + steps :]
    left, trained = process("left").train(left_out={first: steps}, **settings)
    assert trained == others
    order = [sample for batch in others for sample in batch]
    settings |= {"train_sampling_strategy": "sequential", "num_train_epochs": 1}
    reference, trained = process("reference").train(order=order, **settings)
    assert trained == others
    for name, value in reference.model.state_dict().items():
        assert torch.equal(value, left.model.state_dict()[name]), name


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"seedable": False, "gradient_accumulation_steps": 3, "num_train_epochs": 7},
        {"logging_strategy": "epoch", "eval_strategy": "epoch", "saves_left_out": True},
        {"train_sampling_strategy": "group_by_length", "saves_left_out": True, "seedable": False},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_a_killed_training_that_leaves_data_out_continues_behind_them(
    process: Callable[[str], Process], settings: dict[str, Any], window: str
) -> None:
    first, steps = WINDOWS[window]
    settings = {"left_out": {first: steps}, **settings}
    whole, used = process("whole").train(**settings)
    for killed_after in sorted({max(first, 1), first + 1, first + 4}):
        parts = process(f"parts-{killed_after}")
        _, before = parts.train(killed_after=killed_after, **settings)
        ended, after = parts.train(**settings)
        assert before + after == used, killed_after
        expect_alike(whole, ended)


def test_the_trainers_own_newer_checkpoint_does_not_bring_back_what_is_left_out(
    process: Callable[[str], Process],
) -> None:
    whole, used = process("whole").train(left_out={6: 4})
    parts = process("parts")
    undone, _ = parts.train(killed_after=8, save_strategy="steps", save_steps=8)
    del parts.saved[-2:]  # the run goes back by two steps
    folder = f"{undone.args.output_dir}/checkpoint-8"
    parts.train(killed_after=7, resume=folder, left_out={6: 4})
    ended, after = parts.train(resume=folder, left_out={6: 4})
    assert after == used[7:]
    expect_alike(whole, ended)


@pytest.mark.parametrize("setting", ["ignore_data_skip", "generates"])
def test_a_trainer_whose_data_cannot_be_left_out_has_no_method_for_it(setting: str) -> None:
    from holdfast_hooks.frameworks.trainer_position import TrainerPosition
    from holdfast_hooks.state.sampling import Sampling

    def trainer(name: str) -> Any:
        made: Any = types.SimpleNamespace(args=types.SimpleNamespace(ignore_data_skip=name == "ignore_data_skip"))
        if name == "generates":
            made._buffered_inputs = None
        return made

    assert hasattr(TrainerPosition(trainer("neither"), Sampling()), "skip")
    assert not hasattr(TrainerPosition(trainer(setting), Sampling()), "skip")


def test_every_step_reports_its_numbers(process: Callable[[str], Process]) -> None:
    one = process("one")
    trainer, _ = one.train(gradient_accumulation_steps=2, logging_steps=1, num_train_epochs=1)
    logged = [line for line in trainer.state.log_history if "loss" in line]
    trained = [line for line in one.hooks[0].reported if "loss" in line]
    assert [line["step"] for line in trained] == [line["step"] - 1 for line in logged] == [0, 1, 2, 3]
    for ours, theirs in zip(trained, logged, strict=True):
        assert float(ours["loss"]) == pytest.approx(theirs["loss"])
        assert float(ours["grad_norm"]) == pytest.approx(theirs["grad_norm"])
        assert ours["learning_rate"] == theirs["learning_rate"]
    assert [line["tokens"] for line in trained] == [8, 8, 8, 6]
    history = [{name: value for name, value in line.items() if name != "step"} for line in trainer.state.log_history]
    assert one.hooks[0].logged == history
    assert "train_loss" in history[-1]


@pytest.mark.parametrize("saves", [True, False])
def test_a_trainer_whose_state_is_spread_over_ranks_says_that_nothing_is_saved(
    caplog: pytest.LogCaptureFixture, *, saves: bool
) -> None:
    from holdfast_hooks.frameworks.trainer_steps import TrainerSteps

    average: Any = torch.nn.Linear(1, 1)
    trainer = types.SimpleNamespace(is_deepspeed_enabled=True, args=types.SimpleNamespace(ignore_data_skip=False))
    context = RankContext(run="r", generation=1, agent="unix:/none", black_box="/none", observed=not saves)
    assert TrainerSteps(trainer, {"average": average})._state(context) == {}
    said = "saves nothing of this training and nothing of state=(average), because DeepSpeed and FSDP 1"
    assert (said in caplog.text) == saves
