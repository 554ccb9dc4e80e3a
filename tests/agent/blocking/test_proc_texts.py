import struct

import pytest

from holdfast_agent.blocking.proc_texts import (
    LONGEST_PATH,
    MOST_DESCRIPTORS,
    DescriptorInfo,
    clean,
    holder_of,
    is_python_lock,
    parse_descriptor_info,
    parse_inode,
    parse_locks,
    parse_poll,
    parse_select,
    parse_string,
)
from holdfast_agent.blocking.system_calls import SystemCall, parse_call

LOCKS = """\
1: FLOCK  ADVISORY  WRITE 4711 00:2b:77 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4712 00:2b:77 0 EOF
2: POSIX  ADVISORY  READ  4713 fd:01:78 0 EOF
2: POSIX  ADVISORY  READ  4714 fd:01:78 0 EOF
2: -> POSIX  ADVISORY  WRITE 4715 fd:01:78 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fd:01:79 0 EOF
3:  -> OFDLCK ADVISORY  WRITE -1 fd:01:79 0 EOF
garbage
4: LEASE  ACTIVE    READ  9 fd:01:80 0 EOF
"""


@pytest.mark.parametrize(
    ("waiter", "inode", "holder"),
    [
        (4712, 77, 4711),
        (4712, 0, 4711),
        (4712, 78, 0),  # it waits for the lock of another file
        (4715, 78, 0),  # several hold it
        (4711, 77, 0),  # it holds it, and waits for none
        (-1, 79, 0),  # the kernel knows no process
    ],
)
def test_the_table_of_locks_shows_who_holds_what_a_process_waits_for(waiter: int, inode: int, holder: int) -> None:
    assert holder_of(parse_locks(LOCKS), waiter, inode) == holder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t77\n", DescriptorInfo(inode=77)),
        ("flags:\t0100000\n", DescriptorInfo(writes=False)),
        ("flags:\t01\n", DescriptorInfo(reads=False)),
        ("flags:\t02\ntfd:        5 events:  19 data: 5\ntfd:        8 events: 1\n", DescriptorInfo(watched=(5, 8))),
        ("Pid:\t4711\nNSpid:\t4711\n", DescriptorInfo(process=4711)),
        ("flags:\tx\nino\ntfd:\n", DescriptorInfo(writes=False, watched=(0,))),
        ("", DescriptorInfo()),
    ],
)
def test_descriptor_infos_are_parsed_and_garbage_is_left_out(text: str, expected: DescriptorInfo) -> None:
    assert parse_descriptor_info(text) == expected


def test_descriptors_of_poll_and_select_are_found_up_to_a_limit() -> None:
    assert parse_poll(struct.pack("=ihhihhihh", 5, 1, 0, -1, 1, 0, 6, 1, 0) + b"rest") == [5, 6]
    assert len(parse_poll(struct.pack("=ihh", 5, 1, 0) * 1000)) == MOST_DESCRIPTORS
    assert parse_select(bytes([0b1000, 0b1])) == [3, 8]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((0x31, 0, 0, 1, 0), True),
        ((0x35, 0, 0, 3, 0), True),  # in an arena that is not the first
        ((0x30, 0, 0, 1, 0), True),  # the piece of memory before it is free
        ((0x41, 0, 0, 1, 0), True),  # the piece of memory was larger, and too small to be split
        ((0x44, 0, 0, 1, 0), True),
        ((0x33, 0, 0, 1, 0), False),  # a mapping of its own: no piece of this size is one
        ((0x21, 0, 0, 1, 0), False),  # too small for a semaphore
        ((0x51, 0, 0, 1, 0), False),
        ((0x31, 8, 0, 1, 0), False),  # a condition variable, first group: references are in front
        ((0x31, 0, 0, 0, 0), False),  # nobody waits
        ((0x31, 0, 2, 1, 0), False),  # no semaphore
    ],
)
def test_a_lock_of_python_is_told_from_other_futexes(words: tuple[int, ...], expected: bool) -> None:
    assert is_python_lock(0x7F0010, struct.pack("=5I", *words)) == expected
    assert not is_python_lock(0x7F0010, b"")


@pytest.mark.parametrize("address", [0x7F0018, 0x7F0014, 0x7F001C])
def test_the_second_group_of_a_condition_variable_is_no_lock(address: int) -> None:
    six_threads_wait = struct.pack("=5I", 6 * 8, 0, 0, 1, 0)  # what follows the variable is anything
    assert not is_python_lock(address, six_threads_wait)


def test_names_from_outside_fit_into_one_line() -> None:
    assert parse_string(b"/data/a\nb\x1b[31m\0rest") == "/data/a?b?[31m"
    assert parse_string(b"/data/without an end") == ""
    assert clean("/data/fifo (deleted)", LONGEST_PATH) == "/data/fifo"
    assert len(clean("x" * 5000, LONGEST_PATH)) == LONGEST_PATH
    assert parse_inode("socket:[123]") == 123
    assert parse_inode("/data/socket:[123]") == 0


FLOCK = "73 0x3 0x2 0x0 0x0 0x0 0x0 0x7ffd0 0x7f120"


@pytest.mark.parametrize(
    ("text", "machine", "name"),
    [
        (FLOCK, "x86_64", "flock"),
        (FLOCK.replace("73", "32", 1), "aarch64", "flock"),
        (FLOCK.replace("73", "271", 1), "x86_64", "poll"),
        (FLOCK.replace("73", "441", 1), "aarch64", "epoll_wait"),
        (FLOCK.replace("73", "9999", 1), "x86_64", ""),
        (FLOCK, "riscv64", ""),
    ],
)
def test_calls_are_named_on_each_machine(text: str, machine: str, name: str) -> None:
    call = parse_call(text, machine)
    assert call is not None
    assert (call.name, call.arguments) == (name, (3, 2, 0, 0, 0, 0))


@pytest.mark.parametrize("text", ["", "running", "-1 0x7ffd0 0x7f120", "73 0x3", FLOCK.replace("0x2", "junk")])
def test_a_thread_in_no_call_and_garbage_give_none(text: str) -> None:
    assert parse_call(text, "x86_64") is None


def call(name: str, *arguments: int) -> SystemCall:
    return SystemCall(name, (*arguments, *[0] * (6 - len(arguments))))


def test_arguments_say_what_a_call_waits_for() -> None:
    assert call("read", 7).descriptor == 7
    assert call("poll", 7).descriptor is None
    assert call("wait4", 4711).child == 4711
    assert call("wait4", 0xFFFFFFFFFFFFFFFF).child is None  # -1: any child
    assert call("waitid", 1, 4711).child == 4711
    assert call("waitid", 3, 9).descriptor == 9  # a pidfd
    assert call("openat", 5, 0x1000).path_address == 0x1000
    assert call("fcntl", 3, 7).locks_file
    assert not call("fcntl", 3, 3).locks_file
