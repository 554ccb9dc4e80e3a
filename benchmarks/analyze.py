"""Measure what ``holdfast analyze`` needs for the dumps of a large job: seconds, and the peak of its memory.

Writes one dump for each rank, as torch does: a pickle of a full ring of calls, each with the frames of its stack. Eight
neighbours share a tensor group. One rank does not make the last call of its tensor group. Its peers wait there, and all
other ranks wait for these in a call of data parallelism. The command reads the folder in a process of its own, several
times. Of these runs, the quickest and the one with the most memory count.

    python benchmarks/analyze.py [--json] [--quick] [--ranks 1024] [--calls 2000]
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support.recorder_documents import Document

TENSOR = 8
"""Ranks of a tensor group."""
TENSOR_CALLS = 8
"""Calls of the tensor group in a step. One call of data parallelism follows, and one of all ranks."""
FIRST_RECORD = 50_000
"""Calls of a rank before those that its dump may hold."""
QUICK = {"ranks": 64, "calls": 200}
WANTED = {"seconds": 20.0, "peak_mb": 1000.0}
_PROTOCOL = 2
"""Of pickle: torch writes this one."""
_DONE = {"state": "completed", "retired": True}
_LIBRARY = "/opt/venv/lib/python3.12/site-packages/torch"
_FILES = (
    *(
        f"{_LIBRARY}/{name}.py"
        for name in ("distributed/distributed_c10d", "distributed/c10d_logger", "autograd/graph")
    ),
    f"{_LIBRARY}/nn/modules/module.py",
    "/srv/job/model/layers.py",
    "/srv/job/train.py",
)
_FRAMES = {
    op: [{"name": op, "filename": file, "line": 100 + line} for line, file in enumerate(_FILES)]
    for op in ("all_reduce", "reduce_scatter", "all_gather")
}
"""Stack of each operation, the innermost frame first."""


def dump_of(rank: int, ranks: int, calls: int, culprit: int) -> dict[str, Any]:
    """Return the recorder of a rank while ``culprit`` holds up the job."""
    replica, shard = divmod(rank, TENSOR)
    tensor, data = f"t{replica}", f"d{shard}"
    peers = range(replica * TENSOR, (replica + 1) * TENSOR)
    document = Document(
        {"0": range(ranks), tensor: peers, data: range(shard, ranks, TENSOR)}, first_record=FIRST_RECORD
    )

    def make(op: str, group: str, elements: int, outcome: dict[str, Any]) -> None:
        document.call(op, group, elements=elements, frames=_FRAMES[op], **outcome)

    steps = calls // (TENSOR_CALLS + 2) + 2
    for step in range(steps):
        is_last, is_held = step == steps - 1, culprit in peers
        for call in range(TENSOR_CALLS):
            if not (is_last and is_held and call == TENSOR_CALLS - 1):
                make("all_reduce", tensor, 1 << 20, _DONE)
            elif rank != culprit:
                make("all_reduce", tensor, 1 << 20, {"state": "scheduled"})
        if not (is_last and is_held):
            outcome = {"state": "scheduled"} if is_last else _DONE
            make(("reduce_scatter", "all_gather")[step % 2], data, 1 << 22, outcome)
        if not is_last:
            make("all_reduce", "0", 1, _DONE)
    written = document.document()
    del written["entries"][:-calls]
    return written


def write_dumps(folder: Path, ranks: int, calls: int, culprit: int) -> float:
    """Write the dumps of all ranks, and return their size in MB."""
    for rank in range(ranks):
        dump = pickle.dumps(dump_of(rank, ranks, calls, culprit), protocol=_PROTOCOL)
        (folder / f"comm_lib_trace_rank_{rank}").write_bytes(dump)
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def analyzed(folder: Path) -> dict[str, Any]:
    """Return what the command prints about a folder, and what it used."""
    command = [sys.executable, "-m", "holdfast_cli", "analyze", str(folder), "--json"]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        answer = json.load(process.stdout)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return {
        "kind": answer["kind"],
        "culprits": answer["culprits"],
        "dumps": answer["dumps"],
        "seconds": time.monotonic() - began_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
    }


def measure(ranks: int, calls: int, repeats: int) -> dict[str, Any]:
    """Return the figures of one size."""
    culprit = ranks // 2 + 3
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        dumps_mb = write_dumps(Path(name), ranks, calls, culprit)
        runs = [analyzed(Path(name)) for _ in range(repeats)]
    right = all((run["kind"], run["culprits"], run["dumps"]) == ("missing_rank", [culprit], ranks) for run in runs)
    return {
        "ranks": ranks,
        "calls": calls,
        "dumps_mb": dumps_mb,
        "named": right,
        "seconds": min(run["seconds"] for run in runs),
        "cpu_s": min(run["cpu_s"] for run in runs),
        "peak_mb": max(run["peak_mb"] for run in runs),
        "load": os.getloadavg()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024, help="ranks of the job (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=2000, help="calls of each dump (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the command (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="measure 64 ranks with 200 calls each, once")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    given = parser.parse_args()
    row = measure(**QUICK, repeats=1) if given.quick else measure(given.ranks, given.calls, given.repeats)
    table = Table(f"{row['ranks']:,} dumps of {row['calls']:,} calls", "measured", "wanted, at most")
    table.add_row("time", f"{row['seconds']:.1f} s", f"{WANTED['seconds']:.0f} s")
    table.add_row("CPU time", f"{row['cpu_s']:.1f} s", "")
    table.add_row("peak of memory", f"{row['peak_mb']:.0f} MB", f"{WANTED['peak_mb']:.0f} MB")
    table.add_row("dumps", f"{row['dumps_mb']:.0f} MB", "")
    table.add_row("rank named", "yes" if row["named"] else "NO", "")
    Console().print(table, f"Load of the machine: {row['load']:.1f}")
    if given.json:
        print(json.dumps(row))
    return 0 if row["named"] and all(row[name] <= most for name, most in WANTED.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
