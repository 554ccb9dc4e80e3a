"""All cases, by topic."""

from benchmarks.odd_runs.case import OddCase

from .busy_ranks import COMPUTING
from .data_loaders import DATA
from .marked_phases import PHASES
from .outside_causes import OUTSIDE
from .starts_and_ends import ENDINGS, STARTS
from .still_ranks import STILL
from .transfers import FILES
from .users_deadlines import UNSCALED

ALL: tuple[OddCase, ...] = (
    *PHASES,
    *COMPUTING,
    *FILES,
    *DATA,
    *STILL,
    *OUTSIDE,
    *STARTS,
    *ENDINGS,
)
CASES: dict[str, OddCase] = {
    case.name: case for case in (*ALL, *(case for cases in UNSCALED.values() for case in cases))
}
"""All cases by name, with those of UNSCALED."""
for _case in CASES.values():
    _case.check()

QUICK = (
    "evaluation marked by all",
    "evaluation unmarked, rank 0",
    "recompilation, all in Python",
    "pickle with the interpreter lock",
    "torch.save, rank 0",
    "slow file server stops",
    "sleep in a callback",
    "one of two ranks stopped for a moment",
    "all ranks stopped",
    "upload in an exit handler",
)
"""Names of ten cases that cover every row of the table in under four minutes."""
