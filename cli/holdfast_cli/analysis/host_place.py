"""Where a rank's host is, by its stack: text of py-spy, of faulthandler, or of torch's worker server."""

import re
from collections.abc import Iterator

from holdfast_daemon.core.device_waits.causes import Place

_THREAD = re.compile(r"^\s*(?:Current thread|Thread)\b.*")
_MAIN = re.compile(r"MainThread|Current thread|\bmain\b", re.IGNORECASE)
_PY_SPY_FRAME = re.compile(r"^\s+(?P<name>\S.*?) \((?P<file>[^():]+)(?::\d+)?\)\s*$")
_FILE_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+,? in (?P<name>\S+)')

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
            r"^(synchronize|item|tolist|_local_scalar_dense|cu(da)?(Stream|Event|Device|Ctx)Synchronize\w*|cudaFree|"
            r"at::native::_local_scalar_dense\w*)\b"
        ),
    ),
)
_DATA_FILE = re.compile(r"(^|/)(dataloader|fetch|_utils/(worker|fetch|pin_memory))\.py$")
_CALL_FILE = re.compile(r"(^|/)(distributed_c10d|c10d_logger|_functional_collectives|_fsdp_collectives|work)\.py$")
_HIDING_FILE = re.compile(r"(^|/)(graph|_tensor|function|_ops|_compile|eval_frame|cuda_graph\w*|graphs)\.py$")
"""Python files of torch below which native code makes calls that no Python frame shows."""
_GIL = re.compile(r"\bgil\b", re.IGNORECASE)


def place_of(stacks: str) -> Place:
    """Return where the main thread is; UNKNOWN if the stacks do not show it."""
    header, frames = _main_thread(stacks)
    if not frames:
        return Place.UNKNOWN
    for name, file in frames:
        found = _of_frame(name, file)
        if found is not None:
            return found
    if _GIL.search(header):
        return Place.USER_CODE
    # Python code that shows no native frames may wait for its device here, as in .item().
    return Place.UNKNOWN if _HIDING_FILE.search(frames[0][1]) else Place.ELSEWHERE


def _of_frame(name: str, file: str) -> Place | None:
    for place, pattern in _NAMES:
        if pattern.search(name):
            return place
    if _DATA_FILE.search(file):
        return Place.DATA
    if _CALL_FILE.search(file) or name.startswith(("gloo::", "c10d::ProcessGroup")):
        return Place.CALL
    return None


def _main_thread(stacks: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the header and the frames, the innermost first, of the main thread; of the first one if none is named."""
    threads = list(_threads(stacks))
    named = [thread for thread in threads if _MAIN.search(thread[0])]
    return (named or threads or [("", [])])[0]


def _threads(stacks: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    header: str = ""
    frames: list[tuple[str, str]] = []
    for line in stacks.splitlines():
        if _THREAD.match(line):
            if frames:
                yield header, frames
            header, frames = line, []
            continue
        frame = _PY_SPY_FRAME.match(line) or _FILE_FRAME.match(line)
        if frame is not None:
            frames.append((frame["name"], frame["file"]))
    if frames:
        yield header, frames
