"""Which dumps of a folder are of one job: torch writes to the same names again, and smaller jobs leave old ones."""

from collections.abc import Mapping

from holdfast_proto.v1.recorder_pb2 import RecorderDump

_WORLD = "0"
OLD_S = 3600
"""Seconds between a dump's newest call and the oldest call of the newest dump that no hang of one job explains.

Torch ends a job that hangs after ten minutes by default, and a rank that hangs makes no calls.
"""


def newest_ns(dump: RecorderDump) -> int:
    """Return the time of a dump's newest call, wall clock; 0: it has none, or shows no times."""
    return max((call.created_ns for call in dump.calls), default=0)


def strangers(dumps: Mapping[int, RecorderDump]) -> dict[int, str]:
    """Return the ranks whose dumps are of another job than the newest dump, each with the reason."""
    if not dumps:
        return {}
    reference = max(dumps, key=lambda rank: (newest_ns(dumps[rank]), -rank))
    start_ns = min((call.created_ns for call in dumps[reference].calls if call.created_ns), default=0)
    found: dict[int, str] = {}
    for rank, dump in dumps.items():
        own, others = _world(dump), _world(dumps[reference])
        age_s = (start_ns - newest_ns(dump)) / 1e9
        if own and rank not in own:
            found[rank] = f"its name says rank {rank}, and its job has ranks {own[0]} to {own[-1]}"
        elif newest_ns(dump) and age_s > OLD_S:
            found[rank] = (
                f"it seems to be of an older job: it ends {age_s / 3600:.0f} h before rank {reference}'s begins"
            )
        elif own and others and own != others:
            found[rank] = f"it is of another job: of {len(own)} ranks, and that of rank {reference} has {len(others)}"
    return found


def _world(dump: RecorderDump) -> tuple[int, ...]:
    """Return the members of the group of all ranks, empty if the dump does not say."""
    return next((tuple(sorted(group.members)) for group in dump.groups if group.name == _WORLD and group.members), ())
