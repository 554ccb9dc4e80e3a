"""Limits that messages have in common, and how often a rank reports.

Those of single fields stand next to the fields, in the .proto files. An agent removes from a rank's report what is
beyond them, and a daemon refuses the whole state of a node for one such value. Both apply them by the same checker: see
checks/message_checker.py.
"""

PROTOCOL = 2
"""Number of the messages between ranks, agents and daemons. It changes when one version would misread another's."""

LARGEST_COUNT = 2**52
"""Largest step, generation, sequence number or size. Sums of such counts fit into 64 bits, and doubles of Lua scripts
and JSON carry them exactly."""

LONGEST_S = 1e9
"""Longest duration."""

LATEST_UNIX_S = 7_258_118_400.0
"""Latest time: the year 2200."""

FENCE_AHEAD_MS = 365 * 86_400_000
"""How far a fence may be ahead of the clock of an agent or a daemon. A fence is a time of the store's clock, or little
more. If an agent obeyed one from the far future, it would refuse every later leader."""

MOST_RANKS = 2**20
"""Largest world."""

NAME_CHARACTERS = 255
"""Longest name of a node, a device, a mesh dimension, a process group or a call."""

STOP_GRACE_S = 30.0
"""Default time for a last checkpoint: after SIGTERM, and when `holdfast top` or the console stops the run."""

MOST_LOGGED_NAMES = 64
"""Most names under which a script logs numbers of its own: each is a time series of the run in Prometheus."""

LOGGED_NAME_CHARACTERS = 100
"""Longest name of such a number."""

MOST_WITNESS_WORDS = 8
"""Most different things that a witness says of ranks at one time."""

WITNESS_WORDS_CHARACTERS = 400
"""Longest of them."""

REPORT_INTERVAL_S = 0.2
"""Time between two reports of a rank. With each, the hooks sample whether the training thread sleeps."""

MOST_PROFILED_STEPS = 100
"""Most steps of one profile: a rank keeps all events of a profile in memory, and writes them in one piece."""

LONGEST_PROFILE_S = 3600.0
"""Longest time for the steps of a profile."""


def is_count(value: object) -> bool:
    """Return whether a value out of a file is a whole number from 0 to LARGEST_COUNT."""
    return type(value) is int and 0 <= value <= LARGEST_COUNT


def is_unix_time(value: object) -> bool:
    """Return whether a value out of a file is a Unix time in seconds, up to LATEST_UNIX_S."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LATEST_UNIX_S
