"""The session of a rank that has not attached by itself, from the making of its process group to its end."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from holdfast_hooks.auto import takeover
from holdfast_hooks.auto.arming import RANK_PROCESS, is_child_of_rank, say
from holdfast_hooks.auto.signs_of_training import SignsOfTraining
from holdfast_hooks.hooks import Hooks
from holdfast_hooks.identity import Identity
from holdfast_hooks.phases import Phase
from holdfast_hooks.restore.starting_point import has_starting_point
from holdfast_proto.rank_context import THREAD_PREFIX, RankContext

PATIENCE_S = 300.0
"""Time without an optimizer's step after which a rank says that its steps are not seen."""
_NO_STEPS = (
    "no optimizer of torch.optim has made a step yet. If this script trains with another one, Holdfast does not see its"
    " steps, only its collectives: call holdfast_hooks.attach() in the script, see docs/own-trainer.md"
)

_present: "AutomaticSession | None" = None
_next_step = 0
"""Number of the next step: a script may end its process group and make another one."""


class AutomaticSession:
    """One session of a rank that has not attached by itself."""

    def __init__(self, hooks: Hooks, rank: int, *, may_count: bool) -> None:
        self._hooks = hooks
        self._rank = rank
        self._pid = os.getpid()
        self._may_count = may_count
        self._signs = SignsOfTraining(hooks, _next_step)
        self._exit = ExitWatch()
        self._timer = threading.Timer(PATIENCE_S, self._look_for_steps)
        self._timer.daemon, self._timer.name = True, f"{THREAD_PREFIX}no-steps"

    @property
    def is_open(self) -> bool:
        """Whether the session is open."""
        return self._hooks.is_open

    def begin(self) -> None:
        """Begin to watch."""
        os.environ[RANK_PROCESS] = str(self._pid)
        takeover.begin_automatic(self.give_way)
        self._exit.install()
        if self._may_count:
            self._signs.install()
            self._timer.start()
        atexit.register(self._at_exit)
        multiprocessing = sys.modules.get("multiprocessing.process")
        if multiprocessing is not None and multiprocessing.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(self, self._at_exit, exitpriority=0)  # such a process may end without what atexit calls

    def end(self, *, finished: bool, process_ends: bool = False) -> None:
        """Close the session. ``finished``: the rank has done what it was to do."""
        global _next_step  # noqa: PLW0603 - a process is one rank
        if os.getpid() != self._pid:
            return
        self._timer.cancel()
        self._signs.uninstall()
        self._exit.uninstall()
        atexit.unregister(self._at_exit)
        _next_step = self._signs.next_step
        if finished and self._hooks.is_open:
            self._hooks.enter(Phase.IDLE)
        self._hooks.leave(finished=finished, process_ends=process_ends)

    def give_way(self) -> None:
        """Close the session, because the script attaches by itself. The rank does not leave."""
        self.end(finished=False)
        os.environ.pop(RANK_PROCESS, None)

    def _at_exit(self) -> None:
        error = sys.exc_info()[1]  # of a child of multiprocessing, which runs this while its error is on its way
        is_exit = isinstance(error, SystemExit)
        if error is not None and not is_exit:
            self._hooks.fail(error)
        has_failed = self._exit.has_failed or (isinstance(error, SystemExit) and bool(error.code))
        self.end(finished=not has_failed, process_ends=True)

    def _look_for_steps(self) -> None:
        if self._rank == 0 and not self._signs.steps and self.is_open:
            say(_NO_STEPS)


def began() -> None:
    """Attach, because the process has made its default process group."""
    global _present  # noqa: PLW0603 - a process is one rank, and a rank has one session
    if takeover.is_explicit() or is_child_of_rank() or (_present is not None and _present.is_open):
        return
    identity = _identity()
    context = RankContext.from_environment(rank=identity.rank)
    if context is None:
        return
    hooks = Hooks(
        state={},
        coordinates={},
        device=None,
        check_replicas=False,
        check_data_position=False,
        identity=identity,
        saves=False,
    )
    hooks.start()
    if not hooks.is_open:
        return
    may_count = context.observed or not has_starting_point(context)
    _present = AutomaticSession(hooks, identity.rank, may_count=may_count)
    _present.begin()
    if identity.rank == 0:
        say(f"attached by itself, rank 0 of {identity.world_size}")
        if not may_count:
            say("the run has a state to continue from, which the script did not restore: its steps are not counted")


def ends() -> None:
    """Close, because the process ends its default process group: training is over."""
    if _present is not None:
        _present.end(finished=True)


def _identity() -> Identity:
    """Return this rank's place: as torch has it, and on its node as its launcher says, if that knows the same rank."""
    distributed = sys.modules["torch.distributed"]
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    launched = Identity.from_environment()
    if (launched.rank, launched.world_size) == (rank, world_size):
        return launched
    return replace(launched, rank=rank, world_size=world_size, local_rank=rank, local_world_size=0)


class ExitWatch:
    """Replaces ``sys.exit`` by a function that notes the code and calls it."""

    def __init__(self) -> None:
        self._exit: Callable[..., NoReturn] = sys.exit
        self.has_failed = False
        """Whether the main thread has called ``sys.exit`` with a code other than 0."""

    def install(self) -> None:
        """Begin to note."""
        self._exit = sys.exit
        sys.exit = self._noted_exit

    def uninstall(self) -> None:
        """Put the former function back, unless something else has replaced ours."""
        if sys.exit == self._noted_exit:
            sys.exit = self._exit

    def _noted_exit(self, status: object = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # else it ends one thread only
            self.has_failed = status not in (None, 0)
        self._exit(status)
