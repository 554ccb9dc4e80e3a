import pytest

from holdfast_agent.evidence.stack_dump import Frame, Thread
from holdfast_agent.evidence.stack_summary import summarize
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1.store_pb2 import StackSummary

PID = 70
TORCH = "/venv/lib/python3.12/site-packages/torch"
STANDARD = "/usr/lib/python3.12"

USER = Frame("train_step", "/home/me/train.py", 41)
BACKWARD = Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979)
ALL_REDUCE = Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 3252)
NATIVE_WAIT = Frame("c10d::Work::wait", "/venv/lib/libtorch_cpu.so", 0)
REDUCER = Frame("c10d::Reducer::copy_bucket_to_grad", "/venv/lib/libtorch_cpu.so", 0)
CONDITION = Frame("pthread_cond_wait", "/usr/lib/libc.so.6", 0)
ACQUIRE = Frame("lock_PyThread_acquire_lock", "/usr/lib/libpython3.12.so.1.0", 0)
EVENT = Frame("wait", f"{STANDARD}/threading.py", 359)
QUEUE = Frame("get", f"{STANDARD}/queue.py", 171)
LOADER = Frame("_next_data", f"{TORCH}/utils/data/dataloader.py", 1500)
OUR_LOADER = Frame("next_batch", "/src/trainer/holdfast_trainer/data/prefetch.py", 60)
P2P_WAIT = Frame("_wait_batch_p2p", f"{TORCH}/distributed/pipelining/schedules.py", 600)
SCHEDULE = Frame("_step_microbatches", f"{TORCH}/distributed/pipelining/schedules.py", 700)
DISPATCH = Frame("dispatch", f"{TORCH}/distributed/tensor/_dispatch.py", 180)
HOOKS = Frame("step", "/src/trainer_hooks/holdfast_hooks/hooks.py", 90)


def thread(*frames: Frame, active: bool = False, owns_gil: bool = False, system_id: int = PID) -> Thread:
    return Thread(system_id, "", active, owns_gil, frames)


def summary_of(*threads: Thread, computes_on_cpu: bool = True, **blocked: common.BlockedOn) -> StackSummary:
    return summarize(3, PID, threads, computes_on_cpu=computes_on_cpu, **blocked)


def activity(*threads: Thread, computes_on_cpu: bool = True) -> str:
    found = summary_of(*threads, computes_on_cpu=computes_on_cpu).activity
    return common.Activity.Name(found).removeprefix("ACTIVITY_").lower()


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ([ALL_REDUCE], "collective"),
        ([CONDITION, NATIVE_WAIT, BACKWARD], "collective"),
        ([P2P_WAIT, SCHEDULE], "collective"),
        ([EVENT], "lock"),
        ([QUEUE], "lock"),
        ([CONDITION, ACQUIRE], "lock"),
        ([EVENT, QUEUE, LOADER], "data"),
        ([EVENT, QUEUE, OUR_LOADER], "data"),
        ([CONDITION], "unspecified"),
        ([SCHEDULE], "unspecified"),
        ([DISPATCH], "unspecified"),
        ([REDUCER, BACKWARD], "unspecified"),
        ([], "unspecified"),
    ],
)
def test_what_a_sleeping_thread_waits_for(inner: list[Frame], expected: str) -> None:
    assert activity(thread(*inner, USER)) == expected


def test_a_call_outside_of_the_users_innermost_function_is_not_what_it_waits_for() -> None:
    """The outer call is a module's forward that FSDP has wrapped, or a hook that a collective has called."""
    assert activity(thread(USER, ALL_REDUCE, active=True)) == "user_code"


def test_a_thread_that_runs_computes_if_that_is_done_on_its_cores() -> None:
    assert activity(thread(BACKWARD, USER, active=True)) == "user_code"
    assert activity(thread(BACKWARD, USER, active=True), computes_on_cpu=False) == "unspecified"
    assert activity(thread(USER, active=True, owns_gil=True), computes_on_cpu=False) == "user_code"


def test_a_thread_that_sleeps_and_holds_the_gil_keeps_all_others_from_running() -> None:
    assert activity(thread(USER, owns_gil=True)) == "gil_held"
    other = thread(USER, owns_gil=True, system_id=PID + 1)
    assert activity(thread(ALL_REDUCE, USER), other) == "gil_held"
    busy = thread(USER, owns_gil=True, active=True, system_id=PID + 1)
    assert activity(thread(ALL_REDUCE, USER), busy) == "collective"


