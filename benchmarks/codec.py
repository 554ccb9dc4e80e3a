"""How small and how fast checkpoints of a really trained model become, beside plain zstd and ZipNN.

Trains the reference trainer's own byte-level transformer in this process and keeps its whole AdamW state (float32
weights, exp_avg, exp_avg_sq) at two steps; all tensors of a kind are put together, as large models have large
tensors. Cases: `fp32` and `bf16` weights; `adam`, the whole state; `delta_bf16` and `delta_all`, the same with the
earlier state at hand. Rates are raw megabytes per second of CPU time in one thread, the best of several rounds, as
other processes' noise is not the codec's cost. Every decoded byte is compared. How small a difference is depends on
the learning rate between the two steps: see --floor.
"""

import argparse
import importlib
import importlib.util
import io
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast_proto.checkpoint import codec
from holdfast_trainer import config
from holdfast_trainer.data import corpus
from holdfast_trainer.device import open_device
from holdfast_trainer.train import train

MISSING = "missing"

Values = NDArray[np.float32]


@dataclass(frozen=True)
class AdamState:
    """The state of all parameters at the end of a step, each kind as one float32 array."""

    weights: Values
    exp_avg: Values
    exp_avg_sq: Values


@dataclass(frozen=True)
class Blob:
    """The bytes of one tensor, and those of an earlier state if that may be used."""

    raw: memoryview
    dtype: str
    previous: memoryview | None = None


@dataclass(frozen=True)
class Figures:
    """What a codec made of a case."""

    ratio: float
    """Raw size over stored size."""
    encode_mb_s: float
    decode_mb_s: float


@dataclass(frozen=True)
class Contender:
    """A codec: ``size`` tells how many bytes an encoded blob has."""

    encode: Callable[[Blob], Any]
    decode: Callable[[Blob, Any], memoryview]
    size: Callable[[Any], int]


def train_states(flags: list[str], *, steps: int, apart: int) -> tuple[AdamState, AdamState]:
    """Train for ``steps`` steps and return the states ``apart`` steps before the end and at the end."""
    # A logged step is measured, and for that made in several calls of the optimizer: no step is logged here.
    loop = ["--train.steps", str(steps), "--train.log_every", str(steps + 1), "--train.validate_every", "0"]
    settings = config.load([*loop, *flags], world_size=1)
    text = corpus.prepare(settings.data, vocabulary=settings.model.vocabulary)
    device = open_device(settings.distributed.device, backend=settings.distributed.backend)
    states: dict[int, AdamState] = {}
    done = 0

    def keep(optimizer: Optimizer, *_: object) -> None:
        nonlocal done
        done += 1
        if done in (steps - apart, steps):
            states[done] = copy_state(optimizer)

    handle = register_optimizer_step_post_hook(keep)
    try:
        train(settings, text, device)
    finally:
        handle.remove()
    assert done == steps, f"the optimizer was called {done} times in {steps} steps"
    return states[steps - apart], states[steps]


def copy_state(optimizer: Optimizer) -> AdamState:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return AdamState(
        weights=joined(parameters),
        exp_avg=joined(optimizer.state[parameter]["exp_avg"] for parameter in parameters),
        exp_avg_sq=joined(optimizer.state[parameter]["exp_avg_sq"] for parameter in parameters),
    )


def joined(tensors: Iterable[Any]) -> Values:
    """Return this rank's part of DTensors as one array."""
    parts = [tensor.detach().to_local().cpu().reshape(-1) for tensor in tensors]
    values: Values = torch.cat(parts).numpy()
    return values


def make_cases(before: AdamState, after: AdamState) -> dict[str, list[Blob]]:
    """Return the blobs of each case."""
    kinds = [(getattr(before, kind), getattr(after, kind)) for kind in vars(after)]
    fp32 = [Blob(as_bytes(new), "float32") for _, new in kinds]
    return {
        "fp32": fp32[:1],
        "bf16": [Blob(bfloat16_bytes(after.weights), "bfloat16")],
        "adam": fp32,
        "delta_bf16": [Blob(bfloat16_bytes(after.weights), "bfloat16", bfloat16_bytes(before.weights))],
        "delta_all": [Blob(as_bytes(new), "float32", as_bytes(old)) for old, new in kinds],
    }


def as_bytes(values: Values) -> memoryview:
    return memoryview(values.tobytes())


def bfloat16_bytes(values: Values) -> memoryview:
    rounded = torch.from_numpy(values).bfloat16().view(torch.int16)
    return memoryview(rounded.numpy().tobytes())


