"""Takes the stacks of a rank from outside: it may be stopped, or hold its GIL."""

import sys
from pathlib import Path

from holdfast_agent.evidence import stack_dump
from holdfast_agent.evidence.brief_command import CommandFailedError, output_of
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.stack_summary import summarize
from holdfast_agent.processes.rank import Rank
from holdfast_proto.run_files import rank_evidence
from holdfast_proto.v1.common_pb2 import ACTIVITY_COLLECTIVE, ACTIVITY_DATA, ACTIVITY_LOCK, ACTIVITY_STOPPED
from holdfast_proto.v1.store_pb2 import StackSummary

NATIVE_PATIENCE_S = 1.5
"""Time for native stacks. The ranks' restart waits for them."""

PLAIN_PATIENCE_S = 1.5

STOPPED = ("T", "t")
"""States of a process that is paused already, so that py-spy cannot pause it."""

_NAMED_WAITS = (ACTIVITY_DATA, ACTIVITY_LOCK, ACTIVITY_COLLECTIVE)
"""Activities that Python frames alone show well enough."""


async def take(rank: Rank, folder: EvidenceFolder, *, may_pause: bool) -> StackSummary | None:
    """Write the stacks of a rank's threads as JSON and as text; return their summary, None if py-spy fails.

    ``may_pause``: if the Python frames do not show what the rank waits for, take native frames too. That pauses the
    rank, usually for half a second.
    """
    summary = await _dump(rank, folder, "--nonblocking", PLAIN_PATIENCE_S)
    if rank.process_state in STOPPED:
        if summary is not None:
            summary.activity = ACTIVITY_STOPPED
    elif may_pause and (summary is None or summary.activity not in _NAMED_WAITS):
        rank.held_for_stacks = True
        try:
            summary = await _dump(rank, folder, "--native", NATIVE_PATIENCE_S) or summary
        finally:
            rank.held_for_stacks = False
    return summary


async def _dump(rank: Rank, folder: EvidenceFolder, option: str, patience_s: float) -> StackSummary | None:
    program = Path(sys.executable).parent / "py-spy"
    name = rank_evidence(rank.rank, "stack")
    try:
        text = await output_of(program, ["dump", "--json", "--pid", str(rank.pid), option], patience_s)
        threads = stack_dump.parse(text)
    except (CommandFailedError, ValueError) as error:
        folder.miss(f"{name}.txt ({option})", str(error))
        return None
    folder.write(f"{name}.json", text)
    folder.write(f"{name}.txt", stack_dump.render(threads, rank.pid))
    return summarize(rank.rank, rank.pid, threads, computes_on_cpu=rank.device.startswith("cpu"))