BATON = Frame("wait", f"{TORCH}/utils/file_baton.py", 40)
FILELOCK = Frame("acquire", "/venv/lib/python3.12/site-packages/filelock/_api.py", 300)
EXTENSION = Frame("load", f"{TORCH}/utils/cpp_extension.py", 1200)
INDUCTOR = Frame("wait", f"{TORCH}/_inductor/async_compile.py", 400)
SUBPROCESS = Frame("_wait", f"{STANDARD}/subprocess.py", 2000)


@pytest.mark.parametrize(
    ("inner", "kernel", "expected"),
    [
        ([], common.ACTIVITY_PIPE, "pipe"),
        ([], common.ACTIVITY_SLEEP, "sleep"),
        ([EVENT], common.ACTIVITY_PIPE, "pipe"),
        ([EVENT], common.ACTIVITY_UNSPECIFIED, "lock"),
        ([ALL_REDUCE], common.ACTIVITY_SOCKET, "collective"),
        ([FILELOCK], common.ACTIVITY_SLEEP, "file_lock"),
        ([BATON, EXTENSION], common.ACTIVITY_SLEEP, "file_lock"),
        ([SUBPROCESS, EXTENSION], common.ACTIVITY_PROCESS, "compiler"),
        ([EVENT, INDUCTOR], common.ACTIVITY_UNSPECIFIED, "compiler"),
        ([SUBPROCESS], common.ACTIVITY_SLEEP, "process"),
        ([SUBPROCESS], common.ACTIVITY_COMPILER, "compiler"),
    ],
)
def test_kernel_and_frames_together_say_what_a_thread_waits_for(
    inner: list[Frame], kernel: "common.Activity", expected: str
) -> None:
    blocked = common.BlockedOn(activity=kernel, call="read")
    summary = summary_of(thread(*inner, USER), blocked=blocked)
    assert common.Activity.Name(summary.activity) == f"ACTIVITY_{expected.upper()}"
    assert summary.blocked_on.activity == (summary.activity if expected != "collective" else 0)
    assert blocked == common.BlockedOn(activity=kernel, call="read")


def test_a_data_loader_that_waits_for_a_lock_is_both() -> None:
    blocked = common.BlockedOn(activity=common.ACTIVITY_FILE_LOCK, path="/data/lock")
    summary = summary_of(thread(EVENT, LOADER, USER), blocked=blocked)
    assert (summary.activity, summary.blocked_on) == (common.ACTIVITY_DATA, blocked)


def test_a_sleep_on_a_gpu_is_the_ranks_own_only_if_native_frames_show_no_call() -> None:
    blocked = common.BlockedOn(activity=common.ACTIVITY_SLEEP, call="nanosleep")
    for frames, expected in (([USER], common.ACTIVITY_UNSPECIFIED), ([CONDITION, USER], common.ACTIVITY_SLEEP)):
        summary = summary_of(thread(*frames), computes_on_cpu=False, blocked=blocked)
        assert summary.activity == expected


def test_the_thread_that_holds_the_gil_is_named_with_what_it_waits_for() -> None:
    owner = Thread(PID + 1, "loader\n", active=False, owns_gil=True, frames=(USER,))
    waits = common.BlockedOn(activity=common.ACTIVITY_PIPE, path="/tmp/fifo", next=common.BlockedOn(call="read"))
    summary = summary_of(thread(USER), owner, gil_owner_blocked=waits)
    assert summary.blocked_on == common.BlockedOn(
        activity=common.ACTIVITY_GIL_HELD,
        thread="loader?",
        next=common.BlockedOn(activity=common.ACTIVITY_PIPE, path="/tmp/fifo"),
    )


def test_the_frame_is_the_innermost_of_the_users_own_code() -> None:
    summary = summary_of(thread(EVENT, HOOKS, DISPATCH, USER, SCHEDULE))
    assert summary.frame == "train_step (train.py:41)"
    assert not summary_of(thread(EVENT, HOOKS)).frame


def test_a_rank_that_computes_is_blocked_on_nothing_and_one_without_its_training_thread_is_not_described() -> None:
    assert summary_of(thread(USER, system_id=PID + 1)) == StackSummary(rank=3)
    summary = summary_of(thread(USER, active=True))
    assert summary.activity == common.ACTIVITY_USER_CODE
    assert not summary.HasField("blocked_on")
