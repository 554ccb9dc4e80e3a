"""Last words of ranks, as gloo, NCCL, the store and users' code write them."""

import pytest

from holdfast_core.detectors.deaths.peer_loss import connection_lost, raised_outside_torch
from holdfast_core.detectors.deaths.raised import exception_line

FRAMES = """Traceback (most recent call last):
  File "train.py", line 18, in <module>
    dist.all_reduce(gradients)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
    work.wait()
"""
GLOO_CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    " [127.0.0.1]:8070. This is typically caused by a remote worker crashing."
)


@pytest.mark.parametrize(
    "message",
    [
        GLOO_CLOSED,
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:8070:"
        " Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application.",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:489] writev [10.0.0.7]:5555: Broken pipe",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms"
        " for recv operation to complete",
        "RuntimeError: [enforce fail at pair.cc:302] Socket closed [127.0.0.1]:41",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote"
        " server shutdown or crash?",
        "torch.distributed.DistNetworkError: recvBytes failed on SocketImpl(fd=3, addr=[localhost]:47084)",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there"
        " was a network error, NCCL version 2.27.5",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, unhandled, NCCL version 2.27.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgress: Connection closed by remote peer",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0]"
        " via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/3",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 2/4 clients joined.",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to"
        " (10.0.0.1, 29500).",
        "torch.distributed.DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0]"
        " via c10d key-value store by key '0:1', but store->get('0:1') got error: wait timeout after 600000ms",
        "RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 10000 ms",
        "RuntimeError: Application timeout caused pair closure",
        "RuntimeError: Socket Timeout",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:"
        " CollectiveFingerPrint(SequenceNumber=7, OpType=BARRIER)",
    ],
)
def test_message_of_torch_about_a_lost_peer_is_recognised(message: str) -> None:
    assert connection_lost(FRAMES + message)
    assert connection_lost(message)


@pytest.mark.parametrize(
    "words",
    [
        "",
        FRAMES + "ValueError: sample 7 has no label",
        FRAMES + "RuntimeError: CUDA error: an illegal memory access was encountered",
        FRAMES + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        FRAMES + "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, invalid usage",
        FRAMES + "MyError",
    ],
)
def test_failure_of_the_rank_itself_is_no_lost_peer(words: str) -> None:
    assert not connection_lost(words)


@pytest.mark.parametrize(
    "message",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset'))",
    ],
)
def test_lost_connection_to_a_data_store_is_no_lost_peer(message: str) -> None:
    assert not connection_lost(FRAMES + message)
    assert not connection_lost(message)


def test_words_of_a_terminated_process_are_recognised() -> None:
    assert connection_lost(
        "terminate called after throwing an instance of 'gloo::IoException'\n"
        "  what():  Connection closed by peer [::1]:9"
    )


def test_lines_may_carry_the_prefix_that_torch_prints() -> None:
    prefixed = "\n".join(f"[rank3]: {line}" for line in (FRAMES + GLOO_CLOSED).splitlines())
    assert connection_lost(prefixed)
    assert exception_line(prefixed) == GLOO_CLOSED


def test_exception_raised_because_of_a_lost_peer_is_its_consequence() -> None:
    chain = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    assert connection_lost(FRAMES + GLOO_CLOSED + chain + FRAMES + "TrainingFailed: step 7")


def test_peer_lost_while_an_error_is_handled_is_the_consequence_of_that_error() -> None:
    chain = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert not connection_lost(FRAMES + "ValueError: bad sample" + chain + FRAMES + GLOO_CLOSED)


def test_traceback_cut_at_its_start_is_understood() -> None:
    assert connection_lost((FRAMES + GLOO_CLOSED)[60:])


USERS_FRAME = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    batch = next(batches)
  File "site-packages/streaming/download.py", line 88, in get
    raise RuntimeError(reason)
"""


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: s3://bucket/shard-0017: Connection reset by peer",
        "RuntimeError: upload of events failed: broken pipe",
        "RuntimeError: Connection refused by tracking server http://mlflow:5000",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_what_the_users_own_code_raises_is_no_lost_peer_whatever_its_words(message: str) -> None:
    assert not connection_lost(USERS_FRAME + message)
    assert raised_outside_torch(USERS_FRAME + message)


def test_an_error_that_the_loader_passes_on_is_the_datasets_own() -> None:
    loader = FRAMES.replace("torch/distributed/distributed_c10d.py", "torch/utils/data/dataloader.py")
    original = USERS_FRAME.replace("Traceback", "Original Traceback") + "RuntimeError: Connection reset by peer\n"
    words = loader + "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n" + original
    assert not connection_lost(words)
    assert raised_outside_torch(words)
    assert not connection_lost(loader + "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.")


def test_a_wait_in_the_users_own_line_loses_a_peer_by_the_words_of_gloo() -> None:
    waits = USERS_FRAME.replace("raise RuntimeError(reason)", "work.wait()")
    assert connection_lost(waits + GLOO_CLOSED)
    assert not raised_outside_torch(waits + GLOO_CLOSED)


def test_an_error_that_was_only_logged_decides_nothing() -> None:
    assert connection_lost(USERS_FRAME + "ValueError: bad sample, skipped\nstep 7\n" + FRAMES + GLOO_CLOSED)


WARNING = "train.py:31: UserWarning: Converting a tensor to a scalar\n  hooks.report(loss=float(loss))\n"


def test_a_warning_before_the_error_does_not_hide_a_lost_peer() -> None:
    assert connection_lost(WARNING + "step 1: loss 3.0\n\n" + FRAMES + GLOO_CLOSED)
