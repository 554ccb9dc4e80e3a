import itertools
from pathlib import Path

import pytest
from typer.testing import Result

from holdfast_cli.control import ControlClient, ControlError
from holdfast_cli.errors import SettingsError
from holdfast_cli.fault_injection import RandomInjection
from holdfast_cli.run_folder.target import Target
from holdfast_hooks.faults import CATALOGUE
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.fault_pb2 import Fault
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, RUN_PHASE_RUNNING, RUN_PHASE_STOPPING
from tests.cli.conftest import holdfast


def inject(*arguments: str) -> Result:
    return holdfast("inject", *arguments, columns=200)


def test_the_list_names_every_kind_and_what_to_expect() -> None:
    output = inject("--list").output
    for name, kind in CATALOGUE.items():
        assert name in output and kind.what in output


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ((), 2, "holdfast inject --list"),
        (("kill", "--random"), 2, "or --random"),
        (("kill",), 2, "--rank is missing"),
        (("kil", "--rank", "0"), 78, "no fault is called 'kil'"),
        (("slow", "--rank", "0", "--factor", "0.5"), 78, "factor above 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    result = inject(*arguments, "--directory", str(tmp_path))  # it refuses before it looks for a run
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert reason in result.stderr


class Daemon(ControlClient):
    """A daemon whose run completes a step with each status, stops for a while at step 20 and ends at step 100."""

    def __init__(self) -> None:
        super().__init__(Path("none.sock"), "run")
        self._step = itertools.count()
        self.newest = -1
        self.refused = ""
        """Kind of fault that ranks refuse."""
        self.requested: list[tuple[int, Fault]] = []

    def status(self, page: object = None) -> RunStatus:
        self.newest = next(self._step)
        phase = RUN_PHASE_STOPPING if 20 <= self.newest < 40 else RUN_PHASE_RUNNING
        phase = RUN_PHASE_FINISHED if self.newest >= 100 else phase
        return RunStatus(newest_step=self.newest, phase=phase, ranks=[RankView(rank=rank) for rank in range(4)])

    def inject_fault(self, fault: Fault) -> str:
        if 20 <= self.newest + 1 < 40:
            raise ControlError("it stops just now", unreachable=False)
        if fault.kind == self.refused:
            raise ControlError("nobody could see it", unreachable=False)
        self.requested.append((self.newest, fault))
        return "the phase eval" if fault.phase else ""


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    monkeypatch.setattr("holdfast_cli.fault_injection._LOOK_S", 0.0)
    return Daemon()


@pytest.mark.parametrize(
    ("arguments", "then"), [((), "`holdfast incidents` shows"), (("--phase", "eval"), "it waits for the phase eval")]
)
def test_the_answer_says_what_a_fault_waits_for(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], then: str
) -> None:
    monkeypatch.setattr(Target, "connect", lambda self: daemon)
    result = inject("kill", "--rank", "1", "--control", "none.sock", *arguments)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"rank 1 has accepted kill: {then}")


def test_random_faults_are_requested_when_the_run_is_at_their_steps_and_trains(daemon: Daemon) -> None:
    lines: list[str] = []
    injection = RandomInjection(rate_per_step=0.2, kinds=("kill", "stop"), ranks=(1, 2), seed=4, steps=1000)
    injection.carry_out(daemon, lines.append)
    assert len(lines) == len(daemon.requested) > 5
    for line, (newest, fault) in zip(lines, daemon.requested, strict=True):
        assert newest + 1 >= int(line.rsplit(maxsplit=1)[1]) and not 20 <= newest < 40
        assert fault.step == -1 and fault.rank in (1, 2)


def test_a_refused_fault_is_a_line_and_the_random_plan_continues(daemon: Daemon) -> None:
    lines: list[str] = []
    daemon.refused = "bit-flip"
    injection = RandomInjection(rate_per_step=1.0, kinds=("kill", "bit-flip"), ranks=(1,), seed=2, steps=12)
    injection.carry_out(daemon, lines.append)
    refused = [line for line in lines if line.endswith("nobody could see it")]
    assert refused
    assert len(refused) + len(daemon.requested) == len(lines) == 12
    only = RandomInjection(rate_per_step=1.0, kinds=("bit-flip",), ranks=(1,), seed=2, steps=12)
    with pytest.raises(ControlError, match="nobody could see it"):
        only.carry_out(daemon, lines.append)


def test_random_faults_are_over_after_the_last_of_their_steps(daemon: Daemon) -> None:
    injection = RandomInjection(rate_per_step=1.0, kinds=("kill",), ranks=(), seed=0, steps=5)
    injection.carry_out(daemon, lambda line: None)
    assert len(daemon.requested) == 5


def test_a_rate_that_makes_no_sense_is_a_setting_to_correct(daemon: Daemon) -> None:
    with pytest.raises(SettingsError, match="rate_per_step"):
        RandomInjection(rate_per_step=2.0, kinds=("kill",), ranks=(), seed=0, steps=5).carry_out(daemon, print)
