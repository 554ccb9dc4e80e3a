"""What a signal means to a command that has a run to clean up."""

import os
import signal
from collections.abc import Iterator

import pytest

from holdfast_cli.errors import InterruptionError
from holdfast_cli.interruption import Interruption

USR1, USR2, TERM, HUP, INT = signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGINT


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """The usual disposition of SIGHUP, although these tests may run under nohup."""
    before = signal.signal(HUP, signal.SIG_DFL)
    yield
    signal.signal(HUP, before)


def after(*numbers: signal.Signals, warnings: tuple[signal.Signals, ...] = (USR1, USR2)) -> Interruption:
    with Interruption(warnings) as interruption:
        for number in numbers:
            os.kill(os.getpid(), number)
    return interruption


@pytest.mark.parametrize("numbers", [[TERM], [USR1], [USR2], [USR1, USR2], [USR1, TERM], [TERM, USR1]])
def test_a_warning_or_one_sigterm_leaves_time_for_a_planned_stop(numbers: list[signal.Signals]) -> None:
    assert after(*numbers).asks_for_planned_stop


@pytest.mark.parametrize("numbers", [[], [TERM, TERM], [INT], [HUP], [USR1, INT], [USR1, TERM, TERM]])
def test_anything_else_does_not(numbers: list[signal.Signals]) -> None:
    assert not after(*numbers).asks_for_planned_stop


def test_only_a_signal_that_asks_to_end_ends_a_wait_and_the_first_one_is_named() -> None:
    after(USR1).check()
    with pytest.raises(InterruptionError) as caught:
        after(USR1, INT, TERM).check()
    assert caught.value.exit_code == 128 + INT


def test_a_warning_that_is_switched_off_is_ignored() -> None:
    assert after(USR2, warnings=(USR1,)).received == []


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    signal.signal(HUP, signal.SIG_IGN)
    interruption = after(HUP)
    assert interruption.received == []
    assert signal.getsignal(HUP) is signal.SIG_IGN
