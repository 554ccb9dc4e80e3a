"""Short runs of the reference trainer, each in a process of its own or as two ranks."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

_LIMIT_S = 120
STEPS = 4
SMALL = (
    *("--model.dim", "64", "--model.layers", "2", "--model.heads", "2", "--model.kv_heads", "2"),
    *("--model.hidden", "128", "--data.source", "stdlib", "--data.sequence", "64", "--train.steps", str(STEPS)),
    *("--train.global_batch", "4", "--train.log_every", "1", "--train.validate_every", "0"),
)


def losses(*flags: str, ranks: int = 1, cache: Path, device: str = "cuda") -> list[float]:
    """Train a few steps; return the loss of each. Raises AssertionError with the output if a rank fails."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "holdfast_trainer", *SMALL, "--distributed.device", device]
    command += ["--data.cache_directory", str(cache), *flags]
    started = [_start(command, rank, ranks, port) for rank in range(ranks)]
    try:
        outputs = [process.communicate(timeout=_LIMIT_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert all(process.returncode == 0 for process in started), "\n".join(outputs)
    found = [float(loss) for output in outputs for loss in re.findall(r"^step \d+  loss (\S+)", output, re.MULTILINE)]
    assert len(found) == STEPS, "\n".join(outputs)
    return found


def _start(command: list[str], rank: int, ranks: int, port: int) -> "subprocess.Popen[str]":
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    environment = {**os.environ, **(place if ranks > 1 else {})}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
