"""Shows a run while it runs: drawn in place on a terminal, as lines of what has changed elsewhere."""

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from types import TracebackType
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast_cli.control import counted_ranks
from holdfast_cli.views.clean_text import cleaned
from holdfast_cli.views.conditions import Condition, condition, describe
from holdfast_cli.views.phrases import (
    fault_line,
    kept_line,
    own_time_line,
    phase_text,
    progress_line,
    recorder_line,
    refusal_line,
)
from holdfast_cli.views.run_view import Surroundings, render
from holdfast_core.texts.incident_lines import incident_line, outcome_line
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FAILED, RUN_PHASE_RUNNING, Incident

HEARTBEAT_S = 10.0
_ODD = (Condition.DEAD, Condition.STOPPED, Condition.STALLED)


def changes(previous: RunStatus | None, current: RunStatus, total_steps: int | None) -> Iterator[str]:
    """Yield a line for everything that is new in ``current``: causes first, then what follows from them."""
    before = previous or RunStatus()
    causes, effects = _causes(before, current), _progress(before, current, total_steps)
    # What has happened explains why a run restarts or ends. A run that trains again explains why an incident is over.
    is_effect_first = previous is None or current.phase == RUN_PHASE_RUNNING
    yield from chain(effects, causes) if is_effect_first else chain(causes, effects)
    if current.newest_checkpoint > before.newest_checkpoint and previous is not None:
        yield f"checkpoint of step {current.newest_checkpoint} committed"


def _progress(before: RunStatus, current: RunStatus, total_steps: int | None) -> Iterator[str]:
    if (before.phase, before.generation) != (current.phase, current.generation):
        outcome = f": {current.outcome}" if current.outcome else ""
        yield f"{current.run} {phase_text(current)}, generation {current.generation}{outcome}"
        if current.newest_step >= 0:
            yield f"{progress_line(current, total_steps)} · {kept_line(current)}"
    recorders = recorder_line(current)
    if recorders and recorders != recorder_line(before):
        yield recorders
    own_time = own_time_line(current)
    # Ranks say it one after another: the line waits until all of them have.
    if (
        own_time != own_time_line(before)
        and own_time
        and all(rank.own_time_source for rank, _ in counted_ranks(current))
    ):
        yield own_time
    if current.replicas_note and current.replicas_note != before.replicas_note:
        yield current.replicas_note


def _causes(before: RunStatus, current: RunStatus) -> Iterator[str]:
    yield from (fault_line(one) for one in current.faults if one not in before.faults)
    refused = (one for one in current.faults_refused if one not in before.faults_refused)
    yield from (f"fault refused: {refusal_line(one)}" for one in refused)
    yield from _odd_ranks(before, current)
    if current.HasField("newest_incident"):
        yield from _incident_changes(before.newest_incident, current.newest_incident)


def _odd_ranks(before: RunStatus, current: RunStatus) -> Iterator[str]:
    if current.phase == RUN_PHASE_FAILED:
        return  # Holdfast has killed those that were left: their ends are no causes
    known = {rank.rank: condition(rank) for rank in before.ranks}
    for rank in current.ranks:
        judged = condition(rank)
        if judged in _ODD and known.get(rank.rank) is not judged:
            yield f"rank {rank.rank} {describe(rank, judged)}"


def _incident_changes(before: Incident, current: Incident) -> Iterator[str]:
    same = before.id == current.id
    if not same or before.state != current.state:
        yield f"incident {current.id}: {incident_line(current)}"
    for action in current.actions[len(before.actions) if same else 0 :]:
        yield f"incident {current.id}: {action.unix_s - current.detected_unix_s:+.1f} s {action.what}"
    if current.recovered_unix_s and not (same and before.recovered_unix_s):
        yield f"incident {current.id}: {outcome_line(current)}"


REDRAW_S = 0.3


class Display(Protocol):
    """Shows each new status of a run."""

    def __enter__(self) -> "Display":
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and leave the last view on the screen."""

    def update(self, status: RunStatus, surroundings: Surroundings) -> None:
        """Show ``status``."""

    def say(self, lines: Sequence[str]) -> None:
        """Print lines that stay, such as the output of a rank."""


class LiveDisplay:
    """Draws the view in place, at most every REDRAW_S: the ranks need the processor more."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._pending: RenderableType | None = None
        self._drawn_s = float("-inf")

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pending is not None:
            self._live.update(self._pending)
        self._live.stop()

    def update(self, status: RunStatus, surroundings: Surroundings) -> None:
        """Draw ``status``, now or with the next one."""
        self._pending = render(cleaned(status), surroundings)
        if time.monotonic() - self._drawn_s >= REDRAW_S:
            self._live.update(self._pending, refresh=True)
            self._drawn_s = time.monotonic()

    def say(self, lines: Sequence[str]) -> None:
        """Print lines above the view. Colours stay; what would move the cursor is taken out."""
        if lines:
            text = Text("\n").join(Text.from_ansi(line) for line in lines)
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)


class LineDisplay:
    """Prints what has changed, and a sign of life every HEARTBEAT_S."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._previous: RunStatus | None = None
        self._title = ""
        self._notes: tuple[str, ...] = ()
        self._spoke_unix_s = 0.0

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, status: RunStatus, surroundings: Surroundings) -> None:
        """Print what is new."""
        status = cleaned(status)
        lines = list(self._news(surroundings))
        lines += changes(self._previous, status, surroundings.total_steps)
        if not lines and status.now_unix_s - self._spoke_unix_s >= HEARTBEAT_S:
            lines.append(progress_line(status, surroundings.total_steps))
        if lines:
            self._spoke_unix_s = status.now_unix_s
        self.say(lines)
        self._previous = status

    def say(self, lines: Sequence[str]) -> None:
        """Print lines as they are."""
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _news(self, surroundings: Surroundings) -> list[str]:
        lines = [surroundings.title] if surroundings.title != self._title else []
        lines += [note for note in surroundings.notes if note not in self._notes]
        self._title, self._notes = surroundings.title, tuple(surroundings.notes)
        return lines


def display_for(console: Console) -> Display:
    """Return the display that suits ``console``."""
    return LiveDisplay(console) if console.is_terminal else LineDisplay(console)
