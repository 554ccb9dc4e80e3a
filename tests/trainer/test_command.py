import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_proto.rank_context import RankContext

pytestmark = pytest.mark.system

DEMO = Path(__file__).parents[2] / "trainer" / "holdfast_trainer" / "configs" / "demo.toml"
SHORT = ["--train.steps=4", "--train.log_every=2", "--train.validate_every=4", "--train.validation_batches=1"]
FP8 = "--precision.fp8=true --precision.compute=bf16"
LINES = [
    r"contamination: \d+\.\d% of [\d,]+ validation 65-grams occur in the training text",
    r"step 1  loss \d\.\d{4}  grad norm \d+\.\d{3}  [\d,]+ tokens/s",
    r"step 3  loss \d\.\d{4}  grad norm \d+\.\d{3}  [\d,]+ tokens/s",
    r"step 3  validation loss \d\.\d{4}",
]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    inherited["OMP_NUM_THREADS"] = "1"
    inherited |= environment
    return subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=200, check=False)


def expect_lines(output: str) -> None:
    lines = output.splitlines()
    assert len(lines) == len(LINES), output
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(LINES, lines, strict=True)), output


def test_command_alone_trains_in_one_process(tmp_path: Path) -> None:
    cache = f"--data.cache_directory={tmp_path}"
    alone = ["--parallel.dp=1", "--parallel.tp=1", "--parallel.pp=1"]
    done = run(sys.executable, "-m", "holdfast_trainer", f"--config={DEMO}", *alone, cache, *SHORT)
    assert (done.returncode, done.stderr) == (0, "")
    expect_lines(done.stdout)


def test_torchrun_starts_a_world_of_which_one_rank_prints(tmp_path: Path) -> None:
    cache = f"--data.cache_directory={tmp_path}"
    layout = ["--parallel.pp=2", "--parallel.microbatches=2"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(*launcher, "-m", "holdfast_trainer", *layout, cache, *SHORT)
    assert done.returncode == 0, done.stderr
    expect_lines(done.stdout)


def test_command_trains_with_the_replicas_that_are_left_while_nodes_are_missing(tmp_path: Path) -> None:
    context = RankContext(
        run="run",
        generation=2,
        agent=f"unix:{tmp_path}/no-agent",
        black_box=f"{tmp_path}/box",
        observed=True,
        full_world_size=2,
    )
    layout = ["--parallel.dp=2", f"--data.cache_directory={tmp_path}"]
    done = run(sys.executable, "-m", "holdfast_trainer", *layout, *SHORT, **context.to_environment())
    assert done.returncode == 0, done.stderr
    expect_lines(done.stdout)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--model.dims=3", "error parsing CLI: unrecognized arguments: --model.dims=3"),
        ("--data.source=no.txt", "data.source no.txt: no such file or folder: give `stdlib` or a path"),
        (FP8, "precision.fp8 needs a GPU, but this rank runs on cpu: unset precision.fp8"),
    ],
    ids=["flag", "source", "fp8"],
)
def test_wrong_configuration_ends_with_code_78_and_a_line(flags: str, line: str) -> None:
    done = run(sys.executable, "-m", "holdfast_trainer", *flags.split(), CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout, done.stderr) == (78, "", f"holdfast_trainer: {line}\n")
