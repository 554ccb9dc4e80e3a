"""The newest stack of a rank: of the evidence of an incident, or one that is taken now."""

import time
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from holdfast_base.text import clock
from holdfast_cli.errors import CommandError
from holdfast_cli.live.stack_groups import stack_lines
from holdfast_cli.top.run_looks import LookSource, RunLook, reason_of
from holdfast_cli.views.clean_text import one_line, some_lines
from holdfast_daemon.incidents.evidence_files import open_evidence
from holdfast_proto import run_files

_MOST_BYTES = 128 * 1024
_INCIDENTS_SEARCHED = 20
"""Newest incidents in whose evidence a stack is searched."""


@dataclass(frozen=True)
class ShownStack:
    """The stacks of the threads of one rank. ``source``: where they come from, or why there are none."""

    source: str
    text: str = ""


def saved_stack(look: RunLook, rank: int) -> ShownStack:
    """Return the newest stack in the evidence on this machine. Reads files."""
    record = look.target.record
    if record is None:
        return ShownStack("no stack here: k takes one now")
    name = run_files.rank_evidence(rank, "stack.txt")
    newest_first = sorted(look.incidents, key=lambda incident: -incident.detected_unix_s)[:_INCIDENTS_SEARCHED]
    for incident in newest_first:
        folder = run_files.incidents(Path(record.directory), incident.run or record.run) / incident.id
        for file_name in (name, f"suspicion/{name}"):
            try:
                with open_evidence(folder, file_name) as file:
                    text = file.read(_MOST_BYTES).decode(errors="replace")
            except OSError:
                continue
            return ShownStack(f"stack from incident {incident.id}  k: take one now", text)
    return ShownStack("no stack of this rank in the evidence: k takes one now")


def live_stack(source: LookSource, rank: int) -> ShownStack:
    """Take the stack of a rank now. Blocks until its agent has answered."""
    try:
        found = source.take_stacks(rank)
    except (CommandError, OSError) as error:
        reason = str(error) if isinstance(error, CommandError) else reason_of(error)
        return ShownStack(f"no stack could be taken: {reason}")
    taken = clock(time.time())
    if not any(one.threads for one in found):
        problem = next((one.problem for one in found if one.problem), "the rank has not answered")
        return ShownStack(f"no stack could be taken at {taken}: {problem}")
    return ShownStack(f"stack taken at {taken}  k: take one again", "\n".join(stack_lines(found)).strip("\n"))


def stack_text(stack: ShownStack) -> Text:
    """Return a stack with its heading, safe for a terminal."""
    text = Text(f"\n{one_line(stack.source)}", "bold" if stack.text else "dim")
    return text.append(f"\n{some_lines(stack.text)}", "not bold") if stack.text else text
