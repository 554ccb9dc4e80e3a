"""Makes the pictures of the console in docs/images/, from a simulated run.

    python docs/console_images.py

It needs Chromium and the extras `console` and `dev`. The pictures are small: a page shows what matters at its top.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.console_browser import Theme, chromium, new_context, watched_page  # noqa: E402
from tests.support.console_server import simulated_console  # noqa: E402
from tests.support.console_story import tell_story  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000
SIZE = (1200, 860)
# Name of the picture: address, what must be visible, colours.
PICTURES: dict[str, tuple[str, str, Theme]] = {
    "console-run": ("#/runs/llama-7b", ".chart .newest:not(:empty)", "light"),
    "console-ranks": ("#/runs/llama-7b/ranks/3", ".panel pre", "dark"),
    "console-incident": ("#/runs/llama-7b/incidents/INCIDENT", ".timeline", "light"),
}


def main() -> int:
    """Write the pictures; return 1 if one is too large."""
    IMAGES.mkdir(exist_ok=True)
    too_large = []
    with (
        tempfile.TemporaryDirectory(prefix="hf-images-") as folder,
        simulated_console(Path(folder), ranks=64, runs=3) as console,
        chromium() as browser,
    ):
        incident = tell_story(console)
        for name, (place, sign, theme) in PICTURES.items():
            context = new_context(browser, theme=theme, size=SIZE)
            page, watch = watched_page(context, console.origin)
            page.goto(console.address())
            page.goto(f"{console.origin}/{place.replace('INCIDENT', incident)}")
            page.wait_for_selector(sign)
            page.wait_for_timeout(1500)
            path = IMAGES / f"{name}.png"
            page.screenshot(path=path)
            context.close()
            watch.expect_nothing()
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
            if path.stat().st_size > MOST_BYTES:
                too_large.append(name)
    if too_large:
        print(f"error: larger than {MOST_BYTES} bytes: {', '.join(too_large)}: make SIZE smaller", file=sys.stderr)
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
