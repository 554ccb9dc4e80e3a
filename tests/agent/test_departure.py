import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast_agent.departure import Departure
from holdfast_agent.node import Node
from tests.support.coroutines import until
from tests.support.nodes import begin, make_node

GRACE_S = 30.0


def departing(folder: Path, *, ranks: int = 1, grace_s: float = GRACE_S) -> tuple[Node, Departure]:
    """A node whose ranks live as long as this process. It handles this process's signals."""
    node = make_node(folder)
    begin(node, 1, dict.fromkeys(range(ranks), os.getpid()))
    departure = Departure(node, grace_s, [signal.SIGUSR1])
    departure.listen()
    return node, departure


async def send(number: signal.Signals) -> None:
    """Signal this process, and let its loop read the signal from its pipe."""
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGURG, heard.set)
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), signal.SIGURG)
    await heard.wait()


async def test_sigterm_announces_to_the_daemon_that_the_node_leaves(folder: Path) -> None:
    node, departure = departing(folder)
    assert node.state(ready=True).leave_in_s == 0.0
    node.changed.clear()
    await send(signal.SIGTERM)
    assert 0 < node.state(ready=True).leave_in_s <= GRACE_S
    assert node.changed.is_set()
    assert not departure.due.is_set()


async def test_a_warning_announces_the_same_and_the_sigterm_after_it_ends_nothing(folder: Path) -> None:
    node, departure = departing(folder)
    await send(signal.SIGUSR1)
    announced_s = node.leave_by_s
    assert announced_s is not None
    await send(signal.SIGTERM)
    assert node.leave_by_s == announced_s
    assert not departure.due.is_set()


@pytest.mark.parametrize(("number", "grace_s"), [(signal.SIGUSR2, GRACE_S), (signal.SIGUSR1, 0.0)])
async def test_a_warning_that_is_switched_off_or_leaves_no_time_changes_nothing(
    folder: Path, number: signal.Signals, grace_s: float
) -> None:
    node, departure = departing(folder, grace_s=grace_s)
    await send(number)
    assert node.leave_by_s is None
    assert not departure.due.is_set()


@pytest.mark.parametrize(("grace_s", "signals"), [(GRACE_S, 2), (0.01, 1)])
async def test_a_second_signal_and_the_end_of_the_grace_period_end_immediately(
    folder: Path, grace_s: float, signals: int
) -> None:
    _, departure = departing(folder, grace_s=grace_s)
    for _ in range(signals):
        await send(signal.SIGTERM)
    await until(departure.hurried.is_set, "the agent ends")
    assert departure.due.is_set()


@pytest.mark.parametrize(
    ("number", "ranks", "grace_s"),
    [(signal.SIGINT, 1, GRACE_S), (signal.SIGTERM, 0, GRACE_S), (signal.SIGTERM, 1, 0.0)],
    ids=["sigint", "no ranks", "no grace"],
)
async def test_without_a_checkpoint_to_wait_for_the_agent_just_ends(
    folder: Path, number: signal.Signals, ranks: int, grace_s: float
) -> None:
    node, departure = departing(folder, ranks=ranks, grace_s=grace_s)
    await send(number)
    assert departure.due.is_set()
    assert not departure.hurried.is_set()
    assert node.state(ready=True).leave_in_s == 0.0
