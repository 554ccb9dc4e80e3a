import pytest

from holdfast_agent.evidence.stack_dump import Frame, Thread, render
from holdfast_agent.evidence.stacks import parse

TEXT = """\
Current thread 0x00007f477dffb6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f47a6c0d000 [reporter] (most recent call first):
  File "/lib/python3.11/threading.py", line 331 in wait
  File "/x/report.py", line ??? in run

Thread 0x00007f47a6c0db80 (most recent call first):
  File "/home/u/train.py", line 20 in step
  File "/home/u/train.py", line 25 in <module>
"""


def test_threads_with_python_frames_are_found_and_the_last_is_the_main_one() -> None:
    reporter, main = parse(TEXT, 77)
    assert (reporter.system_id, reporter.name) == (None, "reporter")
    assert [str(frame) for frame in reporter.frames] == ["wait (threading.py:331)", "run (report.py)"]
    assert main.name == ""
    assert main.system_id == 77
    assert [str(frame) for frame in main.frames] == ["step (train.py:20)", "<module> (train.py:25)"]
    assert not any(thread.active or thread.owns_gil for thread in (reporter, main))


def test_a_text_that_was_cut_has_no_main_thread() -> None:
    assert [thread.system_id for thread in parse(TEXT + "...\n", 77)] == [None, None]


def test_frames_before_the_first_thread_are_nobodys() -> None:
    assert parse('  File "/x/lost.py", line 1 in lost\n' + TEXT, 77) == parse(TEXT, 77)


@pytest.mark.parametrize("text", ["", "not found", "Thread 0x1 (most recent call first):\n  <no Python frame>\n"])
def test_a_text_without_stacks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no stack"):
        parse(text, 77)


def test_the_text_begins_with_the_main_thread_and_keeps_the_order_of_the_others() -> None:
    frames = (Frame("step", "/home/u/train.py", 12),)
    threads = [Thread(number, f"t{number}", False, False, frames) for number in (12, 10, 11)]
    heads = [line for line in render(threads, 10).splitlines() if line.startswith("thread")]
    assert [line.split()[1] for line in heads] == ["10", "12", "11"]
