import pytest

from holdfast_agent.blocking.system_calls import SystemCall, parse_call

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
