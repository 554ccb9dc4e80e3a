import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast_hooks import Phase
from holdfast_hooks.faults import Fault
from tests.trainer_hooks.faults.conftest import Victims

pytestmark = pytest.mark.system

HELD_S = 0.2
BEFORE_STEP_2 = [(step, phase) for step in (0, 1) for phase in (Phase.DATA, Phase.FORWARD_BACKWARD, Phase.OPTIMIZER)]


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("segfault", signal.SIGSEGV)])
def test_the_rank_dies_of_the_signal_as_its_step_begins(victims: Victims, kind: str, number: int) -> None:
    ranks = victims.play("alone", Fault(kind, step=2), ranks=1)
    assert ranks.wait() == [-number]
    assert [(said["step"], said["phase"]) for said in ranks.said(0)] == BEFORE_STEP_2


def test_the_rank_dies_as_it_enters_the_phase(victims: Victims) -> None:
    ranks = victims.play("alone", Fault("kill", step=2, phase=Phase.OPTIMIZER), ranks=1)
    assert ranks.wait() == [-signal.SIGKILL]
    newest = ranks.said(0)[-1]
    assert (newest["step"], newest["phase"]) == (2, Phase.FORWARD_BACKWARD)


def test_a_stopped_rank_continues_where_it_was(victims: Victims) -> None:
    ranks = victims.play("alone", Fault("stop", step=2), ranks=1)
    [pid] = ranks.pids
    while state_of(pid) != "T":
        time.sleep(0.005)
    assert len(ranks.said(0)) == len(BEFORE_STEP_2)
    os.kill(pid, signal.SIGCONT)
    assert ranks.wait() == [0]
    assert len(ranks.said(0)) == 2 * len(BEFORE_STEP_2)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [("exception", 1, "RuntimeError: injected fault"), ("out-of-memory", 1, "MemoryError"), ("exit-0", 0, "")],
)
def test_the_rank_leaves_early(victims: Victims, kind: str, code: int, words: str) -> None:
    ranks = victims.play("alone", Fault(kind, step=2), ranks=1)
    assert ranks.wait() == [code]
    assert len(ranks.said(0)) == len(BEFORE_STEP_2)
    assert words in ranks.log(0)
    assert "on a kernel" not in ranks.log(0)


def test_no_other_thread_has_its_turn_while_the_interpreter_is_held(victims: Victims) -> None:
    # Before and after, while the phase is entered, the other thread has some turns on a busy machine.
    assert said_of(victims, "gil-held")["pause_s"] >= HELD_S


def test_other_threads_have_their_turns_during_a_loop(victims: Victims) -> None:
    assert said_of(victims, "infinite-loop")["turns"] > 1


def said_of(victims: Victims, kind: str) -> dict[str, Any]:
    ranks = victims.play("alone", Fault(kind, step=2, phase=Phase.OPTIMIZER, duration_s=HELD_S), ranks=1)
    assert ranks.wait() == [0]
    [said] = [said for said in ranks.said(0) if (said["step"], said["phase"]) == (2, Phase.OPTIMIZER)]
    return said
