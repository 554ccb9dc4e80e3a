"""The picture of the page docs/top.md shows what holdfast top shows.

After a change, draw it anew: HOLDFAST_REWRITE_PICTURE=1 pytest tests/cli/top/test_picture.py
"""

import html
import os
import re
from pathlib import Path

from tests.cli.top.conftest import Watch
from tests.cli.top.scenes import hung, wide
from tests.support.coroutines import until

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "top.svg"
REWRITE = "HOLDFAST_REWRITE_PICTURE"


def witness_reports(svg: str) -> list[str]:
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", svg)
    return [html.unescape(text).replace("\xa0", " ").strip() for text in texts]


async def test_the_picture_of_the_page_is_what_top_shows(watch: Watch) -> None:
    async with watch(wide(step=1180), size=(100, 32)) as top:
        await top.shows("1180 steps")
        for step in range(1181, 1204):
            top.control.status = wide(step=step)
            await top.shows(f"{step} steps")
        top.control.status = hung()
        await top.shows("culprit: no progress")
        await until(lambda: "next: " in top.screen_text, "the whole screen is drawn")
        svg = top.app.export_screenshot(title="holdfast top")
    # A picture in a page loads nothing from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    if os.environ.get(REWRITE):
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(svg)
    assert witness_reports(svg) == witness_reports(PICTURE.read_text()) != [], f"{REWRITE}=1 draws it anew"
