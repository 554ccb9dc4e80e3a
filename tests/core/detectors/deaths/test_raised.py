"""Which exception ended a process, among all that its stderr holds."""

import pytest

from holdfast_core.detectors.deaths.raised import exception_line, names_an_exception

FRAMES = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "train.py", line 5, in main
    loss = head(x)
"""
ERROR = "ValueError: labels out of range: 50257"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    "after",
    [
        "",
        "wandb: \nwandb: Run history:\nwandb:  loss ###\nwandb: Find logs at: ./wandb/run-1/logs\n",
        "\rTraining:  40%|####      | 40/100 [00:02<00:03, 19.8it/s]",
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be"
        " 1 leaked semaphore objects to clean up at shutdown\n  warnings.warn('resource_tracker: %d '\n",
        "[rank1]:[W1126 20:00:00.1 ProcessGroupNCCL.cpp:1476] Warning: destroy_process_group() was not called\n",
        "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
        "in batch 17 of shard 3\n",
        "Exception ignored in atexit callback: <function finish at 0x7f>\n"
        + FRAMES.replace("main", "finish")
        + "OSError: no route\n",
        "Exception in thread Thread-3:\n" + FRAMES + "BrokenPipeError: [Errno 32] Broken pipe\n",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  driver shutting down\n",
    ],
)
def test_what_is_printed_after_the_error_hides_it_not(after: str) -> None:
    assert exception_line(FRAMES + ERROR + "\n" + after) == ERROR


def test_the_frames_may_be_written_by_another_library() -> None:
    words = (
        "2026-11-26 20:00:01.123 | ERROR | __main__:<module>:9 - An error has been caught\n"
        "Traceback (most recent call last):\n\n"
        '> File "train.py", line 9, in <module>\n    main()\n    | <function main at 0x7f>\n\n'
    )
    assert exception_line(words + ERROR + "\n") == ERROR


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'\n"
            "  what():  [PG ID 0 Rank 2] Process group watchdog thread terminated with exception: timeout\n"
            "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:632 (most recent call first):\n"
            "frame #0: c10::Error::Error() + 0x96 (0x7f in libc10.so)\n"
            "frame #4: <unknown function> + 0x129c3c (0x7f in libc.so.6)\n",
            "[PG ID 0 Rank 2] Process group watchdog thread terminated with exception: timeout",
        ),
        (
            'Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n  File "train.py",'
            " line 9 in main\n\nExtension modules: torch._C (total: 40)\n",
            "Fatal Python error: Segmentation fault",
        ),
        ("terminate called without an active exception\n", "terminate called without an active exception"),
        ("free(): invalid pointer\n", "free(): invalid pointer"),
    ],
)
def test_an_abort_is_named_by_its_reason(words: str, line: str) -> None:
    assert exception_line(words) == line


@pytest.mark.parametrize(
    ("chain", "line"),
    [
        (f"KeyError: 'labels'\n{DIRECT}{FRAMES}RuntimeError: batch 17 is broken\n", "RuntimeError: batch 17 is broken"),
        (
            f"OSError: [Errno 28] No space left on device\n{HANDLING}{FRAMES}RuntimeError: unexpected pos 64 vs 0\n",
            "OSError: [Errno 28] No space left on device",
        ),
    ],
)
def test_of_a_chain_the_last_is_named_unless_a_shortage_led_to_it(chain: str, line: str) -> None:
    assert exception_line(FRAMES + chain) == line


def test_exception_line_of_a_data_loader_worker_is_the_error_in_the_worker() -> None:
    words = (
        FRAMES + "RuntimeError: Caught ValueError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "data.py", line 3, in __getitem__\n    raise ValueError("bad sample")\nValueError: bad sample\n'
    )
    assert exception_line(words) == "ValueError: bad sample"


def test_exception_line_of_a_long_message_is_its_first_line() -> None:
    assert exception_line(FRAMES + "ValueError: two things are wrong:\nfirst\nsecond\n") == (
        "ValueError: two things are wrong:"
    )


WARNING = "train.py:31: UserWarning: Converting a tensor to a scalar\n  hooks.report(loss=float(loss))\n"


def test_what_is_printed_after_a_warning_is_no_exception() -> None:
    words = WARNING + "step 1: loss 3.0\nstep 2: loss 2.9\n"
    assert not names_an_exception(words)
    assert exception_line(words) == "step 2: loss 2.9"
    assert exception_line(words + FRAMES + "TrainingFailed: step 3\n") == "TrainingFailed: step 3"


def test_a_traceback_of_which_only_the_last_line_is_left_is_understood() -> None:
    assert exception_line("    work.wait()\nRuntimeError: boom\nleaked semaphores\n") == "RuntimeError: boom"


def test_exception_line_without_a_traceback_is_the_last_line() -> None:
    assert exception_line("loading\nsnapshot_every must be at least 1\n\n") == "snapshot_every must be at least 1"
    assert exception_line("") == ""
