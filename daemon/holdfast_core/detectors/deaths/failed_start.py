"""Distinguishes a first start that fails for the program's own reason from a death that another start may overcome.

A program that is missing, that is no Python or that cannot import a module ends on every rank in the same way, before
the rank attaches. A rank that fails alone may have a bad node: that is a death. So is an error of the user's own code,
such as a data file that is not there: it may come back.
"""

import re
from collections.abc import Mapping

from holdfast_core.detectors.deaths.raised import exception_line
from holdfast_core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store

PATIENCE_S = 5.0
"""Time for the other ranks to fail too. They import the same modules, on machines that are differently busy."""

_NOT_EXECUTABLE, _NOT_FOUND, _PYTHON_USAGE = 126, 127, 2
"""Exit codes of a shell that cannot run a program, and of Python without a script."""

_PROGRAM_ERROR = re.compile(r"(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError)\b")
_NO_SCRIPT = re.compile(r".*can't open file .*\[Errno \d+\]")


def error_of_program(ended: store.RankExit) -> str:
    """Return the line with which a rank's program ended before it could attach; "" if it ended in another way."""
    if not ended.never_attached or ended.HasField("signal"):
        return ""
    said = exception_line(ended.last_words)
    # Text after the exception says that the program continued: then something else has ended it.
    if not said or not ended.last_words.rstrip().endswith(said):
        return ""
    if ended.code == 1 and _PROGRAM_ERROR.match(said):
        return said
    is_missing = ended.code in (_NOT_EXECUTABLE, _NOT_FOUND) or (ended.code == _PYTHON_USAGE and _NO_SCRIPT.match(said))
    return said if is_missing else ""


def may_be_hopeless(view: View, exits: Mapping[int, store.RankExit]) -> bool:
    """Return whether every exit of the run's first start is that of one and the same error of the program."""
    if not view.is_first_start or not exits:
        return False
    errors = {error_of_program(ended) for ended in exits.values()}
    if len(errors) > 1 or "" in errors:
        return False
    return len(exits) == view.world_size or view.now - view.first_exit_unix_s < PATIENCE_S


def verdict(view: View, exits: Mapping[int, store.RankExit]) -> store.Verdict | None:
    """Return the verdict once every rank has ended, None before. The exits are those of a start without hope."""
    if len(exits) < view.world_size:
        return None
    detail = store.ProgramDetail(world_size=view.world_size, error=error_of_program(exits[min(exits)]))
    return store.Verdict(
        kind=store.VERDICT_KIND_BAD_CONFIGURATION, culprits=sorted(exits), confidence_ratio=1.0, program=detail
    )


def launcher_verdict(view: View) -> store.Verdict | None:
    """Return the verdict on a command that starts ranks of its own within a rank; None if it does not.

    Of the ranks that it starts, Holdfast would see one for each of its own, and could not restart them as a world.
    """
    if not view.is_first_start:
        return None
    launched = {number: rank.launched_world_size for number, rank in view.ranks.items() if rank.launched_world_size}
    if not launched:
        return None
    detail = store.LauncherDetail(launched_world_size=launched[min(launched)], world_size=view.world_size)
    return store.Verdict(
        kind=store.VERDICT_KIND_BAD_CONFIGURATION, culprits=sorted(launched), confidence_ratio=1.0, launcher=detail
    )
