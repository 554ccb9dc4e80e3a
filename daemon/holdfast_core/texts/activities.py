"""What a rank without progress is seen to do, and what it waits for, in a few words."""

from holdfast_proto.exit_codes import describe_exit
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_DOES = {
    common.ACTIVITY_STOPPED: "is stopped",
    common.ACTIVITY_DATA: "waits for data",
    common.ACTIVITY_USER_CODE: "runs code of its own",
    common.ACTIVITY_GIL_HELD: "holds its interpreter lock",
    common.ACTIVITY_LOCK: "waits for a lock",
    common.ACTIVITY_SYSTEM_CALL: "waits in a system call",
    common.ACTIVITY_COLLECTIVE: "waits in a call of torch.distributed",
    common.ACTIVITY_FILE_LOCK: "waits for a file lock",
    common.ACTIVITY_PIPE: "waits on a pipe",
    common.ACTIVITY_SOCKET: "waits on a connection",
    common.ACTIVITY_PROCESS: "waits for a process that it has started",
    common.ACTIVITY_COMPILER: "compiles code",
    common.ACTIVITY_DISK: "waits for a disk or a file system",
    common.ACTIVITY_SLEEP: "sleeps",
}
_NOTHING = common.BlockedOn()

TRACED = "ptrace"
"""Call that stands for the stop by a tracer: no signal has stopped the process, and none continues it."""

_STOPS = {"freezer": "is frozen with its control group", TRACED: "is held by a debugger or tracer"}
"""Call -> what has stopped a process, if no signal has."""

_VERBS = ("gets no data", "holds its interpreter lock", "waits")
"""Beginnings after which the words name what a rank waits for, and perhaps what another process does."""

_IN_FULL = frozenset(_DOES.values()) - {_DOES[common.ACTIVITY_PROCESS]}
"""Words after which a moment can only be that of the rank."""


def does_at(activity: "common.Activity", blocked_on: common.BlockedOn, where: str) -> str:
    """Return the words for an activity and where the rank is: "waits in data of step 7 for the lock of /x, which ...".

    ``where`` follows the verb: at the end it would seem to say where another process is.
    """
    words = does(activity, blocked_on)
    verb = next((verb for verb in _VERBS if words.startswith(verb)), "")
    if words in _IN_FULL or not verb:
        return f"{words} {where}"
    rest = words.removeprefix(verb)
    comma = "," if not rest.startswith(":") and ("," in where or rest.startswith(" in ")) else ""
    return f"{verb} {where}{comma}{rest}"


def does(activity: "common.Activity", blocked_on: common.BlockedOn | None = None) -> str:
    """Return the words for an activity: "is stopped", "waits for the lock of /data/cache.lock, which pid 9 holds"."""
    blocked = blocked_on if blocked_on is not None else _NOTHING
    if activity == common.ACTIVITY_STOPPED:
        return _STOPS.get(blocked.call, _DOES[activity])
    if activity == common.ACTIVITY_GIL_HELD:
        return _gil(blocked)
    if activity == common.ACTIVITY_DATA:
        return _data(blocked)
    if activity == common.ACTIVITY_UNSPECIFIED and blocked.party in (common.PARTY_STORE, common.PARTY_RANK):
        return _wait(blocked)
    if activity and activity == blocked.activity:
        return _wait(blocked)
    return _DOES.get(activity, "makes no progress")


def after_worker(lost: store.LostWorker) -> str:
    """Return e.g. ", after its worker (pid 9) was killed by SIGKILL"; nothing without such a worker."""
    return f", after its worker (pid {lost.pid}) {describe_exit(lost.code)}" if lost.pid else ""


def _data(blocked: common.BlockedOn) -> str:
    """Return why a rank that should get its batch does not."""
    if blocked.activity == common.ACTIVITY_PROCESS and blocked.pid:
        return f"waits for data from {_process(blocked)}{_after(blocked)}"
    if not blocked.activity and blocked.party not in (common.PARTY_STORE, common.PARTY_RANK):
        return _DOES[common.ACTIVITY_DATA]
    return f"gets no data: it {_wait(blocked)}"


