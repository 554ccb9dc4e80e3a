"""What a story says of ranks that were ended because they hung, and of what their launcher then did."""

from holdfast_proto.v1 import store_pb2 as store


def ended(abort: store.HangAbort) -> str:
    """Return which processes are ended, and for what."""
    who = ", ".join(f"rank {rank.rank} (process {rank.pid} on {rank.node})" for rank in abort.ranks)
    line = f"ends {who}, so that the launcher ends or restarts the run"
    if abort.without_culprit:
        return f"{line}: no rank is known to be the cause, and the end of any rank does that"
    return line


def reaction(abort: store.HangAbort) -> str:
    """Return what the launcher did after the ranks were ended."""
    if abort.reaction == store.LAUNCHER_REACTION_RESTARTED and not abort.generation:
        return f"the launcher started ranks again after {abort.after_s:.1f} s, and none of them has attached yet"
    if abort.reaction == store.LAUNCHER_REACTION_RESTARTED:
        return f"the launcher started generation {abort.generation} after {abort.after_s:.1f} s"
    return f"{launcher_end(abort.code)} after {abort.after_s:.1f} s"


def launcher_end(code: int) -> str:
    """Return how a launcher ended. ``code``: as in a shell."""
    return f"the launcher ended with exit code {code}"


def no_reaction(abort: store.HangAbort, alive: list[int], waited_s: float) -> str:
    """Return that the launcher does nothing. ``alive``: ranks that were to end and have not."""
    line = f"nothing happened for {waited_s:.0f} s: "
    if alive:
        return f"{line}{_ranks(alive)} did not end at SIGKILL: look at the agent's log and at the node"
    ended = _ranks([rank.rank for rank in abort.ranks])
    return f"{line}{ended} did end, and the launcher neither ends nor restarts the run: end it yourself"


def _ranks(numbers: list[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"
