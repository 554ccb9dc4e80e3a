"""Where a rank's host is, by the stack of its main thread."""

import re

from holdfast_cli.analysis.stack_text import main_thread
from holdfast_core.diagnosis.devices.causes import Place

_NAMES: tuple[tuple[Place, re.Pattern[str]], ...] = (
    (
        Place.TEAR_DOWN,
        re.compile(r"^(destroy_process_group|_shutdown_backend|ncclCommDestroy|ncclCommAbort|_run_exitfuncs)$"),
    ),
    (
        Place.SET_UP,
        re.compile(
            r"^(init_process_group|new_group|_new_group_with_tag|_new_process_group_helper|split_group|rendezvous|"
            r"perform_nocolor_split|eager_connect_single_device|_store_based_barrier|init_device_mesh|"
            r"ncclCommInitRank\w*|ncclCommSplit|c10d::(TCP|Prefix|File)?Store::(get|wait|doGet|doWait)\w*|"
            r"c10d::ProcessGroupNCCL::(initNCCLComm|broadcastUniqueNCCLID)\w*)\b"
        ),
    ),
    (Place.LAUNCH, re.compile(r"^(p?nccl[A-Z]|groupLaunch|hostStreamPlan|uploadProxyOps|SaveProxy)")),
    (Place.USER_CODE, re.compile(r"^(clock_nanosleep|pysleep|time_sleep)\b")),
    (
        Place.SYNCHRONIZATION,
        re.compile(
            # py-spy may write the class of a method before its name, as in Stream.synchronize.
            r"^([\w.]+\.)?(synchronize|item|tolist|_local_scalar_dense|cu(da)?(Stream|Event|Device|Ctx)Synchronize\w*|cudaFree|"
            r"at::native::_local_scalar_dense\w*)\b"
        ),
    ),
)
_DATA_FILE = re.compile(r"(^|/)torch/utils/data/")
_DATA_FRAME = re.compile(r"(^|\.)(_next_data|_get_iterator|_try_get_data|_shutdown_workers)$")
"""Functions of torch's ``dataloader.py``, where a stack shows no folders. A user's file may have the same name."""
_CALL_FILE = re.compile(r"(^|/)(distributed_c10d|c10d_logger|_functional_collectives|_fsdp_collectives|work)\.py$")
_HIDING_FILE = re.compile(r"(^|/)(graph|_tensor|function|_ops|_compile|eval_frame|cuda_graph\w*|graphs)\.py$")
"""Python files of torch below which native code makes calls that no Python frame shows."""


def place_of(stacks: str) -> Place:
    """Return where the main thread is; UNKNOWN if the stacks do not show it."""
    thread = main_thread(stacks)
    if thread is None:
        return Place.UNKNOWN
    for name, file in thread.frames:
        found = _of_frame(name, file)
        if found is not None:
            return found
    if thread.holds_gil:
        return Place.USER_CODE
    # Python code that shows no native frames may wait for its device here, as in .item().
    return Place.UNKNOWN if _HIDING_FILE.search(thread.frames[0][1]) else Place.ELSEWHERE


def _of_frame(name: str, file: str) -> Place | None:
    for place, pattern in _NAMES:
        if pattern.search(name):
            return place
    if _DATA_FILE.search(file) or (file == "dataloader.py" and _DATA_FRAME.search(name)):
        return Place.DATA
    if _CALL_FILE.search(file) or name.startswith(("gloo::", "c10d::ProcessGroup")):
        return Place.CALL
    return None
