"""What a run that was asked to stop as planned ends with if it fails."""

import signal
from pathlib import Path

import pytest

from holdfast_cli.control import ControlClient
from holdfast_cli.errors import InterruptionError
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.preemption import Preemption
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_FAILED, INCIDENT_STATE_NOTED, RUN_PHASE_FAILED


@pytest.fixture
def preemption(tmp_path: Path) -> Preemption:
    """A stop that was asked for by SIGTERM, of a run without a daemon."""
    interruption = Interruption()
    interruption.received.append(signal.SIGTERM)
    asked = Preemption(interruption, ControlClient(tmp_path / "socket", "r", timeout_s=0.1), 60.0)
    assert asked.notes() == []
    asked.check()
    assert len(asked.notes()) == 1
    assert "--preemption-grace-s" in asked.notes()[0]
    return asked


def test_a_run_that_fails_because_it_was_to_stop_was_ended_by_the_signal(preemption: Preemption) -> None:
    status = RunStatus(phase=RUN_PHASE_FAILED, outcome="rank 1 was killed, while the run was to stop")
    status.newest_incident.state = INCIDENT_STATE_NOTED
    with pytest.raises(InterruptionError) as caught:
        preemption.check_outcome(status)
    assert caught.value.exit_code == 128 + signal.SIGTERM


def test_a_run_that_is_given_up_after_a_signal_has_failed(preemption: Preemption) -> None:
    status = RunStatus(phase=RUN_PHASE_FAILED, outcome="rank 1 fails at step 20 each time, 5 times in a row")
    status.newest_incident.state = INCIDENT_STATE_FAILED
    preemption.check_outcome(status)
