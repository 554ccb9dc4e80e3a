"""Two runs side by side: figures, use of time, settings and checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast_cli.reports.figures import FIGURES, figures_of, last_step, spoiled_figures, time_use
from holdfast_cli.reports.redaction import Redaction, without_receivers
from holdfast_cli.reports.regressions import RegressionCheck
from holdfast_cli.reports.run_facts import RunFacts
from holdfast_cli.views.phrases import duration, short_number

_OF_ONE_RUN = ("run", "instance", "created_unix_s", "checkpoint_directory", "command", "versions")
"""Settings that differ between any two runs, or that are shown in another way."""


@dataclass(frozen=True)
class RunComparison:
    """What two runs have in common, and what not. Pairs have the first run's value first."""

    names: tuple[str, str]
    common_step: int | None
    """Last step that both have; None: one of them has none."""
    figures: tuple[Mapping[str, float], Mapping[str, float]]
    time_use_s: tuple[Mapping[str, float], Mapping[str, float]]
    settings: Mapping[str, tuple[str, str]]
    """Settings that differ, with both values as they are shown. What differs may be hidden in both."""
    outcomes: Sequence[tuple[RegressionCheck, str]]
    gaps: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain fields. A number that is not known is null."""
        first, second = self.figures
        return {
            "a": self.names[0],
            "b": self.names[1],
            "common_step": self.common_step,
            "figures": {
                figure.name: {
                    "a": first.get(figure.name),
                    "b": second.get(figure.name),
                    "change_ratio": _change(first.get(figure.name), second.get(figure.name)),
                }
                for figure in FIGURES
            },
            "time_use_s": {
                use: {"a": self.time_use_s[0].get(use), "b": self.time_use_s[1].get(use)} for use in self._uses()
            },
            "settings": {name: {"a": a, "b": b} for name, (a, b) in self.settings.items()},
            "checks": [{"check": check.text, "outcome": outcome} for check, outcome in self.outcomes],
            "not_known": list(self.gaps),
        }

    def as_text(self) -> RenderableType:
        """Return tables for people."""
        parts: list[RenderableType] = [self._figure_table()]
        if uses := self._uses():
            parts.append(self._use_table(uses))
        if self.settings:
            settings = _table("setting that differs", *self.names)
            for name, (a, b) in self.settings.items():
                settings.add_row(Text(name.replace("_", " ")), Text(a), Text(b))
            parts.append(settings)
        parts += [Text(f"{outcome:9}  {check.text}") for check, outcome in self.outcomes]
        parts += [Text(f"not known: {gap}") for gap in self.gaps]
        return Group(*parts)

    def _uses(self) -> list[str]:
        return list({**self.time_use_s[0], **self.time_use_s[1]})

    def _figure_table(self) -> Table:
        first, second = self.figures
        table = _table("", *self.names, "change", numbers=True)
        for figure in FIGURES:
            a, b = first.get(figure.name), second.get(figure.name)
            if a is None and b is None:
                continue
            change = _change(a, b)
            text = figure.text if figure.name != "loss" else f"loss at step {self.common_step}"
            table.add_row(text, _number(a), _number(b), "" if change is None else f"{change:+.1%}")
        return table

    def _use_table(self, uses: Sequence[str]) -> Table:
        table = _table("wall time by use", *self.names, numbers=True)
        for use in uses:
            spent = [of_run.get(use) for of_run in self.time_use_s]
            table.add_row(use.replace("_", " "), *("-" if one is None else duration(one) for one in spent))
        return table


def compare_runs(
    first: RunFacts, second: RunFacts, checks: Sequence[RegressionCheck], *, show_arguments: bool = False
) -> RunComparison:
    """Compare the second run with the first one. ``show_arguments``: show the values of the commands' arguments."""
    steps = [last_step(facts) for facts in (first, second)]
    common = min((step for step in steps if step is not None), default=None) if None not in steps else None
    figures = (figures_of(first, common_step=common), figures_of(second, common_step=common))
    spoiled = spoiled_figures(second, common_step=common)
    if common is None:  # there is no step at which the losses could be compared
        for found in figures:
            found.pop("loss", None)
    return RunComparison(
        names=_names(first, second),
        common_step=common,
        figures=figures,
        time_use_s=(time_use(first), time_use(second)),
        settings=_different(*(_settings(facts, show_arguments=show_arguments) for facts in (first, second))),
        outcomes=[(check, check.outcome(*figures, spoiled=spoiled)) for check in checks],
        gaps=[f"{facts.name}: {gap}" for facts in (first, second) for gap in facts.gaps],
    )


def _names(first: RunFacts, second: RunFacts) -> tuple[str, str]:
    """Return the names of the runs, or their folders if both have the same name."""
    if first.name != second.name:
        return first.name, second.name
    return str(first.source.directory), str(second.source.directory)


def _settings(facts: RunFacts, *, show_arguments: bool) -> dict[str, tuple[str, str]]:
    """Return settings, versions and the command: of each the value, and the text that is shown for it."""
    hidden = Redaction({})
    plain = {name: str(value) for name, value in facts.spec.items() if name not in _OF_ONE_RUN}
    found = {name: (value, hidden.text(value)) for name, value in plain.items()}
    if "notify" in facts.spec:
        found["notify"] = (plain["notify"], without_receivers(facts.spec["notify"]))
    for name, version in (facts.spec.get("versions") or {}).items():
        found[f"version of {name}"] = (str(version), str(version))
    if "command" in facts.spec:
        words = facts.spec["command"]
        found["command"] = (str(words), hidden.command(words, show_arguments=show_arguments))
    return found


def _different(
    first: Mapping[str, tuple[str, str]], second: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """Return what is shown for the settings whose values differ, though what is shown may not."""
    if not first or not second:  # a gap says so
        return {}
    names = {**first, **second}
    none = ("-", "-")
    pairs = {name: (first.get(name, none), second.get(name, none)) for name in names}
    return {name: (a[1], b[1]) for name, (a, b) in pairs.items() if a[0] != b[0]}


def _change(a: float | None, b: float | None) -> float | None:
    return (b - a) / abs(a) if a and b is not None else None


def _number(number: float | None) -> str:
    return "-" if number is None else short_number(number)


def _table(*columns: str, numbers: bool = False) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if numbers and place else "left", overflow="fold")
    return table
