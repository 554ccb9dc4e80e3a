"""The documents name only source files that exist."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
NAMED = re.compile(r"`([\w./-]+\.(?:py|proto))`")


@pytest.fixture(scope="module")
def files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_that_a_page_names_exist(page: Path, files: list[str]) -> None:
    named = NAMED.findall(page.read_text())
    missing = [name for name in named if not any(file == name or file.endswith(f"/{name}") for file in files)]
    assert missing == [name for name in missing if name in ("train.py", "script.py")]
