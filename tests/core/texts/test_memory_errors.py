"""Ranks that ran out of memory, as their verdicts call it."""

import pytest

from holdfast_core.detectors.deaths.death import end_of
from holdfast_core.texts.deaths import ran_out_of_memory
from holdfast_core.texts.render import render
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    loss.backward()\n'
DEVICE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
    " of which 3.20 GiB is free. Including non-PyTorch memory, this process has 75.94 GiB memory in use. Of the"
    " allocated memory 70.11 GiB is allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated. If"
    " reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management"
)
DEVICE_SENTENCE = (
    "ran out of GPU memory (torch.OutOfMemoryError: it tried to allocate 20.00 GiB; 3.20 GiB of 79.15 GiB were free on"
    " GPU 0; it had 75.94 GiB in use)"
)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (DEVICE, DEVICE_SENTENCE),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 3 has a total capacty of"
            " 4.00 GiB of which 0 bytes is free.",
            "ran out of GPU memory (torch.cuda.OutOfMemoryError: it tried to allocate 32.00 MiB; 0 bytes of 4.00 GiB"
            " were free on GPU 3)",
        ),
        ("torch.AcceleratorError: CUDA error: out of memory", "ran out of GPU memory (torch.AcceleratorError)"),
        ("RuntimeError: CUDA error: out of memory", "ran out of GPU memory (RuntimeError)"),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory:"
            " you tried to allocate 4000000000 bytes. Error code 12 (Cannot allocate memory)",
            "ran out of host memory (RuntimeError: it tried to allocate 4000000000 bytes)",
        ),
        ("MemoryError", "ran out of host memory (MemoryError)"),
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.11 PiB for an array with shape (9,)",
            "ran out of host memory (_ArrayMemoryError: Unable to allocate 7.11 PiB for an array with shape (9,))",
        ),
        ("ValueError: a GPU of 4.00 GiB is too small: CUDA out of memory is likely", ""),
        ("mine.SharedMemoryError: no segment", ""),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", ""),
        ("", ""),
    ],
)
def test_exceptions_of_ranks_that_ran_out_of_memory_are_called_that(said: str, sentence: str) -> None:
    assert ran_out_of_memory(said) == sentence


def test_a_dead_rank_ran_out_of_memory_with_the_sizes_of_its_message() -> None:
    ended = store.RankExit(code=1, last_words=TRACEBACK + DEVICE, step=7, phase=common.PHASE_FORWARD_BACKWARD)
    detail = store.DeathDetail(ends=[end_of(2, ended)])
    verdict = store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK, death=detail)
    assert render(verdict) == f"rank 2 {DEVICE_SENTENCE} in forward_backward of step 7"


def test_ranks_that_ran_out_of_memory_share_a_sentence() -> None:
    ends = [
        store.RankEnd(
            rank=rank,
            cause=store.END_CAUSE_FAILED,
            code=1,
            raised=True,
            said=DEVICE,
            step=7,
            phase=common.PHASE_OPTIMIZER,
        )
        for rank in (1, 3)
    ]
    verdict = store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK, death=store.DeathDetail(ends=ends))
    assert render(verdict) == f"ranks 1, 3 {DEVICE_SENTENCE} in optimizer of step 7"
