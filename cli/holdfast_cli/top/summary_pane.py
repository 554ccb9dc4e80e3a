"""The top of the screen: which run, what is wrong with it, its numbers and their curves."""

from rich.cells import cell_len
from rich.text import Text

from holdfast_base.text import clock
from holdfast_cli.top.incidents.attention_panel import AttentionPanel
from holdfast_cli.top.poller import Lost
from holdfast_cli.top.ranks.oddity import JudgedRanks
from holdfast_cli.top.run_looks import RunLook
from holdfast_cli.top.seen_numbers import SeenNumbers, sparkline
from holdfast_cli.views.clean_text import one_line
from holdfast_cli.views.phrases import kept_line, logged_line
from holdfast_cli.views.run_view import phase_style, progress_text, title_text
from holdfast_core.texts.incident_lines import number_of
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.vocabulary import PRODUCTIVE

_WHY_SHOWN = 3
_LOSSES_SHOWN = 3
CURVES = ("loss", "tokens/s", "grad norm")
"""Names of the curves, in the order in which they are drawn."""
_LEAST_CURVE = 8
"""Columns of a curve that is worth drawing."""


def header_text(look: RunLook, *, is_bad: bool = False) -> Text:
    """Return the run, its state and how far it is. ``is_bad``: it does not train, whatever its state is called."""
    status = look.status
    style = "bold red" if is_bad else phase_style(status)
    return title_text(status, style, look.ended).append("\n").append(progress_text(status, look.judged.total_steps))


def connection_text(lost: Lost | None) -> Text:
    """Return since when nothing new is known, and why; an empty text if the newest look has succeeded."""
    if lost is None:
        return Text()
    line = f" not connected since {clock(lost.since_unix_s)}, showing the last known state "
    return Text.assemble((line, "bold black on yellow"), (f"\n{one_line(lost.reason)}", "yellow"))


def attention_text(attention: AttentionPanel | None, *, is_short: bool = False) -> Text:
    """Return what is wrong, why, and what comes next; an empty text if nothing is known to be wrong.

    ``is_short``: only the first reason, for a narrow terminal.
    """
    if attention is None:
        return Text()
    text = Text.assemble((f" {attention.what} ", "bold red reverse" if attention.is_bad else "bold yellow"))
    for line in attention.why[: 1 if is_short else _WHY_SHOWN]:
        text.append(f"\n  {line}", "not bold")
    if attention.next:
        text.append("\nnext: ", "bold").append(attention.next, "not bold")
    return text


def numbers_text(look: RunLook) -> Text:
    """Return the numbers of the optimizer and of memory, what is saved, and what has happened."""
    lines = [Text(line) for line in _number_lines(look) if line]
    if look.status.nodes_note and look.status.HasField("urgent_incident"):  # else it is what needs attention
        lines.append(Text(one_line(look.status.nodes_note), "bold yellow"))
    if look.status.replicas_note:
        lines.append(Text(one_line(look.status.replicas_note), "dim"))
    return Text("\n").join(lines)


def _number_lines(look: RunLook) -> tuple[str, ...]:
    return look.numbers, one_line(logged_line(look.status)), kept_line(look.status), goodput_line(look.status)


def goodput_line(status: RunStatus) -> str:
    """Return the goodput, and the largest losses of time with their causes; "" while the daemon reports none."""
    if status.wall_s <= 0:
        return ""
    lost = {use: lost_s for use, lost_s in status.time_use_s.items() if use != PRODUCTIVE and lost_s > 0}
    largest = sorted(lost, key=lambda use: (-lost[use], use))[:_LOSSES_SHOWN]
    causes = [f"{one_line(use.replace('_', ' '))} {lost[use] / status.wall_s:.1%}" for use in largest]
    return " · ".join([f"goodput {status.time_use_s.get(PRODUCTIVE, 0.0) / status.wall_s:.1%}", *causes])


def curves_text(seen: SeenNumbers, width: int, most: int = len(CURVES)) -> Text:
    """Return the first ``most`` curves of which there is something to draw, as wide as there is room."""
    drawn = (
        (seen.losses, "{:.4g}", "cyan"),
        (seen.throughputs, "{:,.0f}", "green"),
        (seen.gradient_norms, "{:.3g}", "magenta"),
    )
    lines: list[Text] = []
    for name, (values, spelling, style) in list(zip(CURVES, drawn, strict=True))[:most]:
        if len(values) < 2:
            continue
        label = f"{name:<10}"
        ends = f" {spelling.format(min(values))} to {spelling.format(max(values))}"
        room = width - cell_len(label) - cell_len(ends)
        if room < _LEAST_CURVE:
            ends, room = "", width - cell_len(label)
        lines.append(Text.assemble(label, (sparkline(values, room), style), (ends, "dim")))
    return Text("\n").join(lines)


def rank_counts(judged: JudgedRanks) -> str:
    """Return how many ranks there are, and how many of each oddity."""
    kinds = ", ".join(f"{number} {kind.word}" for kind, number in judged.counts.items())
    return f"{number_of(judged.size, 'rank')}: {kinds}" if kinds else "no rank yet"
