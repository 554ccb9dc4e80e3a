"""How long the training thread sleeps for reasons of its own: the main thread of these tests takes its place."""

import threading
import time
from collections.abc import Callable

import pytest

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.progress.own_wait import OwnWait
from holdfast_hooks.telemetry.timeline import Timeline

SAMPLES = 30


def sampled(
    *, while_sampling: Callable[[threading.Thread], None], phase: Phase, is_call_pending: bool | None = False
) -> OwnWait:
    """Return the estimates after some samples that another thread takes."""
    timeline = Timeline(lambda step, phase, unix_ns: None)
    timeline.begin(0)
    timeline.enter(phase)
    began_s = time.monotonic()  # the first sample stands for the time from here on
    own_wait = OwnWait(timeline, OnceLog())

    def sample() -> None:
        for _ in range(SAMPLES):
            own_wait.before()
            time.sleep(0.002)
            own_wait.after(is_call_pending=is_call_pending)

    sampler = threading.Thread(target=sample)
    sampler.start()
    while_sampling(sampler)
    assert own_wait.total_s + own_wait.in_calls_s <= time.monotonic() - began_s
    return own_wait


def sleep(sampler: threading.Thread) -> None:
    sampler.join()


def compute(sampler: threading.Thread) -> None:
    while sampler.is_alive():
        pass


OWN_PHASES = [Phase.FORWARD_BACKWARD, Phase.OPTIMIZER]


@pytest.mark.parametrize("phase", OWN_PHASES)
def test_a_training_thread_that_sleeps_for_itself_is_seen(phase: Phase) -> None:
    assert sampled(while_sampling=sleep, phase=phase).total_s > 0.5 * SAMPLES * 0.002


def test_a_training_thread_that_waits_for_other_ranks_does_not_sleep_for_itself() -> None:
    own_wait = sampled(while_sampling=sleep, phase=Phase.FORWARD_BACKWARD, is_call_pending=True)
    assert own_wait.total_s == 0.0
    assert own_wait.in_calls_s > 0.5 * SAMPLES * 0.002


@pytest.mark.parametrize(
    ("does", "phase", "is_call_pending"),
    [
        pytest.param(compute, Phase.FORWARD_BACKWARD, False, id="computes"),
        pytest.param(sleep, Phase.FORWARD_BACKWARD, None, id="the poll has not seen all groups"),
        *[pytest.param(sleep, phase, False, id=phase.name) for phase in Phase if phase not in OWN_PHASES],
    ],
)
def test_nothing_else_counts(
    does: Callable[[threading.Thread], None], phase: Phase, is_call_pending: bool | None
) -> None:
    own_wait = sampled(while_sampling=does, phase=phase, is_call_pending=is_call_pending)
    assert (own_wait.total_s, own_wait.in_calls_s) == (0.0, 0.0)


def test_the_thread_that_trains_need_not_be_the_one_that_has_attached() -> None:
    timeline = Timeline(lambda step, phase, unix_ns: None)
    timeline.begin(0)
    timeline.enter(Phase.FORWARD_BACKWARD)
    own_wait = OwnWait(timeline, OnceLog())
    asleep, end = threading.Event(), threading.Event()
    threads: list[int] = []

    def train() -> None:
        threads.append(threading.get_native_id())
        asleep.set()
        end.wait()

    training = threading.Thread(target=train)
    training.start()
    asleep.wait()
    own_wait.follow(threads[0])
    for _ in range(SAMPLES):
        own_wait.before()
        time.sleep(0.002)  # this thread, which takes the samples, is the one that has attached
        own_wait.after(is_call_pending=False)
    end.set()
    training.join()
    assert own_wait.total_s > 0.5 * SAMPLES * 0.002
