"""Trains a small language model with Hugging Face's Trainer. What it writes tells whether two runs were the same.

    python trainer_job.py OUT [--accumulate N] [--evaluate] [--sft] [--no-line] [--forever]

Every optimizer step adds a line with the samples that it used to OUT/samples-RANK. The end writes OUT/model,
OUT/optimizer.pt and OUT/trainer_state.json. Until the file named by PACED_HURRY exists, each step takes 0.1 s longer.
Once the file PACED_HURRY.hang exists, rank 1 stands still in its model. With --forever it has no end.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from holdfast_hooks.frameworks.huggingface import HoldfastCallback

SAMPLES, LENGTH, VOCABULARY = 60, 8, 128


class Numbered(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples whose first token is their number."""

    def __init__(self) -> None:
        self.rows = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(3))
        self.rows[:, 0] = torch.arange(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes the samples of each step that was trained."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used: list[int] = []

    def watch(self, model: torch.nn.Module) -> None:
        def note(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            stand_still()
            if module.training:
                self.used += kwargs["input_ids"][:, 0].tolist()

        model.register_forward_pre_hook(note, with_kwargs=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        with self.path.open("a") as file:
            file.write(f"{state.global_step} {self.used}\n")
        self.used = []
        if not Path(os.environ.get("PACED_HURRY", "/")).exists():
            time.sleep(0.1)


def stand_still() -> None:
    if os.environ.get("RANK") == "1" and Path(os.environ.get("PACED_HURRY", "/none") + ".hang").exists():
        time.sleep(1000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--sft", action="store_true")
    parser.add_argument("--no-line", action="store_true", help="leave HoldfastCallback out")
    parser.add_argument("--forever", action="store_true")
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    arguments: dict[str, Any] = {
        "output_dir": str(options.out / "own"),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": options.accumulate,
        "num_train_epochs": 10_000 if options.forever else 3,
        "logging_steps": 3,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    if options.evaluate:
        arguments |= {
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_strategy": "steps",
            "save_steps": 4,
            "load_best_model_at_end": True,
            "save_total_limit": 2,
            "metric_for_best_model": "loss",
        }
    set_seed(5)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2))
    recorder = Recorder(options.out / f"samples-{rank}")
    recorder.watch(model)
    callbacks = [recorder] if options.no_line else [HoldfastCallback(), recorder]
    if options.evaluate:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=9))
    data = Numbered()
    if options.sft:
        trainer = sft_trainer(model, arguments, data, callbacks)
    else:
        trainer = Trainer(
            model, TrainingArguments(**arguments), train_dataset=data, eval_dataset=data, callbacks=callbacks
        )
    trainer.train()
    if rank == 0:
        trainer.save_model(str(options.out / "model"))
        torch.save(trainer.optimizer.optimizer.state_dict(), options.out / "optimizer.pt")
        trainer.state.save_to_json(str(options.out / "trainer_state.json"))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def sft_trainer(model: Any, arguments: dict[str, Any], data: Numbered, callbacks: list[Any]) -> Any:
    """Return TRL's trainer for texts that are token ids already."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), eos_token="w1", pad_token="w2"
    )
    rows = Dataset.from_dict({"input_ids": data.rows.tolist()})
    return SFTTrainer(
        model,
        SFTConfig(**arguments),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
        callbacks=callbacks,
    )


if __name__ == "__main__":
    main()
