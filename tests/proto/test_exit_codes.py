"""Exits in words."""

from holdfast_proto.exit_codes import describe_exit


def test_exits_are_described_in_words() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-63) == "was killed by signal 63"
