"""The table of incidents, the whole story of one, and its tree of ranks that wait for each other."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from holdfast_base.text import moment
from holdfast_cli.incidents.folder_files import IncidentFiles
from holdfast_core.incidents import MOST_FILES_NAMED
from holdfast_core.naming import ranks_named
from holdfast_core.texts.activities import does
from holdfast_core.texts.incident_lines import (
    enum_phrase,
    incident_line,
    outcome_line,
    places_text,
    verdict_label,
    what_line,
)
from holdfast_proto.v1 import common_pb2
from holdfast_proto.v1.common_pb2 import PendingCall
from holdfast_proto.v1.store_pb2 import Incident, IncidentState, Source, StackSummary, WaitEdge


def incident_table(incidents: Sequence[Incident]) -> RenderableType:
    """Return one row per incident, oldest first."""
    if not incidents:
        return Text("no incidents")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("id", "detected", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("what")
    for incident in incidents:
        state = enum_phrase(IncidentState, incident.state)
        # As texts: rich reads strings as markup, and names in them come from the run.
        table.add_row(Text(incident.id), moment(incident.detected_unix_s), state, Text(what_line(incident)))
    return table


def incident_story(incident: Incident, files: IncidentFiles) -> RenderableType:
    """Return the whole story of an incident: facts, waits, calls, stacks, black boxes, actions, files."""
    verdict = incident.verdict
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("kind", verdict_label(incident)),
        ("ranks", _ranks(incident)),
        ("processes", places_text(incident) or "-"),
        ("where", _where(incident)),
        ("confidence", f"{verdict.confidence_ratio:.0%}"),
        ("generation", str(incident.generation)),
        ("last progress", moment(incident.last_progress_unix_s)),
        ("detected", moment(incident.detected_unix_s)),
        ("resumed", _resumed(incident)),
        ("outcome", outcome_line(incident) or enum_phrase(IncidentState, incident.state)),
    ):
        facts.add_row(Text(name, style="dim"), Text(value))
    parts: list[RenderableType] = [Text(incident_line(incident), style="bold"), facts]
    for heading, body in (
        ("who waits for whom", wait_trees(verdict.waits)),
        ("calls", _lines([*verdict.calls, *map(_pending_line, files.pending)])),
        ("stacks", _lines(map(_stack_line, files.stacks))),
        ("black boxes", [_black_boxes(files), Text(_COUNTERS_ARE_OLDER)] if files.black_boxes else []),
        ("what was done", _lines(f"{a.unix_s - incident.detected_unix_s:+8.2f} s  {a.what}" for a in incident.actions)),
        ("files", _lines(files.names or _named_files(incident))),
    ):
        if body:
            parts += [Text(heading, style="dim"), *(Padding(each, (0, 0, 0, 2)) for each in body)]
    return Group(*parts)


_COUNTERS_ARE_OLDER = "The counters of calls can be older than the steps: a rank notes them a few times a second."


def _lines(lines: Iterable[str]) -> list[RenderableType]:
    return [Text(line) for line in lines]


def _named_files(incident: Incident) -> Iterable[str]:
    """Yield the files that an incident names, for a machine that does not have its folder."""
    yield from incident.evidence
    if len(incident.evidence) >= MOST_FILES_NAMED:
        yield "... only these are named here: the incident's folder on its nodes has all files"


def _pending_line(call: PendingCall) -> str:
    operands = " ".join(part for part in (call.sizes, call.dtypes) if part)
    return f"rank {call.rank} has not completed {call.op} {call.seq} of {call.group} {operands}".rstrip()


def _stack_line(stack: StackSummary) -> str:
    where = f"in {stack.frame}" if stack.frame else "in no code of the user"
    shows = stack.activity or stack.HasField("blocked_on")
    what = does(stack.activity, stack.blocked_on) if shows else "the stack does not show what it does"
    return f"rank {stack.rank}: {where}, {what}"


def _black_boxes(files: IncidentFiles) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("rank", "step", "phase", "group: completed/enqueued"):
        table.add_column(column)
    for line in files.black_boxes:
        phase = enum_phrase(common_pb2.Phase, line.phase)
        groups = ", ".join(f"{name}: {completed}/{enqueued}" for name, enqueued, completed in line.groups)
        table.add_row(str(line.rank), str(line.step) if line.step >= 0 else "none yet", phase, Text(groups))
    return table


def _ranks(incident: Incident) -> str:
    return ", ".join(str(rank) for rank in incident.verdict.culprits) or "-"


def _where(incident: Incident) -> str:
    """Return step, phase and call. The incident of a checkpoint has a step and no phase."""
    verdict = incident.verdict
    step = f"step {verdict.step}" if verdict.step >= 0 else "before the first step"
    if not verdict.phase or (verdict.step < 0 and not verdict.group):
        return step
    call = f"{verdict.op or 'call'} {verdict.seq} of {verdict.group}" if verdict.group else "in no collective"
    phase = [enum_phrase(common_pb2.Phase, verdict.phase)] if verdict.step >= 0 else []
    return ", ".join([step, *phase, call])


def _resumed(incident: Incident) -> str:
    if not incident.recovered_unix_s:
        return "-"
    if not incident.source:  # another launcher has restarted it: only the script knows from what
        return f"step {incident.resumed_step}" if incident.resumed_step >= 0 else "from its beginning"
    source = enum_phrase(Source, incident.source)
    return f"step {incident.resumed_step} from {source}" if incident.resumed_step >= 0 else "from the seed"


def wait_trees(edges: Collection[WaitEdge]) -> list[Tree]:
    """Return a tree for each awaited rank that waits for none; a cycle has one tree, for its first rank."""
    waiters: dict[int, list[WaitEdge]] = defaultdict(list)
    for edge in edges:
        waiters[edge.awaited].append(edge)
    waiting = {edge.waiter for edge in edges}
    roots = sorted(waiters.keys() - waiting) or sorted(waiters)[:1]
    return [_tree(root, waiters) for root in roots]


def _tree(root: int, waiters: dict[int, list[WaitEdge]]) -> Tree:
    top = Tree(f"rank {root}")
    shown = {root}
    level = [(top, [root])]
    for branch, awaited in level:
        for edges in _by_call(edge for rank in awaited for edge in waiters.get(rank, [])):
            ranks, first = {edge.waiter for edge in edges}, edges[0]
            again = shown.issuperset(ranks)
            who = ranks_named(sorted(ranks), max(edge.waiters for edge in edges))
            # As a text: rich reads strings as markup, and the name of a group comes from the run.
            line = f"{who} in {first.op} {first.seq} of {first.group}"
            below = branch.add(Text(line + (" (above)" if again else "")))
            if not again:
                level.append((below, sorted(ranks - shown)))
            shown |= ranks
    return top


def _by_call(edges: Iterable[WaitEdge]) -> Collection[list[WaitEdge]]:
    """Return the waits in each call. Evidence may have named the call of some of its ranks only."""
    calls: dict[tuple[str, int], list[WaitEdge]] = defaultdict(list)
    for edge in edges:
        calls[edge.group, edge.seq].append(edge)
    return calls.values()
