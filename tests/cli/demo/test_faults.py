import pytest

from holdfast_cli.control import ControlError
from holdfast_cli.demo.faults import FaultPlan, PlannedFault
from holdfast_hooks.faults import Fault
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.control_pb2 import RunStatus
from tests.support.statuses import healthy

KILL, STOP = Fault("kill", rank=3), Fault("stop", rank=1)


class Daemon:
    """A daemon that accepts faults, or refuses them with an error."""

    def __init__(self) -> None:
        self.error: ControlError | None = None
        self.taken: list[Fault] = []

    def inject(self, fault: Fault) -> None:
        if self.error is not None:
            raise self.error
        self.taken.append(fault)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


def plan(daemon: Daemon) -> FaultPlan:
    return FaultPlan(
        [PlannedFault("kill", KILL, 10, "a kill"), PlannedFault("hang", STOP, 20, "a stop")], daemon.inject
    )


def status_at(step: int, *, answered_unix_s: float = 0.0, is_open: bool = False) -> RunStatus:
    status = healthy()
    status.newest_step = step
    if answered_unix_s:
        status.newest_incident.detected_unix_s = answered_unix_s
        status.newest_incident.state = store.INCIDENT_STATE_OPEN if is_open else store.INCIDENT_STATE_RECOVERED
    return status


def test_faults_are_injected_in_order_each_once_and_only_when_the_run_is_well_again(daemon: Daemon) -> None:
    faults = plan(daemon)
    faults.observe(status_at(9))
    assert daemon.taken == []
    faults.observe(status_at(10))
    assert daemon.taken == [KILL]
    later_unix_s = faults.injected[0].unix_s + 1.0
    faults.observe(status_at(25))
    faults.observe(status_at(25, answered_unix_s=later_unix_s, is_open=True))
    assert daemon.taken == [KILL]
    for step in (25, 26):
        faults.observe(status_at(step, answered_unix_s=later_unix_s))
    assert daemon.taken == [KILL, STOP]
    assert [(fault.kind, fault.rank) for fault in faults.injected] == [("kill", 3), ("hang", 1)]


def test_no_fault_is_injected_while_a_generation_starts_or_after_its_rank_has_exited(daemon: Daemon) -> None:
    faults = plan(daemon)
    starting = status_at(30)
    starting.phase = store.RUN_PHASE_STARTING
    faults.observe(starting)
    gone = status_at(30)
    gone.ranks[3].life = store.LIFE_EXITED
    faults.observe(gone)
    assert daemon.taken == []


def test_a_fault_that_is_refused_is_requested_again(daemon: Daemon) -> None:
    faults = plan(daemon)
    daemon.error = ControlError("its step is over", unreachable=False)
    faults.observe(status_at(10))
    assert faults.injected == []
    daemon.error = None
    faults.observe(status_at(11))
    assert daemon.taken == [KILL]
    assert faults.story().endswith("done; a stop")
