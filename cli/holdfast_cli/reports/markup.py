"""Builds HTML in which every text is escaped: a run's name or a traceback may hold anything."""

import html
import json
from collections.abc import Iterable

_FEW_COLUMNS = 3
"""Columns of a table that need not be as wide as the page."""


class Markup(str):
    """HTML that is safe to put into a page. Any other string is text."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str) -> Markup:
    """Return an element. Children are escaped unless they are Markup. ``data_x`` stands for ``data-x``."""
    given = "".join(f' {_attribute(key)}="{html.escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Markup:
    """Return children next to each other."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def table(caption: str, columns: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: int = 0) -> Markup:
    """Return a table with a caption. The last ``numbers`` columns hold numbers; the first one names the row."""
    columns = list(columns)
    first_number = len(columns) - numbers

    def cell(place: int, text: str) -> Markup:
        if not place:
            return element("th", text, scope="row")
        return element("td", text, class_="number") if place >= first_number else element("td", text)

    head = [
        element("th", column, scope="col", **({"class_": "number"} if place >= first_number else {}))
        for place, column in enumerate(columns)
    ]
    body = [element("tr", *(cell(place, text) for place, text in enumerate(row))) for row in rows]
    # The wrapper scrolls on a narrow screen; keyboards reach it by its place in the order of tabs.
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", *head)),
            element("tbody", *body),
        ),
        class_="scrolls pairs" if len(columns) <= _FEW_COLUMNS else "scrolls",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def json_block(identity: str, value: object) -> Markup:
    """Return data for scripts of the page, by its id. Raises ValueError for NaN and infinity, which JSON lacks."""
    # In a script element only "<" could end the data.
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{html.escape(identity)}">{text}</script>')


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
