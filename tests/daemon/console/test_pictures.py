"""Makes the pictures of the console that docs/ shows, and fails if a page has other words than its picture.

    HOLDFAST_REWRITE_PICTURES=1 pytest tests/daemon/console/test_pictures.py

writes docs/images/ and the words in pictures/ next to this file.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.console_browser import chromium
from tests.support.console_pictures import IMAGES, SIZE, VIEWS, WORDS, Picture, digest, make_pictures, png_size
from tests.support.console_server import simulated_console

pytestmark = [pytest.mark.system, pytest.mark.gate]

REWRITES = os.environ.get("HOLDFAST_REWRITE_PICTURES") == "1"
MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Picture]:
    """Name -> picture of the pages as they are now."""
    folder = tmp_path_factory.mktemp("pictures")
    run = tmp_path_factory.mktemp("run")
    with simulated_console(run, ranks=64, runs=3) as console, chromium() as browser:
        pictures = {picture.name: picture for picture in make_pictures(console, browser, folder)}
    if REWRITES:
        IMAGES.mkdir(exist_ok=True)
        WORDS.mkdir(exist_ok=True)
        for picture in pictures.values():
            shutil.copyfile(picture.path, IMAGES / picture.path.name)
            (WORDS / f"{picture.name}.txt").write_text(picture.recorded())
    return pictures


@pytest.mark.parametrize("name", VIEWS)
def test_a_page_has_the_words_of_its_picture(made: dict[str, Picture], name: str) -> None:
    recorded = (WORDS / f"{name}.txt").read_text().splitlines()
    fix = f"{name}: the page has changed: make the pictures anew, see {Path(__file__).name}"
    assert list(made[name].words) == recorded[1:], fix


@pytest.mark.parametrize("name", VIEWS)
def test_a_picture_in_the_pages_was_made_together_with_its_words_and_is_as_large_as_a_new_one(
    made: dict[str, Picture], name: str
) -> None:
    committed = IMAGES / f"{name}.png"
    assert (WORDS / f"{name}.txt").read_text().splitlines()[0] == f"sha256 {digest(committed)}"
    assert png_size(committed) == png_size(made[name].path) == SIZE
    assert max(committed.stat().st_size, made[name].path.stat().st_size) <= MOST_BYTES, "make SIZE smaller"


def test_the_pages_show_each_of_these_pictures_and_no_other_of_the_console() -> None:
    pages = [IMAGES.parents[1] / "README.md", *sorted(IMAGES.parent.glob("*.md"))]
    shown = {name for page in pages for name in re.findall(r"images/(console-[\w-]+)\.png", page.read_text())}
    assert shown == {path.stem for path in IMAGES.glob("console-*.png")} == set(VIEWS)