def holdfast() -> Contender:
    def encode(blob: Blob) -> tuple[bytes, dict[str, Any]]:
        pieces: list[bytes] = []
        descriptor = codec.encode(blob.raw, blob.dtype, pieces.append, previous=blob.previous)
        return b"".join(pieces), descriptor

    def decode(blob: Blob, encoded: tuple[bytes, dict[str, Any]]) -> memoryview:
        payload, descriptor = encoded
        into = memoryview(bytearray(len(blob.raw)))
        for _ in codec.decode(io.BytesIO(payload), blob.dtype, descriptor, len(blob.raw), into, previous=blob.previous):
            pass
        return into

    return Contender(encode, decode, lambda encoded: len(encoded[0]))


def zstd_1() -> Contender:
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    return Contender(
        encode=lambda blob: compressor.compress(blob.raw),
        decode=lambda _, encoded: memoryview(decompressor.decompress(encoded)),
        size=len,
    )


def zipnn() -> Contender | None:
    """Return ZipNN (`pip install zipnn`), None if it is not installed."""
    if importlib.util.find_spec("zipnn") is None:
        return None
    module: Any = importlib.import_module("zipnn")

    def instance(blob: Blob) -> Any:
        return module.ZipNN(input_format="byte", bytearray_dtype=blob.dtype, threads=1)

    return Contender(
        encode=lambda blob: instance(blob).compress(bytearray(blob.raw)),  # it works in place: give it a copy
        decode=lambda blob, encoded: memoryview(instance(blob).decompress(encoded)),
        size=len,
    )


def measure(contender: Contender, blobs: list[Blob], *, rounds: int) -> Figures:
    """Encode, decode and compare; raises AssertionError if a byte is not what it was."""
    raw_bytes = sum(len(blob.raw) for blob in blobs)
    encode_s = decode_s = float("inf")
    stored_bytes = 0
    for _ in range(rounds):
        start_s = time.process_time()
        encoded = [contender.encode(blob) for blob in blobs]
        encode_s = min(encode_s, time.process_time() - start_s)
        start_s = time.process_time()
        decoded = [contender.decode(blob, one) for blob, one in zip(blobs, encoded, strict=True)]
        decode_s = min(decode_s, time.process_time() - start_s)
        assert all(one == blob.raw for one, blob in zip(decoded, blobs, strict=True))
        stored_bytes = sum(map(contender.size, encoded))
    return Figures(
        round(raw_bytes / stored_bytes, 4), round(raw_bytes / encode_s / 1e6), round(raw_bytes / decode_s / 1e6)
    )


def measure_all(cases: dict[str, list[Blob]], *, rounds: int) -> dict[str, dict[str, Any]]:
    """Return case -> contender -> figures. The others know no earlier state, so only we have the delta cases."""
    contenders = {"holdfast": holdfast(), "zstd_1": zstd_1(), "zipnn": zipnn()}
    found: dict[str, dict[str, Any]] = {}
    for case, blobs in cases.items():
        taking_part = {"holdfast": contenders["holdfast"]} if blobs[0].previous is not None else contenders
        found[case] = {
            name: MISSING if contender is None else asdict(measure(contender, blobs, rounds=rounds))
            for name, contender in taking_part.items()
        }
    return found


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table(title="Compression of training state, one thread")
    for heading in ("case", "codec", "raw / stored", "encode (MB/s)", "decode (MB/s)"):
        table.add_column(heading, justify="left" if heading in ("case", "codec") else "right")
    for case, by_contender in found.items():
        for name, figures in by_contender.items():
            numbers = [MISSING] if figures == MISSING else [str(number) for number in figures.values()]
            table.add_row(case, name, *numbers)
        table.add_section()
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=10, help="rounds, of which the best counts")
    parser.add_argument("--steps", type=int, default=500, help="steps to train")
    parser.add_argument("--apart", type=int, default=50, help="steps between the two states")
    parser.add_argument("--beta2", default="0.999", help="of AdamW; the default is torch's")
    parser.add_argument("--floor", default="0", help="fraction of the learning rate that is left at the last step")
    arguments = parser.parse_args()
    # 1.9 million parameters.
    flags = ["--model.dim", "192", "--model.hidden", "576", "--distributed.device", "cpu"]
    flags += ["--optimizer.beta2", arguments.beta2, "--optimizer.floor", arguments.floor]
    found = measure_all(
        make_cases(*train_states(flags, steps=arguments.steps, apart=arguments.apart)), rounds=arguments.rounds
    )
    show(found)
    if arguments.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