def _gil(blocked: common.BlockedOn) -> str:
    if blocked.activity != common.ACTIVITY_GIL_HELD:
        return _DOES[common.ACTIVITY_GIL_HELD]
    after = f" while it {_wait(blocked.next)}" if blocked.next.activity else ""
    if blocked.thread:
        return f"waits for its interpreter lock, which its thread {blocked.thread} holds{after}"
    return _DOES[common.ACTIVITY_GIL_HELD] + after


def _wait(blocked: common.BlockedOn) -> str:
    """Return what a rank or a process waits for."""
    match blocked.activity:
        case common.ACTIVITY_FILE_LOCK if blocked.path:
            words = f"waits for the lock of {blocked.path}{_holder(blocked)}"
        case common.ACTIVITY_PIPE:
            words = f"waits on {f'the pipe {blocked.path}' if blocked.path else 'a pipe'}{_open_by(blocked)}"
        case common.ACTIVITY_PROCESS if blocked.party == common.PARTY_CHILD:
            words = f"waits for {_process(blocked)}{_after(blocked)}"
        case common.ACTIVITY_COMPILER if blocked.pid:
            words = f"waits for the compiler {_named(blocked)}{_after(blocked)}"
        case common.ACTIVITY_DISK if blocked.path:
            words = f"waits for the disk or the file system of {blocked.path}"
        case common.ACTIVITY_SYSTEM_CALL if blocked.call:
            words = f"waits in the system call {blocked.call}{f' on {blocked.path}' if blocked.path else ''}"
        case common.ACTIVITY_SOCKET | common.ACTIVITY_UNSPECIFIED if blocked.peer or blocked.party:
            words = _connection(blocked)
        case _:
            words = _DOES.get(blocked.activity, "makes no progress")
    return words


def _holder(blocked: common.BlockedOn) -> str:
    match blocked.party:
        case common.PARTY_ITSELF:
            return ", which it holds itself"
        case common.PARTY_RANK if blocked.pid:
            return f", which rank {blocked.rank} holds ({_named(blocked)})"
        case common.PARTY_CHILD if blocked.pid:
            return f", which its process {_named(blocked)} holds"
        case _ if blocked.pid:
            return f", which {_named(blocked)} holds"
    return ""


def _open_by(blocked: common.BlockedOn) -> str:
    match blocked.party:
        case common.PARTY_ITSELF:
            return " of which it has both ends open itself"
        case common.PARTY_RANK:
            return f" to rank {blocked.rank}{f' ({_named(blocked)})' if blocked.pid else ''}"
        case common.PARTY_FOREIGN if blocked.pid:
            return f" to {_named(blocked)}"
        case common.PARTY_FOREIGN:
            return " to processes that do not belong to this run"
    return ""


def _connection(blocked: common.BlockedOn) -> str:
    at = f" at {blocked.peer}" if blocked.peer else ""
    match blocked.party:
        case common.PARTY_STORE:
            return f"waits for the rendezvous store{at}"
        case common.PARTY_RANK:
            return f"waits on a connection to rank {blocked.rank}"
        case common.PARTY_ITSELF:
            return "waits on a connection of which it has both ends open itself"
        case common.PARTY_FOREIGN if blocked.pid:
            return f"waits on a connection to {_named(blocked)}{at}"
    return f"waits on a connection to {blocked.peer}" if blocked.peer else "waits on a connection"


def _process(blocked: common.BlockedOn) -> str:
    return f"its process {_named(blocked)}" if blocked.pid else "processes that it has started"


def _after(blocked: common.BlockedOn) -> str:
    """Return what that process does itself, where that says more than that it waits."""
    after = blocked.next
    match after.activity:
        case common.ACTIVITY_UNSPECIFIED | common.ACTIVITY_PROCESS:
            return ""
        case common.ACTIVITY_USER_CODE:
            return ", which computes"
    return f", which {_wait(after)}"


def _named(blocked: common.BlockedOn) -> str:
    return f"pid {blocked.pid} ({blocked.command})" if blocked.command else f"pid {blocked.pid}"
