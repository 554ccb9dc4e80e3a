"""Pauses that another process causes: suspended trees, stopped components, debuggers, a loaded machine."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .pause import LoggedPause

_TRACER = Path(__file__).with_name("tracer.py")
_BETWEEN_STOPS_S = 0.05
_BETWEEN_SUSPENDS_S = 1.5
_LONGEST_S = 120.0
_SEED = 7
_LOW_PRIORITY = 10

THEN_STOP_ONE = "then stop rank 1"
RESUME_ALL_BUT_ONE = "resume all but rank 1"
_HELD_RANK = 1


@dataclass
class Target:
    """The processes of a run, and how long to pause them."""

    ranks: dict[int, int]
    """Rank -> pid."""
    components: dict[str, int]
    """Pids of ``redis``, ``daemon`` and ``agent``."""
    tree: list[int]
    """Pids of all processes of the run."""
    lasts_s: float
    endless: bool = False
    held: bool = False
    """Whether rank 1 stays stopped when the last pause ends."""
    pauses: list[LoggedPause] = field(default_factory=list)

    @contextlib.contextmanager
    def pause(self, rank: int = -1) -> Iterator[None]:
        """Log a pause around the block. The block of an endless pause may end without the end of the pause."""
        self.pauses.append(LoggedPause(rank, 1, time.time()))
        yield
        self.pauses[-1] = LoggedPause(rank, 1, self.pauses[-1].began_s, time.time())

    def wait(self) -> None:
        """Wait for the end of the pause."""
        time.sleep(self.lasts_s)

    def resume(self, pids: Iterable[int], *, last: bool = True) -> None:
        """Let processes continue."""
        held = {self.ranks[_HELD_RANK]} if self.held and last else set()
        _signal((pid for pid in pids if pid not in held), signal.SIGCONT)


def cause(target: Target, activity: str, *, twin_activity: str | None) -> None:
    """Pause a run. ``twin_activity`` makes the pause endless for a twin; None stands for a control."""
    if twin_activity is None:
        ACTIONS[activity](target)
        return
    target.held = twin_activity == RESUME_ALL_BUT_ONE
    target.endless = twin_activity == activity
    ACTIONS[activity](target)
    if target.held:
        target.pauses.append(LoggedPause(_HELD_RANK, 1, time.time()))
    elif twin_activity == THEN_STOP_ONE:
        time.sleep(_BETWEEN_SUSPENDS_S)  # give the run time to train again
        target.pauses.append(LoggedPause(_HELD_RANK, 1, time.time()))
        os.kill(target.ranks[_HELD_RANK], signal.SIGSTOP)


def _stop(target: Target, pids: list[int], *, resumed: list[int] | None = None, gap_s: float = 0.0) -> None:
    with target.pause():
        for pid in pids:
            _signal([pid], signal.SIGSTOP)
            time.sleep(gap_s)
        if target.endless:
            return
        target.wait()
        target.resume(pids if resumed is None else resumed)


def _stop_ranks(target: Target) -> None:
    _stop(target, list(target.ranks.values()))


def _stop_ranks_shuffled(target: Target) -> None:
    order = random.Random(_SEED)
    pids = list(target.ranks.values())
    order.shuffle(pids)
    _stop(target, pids, resumed=order.sample(pids, len(pids)), gap_s=_BETWEEN_STOPS_S)


def _stop_tree(target: Target) -> None:
    _stop(target, target.tree)


def _stop_sidecar_and_ranks(target: Target) -> None:
    _stop(target, [target.components["agent"], target.components["daemon"], *target.ranks.values()])


def _suspend_thrice(target: Target) -> None:
    for number in range(3):
        with target.pause():
            _signal(target.tree, signal.SIGSTOP)
            target.wait()
            target.resume(target.tree, last=number == 2)
        time.sleep(0.0 if number == 2 else _BETWEEN_SUSPENDS_S)


def _stop_rank(target: Target) -> None:
    _stop(target, [target.ranks[1]])


def _stop_two_ranks(target: Target) -> None:
    _stop(target, [target.ranks[1], target.ranks[2]])


def _stop_component(name: str) -> Callable[[Target], None]:
    return lambda target: _stop(target, [target.components[name]])


def _load(target: Target) -> None:
    burn = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"
    with target.pause():
        burning = [
            subprocess.Popen([sys.executable, "-S", "-c", burn]) for _ in range(2 * len(os.sched_getaffinity(0)))
        ]
        target.wait()
        for process in burning:
            process.kill()
            process.wait()


def _load_and_renice(target: Target) -> None:
    for task in Path(f"/proc/{target.ranks[1]}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), _LOW_PRIORITY)
    _load(target)


def _trace(target: Target, pids: Iterable[int]) -> None:
    seconds = _LONGEST_S if target.endless else target.lasts_s
    tracer = subprocess.Popen(
        [sys.executable, str(_TRACER), str(seconds), *map(str, pids)], stdout=subprocess.PIPE, text=True
    )
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == "attached\n", "the ranks could not be traced"
    with target.pause():
        if not target.endless:
            assert tracer.wait() == 0


def _trace_rank(target: Target) -> None:
    _trace(target, [target.ranks[1]])


def _trace_ranks(target: Target) -> None:
    _trace(target, target.ranks.values())


def _dump_stacks(target: Target) -> None:
    py_spy = Path(sys.executable).with_name("py-spy")  # the one of this environment, whatever PATH says
    with target.pause():
        until_s = time.monotonic() + target.lasts_s
        while time.monotonic() < until_s:
            for pid in target.ranks.values():
                subprocess.run([py_spy, "dump", "--pid", str(pid)], check=True, stdout=subprocess.DEVNULL)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


ACTIONS: dict[str, Callable[[Target], None]] = {
    "stop ranks": _stop_ranks,
    "stop ranks shuffled": _stop_ranks_shuffled,
    "stop tree": _stop_tree,
    "stop sidecar and ranks": _stop_sidecar_and_ranks,
    "suspend thrice": _suspend_thrice,
    "stop rank 1": _stop_rank,
    "stop two ranks": _stop_two_ranks,
    "stop agent": _stop_component("agent"),
    "stop daemon": _stop_component("daemon"),
    "stop redis": _stop_component("redis"),
    "load": _load,
    "load and renice": _load_and_renice,
    "trace rank 1": _trace_rank,
    "trace ranks": _trace_ranks,
    "dump stacks": _dump_stacks,
}
