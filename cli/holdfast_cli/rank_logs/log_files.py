"""Finds the logs of ranks in the directory of a run."""

from collections.abc import Iterable
from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_proto.run_files import RANK_LOGS

Logs = dict[int, Path]
"""Rank -> log, ascending."""


def logs_by_generation(run_directory: Path) -> dict[int, Logs]:
    """Return the logs of all ranks that have one, by generation. Both ascend."""
    found: dict[int, Logs] = {}
    for path in sorted(run_directory.glob(RANK_LOGS)):
        generation, rank = path.parent.name.partition("-")[2], path.stem.partition("-")[2]
        if generation.isdecimal() and rank.isdecimal():
            found.setdefault(int(generation), {})[int(rank)] = path
    return dict(sorted(found.items()))


def newest_generation(found: dict[int, Logs], since_unix_s: float) -> int | None:
    """Return the newest generation that has written since ``since_unix_s``, or None.

    An earlier start of the run may have left the logs of higher generations.
    """
    written = (number for number, logs in found.items() if any(_is_newer(log, since_unix_s) for log in logs.values()))
    return max(written, default=None)


def chosen_logs(found: dict[int, Logs], generation: int, ranks: Iterable[int]) -> Logs:
    """Return the logs of ``ranks``, or of all ranks, in a generation. Raises CommandError if one has none."""
    logs = found.get(generation)
    if logs is None:
        known = ", ".join(map(str, found)) or "none"
        raise CommandError(f"generation {generation} has no log of a rank: those that have one: {known}")
    wanted = sorted(set(ranks)) or list(logs)
    missing = next((rank for rank in wanted if rank not in logs), None)
    if missing is not None:
        raise CommandError(f"rank {missing} has no log in generation {generation}: {_names(list(logs))} have one")
    return {rank: logs[rank] for rank in wanted}


def _names(ranks: list[int]) -> str:
    is_range = ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2
    return f"ranks {ranks[0]} to {ranks[-1]}" if is_range else f"ranks {', '.join(map(str, ranks))}"


def _is_newer(log: Path, since_unix_s: float) -> bool:
    try:
        return log.stat().st_mtime >= since_unix_s
    except OSError:
        return False
