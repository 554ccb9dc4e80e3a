"""The memory that the hooks report, what asking costs, and whether watching opens a CUDA context of its own."""

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import torch

from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.runs.gpu_run import GpuRun
from benchmarks.gpu.timing import median_us, mib, us
from benchmarks.hook_overhead import attached
from holdfast_cli.control import rank_pids
from holdfast_cli.settings.schema import ModeName
from holdfast_hooks.telemetry.device_memory import RankMemory
from holdfast_hooks.telemetry.own_device import OwnDevice


def measure(device: str) -> Outcome:
    """Compare with torch and with the driver."""
    checks = [_watching_touches_no_gpu()]
    held = torch.ones(64 << 20, device=device)
    memory = RankMemory(OwnDevice(device if device == "cpu" else f"cuda:{held.get_device()}", {}, may_have_gpus=True))
    status = memory.status()
    figures = {
        "reported as allocated": mib(status.allocated_bytes),
        "ask for the memory in use": us(median_us(memory.status, times=500)),
    }
    if device == "cuda":
        figures["torch's figure"] = mib(torch.cuda.memory_allocated())
        checks.append(
            Check("the report equals torch's figure", status.allocated_bytes == torch.cuda.memory_allocated())
        )
    del held
    with tempfile.TemporaryDirectory(prefix="hf-") as folder, attached(Path(folder)) as hooks:
        for _ in hooks.steps(until=20):
            hooks.report(loss=torch.ones((), device=device))
    checks += _only_ranks_have_contexts(device, figures)
    return Outcome.of(figures, checks)


def _watching_touches_no_gpu() -> Check:
    """Attach hooks in a process that never uses the GPU, and ask torch whether CUDA was initialized."""
    script = (
        "import tempfile, torch; from pathlib import Path; from benchmarks.hook_overhead import attached\n"
        "with tempfile.TemporaryDirectory(prefix='hf-') as folder, attached(Path(folder)) as hooks:\n"
        "    for _ in hooks.steps(until=50): hooks.report(loss=1.0)\n"
        "print(torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout.split()[-1:] or [done.stderr[-300:]]
    return Check(
        "hooks in a process without GPU work leave the GPU alone", said == ["False"], f"initialized: {said[0]}"
    )


def _only_ranks_have_contexts(device: str, figures: dict[str, str]) -> list[Check]:
    """Ask the driver which processes of a run have a context. In a container it may show none of them."""
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as folder,
        GpuRun(device, Path(folder), ranks=2, mode=ModeName.OBSERVE) as run,
    ):
        run.train_on()
        ranks = set(rank_pids(run.local.status()).values())
        others = {child.pid for child in psutil.Process().children(recursive=True)} - ranks
        users = _users_of_the_gpu()
    what = "of all processes of a run, only the ranks have a context on the GPU"
    if not users & ranks:
        figures[what] = "unknown: the driver does not show the contexts of the ranks"
        return []
    found = f"{len(users & ranks)} of {len(ranks)} ranks and {len(users & others)} of {len(others)} others are listed"
    return [Check(what, not users & others, found)]


def _users_of_the_gpu() -> set[int]:
    """Return the processes that the driver lists; none if it does not answer."""
    try:
        command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return set(map(int, listed.split()))
    except (OSError, ValueError, subprocess.SubprocessError):
        return set()
