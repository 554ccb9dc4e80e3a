"""What the charts of the console draw. They draw on canvases, so a test listens to what is drawn.

The labels of an axis are all that a person sees of its range. From two labels and their places follow its ends.
"""

from dataclasses import dataclass

from playwright.sync_api import Locator, Page

_RECORD = """
() => {
const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.clearRect = function (x, y, width, height) {
  if (x === 0 && y === 0 && width >= this.canvas.width) this.canvas.drawnWords = [];
  return clearRect.call(this, x, y, width, height);
};
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  const at = this.getTransform().transformPoint(new DOMPoint(x, y));
  (this.canvas.drawnWords ??= []).push({ text, x: at.x, y: at.y });
  return fillText.call(this, text, x, y, ...rest);
};
}
"""
_DRAWN = """
(chart) => {
  const canvas = chart.querySelector("canvas");
  const [outer, inner] = [canvas.getBoundingClientRect(), chart.querySelector(".u-over").getBoundingClientRect()];
  const scale = canvas.width / outer.width;
  return { words: canvas.drawnWords ?? [], left: (inner.left - outer.left) * scale,
    right: (inner.right - outer.left) * scale };
}
"""


@dataclass(frozen=True)
class _Label:
    value: float
    x: float


def record_drawn_words(page: Page) -> None:
    """Record the words that charts draw from now on, until the page is loaded again."""
    page.evaluate(_RECORD)


def drawn_axis(chart: Locator) -> tuple[float, float] | None:
    """Return the values at the two ends of a chart's horizontal axis, or None while it has fewer than two labels."""
    drawn = chart.evaluate(_DRAWN)
    lowest = max((word["y"] for word in drawn["words"]), default=0.0)
    labels = [_Label(float(word["text"]), word["x"]) for word in drawn["words"] if word["y"] == lowest and word["text"]]
    if len(labels) < 2:
        return None
    first, last = labels[0], labels[-1]
    per_pixel = (last.value - first.value) / (last.x - first.x)
    left, right = (first.value + (drawn[end] - first.x) * per_pixel for end in ("left", "right"))
    return left, right
