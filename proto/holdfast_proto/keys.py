"""Names of the Redis keys of a run.

Every key of a run carries the hash tag ``{run}``, so that Redis Cluster keeps them in one slot
and scripts and transactions may span them.
"""

import re

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

RUNS = "holdfast:runs"
"""Set of the names of all runs that a daemon should look after."""


def check_run_name(run: str) -> str:
    """Return ``run``, or raise ValueError if it cannot be part of keys, paths and labels."""
    if not RUN_NAME.fullmatch(run):
        raise ValueError(
            f"run name {run[:80]!r}: use 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    return run


def spec(run: str) -> str:
    """RunSpec, until the run ends."""
    return f"holdfast:{{{run}}}:spec"


def leader(run: str) -> str:
    """The leader's lease: daemon id and fencing number, with a time to live."""
    return f"holdfast:{{{run}}}:leader"


def fence(run: str) -> str:
    """The newest fencing number handed out."""
    return f"holdfast:{{{run}}}:fence"


def state(run: str) -> str:
    """CoordinatorState, written by the leader only."""
    return f"holdfast:{{{run}}}:state"


def nodes(run: str) -> str:
    """Set of the names of the nodes that have ever reported."""
    return f"holdfast:{{{run}}}:nodes"


def node(run: str, node_name: str) -> str:
    """NodeState, with a time to live: the agent's lease."""
    return f"holdfast:{{{run}}}:node:{node_name}"


def events(run: str) -> str:
    """Stream of Event, from all agents to the daemon."""
    return f"holdfast:{{{run}}}:events"


def commands(run: str, node_name: str) -> str:
    """Stream of NodeCommand, from the leader to one agent."""
    return f"holdfast:{{{run}}}:commands:{node_name}"


def incidents(run: str) -> str:
    """Hash of incident id -> Incident."""
    return f"holdfast:{{{run}}}:incidents"


def rendezvous(run: str, generation: int) -> str:
    """``address:port`` of the store of one generation, set by the node that hosts it."""
    return f"holdfast:{{{run}}}:rendezvous:{generation}"
