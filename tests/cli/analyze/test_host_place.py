"""Where a rank's host is, from stacks as py-spy, faulthandler and torch's worker server write them."""

import pytest

from holdfast_cli.analysis.host_place import place_of
from holdfast_daemon.core.device_waits.causes import Place

TORCH = "/venv/lib/python3.12/site-packages/torch"
USER = ("train_step", "train.py", 41)


def py_spy(*frames: tuple[str, str, int], header: str = 'Thread 70 (idle): "MainThread"') -> str:
    """Return a stack as ``py-spy dump`` writes it, the innermost frame first."""
    return "\n".join([header, *(f"    {name} ({file}:{line})" for name, file, line in frames)])


def faulthandler(*frames: tuple[str, str, int]) -> str:
    lines = (f'  File "{file}", line {line} in {name}' for name, file, line in frames)
    return "\n".join(["Current thread 0x00007f (most recent call first):", *lines])


CASES = [
    ([("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2900), USER], Place.CALL),
    ([("wait", f"{TORCH}/distributed/_functional_collectives.py", 10), USER], Place.CALL),
    ([("new_group", f"{TORCH}/distributed/distributed_c10d.py", 4900), USER], Place.SET_UP),
    ([("init_process_group", f"{TORCH}/distributed/distributed_c10d.py", 1700), USER], Place.SET_UP),
    ([("destroy_process_group", f"{TORCH}/distributed/distributed_c10d.py", 2100), USER], Place.TEAR_DOWN),
    ([("_next_data", f"{TORCH}/utils/data/dataloader.py", 1400), USER], Place.DATA),
    ([("item", "train.py", 60), USER], Place.SYNCHRONIZATION),
    ([("synchronize", f"{TORCH}/cuda/__init__.py", 900), USER], Place.SYNCHRONIZATION),
    ([USER], Place.ELSEWHERE),
    ([("_engine_run_backward", f"{TORCH}/autograd/graph.py", 800), USER], Place.UNKNOWN),
]


@pytest.mark.parametrize(("frames", "place"), CASES)
@pytest.mark.parametrize("style", [py_spy, faulthandler])
def test_the_innermost_telling_frame_decides(style: object, frames: list[tuple[str, str, int]], place: Place) -> None:
    assert callable(style)
    assert place_of(style(*frames)) == place


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("ncclAllReduce", Place.LAUNCH),
        ("pncclGroupEnd", Place.LAUNCH),
        ("ncclCommInitRankConfig", Place.SET_UP),
        ("c10d::TCPStore::get", Place.SET_UP),
        ("ncclCommAbort", Place.TEAR_DOWN),
        ("cudaStreamSynchronize", Place.SYNCHRONIZATION),
        ("c10d::ProcessGroupGloo::recv", Place.CALL),
        ("gloo::transport::tcp::UnboundBuffer::waitRecv", Place.CALL),
        ("clock_nanosleep", Place.USER_CODE),
    ],
)
def test_native_frames_tell_more_than_python_frames(name: str, place: Place) -> None:
    below = ("step", f"{TORCH}/utils/data/dataloader.py", 2900)
    assert place_of(py_spy((name, "libtorch_cuda.so", 0), below, USER)) == place


OTHER = py_spy(("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 1), header='Thread 71 (idle): "watcher"')


@pytest.mark.parametrize("text", [f"{OTHER}\n\n{py_spy(USER)}", f"{py_spy(USER)}\n\n{OTHER}"])
def test_the_main_thread_decides_wherever_it_is(text: str) -> None:
    assert place_of(text) == Place.ELSEWHERE


def test_the_first_thread_decides_if_none_is_called_the_main_one() -> None:
    third = py_spy(USER, header='Thread 72 (idle): "third"')
    assert place_of(f"Thread 70 (idle)\n{OTHER}\n{third}") == Place.CALL
    assert place_of(f"{third}\n{OTHER}") == Place.ELSEWHERE


def test_a_thread_that_holds_the_gil_computes() -> None:
    assert place_of(py_spy(USER, header='Thread 70 (active+gil): "MainThread"')) == Place.USER_CODE


@pytest.mark.parametrize("text", ["", "Process 70: python train.py", "no stack\nat all", "Thread 70 (idle)"])
def test_a_text_without_a_stack_says_nothing(text: str) -> None:
    assert place_of(text) == Place.UNKNOWN
