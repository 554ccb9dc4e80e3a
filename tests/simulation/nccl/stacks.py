"""Prints where the host thread of a rank is, in the text of ``py-spy dump --pid``.

py-spy shows Python frames only: a host in ``.item()``, in a full launch queue or in the making of a communicator shows
the line that called it. Lines are those of torch 2.13.
"""

from bisect import bisect_right

from tests.simulation.nccl.actions import Collective, Messages, NewGroups, Python, Sync, Wait
from tests.simulation.nccl.machine import Machine

C10D = "torch/distributed/distributed_c10d.py"
_CALLS = {
    "all_reduce": ("all_reduce", 3156),
    "all_reduce_barrier": ("barrier", 5284),
    "broadcast": ("broadcast", 3086),
    "_all_gather_base": ("all_gather_into_tensor", 4404),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 4953),
    "all_to_all": ("all_to_all_single", 4996),
    "gather": ("gather", 4483),
    "ALLGATHER_coalesced": ("all_gather", 4310),
    "reduce_scatter_tensor_coalesced": ("_coalescing_manager", 2915),
}


def action_at(machine: Machine, rank: int, at_s: float) -> int:
    """Return the index of the action in which a host is at a moment. The length of its program: it has ended."""
    host = machine.hosts[rank]
    index = bisect_right(host.entered_s, at_s) - 1
    ended = host.at == len(machine.program.ranks[rank]) and at_s >= host.now_s
    return host.at if ended else max(index, 0)


def stack(machine: Machine, rank: int, at_s: float) -> str:
    """Return the stacks of a rank's process."""
    frames, idle = _frames(machine, rank, at_s)
    pid = 4000 + rank
    lines = [f"Process {pid}: python train.py", "Python v3.11.9 (/usr/bin/python3.11)", ""]
    lines.append(f'Thread {pid} ({"idle" if idle else "active"}): "MainThread"')
    lines += [
        f"    {name} ({place})" for name, place in [*frames, ("main", "train.py:131"), ("<module>", "train.py:140")]
    ]
    lines += ["", f'Thread {pid + 500} (idle): "Thread-1"', "    wait (threading.py:331)", "    run (threading.py:982)"]
    return "\n".join(lines) + "\n"


def _frames(machine: Machine, rank: int, at_s: float) -> tuple[list[tuple[str, str]], bool]:
    """Return the frames of the main thread, innermost first, and whether it is idle."""
    actions, index = machine.program.ranks[rank], action_at(machine, rank, at_s)
    if index >= len(actions):
        return [("destroy_process_group", f"{C10D}:2361")], True
    step = ("train_step", f"train.py:{60 + index % 40}")
    frames, idle = [step], False
    match actions[index]:
        case Python(place="data"):
            poll = [("poll", "selectors.py:415"), ("get", "multiprocessing/queues.py:113")]
            loader = [("_try_get_data", "torch/utils/data/dataloader.py:1284"), ("__next__", "data.py:33")]
            frames, idle = [*poll, *loader], True
        case Python(place="teardown"):
            frames, idle = [("destroy_process_group", f"{C10D}:2361"), ("cleanup", "train.py:120")], True
        case Python():
            frames = [("save_samples", "samples.py:41"), step]
        case Collective() as call:
            name, line = _CALLS.get(call.op, ("all_reduce", 3156))
            frames = [(name, f"{C10D}:{line}"), ("wrapper", "torch/distributed/c10d_logger.py:83"), step]
        case Messages(batched=True):
            frames = [("batch_isend_irecv", f"{C10D}:2990"), ("exchange", "pipeline.py:77"), step]
        case Messages() as call:
            name, line = ("isend", 2598) if call.parts[0].is_send else ("irecv", 2655)
            frames = [(name, f"{C10D}:{line}"), ("exchange", "pipeline.py:81"), step]
        case Wait():
            frames, idle = [("wait", "work.py:12"), step], True
        case NewGroups():
            name = "perform_nocolor_split" if machine.settings.eager_init else "_store_based_barrier"
            frames, idle = [(name, f"{C10D}:1027"), ("new_group", f"{C10D}:5745"), ("setup", "train.py:22")], True
        case Sync(place="synchronize"):
            frames = [("synchronize", "torch/cuda/__init__.py:1209"), step]
    return frames, idle
