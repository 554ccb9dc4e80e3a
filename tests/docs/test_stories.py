"""The stories at the doors of packages name files that there are, and no more of them than a reader can hold."""

import re
from pathlib import Path

import pytest

import holdfast_checkpoint
import holdfast_core
import holdfast_proto

ROOT = Path(__file__).parents[2]
FOLDERS = ("base", "proto", "checkpoint", "trainer_hooks", "agent", "daemon")
FILES = {f"/{path.relative_to(ROOT / folder)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
STORIES = {
    "from a hang to a restart": (holdfast_core, "The reports\n", "If something else fails", 45),
    "from a report to a metric": (holdfast_proto, "1. ", "Nothing on the way", 30),
    "from a snapshot to a manifest": (holdfast_checkpoint, "1. ", "A crash at any line", 25),
}
"""Story -> the package that tells it, where it begins and ends there, and the most files that it may pass."""


@pytest.mark.parametrize("story", STORIES)
def test_a_story_names_files_that_exist_and_few_of_them(story: str) -> None:
    package, begin, end, most = STORIES[story]
    text = package.__doc__ or ""
    everywhere = re.findall(r"``([\w/]+\.py)``", text)
    assert [path for path in everywhere if not any(file.endswith(f"/{path}") for file in FILES)] == []
    walk = text[text.index(begin) : text.index(end)]
    assert 15 < len({Path(path).name for path in re.findall(r"``([\w/]+\.py)``", walk)}) <= most
