"""TRL's SFTTrainer with the one line that Holdfast needs. It needs trl, and takes nothing from a hub.

    holdfast run --ranks 2 --run sft -- python examples/trl_sft.py 200

Without Holdfast it runs as before: ``torchrun --nproc-per-node 2 examples/trl_sft.py 200``.
"""

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from holdfast_hooks.frameworks.huggingface import HoldfastCallback

VOCABULARY, LENGTH = 256, 32


def main(steps: int) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2))
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w2")
    rows = [{"input_ids": [(start + place) % VOCABULARY for place in range(LENGTH)]} for start in range(1024)]
    arguments = SFTConfig(
        output_dir="build/trl",
        max_steps=steps,
        per_device_train_batch_size=8,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    # [line]
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[HoldfastCallback()],
    )
    # [end]
    trainer.train()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
