from pathlib import Path

import pytest

from holdfast_agent.movement.process_table import read_table
from holdfast_agent.preflight.company import busy_note, company, cpu_ticks, family

AGENT = 100


class Machine:
    """Processes, as /proc shows them. The agent is a child of a shell, and has one child."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.add(1, parent=0)
        self.add(90, parent=1)
        self.add(AGENT, parent=90)
        self.add(101, parent=AGENT)

    def add(
        self, pid: int, *, parent: int = 1, command: str = "sleep 9", environment: str = "", state: str = "S"
    ) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        fields = [state, parent, pid, pid, *[0] * 15, 7, *[0] * 30]
        (folder / "stat").write_text(f"{pid} (some name) {' '.join(map(str, fields))}")
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        (folder / "environ").write_text(environment.replace(" ", "\0"))

    def company(self, gpu_pids: dict[int, tuple[int, ...]] | None = None) -> str:
        return company(self.proc, AGENT, gpu_pids or {})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


def test_a_rank_of_another_job_is_company(machine: Machine) -> None:
    machine.add(200, environment="PATH=/bin RANK=0")
    assert machine.company() == ""
    machine.add(201, environment="PATH=/bin RANK=0 WORLD_SIZE=8")
    assert machine.company() == "process 201 (some name) is a rank of another job"


@pytest.mark.parametrize(
    "command", ["/opt/bin/torchrun train.py", "python3 /opt/bin/torchrun", "python -m torch.distributed.run x"]
)
def test_a_launcher_is_company(machine: Machine, command: str) -> None:
    machine.add(200, command=command)
    assert machine.company() == "process 200 (some name) is a launcher of ranks"


def test_a_search_for_a_launcher_is_none(machine: Machine) -> None:
    machine.add(200, command="grep torchrun")
    assert machine.company() == ""


def test_a_rank_of_another_run_and_another_check_are_company(machine: Machine) -> None:
    machine.add(201, command="python -P -m holdfast_agent.preflight.measuring")
    assert machine.company() == "process 201 (some name) checks this machine too"
    machine.add(200)
    (machine.proc / "200/cmdline").write_text("holdfast: rank 3 of big: python train.py\0")
    assert machine.company() == "process 200 (some name) is a rank of another run"


def test_ancestors_and_descendants_of_the_agent_and_zombies_are_none(machine: Machine) -> None:
    for pid in (90, 101):
        (machine.proc / f"{pid}/environ").write_text("RANK=0\0WORLD_SIZE=2")
    machine.add(102, parent=101, command="torchrun")
    machine.add(300, command="torchrun", state="Z")
    assert machine.company({0: (101,)}) == ""
    assert family(read_table(str(machine.proc)), AGENT) == {1, 90, AGENT, 101, 102}


def test_a_foreign_process_on_a_gpu_is_company(machine: Machine) -> None:
    assert machine.company({0: (), 3: (101, 4711)}) == "process 4711 computes on GPU 3"


def test_a_process_that_vanishes_is_none(machine: Machine) -> None:
    machine.add(200)
    for name in ("cmdline", "environ"):
        (machine.proc / "200" / name).unlink()
    assert machine.company() == ""


def test_work_on_more_than_half_of_our_cores_is_named() -> None:
    before = cpu_ticks("cpu  9 9\ncpu0 10 0 10 100 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 1\n")
    after = cpu_ticks("cpu  9 9\ncpu0 40 0 10 100 0 0 0 0 0 0\ncpu1 0 0 10 10 10 0 0 0 0 0\nintr 1\n")
    assert busy_note(before, after, [0, 1]) == "other work keeps 1.3 of 2 cores busy"
    assert busy_note(before, after, [1]) == ""
    assert busy_note(before, before, [0, 1]) == ""
