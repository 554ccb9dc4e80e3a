"""The recorder of NCCL, as the hooks read it, in a world of one."""

import json

import pytest
import torch
import torch.distributed as dist

from holdfast_hooks.progress.recorders.recorder import FullDumpRefusedError, NcclRecorder

pytestmark = pytest.mark.gpu


def test_the_recorder_of_nccl_counts_the_calls(nccl: torch.device) -> None:
    for _ in range(5):
        dist.all_reduce(torch.ones(4, device=nccl))
    torch.cuda.synchronize()
    recorder = NcclRecorder()
    (numbers,) = recorder.status().values()
    assert int(numbers["last_enqueued_collective"]) == 5
    if not recorder.full_dumps:
        with pytest.raises(FullDumpRefusedError):
            recorder.entries()
        return
    entries = json.loads(recorder.entries())["entries"]
    assert [entry["collective_seq_id"] for entry in entries] == [1, 2, 3, 4, 5]
