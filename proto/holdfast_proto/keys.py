"""Names of the Redis keys of a run.

Every key of a run has the hash tag ``{run}``. Redis Cluster then keeps all of them in one slot, so that scripts and
transactions may span them.
"""

import re

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Names that a run may have: a name becomes part of keys, paths and metric labels."""

RUNS = "holdfast:runs"
"""Key of the set of the names of all runs that daemons should watch."""


def check_run_name(run: str) -> str:
    """Return ``run``. Raises ValueError if it cannot be part of keys, paths and labels."""
    if not RUN_NAME.fullmatch(run):
        raise ValueError(
            f"run name {run[:80]!r}: use 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    return run


def spec(run: str) -> str:
    """Return the key of the RunSpec, which exists until the run ends."""
    return f"holdfast:{{{run}}}:spec"


def leader(run: str) -> str:
    """Return the key of the leader's lease: daemon id and fencing number, with a time to live."""
    return f"holdfast:{{{run}}}:leader"


def fence(run: str) -> str:
    """Return the key of the newest fencing number that a leader got."""
    return f"holdfast:{{{run}}}:fence"


def state(run: str) -> str:
    """Return the key of the CoordinatorState, which only the leader writes."""
    return f"holdfast:{{{run}}}:state"


def nodes(run: str) -> str:
    """Return the key of the set of all nodes that have ever reported."""
    return f"holdfast:{{{run}}}:nodes"


def node(run: str, node_name: str) -> str:
    """Return the key of a NodeState. It has a time to live, and so is also the agent's lease."""
    return f"holdfast:{{{run}}}:node:{node_name}"


def events(run: str) -> str:
    """Return the key of the stream of Event, from all agents to the leader."""
    return f"holdfast:{{{run}}}:events"


def commands(run: str, node_name: str) -> str:
    """Return the key of the stream of NodeCommand, from the leader to one agent."""
    return f"holdfast:{{{run}}}:commands:{node_name}"


def incidents(run: str) -> str:
    """Return the key of the hash of incident id -> Incident."""
    return f"holdfast:{{{run}}}:incidents"


def incident(run: str, name: str) -> str:
    """Return the place of one incident in :func:`incidents`, for its signature. It is no key."""
    return f"{incidents(run)} {name}"


def observers(run: str) -> str:
    """Return the key of the sorted set of nodes that observe the run together: name -> end of its lease, Unix time."""
    return f"holdfast:{{{run}}}:observers"


def beginner(run: str) -> str:
    """Return the key that the node holds that begins the run for all its observers; it has a time to live."""
    return f"holdfast:{{{run}}}:beginner"


def rendezvous(run: str, generation: int) -> str:
    """Return the key of ``address:port`` of a generation's rendezvous store; the node that hosts it sets the key."""
    return f"holdfast:{{{run}}}:rendezvous:{generation}"


def meeting_records(run: str) -> str:
    """Return the key of the hash of node name -> MeetingRecord, which the torchruns of a run keep fresh."""
    return f"holdfast:{{{run}}}:meeting"


def meeting_world(run: str) -> str:
    """Return the key of the MeetingWorld: the newest world that the torchruns of a run have formed."""
    return f"holdfast:{{{run}}}:meeting:world"


def meeting_bell(run: str) -> str:
    """Return the key whose value changes when a torchrun begins to wait. It is only a hint, and not signed."""
    return f"holdfast:{{{run}}}:meeting:bell"
