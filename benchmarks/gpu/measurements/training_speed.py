"""Tokens per second and MFU of the reference trainer on one GPU, in bf16 and in fp8."""

import re
import statistics
import subprocess
import sys
import tempfile

import torch

from benchmarks.gpu.outcome import Check, Outcome
from holdfast_hooks import ConfigurationError
from holdfast_trainer.config_sections import ModelConfig, PrecisionConfig
from holdfast_trainer.flops import flops_per_token, mfu, peak_flops_per_s
from holdfast_trainer.precision.fp8 import require_fp8

_LIMIT_S = 120.0
"""Of one case: four of them must fit into the part."""
_LARGE = ModelConfig(dim=2048, layers=16, heads=16, kv_heads=8, hidden=5632)
_SMALL = ModelConfig(dim=64, layers=2, heads=2, kv_heads=2, hidden=128)
_SEQUENCE, _SMALL_SEQUENCE = 2048, 64
_STEPS, _EVERY, _WARM_UP_LINES = 40, 5, 2


def measure(device: str) -> Outcome:
    """Train with each precision; the trainer's own lines show the speed."""
    figures: dict[str, str] = {}
    checks: list[Check] = []
    cases = [("bf16", PrecisionConfig(compute="bf16"))]
    if device == "cuda" and _has_fp8(figures):
        cases.append(("fp8", PrecisionConfig(compute="bf16", fp8=True)))
    for name, precision in cases:
        for compiled in (False, True) if device == "cuda" else (False,):
            case = f"{name}{', compiled' if compiled else ''}"
            try:
                figures |= _measure_one(device, case, precision, compiled=compiled)
                checks.append(Check(f"{case}: it trains", True))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                checks.append(Check(f"{case}: it trains", False, str(error)))
    return Outcome.of(figures, checks)


def _measure_one(device: str, name: str, precision: PrecisionConfig, *, compiled: bool) -> dict[str, str]:
    model, sequence = (_LARGE, _SEQUENCE) if device == "cuda" else (_SMALL, _SMALL_SEQUENCE)
    flags = {
        **{f"model.{key}": getattr(model, key) for key in ("dim", "layers", "heads", "kv_heads", "hidden")},
        "data.sequence": sequence,
        "train.steps": _STEPS,
        "train.global_batch": 8 if device == "cuda" else 2,
        "train.log_every": _EVERY,
        "train.validate_every": 0,
        "precision.compute": precision.compute,
        "precision.fp8": str(precision.fp8).lower(),
        "memory.compile": str(compiled).lower(),
        "distributed.device": device,
    }
    speeds, losses = _train(flags)
    if not losses[-1] < losses[0]:
        raise RuntimeError(f"the loss did not fall: {losses[0]:.3f} to {losses[-1]:.3f}")
    speed = statistics.median(speeds[_WARM_UP_LINES:])
    figures = {f"{name}: tokens per second": f"{speed:,.0f}"}
    peak = peak_flops_per_s(torch.cuda.get_device_name(), precision) if device == "cuda" else None
    if peak is not None:
        share = mfu(speed, flops_per_token=flops_per_token(model, sequence=sequence), peak_flops_per_s=peak)
        figures[f"{name}: MFU"] = f"{share:.1%}"
        if not 0.0 < share < 1.0:
            raise RuntimeError(f"MFU is {share:.3f}, which is no share")
    return figures


def _train(flags: dict[str, object]) -> tuple[list[float], list[float]]:
    """Return the tokens per second and the losses of the trainer's lines."""
    with tempfile.TemporaryDirectory(prefix="hf-") as cache:
        command = [sys.executable, "-m", "holdfast_trainer", "--data.cache_directory", cache]
        command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    lines = re.findall(r"^step \d+  loss (\S+) .*?([\d,]+) tokens/s$", done.stdout, re.MULTILINE)
    if done.returncode or len(lines) <= _WARM_UP_LINES:
        raise RuntimeError(f"the trainer ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return [float(speed.replace(",", "")) for _, speed in lines], [float(loss) for loss, _ in lines]


def _has_fp8(figures: dict[str, str]) -> bool:
    try:
        require_fp8(torch.device("cuda", 0))
        import torchao
    except (ConfigurationError, ImportError) as error:
        figures["fp8"] = f"not tried: {error}"
        return False
    figures["fp8"] = f"with torchao {torchao.__version__}"
    return True
