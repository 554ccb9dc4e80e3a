"""The parts of a report below its curves."""

import json
from collections.abc import Sequence

from holdfast_base.text import moment
from holdfast_cli.reports.figures import time_use, wall_s
from holdfast_cli.reports.markup import Markup, element, joined, table
from holdfast_cli.reports.redaction import Redaction, without_receivers
from holdfast_cli.reports.run_facts import RunFacts
from holdfast_cli.trainer_command import trainer_flags
from holdfast_cli.views.phrases import duration, short_number, size
from holdfast_core.texts.incident_lines import enum_phrase, verdict_label, what_line
from holdfast_proto.v1.store_pb2 import Incident, IncidentState, Source

Parts = Sequence[Markup]

_COLOURS = 9
"""Colours of uses that the page's style has."""
CHECKPOINTS_SHOWN = 20
_NOT_SETTINGS = ("run", "instance", "created_unix_s", "command", "versions")


def goodput_section(facts: RunFacts) -> Parts:
    """Return where the wall time went: a bar and a table."""
    heading = element("h2", "Where the time went")
    uses, wall = time_use(facts), wall_s(facts)
    if not uses or not wall:
        return heading, element("p", "The daemon has left no account of the run's time.")
    total = sum(uses.values()) or 1.0
    bars, at = [], 0.0
    for number, spent_s in enumerate(uses.values()):
        width = 1000 * spent_s / total
        bars.append(
            element("rect", x=f"{at:.2f}", y="0", width=f"{width:.2f}", height="28", class_=f"use-{number % _COLOURS}")
        )
        at += width
    bar = element("svg", *bars, class_="bar", viewBox="0 0 1000 28", preserveAspectRatio="none", aria_hidden="true")
    rows = [
        (joined([_swatch(number), _words(use)]), duration(spent_s), f"{spent_s / wall:.1%}")
        for number, (use, spent_s) in enumerate(uses.items())
    ]
    return heading, bar, table("Wall time by use", ("use", "time", "share"), rows, numbers=2)


def incident_section(facts: RunFacts, redaction: Redaction) -> Parts:
    """Return every incident: verdict, what was done, and what it cost."""
    heading = element("h2", "Incidents")
    if not facts.incidents:
        return heading, element("p", "There were no incidents.")
    rows = [
        (
            incident.id,
            moment(incident.detected_unix_s),
            enum_phrase(IncidentState, incident.state),
            str(incident.verdict.step) if incident.verdict.step >= 0 else "-",
            str(incident.lost_steps),
            _recovery(incident),
        )
        for incident in facts.incidents
    ]
    columns = ("incident", "detected", "state", "step", "lost steps", "recovery")
    stories = [_story(incident, redaction) for incident in facts.incidents]
    return heading, table("All incidents, the oldest first", columns, rows, numbers=3), *stories


def checkpoint_section(facts: RunFacts) -> Parts:
    """Return what checkpoints cost."""
    heading = element("h2", "Checkpoints")
    rows = facts.checkpoints
    if not rows:
        is_known = facts.history is not None
        return heading, element("p", f"The history {'holds no checkpoint' if is_known else 'of them is missing'}.")
    count, stall_s = len(rows), time_use(facts).get("checkpoint_stall")
    cost = [
        ("checkpoints", str(count)),
        ("size on disk, mean", size(sum(row.stored_bytes for row in rows) / count)),
        ("size before compression, mean", size(sum(row.raw_bytes for row in rows) / count)),
        ("written in all", size(sum(row.stored_bytes for row in rows))),
        ("time to write one, mean", duration(sum(row.duration_s for row in rows) / count)),
        ("time to write one, longest", duration(max(row.duration_s for row in rows))),
        ("time that training waited for checkpoints", "not known" if stall_s is None else duration(stall_s)),
    ]
    newest = rows[-CHECKPOINTS_SHOWN:]
    listed = [
        (str(row.step), moment(row.unix_s), size(row.stored_bytes), size(row.raw_bytes), duration(row.duration_s))
        for row in newest
    ]
    caption = "All checkpoints" if len(newest) == count else f"The newest {len(newest)} of {count} checkpoints"
    columns = ("step", "committed", "on disk", "before compression", "time to write")
    return (
        heading,
        table("What checkpoints cost", ("cost", "value"), cost, numbers=1),
        table(caption, columns, listed, numbers=3),
    )


