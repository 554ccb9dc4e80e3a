"""``holdfast analyze``: who holds up a job, from the Flight Recorder dumps of its ranks."""

from holdfast_cli.analysis.dump_folder import read_folder
from holdfast_cli.analysis.report import as_lines, as_object, diagnose_dumps, named_ranks
from holdfast_cli.errors import UsageError
from holdfast_cli.flags.watching import AnalyzeFlags
from holdfast_cli.views.output import print_json


def analyze(flags: AnalyzeFlags) -> None:
    """Diagnose a folder of dumps."""
    found = read_folder(flags.folder, without=flags.earlier)
    earlier = read_folder(flags.earlier).dumps if flags.earlier is not None else None
    dead = frozenset(flags.dead or ())
    newest = max(named_ranks(found, dead))
    if flags.world_size is not None and flags.world_size <= newest:
        raise UsageError(f"--world-size {flags.world_size} is too small: there is a rank {newest}")
    diagnosis = diagnose_dumps(found, dead=dead, world_size=flags.world_size, earlier=earlier)
    if flags.json:
        print_json(as_object(found, diagnosis))
    else:
        print("\n".join(as_lines(found, diagnosis)))
