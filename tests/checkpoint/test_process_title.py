import subprocess
import sys

import pytest

from holdfast_checkpoint import process_title

PRINTS = """
import os, sys
from holdfast_checkpoint.process_title import name_process, title_process
before = open("/proc/self/environ", "rb").read()
for title in sys.argv[1].split(","):
    title_process(title)
name_process("a name that is \\udcff too long")
assert open("/proc/self/environ", "rb").read() == before
assert sys.argv[2:] == ["--steps", "5"]
print(open("/proc/self/cmdline").read().rstrip(chr(0)))
print(open("/proc/self/comm").read().strip())
"""


def shown(titles: str) -> tuple[str, str]:
    command = [sys.executable, "-c", PRINTS, titles, "--steps", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    title, name = done.stdout.splitlines()
    return title, name


@pytest.mark.parametrize("titles", ["holdfast: rank 3 of run", "a longer title than the next,holdfast: rank 3 of run"])
def test_a_title_replaces_the_arguments_and_leaves_environment_and_argv_alone(titles: str) -> None:
    assert shown(titles) == ("holdfast: rank 3 of run", "a name that is")


def test_a_title_that_is_too_long_is_cut_off_where_the_arguments_end() -> None:
    title, _ = shown("x" * 500 + ",holdfast: " + "y" * 5000)
    assert title.startswith("holdfast: yyy")
    assert set(title.removeprefix("holdfast: ")) == {"y"}


def test_a_title_that_is_no_text_is_shown_with_question_marks() -> None:
    title, _ = shown("x" * 500 + ",holdfast: \udcff of run")
    assert title == "holdfast: ? of run"


def test_a_kernel_that_hides_the_place_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_title, "_ARGUMENTS_END", 1000)
    process_title.title_process("title")
