"""Puts a report together: one HTML file that needs no other file and no network."""

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from holdfast_base.files import replace_file
from holdfast_base.text import moment
from holdfast_cli.errors import CommandError
from holdfast_cli.reports.charts import chart_data, chart_figures
from holdfast_cli.reports.headline import headline
from holdfast_cli.reports.markup import Markup, element, joined, json_block
from holdfast_cli.reports.redaction import Redaction, redaction
from holdfast_cli.reports.run_facts import RunFacts
from holdfast_cli.reports.sections import (
    checkpoint_section,
    goodput_section,
    incident_section,
    settings_section,
    slowest_section,
)

_UPLOT = files("holdfast_daemon") / "console" / "static" / "vendor" / "uplot"
_OWN = files("holdfast_cli.reports") / "static"
_MODULE_EXPORT = "export default uPlot;"
"""Last line of the console's copy of uPlot, which is a module. The report's script is not."""


def report_page(facts: RunFacts, redaction: Redaction, *, show_arguments: bool) -> str:
    """Return the HTML of a report."""
    data = chart_data(facts)
    script = "\n".join([_uplot_script(), (_OWN / "report.js").read_text(encoding="utf-8")])
    style = "\n".join(
        [(_UPLOT / "uplot.css").read_text(encoding="utf-8"), (_OWN / "report.css").read_text(encoding="utf-8")]
    )
    title = f"Run {facts.name}: Holdfast report"
    # The policy lets nothing in but the two texts in this file, by their digests: no host, image or frame.
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    curves = chart_figures(data) if data["charts"] else element("p", "There are no curves.")
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Markup('<meta name="referrer" content="no-referrer">'),
            element("title", title),
            Markup(f"<style>{style}</style>"),
        ]
    )
    main = element(
        "main",
        element("h2", "Curves"),
        element("p", _reading(facts), class_="soft"),
        element("div", curves, class_="charts"),
        *goodput_section(facts),
        *incident_section(facts, redaction),
        *checkpoint_section(facts),
        *slowest_section(facts, redaction),
        *settings_section(facts, redaction, show_arguments=show_arguments),
    )
    # What could not be read is known only now.
    body = joined(
        [
            headline(facts, redaction),
            main,
            _footer(),
            json_block("report-data", data),
            Markup(f"<script>{script}</script>"),
        ]
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _uplot_script() -> str:
    return (_UPLOT / "uplot.js").read_text(encoding="utf-8").replace(_MODULE_EXPORT, "")


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _reading(facts: RunFacts) -> str:
    line = "The line is the mean of a few steps, the band their lowest to highest value."
    marks = " Dashed lines are incidents, by number." if facts.incidents else ""
    return f"{line}{marks} Drag to zoom, double-click to go back."


def _footer() -> Markup:
    written = moment(time.time())
    origin = f"Written by Holdfast {version('holdfast-torch')} on {written}. This file loads nothing from other places."
    warning = "Values that look like secrets are hidden. No rule knows them all: read the file before you share it."
    return element("footer", element("p", origin), element("p", warning))


@dataclass(frozen=True)
class WrittenReport:
    """A report on disk."""

    path: Path
    size_bytes: int
    gaps: Sequence[str]
    """What the report lacks, and why, one line each."""


def write_report(
    facts: RunFacts,
    target: Path | None,
    *,
    redact_hosts: bool = False,
    show_arguments: bool = False,
    flag: str = "--output",
) -> WrittenReport:
    """Write a report that only this user can read. Raises CommandError if the file cannot be written.

    Args:
        facts: what is known of the run.
        target: the file; None: a file in the current folder with the name of the run.
        redact_hosts: replace names of hosts and users, and paths.
        show_arguments: show the values of the command's arguments.
        flag: name of the setting that says ``target``, for the error.
    """
    hidden = redaction(_hosts(facts), redact_hosts=redact_hosts)
    page = report_page(facts, hidden, show_arguments=show_arguments).encode()
    target = target or Path(f"{facts.name}-report.html")
    try:
        replace_file(target, page, mode=0o600)
    except OSError as error:
        raise CommandError(f"{flag} {target}: {error.strerror}: name a file that you can write") from None
    return WrittenReport(target, len(page), tuple(facts.gaps))


def _hosts(facts: RunFacts) -> list[str]:
    """Return the names of nodes that the report may mention."""
    named = [str(name) for name in facts.status.get("nodes") or ()]
    named += [str(rank.get("node", "")) for rank in facts.status.get("ranks") or ()]
    named += [incident.verdict.node for incident in facts.incidents]
    return [*named, facts.source.record.node if facts.source.record else ""]
