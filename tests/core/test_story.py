"""The story of a hang names files that there are, and no more of them than a reader can hold."""

import re
from pathlib import Path

import holdfast_core

ROOT = Path(__file__).parents[2]
STORY = holdfast_core.__doc__ or ""
WALK = STORY[STORY.index("The reports\n") : STORY.index("If something else fails")]
MOST_FILES = 45
FILES = {
    path.relative_to(folder).as_posix()
    for folder in (ROOT / "daemon", ROOT / "agent", ROOT / "trainer_hooks")
    for path in folder.rglob("*.py")
}


def named(text: str) -> set[str]:
    """Return the files that a text names."""
    return set(re.findall(r"``(?:[\w/]*?/)?(\w+\.py)``", text))


def test_every_file_of_the_story_exists() -> None:
    paths = re.findall(r"``([\w/]+\.py)``", STORY)
    assert paths
    assert [path for path in paths if not any(file.endswith(f"/{path}") or file == path for file in FILES)] == []


def test_a_hang_passes_few_files_up_to_the_restart() -> None:
    assert 30 < len(named(WALK)) <= MOST_FILES
