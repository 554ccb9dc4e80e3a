"""The top of a report: how the run ended, and its main numbers."""

from holdfast_base.text import moment
from holdfast_cli.reports.figures import SMOOTHED_STEPS, figures_of, spoiled_figures
from holdfast_cli.reports.markup import Markup, element, joined
from holdfast_cli.reports.redaction import Redaction
from holdfast_cli.reports.run_facts import RunFacts
from holdfast_cli.views.phrases import duration, short_number
from holdfast_core.naming import STOPPED_BY_OPERATOR
from holdfast_core.texts.incident_lines import number_of


def headline(facts: RunFacts, redaction: Redaction) -> Markup:
    """Return the header of the page: name, state, why, gaps and main numbers."""
    state, kind = _state(facts)
    outcome = redaction.text(_why(facts))
    begun = f"Started {moment(facts.created_unix_s)}." if facts.created_unix_s else ""
    seen = f" Last seen {moment(facts.status_unix_s)}." if facts.status_unix_s else ""
    cards = joined(_cards(facts))  # first, because they may find further gaps
    gaps = [element("p", redaction.text(gap), class_="note") for gap in facts.gaps]
    return element(
        "header",
        element("h1", f"Run {facts.name}"),
        element("p", element("span", state, class_=f"state {kind}"), outcome),
        element("p", f"{begun}{seen}", class_="soft"),
        *gaps,
        element("dl", cards, class_="cards"),
    )


def _state(facts: RunFacts) -> tuple[str, str]:
    """Return the state in a word, and whether it is good."""
    phase = str(facts.status.get("phase", ""))
    if phase in ("", "unspecified"):
        return "state unknown", "other"
    if phase == "finished":
        return "finished", "bad" if _loss_went_bad(facts) else "good"
    if phase == "failed":
        is_stopped = facts.status.get("outcome") == STOPPED_BY_OPERATOR
        return ("stopped", "other") if is_stopped else ("failed", "bad")
    if not facts.is_live:
        return "cut short", "other"
    if phase != "running":
        return phase.replace("_", " "), "other"
    return phase, "bad" if _loss_went_bad(facts) else "good"


def _loss_went_bad(facts: RunFacts) -> bool:
    """Return whether the newest loss that the run has reported is not finite."""
    return "nonfinite_since" in facts.status


def _why(facts: RunFacts) -> str:
    """Return why the run is in its state, and whether its loss is finite."""
    why = _outcome(facts)
    if not _loss_went_bad(facts):
        return why
    since = facts.status["nonfinite_since"]
    end = "is not finite since" if facts.is_live else "was not finite at the end, and since"
    sentence = f"{why}." if why and not why.endswith((".", "!", "?")) else why
    return f"{sentence} The loss {end} step {since}.".lstrip()


def _outcome(facts: RunFacts) -> str:
    outcome = str(facts.status.get("outcome") or (facts.source.record.outcome if facts.source.record else ""))
    if outcome and outcome not in ("finished", "failed"):
        return outcome
    if facts.is_live:
        is_sure = facts.source.record is not None
        return "It was alive when this report was written." if is_sure else "It had not ended when it was last seen."
    return f"With {number_of(len(facts.incidents), 'incident')}." if facts.status else ""


def _cards(facts: RunFacts) -> list[Markup]:
    found, spoiled = figures_of(facts), spoiled_figures(facts)
    shown = (
        ("steps", "steps", short_number),
        ("wall time", "wall_s", duration),
        ("goodput", "goodput", lambda ratio: f"{ratio:.1%}"),
        (f"loss, mean of {SMOOTHED_STEPS} steps", "final_loss", short_number),
        ("validation loss", "validation_loss", short_number),
        ("median tokens/s", "tokens_per_s", short_number),
        ("median step time", "step_s", duration),
        ("restarts", "restarts", short_number),
        ("incidents", "incidents", short_number),
    )
    values = {name: write(found[name]) for _, name, write in shown if name in found} | dict.fromkeys(
        spoiled, "not finite"
    )
    return [element("div", element("dt", text), element("dd", values.get(name, "-"))) for text, name, _ in shown]
