import subprocess
import sys

STATE = """
import os, sys, threading
import holdfast_trainer.preload
import torch
print(threading.active_count(), len(os.listdir("/proc/self/task")))
print(torch.distributed.is_initialized(), torch.cuda.is_initialized())
print(all(name in sys.modules for name in ("grpc", "holdfast_trainer.train", "torch.distributed.pipelining")))
"""


def test_parent_that_preloaded_may_fork() -> None:
    """It has one thread, no process group and no device."""
    shown = subprocess.run([sys.executable, "-c", STATE], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.split() == ["1", "1", "False", "False", "True"]
    assert shown.stderr == ""
