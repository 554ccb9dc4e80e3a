"""Writes checkpoints as other frameworks do, with torch and safetensors, for tests of the guard."""

import argparse
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

Framework = Literal["dcp", "huggingface", "lightning", "megatron"]
FRAMEWORKS: tuple[Framework, ...] = ("dcp", "huggingface", "lightning", "megatron")


@dataclass
class TinyTraining:
    """A model and its optimizer that really train."""

    width: int = 16
    model: torch.nn.Module = field(init=False)
    optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(self.width, self.width), torch.nn.Linear(self.width, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, self.width)).square().mean().backward()
        self.optimizer.step()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return self.model.state_dict()


def save(framework: Framework, folder: Path, step: int, training: TinyTraining) -> Path:
    """Write a checkpoint of ``step`` into ``folder`` and return its file or folder."""
    write = {"dcp": save_dcp, "huggingface": save_huggingface, "lightning": save_lightning, "megatron": save_megatron}
    return write[framework](folder, step, training)


def save_dcp(folder: Path, step: int, training: TinyTraining) -> Path:
    place = folder / f"step-{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is one process only
        state = {"model": training.weights, "optim": training.optimizer.state_dict(), "step": step}
        dcp.save(state, checkpoint_id=place)  # type: ignore[attr-defined]
    return place


def save_huggingface(folder: Path, step: int, training: TinyTraining, *, shards: int = 1) -> Path:
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    names = list(training.weights)
    parts = [names[number::shards] for number in range(shards)]
    weight_map = {}
    for number, part in enumerate(parts, start=1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"
        save_file({each: training.weights[each] for each in part}, place / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, name))
    if shards > 1:
        (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    torch.save(training.optimizer.state_dict(), place / "optimizer.pt")
    for rank in range(2):
        torch.save({"cpu": torch.get_rng_state()}, place / f"rng_state_{rank}.pth")
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return place


def save_deepspeed(
    folder: Path, step: int, training: TinyTraining, *, stage: int, prefix: str = "", ranks: int = 2
) -> Path:
    """Write what the Trainer and DeepSpeed write together. ``prefix``: ``bf16_`` for its optimizer of that name."""
    place = folder / f"checkpoint-{step}"
    states = place / f"global_step{step}"
    states.mkdir(parents=True)
    flat = torch.cat([each.flatten() for each in training.weights.values()]).chunk(ranks)
    module = {name: torch.empty(0) if stage == 3 else each for name, each in training.weights.items()}
    document = {"module": {**module, "constant": torch.ones(2)}, "param_shapes": [], "dp_world_size": ranks}
    if stage < 3:
        torch.save(document, states / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        if stage == 3:
            torch.save(document, states / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        optimizer = {
            "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups": [flat[rank].clone()],
            "base_optimizer_state": training.optimizer.state_dict(),
        }
        name = f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer, "ds_config": {}}, states / name)
        torch.save({"cpu": torch.get_rng_state()}, place / f"rng_state_{rank}.pth")
    (place / "latest").write_text(states.name)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return place


def save_lightning(folder: Path, step: int, training: TinyTraining, *, name: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / (name or f"epoch=0-step={step}.ckpt")
    document: Mapping[str, Any] = {
        "epoch": 0,
        "global_step": step,
        "state_dict": training.weights,
        "optimizer_states": [training.optimizer.state_dict()],
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(float("nan"))}},
        "hyper_parameters": argparse.Namespace(lr=0.01, kind=torch.bfloat16),
    }
    torch.save(document, place)
    return place


def save_megatron(folder: Path, step: int, training: TinyTraining, *, ranks: int = 2) -> Path:
    place = folder / f"iter_{step:07d}"
    for rank in range(ranks):
        (place / f"mp_rank_{rank:02d}").mkdir(parents=True)
        document = {
            "args": argparse.Namespace(bf16=True),
            "iteration": step,
            "model": training.weights,
            "optimizer": training.optimizer.state_dict(),
            "rng_state": [{"torch_rng_state": torch.get_rng_state()}],
        }
        torch.save(document, place / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return place
