"""A world of one rank, and a poll whose first full dump of the recorder comes in the middle of a call.

Gloo counts a call before it records it. A dump in between shows the call in the status and not among the entries. This
program makes such a dump from two real ones, with a call between them. It prints the true number of collectives, then
the number that the poll shows at each look.
"""

import json
from unittest import mock

import torch
import torch.distributed as dist

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.progress import progress_poll
from holdfast_hooks.progress.point_to_point import PointToPointRecord
from holdfast_hooks.progress.progress_poll import ProgressPoll
from holdfast_hooks.progress.recorders.recorder import find_dump


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    value = torch.zeros(4)
    calls = 3
    for _ in range(calls):
        dist.all_reduce(value)
    dump = find_dump()
    assert dump is not None

    def dump_within_a_call(collectives: bool, only_active: bool) -> bytes:
        nonlocal calls
        before = json.loads(dump(collectives, only_active))
        if not collectives:
            return json.dumps(before).encode()
        dist.all_reduce(value)
        calls += 1
        counted = json.loads(dump(collectives, only_active))["pg_status"]
        return json.dumps(before | {"pg_status": counted}).encode()

    poll = ProgressPoll(None, PointToPointRecord(None, OnceLog()), OnceLog())
    with mock.patch.object(progress_poll, "find_dump", lambda: dump_within_a_call):
        looks = [poll.poll()]
    looks += [poll.poll() for _ in range(2)]  # the rank rests
    print(json.dumps({"calls": calls, "shown": [[group.enqueued for group in look] for look in looks]}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
