"""Where a rank's host is, from stacks as py-spy, faulthandler and torch's worker server write them."""

import pytest

from holdfast_agent.evidence.stack_dump import Frame, Thread, render
from holdfast_cli.analysis.host_place import place_of
from holdfast_cli.analysis.stack_text import main_thread
from holdfast_core.diagnosis.devices.causes import Place

TORCH = "/venv/lib/python3.12/site-packages/torch"
USER = ("train_step", "train.py", 41)
NEXT = ("_next_data", f"{TORCH}/utils/data/dataloader.py", 790)
FETCH = ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 52)


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
    ([("_MultiProcessingDataLoaderIter._next_data", "dataloader.py", 1505), USER], Place.DATA),
    ([("Stream.synchronize", f"{TORCH}/cuda/streams.py", 100), USER], Place.SYNCHRONIZATION),
    ([("__getitem__", "data.py", 33), FETCH, NEXT, USER], Place.DATA),
    ([("open", "data.py", 3), ("__getitem__", f"{TORCH}/utils/data/dataset.py", 400), USER], Place.DATA),
    ([("set_epoch", f"{TORCH}/utils/data/distributed.py", 140), USER], Place.DATA),
    ([("read", "data.py", 3), ("_next_data", "dataloader.py", 790), USER], Place.DATA),
    ([("item", "data.py", 3), NEXT, USER], Place.SYNCHRONIZATION),
    ([("broadcast", f"{TORCH}/distributed/distributed_c10d.py", 2900), ("get", "data.py", 33), NEXT], Place.CALL),
    # Files of the user's own: a line of them may wait for the device.
    ([("__getitem__", "data.py", 33), USER], Place.ELSEWHERE),
    ([("fetch", "fetch.py", 8), USER], Place.ELSEWHERE),
    ([("__next__", "my/dataloader.py", 8), USER], Place.ELSEWHERE),
    ([("_next_data", "my/dataloader.py", 8), USER], Place.ELSEWHERE),
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
    assert place_of(f"{OTHER}\n{third}") == Place.CALL
    assert place_of(f"Thread 70 (idle)\n{OTHER}\n{third}") == Place.UNKNOWN
    assert place_of(f"{third}\n{OTHER}") == Place.ELSEWHERE


def test_a_thread_that_holds_the_gil_computes() -> None:
    assert place_of(py_spy(USER, header='Thread 70 (active+gil): "MainThread"')) == Place.USER_CODE


@pytest.mark.parametrize("text", ["", "Process 70: python train.py", "no stack\nat all", "Thread 70 (idle)"])
def test_a_text_without_a_stack_says_nothing(text: str) -> None:
    assert place_of(text) == Place.UNKNOWN


@pytest.mark.parametrize(
    "main",
    [
        py_spy(USER),
        py_spy(USER, header='thread 70 (idle): "MainThread"'),
        py_spy(USER, header='thread 70 (idle): "MainThread: gil"'),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_frames_of_other_threads_say_nothing(main: str, order: int) -> None:
    pins = py_spy(("do_one_step", f"{TORCH}/utils/data/_utils/pin_memory.py", 30), header="thread 71 (active+gil)")
    assert place_of("\n".join([main, pins][::order])) == Place.ELSEWHERE


def test_the_text_that_holdfast_writes_itself_is_read() -> None:
    frames = (Frame("__getitem__", "data.py", 3), Frame("_next_data", f"{TORCH}/utils/data/dataloader.py", 790))
    pins = Thread(71, "Thread-1", active=True, owns_gil=True, frames=(Frame("step", "pin_memory.py", 3),))
    main = Thread(70, "MainThread", active=False, owns_gil=False, frames=frames)
    assert place_of(render([pins, main], 70)) == Place.DATA
    idle = Thread(70, "MainThread", active=False, owns_gil=False, frames=frames[:1])
    assert place_of(render([pins, idle], 70)) == Place.ELSEWHERE


def faulthandler_of(*threads: tuple[str, str]) -> str:
    """Return what faulthandler writes of several threads. Each has a header and the file of its only frame."""
    return "\n".join(f'{head} (most recent call first):\n  File "{file}", line 3 in run' for head, file in threads)


def test_faulthandler_lists_the_main_thread_last() -> None:
    """The thread that writes, called current, may be any: that of torch's worker server has no name."""
    pins = f"{TORCH}/utils/data/_utils/pin_memory.py"
    text = faulthandler_of(
        ("Current thread 0x00007f2a", pins), ("Thread 0x00007f2b", pins), ("Thread 0x7f1", "train.py")
    )
    assert place_of(text) == Place.ELSEWHERE
    assert place_of(f"{text}\n...\n") == Place.UNKNOWN  # cut off before the main thread
    assert place_of(faulthandler_of(("Thread 0x2", "train.py"), ("Thread 0x1", pins))) == Place.DATA


def test_the_main_thread_without_a_name_has_the_number_of_its_process() -> None:
    pins = py_spy(("do_one_step", f"{TORCH}/utils/data/_utils/pin_memory.py", 30), header="Thread 71 (idle)")
    main = py_spy(USER, header="Thread 70 (idle)")
    assert place_of(f"Process 70: python train.py\n{pins}\n{main}") == Place.ELSEWHERE
    assert place_of(f"Process 71: python train.py\n{main}\n{pins}") == Place.DATA


def test_a_main_thread_without_frames_is_not_replaced_by_another_one() -> None:
    other = py_spy(("_next_data", f"{TORCH}/utils/data/dataloader.py", 1), header='Thread 71 (idle): "loader"')
    assert main_thread(f'Thread 70 (idle): "MainThread"\n{other}') is None
