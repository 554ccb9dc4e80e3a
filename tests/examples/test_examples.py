"""Every example runs: here alone for a few steps, and in the system tier as its head says."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from examples import checked_updates, ddp, fsdp2, no_line, own_state, replayed_steps, same_batch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this process the only rank of a world, with the variables that a launcher sets."""
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "main",
    [checked_updates.main, ddp.main, fsdp2.main, no_line.main, own_state.main, replayed_steps.main, same_batch.main],
)
@pytest.mark.usefixtures("alone")
def test_without_holdfast_it_trains_as_it_is(main: Callable[[int], None]) -> None:
    main(2)
    assert not torch.distributed.is_initialized()


def test_samples_continue_where_their_state_says() -> None:
    samples = own_state.Samples()
    for _ in range(40):  # enough for the second epoch
        next(samples)
    state = samples.state_dict()
    expected = [next(samples).tolist() for _ in range(3)]
    restarted = own_state.Samples()
    restarted.load_state_dict(state)
    assert [next(restarted).tolist() for _ in range(3)] == expected


def test_samples_that_are_left_out_are_those_of_the_next_steps() -> None:
    left_out, by_hand = own_state.Samples(), own_state.Samples()
    for _ in range(40):
        next(by_hand)
    left_out.skip(40)
    assert next(left_out).tolist() == next(by_hand).tolist()


def test_samples_come_once_in_an_epoch_and_their_fingerprints_differ() -> None:
    samples = own_state.Samples()
    seen: list[int] = []
    prints = set()
    batches = own_state.SAMPLES // own_state.BATCH
    for _ in range(batches):
        seen += next(samples).tolist()
        prints.add(samples.fingerprint())
    assert len(set(seen)) == len(seen)
    assert len(prints) == batches
    next(samples)
    assert samples.epoch == 1
    assert samples.fingerprint() not in prints


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_its_head_says_how_to_start_it_and_the_list_names_it(script: Path) -> None:
    head = ast.get_docstring(ast.parse(script.read_text())) or ""
    assert f"examples/{script.name} " in head
    assert f"({script.name})" in (EXAMPLES / "README.md").read_text()


def holdfast(*arguments: str) -> str:
    """Run the command from the root of the repository, as the heads of the examples say; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast_cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.system
def test_a_sharded_run_ends_with_a_checkpoint_that_verifies(tmp_path: Path) -> None:
    run = ("--run", "fsdp2", "--directory", str(tmp_path))
    holdfast("run", *run, "--ranks", "2", "--", sys.executable, "examples/fsdp2.py", "6")
    verified = json.loads(holdfast("checkpoint", "verify", "--all", "--json", *run))
    assert [(checkpoint["step"], checkpoint["damages"]) for checkpoint in verified] == [(5, [])]


def validation_lines(run: Path) -> list[str]:
    """Return the lines that the script printed about its validation, in all generations of a run."""
    logs = sorted(run.rglob("rank-*.log"))
    return [line for log in logs for line in log.read_text().splitlines() if "validation" in line]


@pytest.mark.system
def test_both_ranks_leave_out_the_bad_batches_of_one_although_the_usual_norm_is_from_before_a_restart(
    tmp_path: Path,
) -> None:
    for steps in ("39", "70"):
        command = (sys.executable, "examples/checked_updates.py", steps)
        holdfast("run", "--run", "checked", "--directory", str(tmp_path), "--ranks", "2", "--", *command)
    logs = [log.read_text().splitlines() for log in sorted((tmp_path / "checked").rglob("rank-*.log"))]
    assert [[line for line in log if line.startswith("gradient")] for log in logs if "gradient" in str(log)] == [
        [
            "gradient at step 40: the learning rate is now 0.0005",
            "gradient at step 60: the learning rate is now 0.00025",
        ]
    ] * 2


@pytest.mark.system
@pytest.mark.gate
def test_a_replay_finds_a_wrong_result_and_training_ends_with_the_bits_of_a_run_without_it(
    tmp_path: Path,
) -> None:
    def bits(run: str, script: str) -> list[str]:
        holdfast("run", "--run", run, "--directory", str(tmp_path), "--ranks", "3", "--", sys.executable, script, "200")
        logs = (tmp_path / run / "logs").rglob("rank-*.log")
        return sorted(line for log in logs for line in log.read_text().splitlines() if line.startswith("bits"))

    healthy = tmp_path / "healthy.py"
    script = (ROOT / "examples/replayed_steps.py").read_text()
    healthy.write_text(script.replace("every=50", "every=0").replace("WRONG_STEP = 1, 150", "WRONG_STEP = 1, -1"))
    with_fault = bits("faulty", "examples/replayed_steps.py")
    assert len(with_fault) == 3
    [incident] = json.loads(holdfast("incidents", "--run", "faulty", "--directory", str(tmp_path), "--json"))
    verdict = incident["verdict"]
    assert (verdict["kind"], verdict["culprits"], verdict["step"]) == ("silent_corruption", [1], 150)
    assert bits("healthy", str(healthy)) == with_fault


@pytest.mark.system
def test_a_second_start_continues_at_the_next_step_and_sample(tmp_path: Path) -> None:
    def train(run: str, steps: int) -> None:
        command = (sys.executable, "examples/own_state.py", str(steps))
        holdfast("run", "--run", run, "--directory", str(tmp_path), "--", *command)

    train("continued", 50)
    train("continued", 100)
    train("whole", 100)
    continued, whole = validation_lines(tmp_path / "continued"), validation_lines(tmp_path / "whole")
    assert len(whole) == 2
    assert continued == whole


@pytest.mark.system
def test_a_batch_that_fewer_ranks_share_after_a_restart_gives_the_losses_of_an_undisturbed_run(tmp_path: Path) -> None:
    def loss_after(run: str, ranks: int, steps: int) -> float:
        where = ("--run", run, "--directory", str(tmp_path), "--ranks", str(ranks), "--json")
        status = json.loads(holdfast("run", *where, "--", sys.executable, "examples/same_batch.py", str(steps)))
        return float(status["loss"])

    loss_after("shrunk", 3, 20)
    assert loss_after("shrunk", 2, 40) == pytest.approx(loss_after("whole", 3, 40), rel=1e-4)


@pytest.mark.system
def test_checkpoints_go_to_an_object_store_and_verify_there() -> None:
    done = subprocess.run(
        [sys.executable, "examples/object_store.py", "60"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
