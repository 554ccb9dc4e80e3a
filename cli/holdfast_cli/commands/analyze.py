"""``holdfast analyze``: who holds up a job, from the Flight Recorder dumps of its ranks."""

import sys
from collections.abc import Mapping

from holdfast_cli.analysis.dump_folder import Dumps, read_folder
from holdfast_cli.analysis.one_job import is_comparable
from holdfast_cli.analysis.reading_note import reading_note
from holdfast_cli.analysis.report import as_lines, as_object, diagnose_dumps, named_ranks, world_of
from holdfast_cli.errors import CommandError, UsageError
from holdfast_cli.flags.watching import AnalyzeFlags
from holdfast_cli.views.output import print_json
from holdfast_core.diagnosis.devices.diagnosis_text import ranks_text
from holdfast_proto.v1.recorder_pb2 import RecorderDump


def analyze(flags: AnalyzeFlags) -> None:
    """Diagnose a folder of dumps."""
    folder, before = flags.folder.resolve(), flags.earlier.resolve() if flags.earlier is not None else None
    if before is not None and (before == folder or before in folder.parents):
        raise UsageError(f"--earlier {flags.earlier} holds the newer dumps too: name a folder of earlier dumps alone")
    with reading_note(sys.stderr) as note:
        found = read_folder(flags.folder, without=flags.earlier, note=note)
    dead = frozenset(flags.dead or ())
    newest = max(named_ranks(found, dead))
    if flags.world_size is not None and flags.world_size <= newest:
        raise UsageError(f"--world-size {flags.world_size} is too small: there is a rank {newest}")
    world = world_of(found)
    if world and (strangers := dead - set(world)):
        raise UsageError(f"--dead {min(strangers)}: the dumps name {len(world)} ranks, and this is none of them")
    earlier = _earlier(flags, found)
    diagnosis = diagnose_dumps(found, dead=dead, world_size=flags.world_size, earlier=earlier)
    if flags.json:
        print_json(as_object(found, diagnosis))
    else:
        print("\n".join(as_lines(found, diagnosis)))


def _earlier(flags: AnalyzeFlags, found: Dumps) -> Mapping[int, RecorderDump]:
    if flags.earlier is None:
        return {}
    with reading_note(sys.stderr) as note:
        earlier = read_folder(flags.earlier, note=note).dumps
    both = earlier.keys() & found.dumps.keys()
    if not both:
        raise CommandError(
            f"--earlier {flags.earlier} has no dump of a rank that {flags.folder} has: name another folder"
        )
    compared = {rank: earlier[rank] for rank in both if is_comparable(earlier[rank], found.dumps[rank])}
    if not compared:
        raise CommandError(f"--earlier {flags.earlier} was dumped in another way than {flags.folder}: dump both alike")
    if others := both - compared.keys():
        found.refused.append(
            f"earlier dumps of {ranks_text(others)}: they were made in another way than the newer ones"
        )
    return compared
