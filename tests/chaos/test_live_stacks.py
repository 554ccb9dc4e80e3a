"""``holdfast stacks`` on real runs: ranks that train, a rank that hangs, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_cli.settings.schema import ModeName
from tests.chaos.conftest import RANKS, Runs, until, until_step
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system


def holdfast(runs: Runs, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "holdfast_cli", *arguments, "--directory", str(runs.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_stacks_show_all_ranks_and_name_the_one_that_hangs(runs: Runs, tmp_path: Path) -> None:
    name = "stacks"
    # More steps than any machine makes while this asks: each command imports for a second or more.
    with runs.run(name, steps=10_000, faults_allowed=True, mode=ModeName.OBSERVE) as local:
        until_step(local, 3)

        def seen_in_the_loop() -> bool:
            answer = holdfast(runs, "stacks", "--json", "--output", str(tmp_path / "saved"), "--run", name)
            assert (answer.returncode, answer.stderr) == (0, "")
            found = json.loads(answer.stdout)
            assert [one["rank"] for one in found] == list(range(RANKS))
            names = [{thread["name"] for thread in one["threads"]} for one in found]
            mains = [[thread for thread in one["threads"] if thread["is_main"]] for one in found]
            return all("holdfast-reporter" in each for each in names) and all(
                any(frame["file"].endswith("train.py") for main in each for frame in main["frames"]) for each in mains
            )

        wait_for(seen_in_the_loop, "the stacks of all ranks")  # a rank that runs may give a part of its stack only
        saved = sorted(path.name for path in (tmp_path / "saved").iterdir())
        assert saved == [f"rank-{rank:05}.stack.txt" for rank in range(RANKS)]
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "saved").iterdir()} == {0o600}

        one = holdfast(runs, "stacks", "--rank", "2", "--native", "--run", name)
        assert one.returncode == 0, one.stderr
        assert "rank 2, main thread" in one.stdout
        assert ".so" in one.stdout  # compiled code
        assert "rank 1" not in one.stdout

        unknown = holdfast(runs, "stacks", "--rank", "9", "--run", name)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert unknown.stderr.count("\n") == 1
        assert "rank 9: no such rank is alive: name one of 0, 1, 2, 3" in unknown.stderr

        accepted = holdfast(runs, "inject", "deadlock", "--rank", "1", "--duration", "40", "--run", name)
        assert accepted.returncode == 0, accepted.stderr
        until(local, lambda status: any(rank.stalled_s > 5.0 for rank in status.ranks))
        hung = holdfast(runs, "stacks", "--run", name)
        assert hung.returncode == 0, hung.stderr
        headings = [line for line in hung.stdout.splitlines() if ", main thread" in line]
        waiting = [line for line in headings if line.endswith("waits for a lock")]
        # The other ranks may wait for it in several calls.
        assert [line.partition(",")[0] for line in waiting] == ["rank 1"]
        assert len(headings) >= 2
        assert "deadlock (stuck.py" in hung.stdout
        reached = local.control.status().newest_step
        until(local, lambda status: status.newest_step > reached + 1)
    ended = holdfast(runs, "stacks", "--run", name)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "has ended" in ended.stderr
