"""Which commands are refused before a rank exists, and which are left alone because it is not certain."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from holdfast_agent.processes.rank_command import launcher_problem, start_problem, torch_problem


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with one file of each kind."""
    (tmp_path / "train.py").write_text("import no_such_module\n")
    (tmp_path / "broken.py").write_text("x = 1\ny = (\n")
    (tmp_path / "start.sh").write_text("#!/bin/sh\n")
    (tmp_path / "runs.sh").write_text("#!/bin/sh\n")
    (tmp_path / "runs.sh").chmod(0o755)
    (tmp_path / "empty").mkdir()
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__main__.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("nosuchprogram", "nosuchprogram cannot be started: no such program on the PATH: correct its name, or give"),
        ("-m train", "-m cannot be started: it is an option: begin with a program, such as `python -m`"),
        ("start.sh", "start.sh cannot be started: it is not on the PATH: use `./start.sh`"),
        ("train.py", "train.py cannot be started: it is not on the PATH: use `python train.py`"),
        ("empty", "empty cannot be started: it is a directory: give the program in it"),
        ("./empty", "./empty cannot be started: it is a directory: give the program in it"),
        ("./none", "./none cannot be started: no such file in PLACE: correct the path"),
        ("./start.sh", "./start.sh cannot be started: it is not executable: use `chmod +x ./start.sh`"),
        ("./train.py", "./train.py cannot be started: it is not executable: start it with `python ./train.py`"),
        ("python missing.py", "missing.py cannot be started: no such file in PLACE: correct the path"),
        ("python -u -W ignore missing.py 3", "missing.py cannot be started: no such file in PLACE: correct the path"),
        ("python empty", "empty cannot be started: it is a directory without __main__.py: give the script in it"),
        (
            "python broken.py",
            "broken.py cannot be started: it is not Python in line 2: '(' was never closed: correct it",
        ),
        ("python -m nosuch.train", "-m nosuch.train cannot be started: there is no module nosuch: correct it or"),
        ("python -m", "-m cannot be started: no module name follows it: add one"),
    ],
)
def test_what_certainly_fails_is_refused_in_one_line(place: Path, command: str, line: str) -> None:
    problem = start_problem(command.split(), place)
    assert problem.startswith(line.replace("PLACE", str(place)))
    assert "\n" not in problem


LONG = "python train.py --lr 0.1" + 30 * " --option value"
ONE_WORD = "it is one word, and there is no such program: leave out the quotes around the command, or correct the path"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("python train.py",), f"python train.py cannot be started: {ONE_WORD}"),
        (("./run.sh\n--lr 1",), f"./run.sh --lr 1 cannot be started: {ONE_WORD}"),
        ((LONG,), f"{LONG[:57]}... cannot be started: {ONE_WORD}"),
        ((f"./{LONG}",), f"./{LONG[:55]}... cannot be started: {ONE_WORD}"),
        (("./" + 300 * "x",), f"./{55 * 'x'}... cannot be started: File name too long: correct the path"),
        (("python", 300 * "x"), f"{57 * 'x'}... cannot be started: File name too long: correct the path"),
    ],
)
def test_a_quoted_command_and_a_name_that_is_too_long_get_one_line(
    place: Path, command: tuple[str, ...], line: str
) -> None:
    assert start_problem(command, place) == line


def test_a_folder_that_may_not_be_searched_gets_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert start_problem(("./no/run",), place) == "./no/run cannot be started: Permission denied: correct the path"


def test_a_pipe_is_left_alone_and_not_waited_for_and_a_program_may_have_a_space_in_its_name(place: Path) -> None:
    os.mkfifo(place / "pipe.py")
    assert start_problem(("python", "pipe.py"), place) == ""
    (place / "python train.py").touch(mode=0o755)
    assert start_problem(["./python train.py"], place) == ""


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "./runs.sh",
        "python",
        "python train.py",  # it fails in the rank: only Python can tell
        "python -c pass",
        "python -um nosuch",
        "python - missing.py",
        "python program",
        "python -m package.no_such_part",
        "python -m package",
        "bash missing.sh",
        f"{sys.executable} -u train.py",
    ],
)
def test_what_may_work_is_left_alone(place: Path, command: str) -> None:
    assert start_problem(command.split(), place) == ""
    assert "package" not in sys.modules


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("torchrun --nproc-per-node 4 train.py 9", "torchrun"),
        ("/opt/bin/torchrun train.py 9", "torchrun"),
        ("python -m torch.distributed.run train.py 9", "python -m torch.distributed.run"),
        ("python3.12 -u -m torch.distributed.launch train.py 9", "python3.12 -m torch.distributed.launch"),
        ("python /opt/bin/torchrun train.py 9", "torchrun"),
        ("accelerate launch train.py 9", "accelerate launch"),
        ("deepspeed train.py 9", "deepspeed"),
        ("mpirun -n 4 python train.py 9", "mpirun"),
        ("srun --ntasks 4 python train.py 9", "srun"),
        ("env NCCL_DEBUG=INFO torchrun train.py 9", "torchrun"),
        ("numactl --cpunodebind 0 torchrun train.py 9", "torchrun"),
        ("uv run python -m torch.distributed.run train.py 9", "python -m torch.distributed.run"),
    ],
)
def test_a_launcher_is_named_with_both_ways_to_use_it(command: str, launcher: str) -> None:
    assert launcher_problem(command.split()) == (
        f"{launcher} starts ranks, and Holdfast would start them itself: use `holdfast observe -- {command}`, "
        "which only watches, or `holdfast run --ranks N -- python train.py 9`"
    )


def test_the_line_about_a_launcher_holds_no_secret() -> None:
    problem = launcher_problem(["torchrun", "train.py", "--api-key", "s3cret"])
    assert problem.endswith("-- python train.py --api-key '[hidden]'`") and "s3cret" not in problem


@pytest.mark.parametrize(
    ("inner", "rank"),
    [
        ("torchrun train.py 9", "python train.py 9"),
        ("torchrun --nproc-per-node 4 train.py $LR", "python SCRIPT"),
        ("torchrun train.py && echo done", "python SCRIPT"),
        ("torchrun -m trainer", "python SCRIPT"),
    ],
)
@pytest.mark.parametrize("outer", [("bash", "-c"), ("nice", "/bin/sh", "-c")])
def test_the_script_in_the_command_of_a_shell_is_found(outer: tuple[str, ...], inner: str, rank: str) -> None:
    problem = launcher_problem((*outer, inner))
    assert problem.startswith("torchrun starts ranks")
    assert problem.endswith(f"or `holdfast run --ranks N -- {rank}`")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py torchrun",
        "accelerate test",
        "env",
        "env A=1 python train.py",
        "python -m trainer.run",
        "uv run train.py --launcher torchrun",
        "nice ./run.sh srun",
        "nice bash start srun",
    ],
)
def test_other_commands_are_no_launchers(command: str) -> None:
    assert launcher_problem(command.split()) == ""


def test_a_python_without_torch_starts_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_problem() == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch_problem() == (
        f"ranks need torch, and {sys.executable} has none: install torch there, or the extra trainer of holdfast-torch"
    )
