"""Which dumps of a folder belong together: one for each rank, of one job and one backend.

Torch writes to the same names again and again, and a smaller job leaves the files of a larger one. A process has one
recorder for each backend, and all of them number their groups and calls from the start.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from holdfast_proto.member_runs import members_of
from holdfast_proto.v1.recorder_pb2 import RecorderDump

_WORLD = "0"
_ON_CPU = ("gloo", "mpi", "ucc")
_BACKEND_IN_NAME = re.compile(r"\.flight_recorder(?:_(\w+))?\.json")
"""Holdfast's names. Without a backend it is the generic recorder, which holds the calls of gloo."""
OLD_S = 3600
"""Seconds between a dump's newest call and the oldest call of the newest dump that no hang of one job explains.

Torch ends a job that hangs after ten minutes by default, and a rank that hangs makes no calls.
"""


@dataclass(frozen=True)
class DumpFile:
    """A dump, and where it was found."""

    rank: int
    name: str
    """Path below the folder."""
    dump: RecorderDump

    @cached_property
    def newest_ns(self) -> int:
        """Time of its newest call, wall clock; 0: it has none, or shows no times."""
        return max((call.created_ns for call in self.dump.calls), default=0)

    @cached_property
    def oldest_ns(self) -> int:
        """Time of its oldest call, wall clock; 0: it has none, or shows no times."""
        return min((call.created_ns for call in self.dump.calls if call.created_ns), default=0)

    @cached_property
    def backend(self) -> str:
        """Backend whose calls it holds; empty if nothing shows it."""
        found = Counter(call.op.partition(":")[0] for call in self.dump.calls if ":" in call.op)
        if found:
            return found.most_common(1)[0][0]
        named = _BACKEND_IN_NAME.search(self.name)
        return (named[1] or _ON_CPU[0]) if named is not None else ""

    @cached_property
    def world(self) -> tuple[int, ...]:
        """Members of the group of all ranks; empty if the dump does not say."""
        groups = (group for group in self.dump.groups if group.name == _WORLD and group.member_runs)
        return next((tuple(sorted(members_of(group.member_runs))) for group in groups), ())


def of_one_job(files: Iterable[DumpFile]) -> tuple[dict[int, DumpFile], list[str]]:
    """Return the dumps that belong together, by rank, and a line for each one that is left out."""
    left_out: list[str] = []
    kept = list(_of_one_backend(files, left_out))
    by_rank = _newest_of_ranks(kept, left_out)
    for rank, reason in _strangers(by_rank).items():
        left_out.append(f"{by_rank.pop(rank).name}: {reason}")
    return by_rank, left_out


def _of_one_backend(files: Iterable[DumpFile], left_out: list[str]) -> Iterator[DumpFile]:
    """Yield the dumps of one backend, of one for devices if there are several, and those that show none."""
    of_file = [(file, file.backend) for file in files]
    counts = Counter(backend for _, backend in of_file if backend)
    judged = min(counts, key=lambda backend: (backend in _ON_CPU, -counts[backend]), default="")
    for file, backend in of_file:
        if backend in ("", judged):
            yield file
        else:
            left_out.append(f"{file.name}: it holds calls of {backend}, and those of {judged} are judged")


def _newest_of_ranks(files: Iterable[DumpFile], left_out: list[str]) -> dict[int, DumpFile]:
    by_rank: dict[int, DumpFile] = {}
    for file in files:
        known = by_rank.get(file.rank)
        if known is None:
            by_rank[file.rank] = file
        elif file.newest_ns > known.newest_ns:
            left_out.append(f"{known.name}: {file.name} has a newer dump of rank {file.rank}")
            by_rank[file.rank] = file
        else:
            left_out.append(f"{file.name}: {known.name} has the dump of rank {file.rank}")
    return by_rank


def _strangers(by_rank: Mapping[int, DumpFile]) -> dict[int, str]:
    """Return the ranks whose dumps are of another job than the newest dump, each with the reason."""
    newest = max(by_rank.values(), key=lambda file: (file.newest_ns, -file.rank), default=None)
    found: dict[int, str] = {}
    for rank, file in by_rank.items():
        assert newest is not None
        age_s = (newest.oldest_ns - file.newest_ns) / 1e9
        if file.world and rank not in file.world:
            found[rank] = f"its name says rank {rank}, and its job has ranks {file.world[0]} to {file.world[-1]}"
        elif file.newest_ns and age_s > OLD_S:
            found[rank] = f"it seems to be of an older job: it ends {age_s / 3600:.0f} h before {newest.name} begins"
        elif file.world and newest.world and file.world != newest.world:
            sizes = f"{len(file.world)} ranks, and that of {newest.name} has {len(newest.world)}"
            found[rank] = f"it is of another job: of {sizes}"
    return found


def is_comparable(before: RecorderDump, now: RecorderDump) -> bool:
    """Return whether two dumps of a rank can be of one form: a difference in what was dumped is no movement.

    A ring never gets shorter, and never finds again what it has lost. Dumps of pending calls alone do both.
    """
    return (
        before.has_calls == now.has_calls
        and before.is_partial == now.is_partial
        and before.has_wrapped <= now.has_wrapped
        and len(before.calls) <= len(now.calls)
        and any(group.has_status for group in before.groups) == any(group.has_status for group in now.groups)
    )
