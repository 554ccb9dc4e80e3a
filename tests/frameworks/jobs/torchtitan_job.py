"""Trains a tiny Llama 3 with torchtitan's own entry, on CPU: the job of the tests of torchtitan.

    python torchtitan_job.py OUT [--no-line] [TORCHTITAN'S OPTIONS]

torchtitan asks for a GPU, and for a newer torch than the tests have. ``stand_in`` takes the place of both. OUT gets
the data, numbers-RANK with what torchtitan itself logs, one line a step, and end-RANK.json. Until the file named by
PACED_HURRY exists, each step takes longer.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STEPS = 10
WORDS = 100
PAUSE_S = 0.3
WRAPPED = ("train", "train_step", "forward_backward_step", "should_continue_training", "save", "validate")


def stand_in() -> None:
    """Put what a CPU has in the place of what torchtitan asks of a GPU, before torchtitan is imported."""
    import torch
    import torch._utils
    import torch.distributed

    torch.set_num_threads(1)
    vars(torch._utils)["_get_available_device_type"] = lambda: "cpu"
    # torch 2.13 cannot change the timeout of a group, which torchtitan does after its first step.
    vars(torch.distributed).setdefault("set_timeout", lambda *_: None)
    from torchtitan.components import metrics
    from torchtitan.distributed import utils

    class NoMemory:
        device_name = "cpu"
        device_capacity_gib = 0.0

        def __init__(self, _device: str) -> None: ...

        def get_peak_stats(self) -> Any:
            return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

        def reset_peak_stats(self) -> None: ...

    metrics.DeviceMemoryMonitor = NoMemory
    utils.device_module = SimpleNamespace(current_device=lambda: 0, synchronize=lambda: None)


def tiny() -> Any:
    """Return the configuration: torchtitan's llama3 debugmodel with one layer, on data and words in OUT."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    out = Path(os.environ["TITAN_OUT"])
    config = llama3_debugmodel()
    model = config.model_spec.model
    model.layers = model.layers[:1]
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.training.steps = STEPS
    config.training.seq_len, config.training.local_batch_size, config.training.global_batch_size = 16, 2, 8
    config.training.disable_cuda_graphs = True
    config.training.mixed_precision_param = "float32"
    config.parallelism.spmd_backend = "partial_dtensor"  # spmd_types needs a newer torch
    config.activation_checkpoint = None
    config.debug.seed = 0
    config.hf_assets_path, config.dump_folder = str(out / "words"), str(out / "dump")
    config.dataloader.dataset_path = config.validator.dataloader.dataset_path = str(out / "data")
    config.validator.dataloader.dataset = "c4_test"
    config.validator.enable, config.validator.freq, config.validator.steps = True, 5, 1
    config.checkpoint.interval, config.checkpoint.last_save_model_only = 3, False
    return config


def write_data(out: Path) -> None:
    """Write a tokenizer of whole words, and texts in the form of C4."""
    names = ["[UNK]", "<s>", "</s>", *(f"w{number}" for number in range(WORDS))]
    special = [
        {
            "id": names.index(name),
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for name in ("<s>", "</s>")
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {name: at for at, name in enumerate(names)}, "unk_token": "[UNK]"},
    }
    texts = [" ".join(f"w{(7 * text + word) % WORDS}" for word in range(90)) for text in range(64)]
    for path, content in (
        ("words/tokenizer.json", json.dumps(tokenizer)),
        ("words/tokenizer_config.json", json.dumps({"bos_token": "<s>", "eos_token": "</s>"})),
        ("data/texts.json", "".join(json.dumps({"text": text}) + "\n" for text in texts)),
    ):
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(content)


def keep_record(out: Path, rank: int, trainers: list[Any]) -> None:
    """Pace the steps, write down what torchtitan logs, and keep the trainer for the end."""
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.trainer import Trainer

    build, train_step, log = Trainer.__init__, Trainer.train_step, MetricsProcessor.log

    def as_torchtitan(self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        trainers.append(self)
        for module in (module for part in self.model_parts for module in part.modules()):
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor

    def paced_step(self: Any, batches: Any) -> None:
        if not Path(os.environ.get("PACED_HURRY", "/")).exists():
            time.sleep(PAUSE_S)
        train_step(self, batches)

    def recorded_log(self: Any, step: int, *numbers: float, extra_metrics: Any) -> None:
        log(self, step, *numbers, extra_metrics=extra_metrics)
        loss, _, norm = numbers
        row = {"step": step, "loss": loss, "grad_norm": norm, "learning_rate": extra_metrics["lr/AdamW"]}
        with (out / f"numbers-{rank}").open("a") as file:
            file.write(json.dumps(row) + "\n")

    Trainer.__init__, Trainer.train_step, MetricsProcessor.log = as_torchtitan, paced_step, recorded_log


def main() -> None:
    out = Path(sys.argv[1])
    has_line = "--no-line" not in sys.argv
    options = [option for option in sys.argv[2:] if option != "--no-line"]
    rank = int(os.environ["RANK"])
    # Each rank has its own folder of data: no rank waits for another one's files, and the contents are the same.
    os.environ["TITAN_OUT"] = str(out / f"rank-{rank}")
    write_data(out / f"rank-{rank}")
    stand_in()
    trainers: list[Any] = []
    keep_record(out, rank, trainers)
    sys.argv[1:] = ["--module", "torchtitan_job", "--config", "tiny", "--dump_folder", str(out / "dump"), *options]
    from torchtitan import train
    from torchtitan.trainer import Trainer

    from holdfast_hooks.frameworks import torchtitan as watched

    (watched if has_line else train).main()
    (trainer,) = trainers
    owners = (trainer, trainer.checkpointer, trainer.validator, trainer.metrics_processor)
    end = {
        "step": trainer.step,
        "wrapped": sorted(name for owner in owners for name in WRAPPED if name in vars(owner)),
        "built_by": Trainer.__init__.__name__,
        "weights": [
            float(one.detach().to_local().double().sum()).hex()
            for part in trainer.model_parts
            for one in part.parameters()
        ],
    }
    (out / f"end-{rank}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main()