def slowest_section(facts: RunFacts, redaction: Redaction) -> Parts:
    """Return the ranks that need most time of their own for a step."""
    heading = element("h2", "Slowest ranks")
    found = facts.status.get("slowest_ranks") or []
    if not found:
        return heading, element("p", "How long each rank works on its own is not known.")
    rows = [
        (str(one["rank"]), redaction.text(str(one["node"])), short_number(one["steps"]), duration(one["own_step_s"]))
        for one in found
    ]
    caption = "Ranks that need most time for a step when they wait for no other rank, in the last generation"
    return heading, table(caption, ("rank", "node", "steps", "own time of a step"), rows, numbers=2)


def settings_section(facts: RunFacts, redaction: Redaction, *, show_arguments: bool) -> Parts:
    """Return command, versions and settings of the run."""
    heading = element("h2", "Settings and versions")
    if not facts.spec:
        return heading, element("p", "They are not known.")
    command = redaction.command(facts.spec.get("command") or (), show_arguments=show_arguments)
    versions = [(name, str(text)) for name, text in sorted((facts.spec.get("versions") or {}).items())]
    settings = [
        (_words(name), redaction.text(_setting_text(name, value)) or "-")
        for name, value in facts.spec.items()
        if name not in _NOT_SETTINGS
    ]
    return (
        heading,
        element("p", "Command of a rank: ", element("code", command or "another launcher starts the ranks")),
        *_plan_line(facts),
        table("Versions where the run was started", ("package", "version"), versions)
        if versions
        else element("p", "The versions of its packages are not known."),
        table("Settings", ("setting", "value"), settings),
    )


def _plan_line(facts: RunFacts) -> Parts:
    """Return how to see the plan of the run's layout, if our trainer has run."""
    if trainer_flags([str(word) for word in facts.spec.get("command") or ()]) is None:
        return ()
    code = element("code", f"holdfast plan compare {facts.name}")
    return (element("p", code, " shows memory, step time, MFU and bubble next to the plan of this layout."),)


def _setting_text(name: str, value: object) -> str:
    if name == "notify":
        return without_receivers(value)
    return value if isinstance(value, str) else json.dumps(value)


def _resumed(incident: Incident) -> str:
    if not incident.source:  # another launcher has restarted it: only the script knows from what
        return f"step {incident.resumed_step}" if incident.resumed_step >= 0 else "its beginning"
    return (
        f"step {incident.resumed_step} from {enum_phrase(Source, incident.source)}"
        if incident.resumed_step >= 0
        else "the seed"
    )


def _story(incident: Incident, redaction: Redaction) -> Markup:
    verdict = incident.verdict
    facts = [
        ("kind", verdict_label(incident)),
        ("ranks", ", ".join(map(str, verdict.culprits)) or "-"),
        ("confidence", f"{verdict.confidence_ratio:.0%}"),
        ("last progress", moment(incident.last_progress_unix_s)),
        ("detected", moment(incident.detected_unix_s)),
        ("recovery", _recovery(incident)),
        ("lost steps", str(incident.lost_steps)),
    ]
    if incident.recovered_unix_s:
        facts.append(("resumed at", _resumed(incident)))
    parts = [
        element("h3", f"{incident.id}: {redaction.text(what_line(incident))}"),
        element("dl", *(joined([element("dt", name), element("dd", text)]) for name, text in facts)),
    ]
    why = [*verdict.calls, *(end.said for end in verdict.death.ends if end.said)]
    if why:
        parts.append(element("pre", redaction.text("\n".join(why)), tabindex="0"))
    if incident.actions:
        done = [
            element("li", f"{action.unix_s - incident.detected_unix_s:+.1f} s: {redaction.text(action.what)}")
            for action in incident.actions
        ]
        parts += [element("p", "What was done, in seconds after the verdict:"), element("ol", *done)]
    return element("article", *parts)


def _recovery(incident: Incident) -> str:
    if not incident.recovered_unix_s:
        return "-"
    return duration(max(incident.recovered_unix_s - incident.detected_unix_s, 0.0))


def _swatch(number: int) -> Markup:
    box = element("rect", width="12", height="12", class_=f"use-{number % _COLOURS}")
    return element("svg", box, class_="swatch", viewBox="0 0 12 12", aria_hidden="true")


def _words(name: str) -> str:
    return name.replace("_", " ")
