"""Hugging Face's Trainer with the one line that Holdfast needs. It needs transformers and accelerate.

    holdfast run --ranks 2 --run huggingface -- python examples/huggingface.py 200

Without Holdfast it runs as before: ``torchrun --nproc-per-node 2 examples/huggingface.py 200``.
"""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from holdfast_hooks.frameworks.huggingface import HoldfastCallback

VOCABULARY, LENGTH = 256, 32


class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of numbers that count up, from a start that differs."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(LENGTH) + index) % VOCABULARY
        return {"input_ids": row, "labels": row}


def main(steps: int) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir="build/huggingface",
        max_steps=steps,
        per_device_train_batch_size=8,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    # [line]
    trainer = Trainer(model, arguments, train_dataset=Counting(), callbacks=[HoldfastCallback()])
    # [end]
    trainer.train()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
