"""The words for what a rank does and waits for, word for word."""

# ruff: noqa: E501 - one line for each text

import pytest
from google.protobuf import text_format

from holdfast_core.texts.activities import does
from holdfast_proto.v1 import common_pb2 as common

GOLDEN = """
FILE_LOCK | path: "/data/a.lock" party: PARTY_FOREIGN pid: 9 command: "rsync" | waits for the lock of /data/a.lock, which pid 9 (rsync) holds
FILE_LOCK | path: "/data/a.lock" party: PARTY_FOREIGN pid: 9 | waits for the lock of /data/a.lock, which pid 9 holds
FILE_LOCK | path: "/data/a.lock" party: PARTY_RANK pid: 9 rank: 3 command: "python" | waits for the lock of /data/a.lock, which rank 3 holds (pid 9 (python))
FILE_LOCK | path: "/data/a.lock" party: PARTY_CHILD pid: 9 command: "sh" | waits for the lock of /data/a.lock, which its process pid 9 (sh) holds
FILE_LOCK | path: "/data/a.lock" party: PARTY_ITSELF pid: 7 | waits for the lock of /data/a.lock, which it holds itself
FILE_LOCK | path: "/data/a.lock" | waits for the lock of /data/a.lock
FILE_LOCK | | waits for a file lock
PIPE | path: "/data/fifo" party: PARTY_ITSELF | waits on the pipe /data/fifo of which it has both ends open itself
PIPE | party: PARTY_FOREIGN pid: 9 command: "tee" | waits on a pipe to pid 9 (tee)
PIPE | party: PARTY_FOREIGN | waits on a pipe to processes that do not belong to this run
PIPE | party: PARTY_RANK pid: 9 rank: 3 | waits on a pipe to rank 3 (pid 9)
PIPE | | waits on a pipe
SOCKET | party: PARTY_FOREIGN pid: 9 command: "redis" peer: "127.0.0.1:6379" | waits on a connection to pid 9 (redis) at 127.0.0.1:6379
SOCKET | peer: "10.0.0.7:443" | waits on a connection to 10.0.0.7:443
SOCKET | | waits on a connection
UNSPECIFIED | party: PARTY_STORE peer: "10.0.0.7:29500" | waits for the rendezvous store at 10.0.0.7:29500
UNSPECIFIED | party: PARTY_RANK rank: 3 peer: "10.0.0.7:29500" | waits on a connection to rank 3
UNSPECIFIED | call: "accept" | makes no progress
UNSPECIFIED | | makes no progress
PROCESS | party: PARTY_CHILD pid: 9 command: "sh" | waits for its process pid 9 (sh)
PROCESS | party: PARTY_CHILD pid: 9 command: "sh" next { activity: ACTIVITY_STOPPED } | waits for its process pid 9 (sh), which is stopped
PROCESS | party: PARTY_CHILD pid: 9 command: "sh" next { activity: ACTIVITY_USER_CODE } | waits for its process pid 9 (sh), which computes
PROCESS | party: PARTY_CHILD pid: 9 next { activity: ACTIVITY_FILE_LOCK path: "/l" party: PARTY_FOREIGN pid: 8 } | waits for its process pid 9, which waits for the lock of /l, which pid 8 holds
PROCESS | party: PARTY_CHILD | waits for processes that it has started
PROCESS | | waits for a process that it has started
COMPILER | party: PARTY_CHILD pid: 9 command: "cicc" next { activity: ACTIVITY_USER_CODE } | waits for the compiler pid 9 (cicc), which computes
COMPILER | | compiles code
DISK | call: "fsync" path: "/mnt/data/x" | waits for the disk or the file system of /mnt/data/x
DISK | | waits for a disk or a file system
SYSTEM_CALL | call: "read" path: "/dev/tty" | waits in the system call read on /dev/tty
SYSTEM_CALL | | waits in a system call
SLEEP | call: "nanosleep" | sleeps
USER_CODE | | runs code of its own
LOCK | | waits for a lock
STOPPED | | is stopped
STOPPED | call: "freezer" | is frozen with its control group
GIL_HELD | | holds its interpreter lock
GIL_HELD | next { activity: ACTIVITY_SLEEP } | holds its interpreter lock while it sleeps
GIL_HELD | thread: "loader" next { activity: ACTIVITY_PIPE path: "/f" } | waits for its interpreter lock, which its thread loader holds while it waits on the pipe /f
"""

OF_DATA = """
| waits for data
activity: ACTIVITY_PROCESS party: PARTY_CHILD pid: 9 command: "pt_data_worker" | waits for data from its process pid 9 (pt_data_worker)
activity: ACTIVITY_USER_CODE | gets no data: it runs code of its own
activity: ACTIVITY_SOCKET peer: "10.0.0.7:443" | gets no data: it waits on a connection to 10.0.0.7:443
activity: ACTIVITY_FILE_LOCK path: "/l" | gets no data: it waits for the lock of /l
"""


@pytest.mark.parametrize("line", GOLDEN.strip().splitlines())
def test_words_are_the_golden_ones(line: str) -> None:
    name, text, words = (part.strip() for part in line.split("|"))
    blocked = text_format.Parse(text, common.BlockedOn(activity=f"ACTIVITY_{name}"))
    assert does(blocked.activity, blocked if text else None) == words


@pytest.mark.parametrize("line", OF_DATA.strip().splitlines())
def test_of_a_rank_that_needs_data_the_words_say_why_it_has_none(line: str) -> None:
    text, words = (part.strip() for part in line.split("|"))
    assert does(common.ACTIVITY_DATA, text_format.Parse(text, common.BlockedOn())) == words


def test_what_a_rank_was_blocked_on_does_not_explain_another_activity() -> None:
    blocked = common.BlockedOn(activity=common.ACTIVITY_FILE_LOCK, path="/l")
    assert does(common.ACTIVITY_STOPPED, blocked) == "is stopped"
    assert does(common.ACTIVITY_GIL_HELD, blocked) == "holds its interpreter lock"
    assert does(common.ACTIVITY_COLLECTIVE, blocked) == "waits in a call of torch.distributed"


def test_each_activity_has_words() -> None:
    for activity in set(common.Activity.keys()) - {"ACTIVITY_UNSPECIFIED"}:
        assert does(common.BlockedOn(activity=activity).activity) != does(common.ACTIVITY_UNSPECIFIED)
