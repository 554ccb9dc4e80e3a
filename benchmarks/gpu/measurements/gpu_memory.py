"""The memory that the hooks report, what asking costs, and whether watching opens a CUDA context of its own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.timing import median_us, mib, us
from benchmarks.hook_overhead import attached
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
    if device == "cuda":
        checks += _only_this_process(figures)
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


def _only_this_process(figures: dict[str, str]) -> list[Check]:
    """Ask the driver which processes have a context. In a container it may show no process at all."""
    what = "no other process of ours has a context on the GPU"
    try:
        command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        figures[what] = f"unknown: nvidia-smi does not answer ({error})"
        return []
    children = {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    users = {int(line.split(",")[0]) for line in listed.splitlines() if line.strip()}
    figures["processes with a context, by the driver"] = str(len(users))
    return [Check(what, not users & children, f"{len(users)} processes are listed")]
