"""A rank with work on the GPU is stopped by SIGSTOP: it is named, and the run continues after SIGCONT."""

import os
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.runs.gpu_run import GpuRun
from holdfast_cli.settings.schema import ModeName

_STOPPED = 2


def measure(device: str) -> Outcome:
    """Stop one of three ranks that share the GPU."""
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as folder,
        GpuRun(device, Path(folder), ranks=3, mode=ModeName.OBSERVE) as run,
    ):
        run.train_on()
        pid, began_unix_s = run.pid(_STOPPED), time.time()
        os.kill(pid, signal.SIGSTOP)
        try:
            incident = run.incident_since(began_unix_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        reached = run.train_on(5)
    figures = {
        "named after": f"{incident.detected_unix_s - began_unix_s:.2f} s",
        "the report": incident.verdict.message,
        "step after SIGCONT": str(reached),
    }
    named = list(incident.verdict.culprits)
    return Outcome.of(figures, [Check(f"rank {_STOPPED} is named", named == [_STOPPED], f"named: {named}")])
