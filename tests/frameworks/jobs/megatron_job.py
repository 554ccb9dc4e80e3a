"""Trains a tiny GPT with Megatron Core on CPU, in a loop like that of Megatron-LM: the job of the tests of Megatron.

    python megatron_job.py OUT [--no-line] [--like-lm] [--parallel pipeline|data] [--first N] [--iterations N]

Megatron Core asks for a GPU. ``on_cpu`` takes its place. OUT gets numbers-RANK with the numbers that Megatron-LM would
log, one line an iteration, and end-RANK.json. Until the file named by PACED_HURRY exists, each iteration takes longer.
"""

import argparse
import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

warnings.filterwarnings("ignore")

WORDS, LENGTH, MICRO_BATCH, MICRO_BATCHES = 64, 16, 2, 2
EVALUATE_EVERY = 5
SKIPPED = 3
"""Iteration whose gradients are not finite."""
PAUSE_S = 0.3


class OnCpu(TorchFunctionMode):
    """Make on the CPU what Megatron makes on the GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args, **options).replace("torch.", "torch.cuda.")
        return func(*args, **options)


def on_cpu() -> TorchFunctionMode:
    """Return the mode that takes the place of a GPU, and change what no mode sees. Call it before Megatron's import."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    cuda.synchronize = lambda *_: None
    return OnCpu()


def build(parallel: str) -> tuple[Any, Any, Any, Any]:
    """Return the model, its optimizer, the scheduler of the rate, and the configuration, as Megatron-LM makes them."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.transformer.transformer_config import TransformerConfig

    stages = 2 if parallel == "pipeline" else 1
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=stages)
    # The states of a GPU's random numbers. Nothing draws from them: the layers drop nothing and start on the CPU.
    tracker = tensor_parallel.get_cuda_rng_tracker()
    vars(tracker)["fork"] = lambda *_: contextlib.nullcontext()
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        pipeline_model_parallel_size=stages,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        gradient_accumulation_fusion=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=WORDS,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )
    distributed = parallel == "data"
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=distributed, overlap_grad_reduce=False), model
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3, min_lr=1e-5, use_distributed_optimizer=distributed, clip_grad=1.0),
        [model],
    )
    config.grad_scale_func = optimizer.scale_loss
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=1e-3,
        min_lr=1e-5,
        lr_warmup_steps=2,
        lr_decay_steps=100,
        lr_decay_style="cosine",
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    return model, optimizer, scheduler, config


def batches(rank: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randint(0, WORDS, (MICRO_BATCH, LENGTH + 1), generator=generator)


def loss_of(mask: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    total, tokens = (output.float() * mask).sum(), mask.sum()
    sums = torch.stack([total.detach(), tokens])
    return total, tokens.to(torch.int), {"lm loss": sums}


def forward_step(data: Any, model: Any) -> tuple[torch.Tensor, Any]:
    batch = next(data)
    tokens, labels = batch[:, :-1], batch[:, 1:]
    positions = torch.arange(LENGTH).expand_as(tokens)
    hidden = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)[None, None]
    output = model(tokens, positions, hidden, labels=labels)
    return output, partial(loss_of, torch.ones_like(labels, dtype=torch.float))


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Train as Megatron-LM does in ``train_step()``. Return what the test looks at in the end."""
    arguments = SimpleNamespace(curr_iteration=0)
    if options.like_lm:  # where Megatron-LM keeps its number, which is not on PyPI
        sys.modules["megatron.training.global_vars"] = cast("ModuleType", SimpleNamespace(get_args=lambda: arguments))
    watch = None
    if not options.no_line:
        from holdfast_hooks.frameworks.megatron import watch_megatron

        watch = watch_megatron(iteration=None if options.like_lm else options.first)  # the line
    from megatron.core import parallel_state
    from megatron.core.optimizer import MegatronOptimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func, schedules
    from megatron.core.rerun_state_machine import RerunDataIterator

    model, optimizer, scheduler, _ = build(options.parallel)
    rank, group = dist.get_rank(), parallel_state.get_data_parallel_group()
    forward_backward = get_forward_backward_func()
    sizes = {"num_microbatches": MICRO_BATCHES, "micro_batch_size": MICRO_BATCH, "seq_length": LENGTH}
    data, held_out = (RerunDataIterator(batches(seed + parallel_state.get_data_parallel_rank())) for seed in (0, 100))
    for iteration in range(options.first, options.iterations):
        if not Path(os.environ.get("PACED_HURRY", "/")).exists():
            time.sleep(PAUSE_S)
        arguments.curr_iteration = iteration
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step, data_iterator=data, model=[model], forward_only=False, **sizes
        )
        data.advance()
        rate = optimizer.param_groups[0]["lr"]
        if iteration == SKIPPED:
            optimizer.prepare_grads = lambda: True  # it has found a number that is not finite
        successful, norm, _ = optimizer.step()
        vars(optimizer).pop("prepare_grads", None)
        if successful:
            scheduler.step(increment=1)
        if losses:
            sums = torch.stack([one["lm loss"] for one in losses]).sum(dim=0)
            dist.all_reduce(sums, group=group)
            row = {"iteration": iteration, "loss": float(sums[0] / sums[1]), "grad_norm": norm, "learning_rate": rate}
            with (options.out / f"numbers-{rank}").open("a") as file:
                file.write(
                    json.dumps({name: value if value is None else float(value) for name, value in row.items()}) + "\n"
                )
        if (iteration + 1) % EVALUATE_EVERY == 0:
            forward_backward(
                forward_step_func=forward_step, data_iterator=held_out, model=[model], forward_only=True, **sizes
            )
        if watch is not None and watch.should_stop:
            break
    kinds = [type(optimizer), *MegatronOptimizer.__subclasses__()]
    return {
        "wrapped": [kind.__name__ for kind in kinds if "watch" in kind.step.__qualname__.lower()]
        + [name for name in ("forward_backward_no_pipelining",) if "Watch" in getattr(schedules, name).__qualname__],
        "optimizer": type(optimizer).__name__,
        "weights": [float(one.detach().double().sum()).hex() for one in model.parameters()],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--no-line", action="store_true")
    parser.add_argument("--parallel", choices=("pipeline", "data"), default="pipeline")
    parser.add_argument("--like-lm", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=1_000_000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with on_cpu():
        dist.init_process_group("gloo")
        end = train(options)
        (options.out / f"end-{dist.get_rank()}.json").write_text(json.dumps(end))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
