"""A world of one rank that makes collectives without a pause while polls look at its recorder for the first time.

It prints the true number of its collectives, the number of dumps that showed a call counted and not recorded yet, and
the numbers of collectives that the polls show in the end.
"""

import json
import threading

import torch
import torch.distributed as dist

from holdfast_hooks.once import OnceLog
from holdfast_hooks.progress.flight_recorder import find_dump
from holdfast_hooks.progress.point_to_point import PointToPointRecord
from holdfast_hooks.progress.progress_poll import ProgressPoll

DUMPS_WITHIN_A_CALL = 5


def is_within_a_call() -> bool:
    dump = find_dump()
    assert dump is not None
    recorded = json.loads(dump(True, False))
    newest: int = recorded["entries"][-1]["collective_seq_id"]
    return int(recorded["pg_status"]["0"]["last_enqueued_collective"]) > newest


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    value = torch.zeros(4)
    dist.all_reduce(value)
    calls, seen, polls = 1, 0, list[ProgressPoll]()

    def look() -> None:
        nonlocal seen
        while seen < DUMPS_WITHIN_A_CALL:
            seen += is_within_a_call()
            polls.append(ProgressPoll(None, PointToPointRecord(None, OnceLog()), OnceLog()))
            polls[-1].poll()

    looking = threading.Thread(target=look)
    looking.start()
    while looking.is_alive():
        dist.all_reduce(value)
        calls += 1
    for poll in polls:
        poll.poll()  # its second look, at a rank that rests
    shown = sorted({group.enqueued for poll in polls for group in poll.poll()})
    print(json.dumps({"calls": calls, "within_a_call": seen, "shown": shown}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
