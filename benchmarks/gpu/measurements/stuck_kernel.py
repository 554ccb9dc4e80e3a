"""A kernel that does not end for a while: the run is reported as standing still, and nobody is named falsely."""

import tempfile
import time
from pathlib import Path

from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.runs.gpu_run import GpuRun
from holdfast_cli.settings.schema import ModeName

_STUCK_S = 40.0
"""Seconds that are asked for. A fast GPU takes half of that."""
_CULPRIT = 1


def measure(device: str) -> Outcome:
    """Let the kernel of one rank last, once with several ranks and gloo, and once alone with NCCL."""
    figures: dict[str, str] = {}
    checks = _case(device, figures, ranks=3, backend="gloo", culprit=_CULPRIT)
    checks += _case(device, figures, ranks=1, backend="nccl", culprit=0)
    return Outcome.of(figures, checks)


def _case(device: str, figures: dict[str, str], *, ranks: int, backend: str, culprit: int) -> list[Check]:
    where = f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {backend}"
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as folder,
        GpuRun(device, Path(folder), ranks=ranks, backend=backend, mode=ModeName.OBSERVE) as run,
    ):
        reached = run.train_on()
        began_unix_s = time.time()
        run.stick(culprit, _STUCK_S)
        incident = run.incident_since(began_unix_s)
        figures[f"{where}: reported after"] = f"{incident.detected_unix_s - began_unix_s:.1f} s"
        figures[f"{where}: the report"] = incident.verdict.message
        figures[f"{where}: pending calls in recorders"] = str(len(incident.verdict.calls))
        named = sorted(incident.verdict.culprits)
        run.until_step(reached + 5)
        every = [one for one in run.local.control.incidents() if one.detected_unix_s > began_unix_s]
        figures[f"{where}: incidents"] = f"{len(every)}, and the run continued when the kernel had ended"
        falsely = sorted({rank for one in every for rank in one.verdict.culprits if rank != culprit})
    return [
        Check(f"{where}: nobody is named but the rank with the kernel", not falsely, f"named: {named or 'nobody'}"),
    ]
