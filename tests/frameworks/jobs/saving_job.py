"""Saves five checkpoints with a framework: ``saving_job.py KIND FOLDER``. KIND: a name in ``KINDS``.

The first two are good. Before the third nothing is trained. The fourth leaves the optimizer out. The fifth has a NaN in
a weight. ``dcp`` needs two ranks, with RANK and WORLD_SIZE. They meet in a file next to FOLDER.
"""

import importlib
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STALE, SHRUNK, POISONED = 3, 4, 5
TRACKER = "latest_checkpointed_iteration.txt"


def poison(model: torch.nn.Module) -> None:
    weight: Any = list(model.parameters())[2].detach()
    own = weight.to_local() if hasattr(weight, "to_local") else weight
    own.view(-1)[3] = math.nan


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Train one step, with made-up gradients: it only matters that the weights change, or do not."""
    if step == STALE:
        return
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    if step == POISONED:
        poison(model)


def save_by_dcp(folder: Path) -> None:
    """Save a sharded model and its optimizer on each of two ranks, with torch.distributed.checkpoint."""
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.fsdp import fully_shard

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", f"file://{folder.with_name('meeting')}", rank=rank, world_size=ranks)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(1, POISONED + 1):
        train(model, optimizer, step)
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, **({} if step == SHRUNK else {"optimizer": moments}), "step": step}
        save(state, checkpoint_id=folder / f"step-{step}")
    dist.destroy_process_group()


def save_by_megatron(folder: Path) -> None:
    """Save Megatron Core's GPT in its format ``torch_dist``, with the tracker that Megatron-LM writes after it."""
    megatron: Any = importlib.import_module("megatron.core")
    sharding: Any = importlib.import_module("megatron.core.dist_checkpointing.optimizer")
    gpt: Any = importlib.import_module("megatron.core.models.gpt")
    layers: Any = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    # Megatron asks for these two whether or not there is a GPU.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    dist.init_process_group("gloo", f"file://{folder.with_name('meeting')}", rank=0, world_size=1)
    megatron.parallel_state.initialize_model_parallel()
    small = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "use_cpu_initialization": True}
    config = importlib.import_module("megatron.core.transformer").TransformerConfig(**small)
    model = gpt.GPTModel(config, layers.get_gpt_layer_local_spec(), vocab_size=32, max_sequence_length=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(1, POISONED + 1):
        train(model, optimizer, step)
        place = folder / f"iter_{step:07d}"
        place.mkdir(parents=True)
        state = {"iteration": step, "model": model.sharded_state_dict()}
        if step != SHRUNK:
            state["optimizer"] = optimizer.state_dict()
            parameters = sharding.get_param_id_to_sharded_param_map(state["model"], model.parameters())
            sharding.optim_state_to_sharding_state(state["optimizer"], parameters, exclude_keys=("step",))
        megatron.dist_checkpointing.save(state, str(place))
        (folder / TRACKER).write_text(str(step))
    dist.destroy_process_group()


def save_by_trainer(folder: Path) -> None:
    """Save with Hugging Face's Trainer: in one file, and in FOLDER-sharded in several."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Schedule(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            for group in optimizer.param_groups:
                group["lr"] = 0.0 if state.global_step + 1 == STALE else 0.01

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            args.save_only_model = state.global_step == SHRUNK
            if state.global_step == POISONED:
                poison(model)

    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
    for place, limit in ((folder, "5GB"), (folder.with_name(f"{folder.name}-sharded"), "12KB")):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2))
        model.save_pretrained = partial(model.save_pretrained, max_shard_size=limit)
        arguments = TrainingArguments(
            output_dir=str(place),
            max_steps=POISONED,
            per_device_train_batch_size=2,
            lr_scheduler_type="constant",
            save_strategy="steps",
            save_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        Trainer(model, arguments, train_dataset=rows, callbacks=[Schedule()]).train()


def save_by_lightning(folder: Path) -> None:
    """Save with the ModelCheckpoint of Lightning."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 1))

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            for group in self.optimizers().param_groups:
                group["lr"] = 0.0 if batch_idx + 1 == STALE else 0.01
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    class Schedule(pl.Callback):  # type: ignore[misc]
        """Comes before the ModelCheckpoint, as every callback does."""

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            keep.save_weights_only = batch_idx + 1 == SHRUNK
            if batch_idx + 1 == POISONED:
                poison(module)

    keep = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1)
    trainer = pl.Trainer(
        max_steps=POISONED,
        accelerator="cpu",
        devices=1,
        callbacks=[Schedule(), keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rows: Any = [*torch.randn(16, 16)]
    trainer.fit(Model(), torch.utils.data.DataLoader(rows, batch_size=2))


KINDS: dict[str, Callable[[Path], None]] = {
    "dcp": save_by_dcp,
    "megatron": save_by_megatron,
    "huggingface": save_by_trainer,
    "lightning": save_by_lightning,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(3)
    KINDS[sys.argv[1]](Path(sys.argv[2]))
